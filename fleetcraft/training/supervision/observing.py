"""One epoch as it is watched: keepers, logs, reports, processes, and what they mean together.

Looks and judges; acts on nothing. Invariant: a look that is not whole says so, and leaves what was
seen before as it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fleetcraft.files import FileSystem
from fleetcraft.identity import this_host
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.training.diagnosing.classify import diagnose
from fleetcraft.training.diagnosing.episode import Episode, Episodes
from fleetcraft.training.diagnosing.hits import Hit
from fleetcraft.training.diagnosing.scan import LogScan
from fleetcraft.training.launching.looking import Launch
from fleetcraft.training.launching.sights import LaunchSight, Whole
from fleetcraft.training.launching.start import KEEPER_LOG
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.plan.verification import Pending, Verification, Verified
from fleetcraft.training.progress.reading import ProgressReader
from fleetcraft.training.records import Diagnosis, LogFence, RankProgress, RankState, Standing
from fleetcraft.training.supervision.deciding import Checkpoints
from fleetcraft.training.supervision.departures import Departures
from fleetcraft.training.supervision.machine import Run
from fleetcraft.training.supervision.slurm_word import NO_STEP, SlurmWord
from fleetcraft.training.watching.census import take_census
from fleetcraft.training.watching.expectation import alarm_after_s
from fleetcraft.training.watching.watch import Sight, Watch

_RUN_OF = {
    Whole.STARTING: Run.RUNNING,
    Whole.RUNNING: Run.RUNNING,
    Whole.ENDED: Run.ENDED,
    Whole.LOST: Run.LOST,
    Whole.UNKNOWN: Run.UNKNOWN,
}
_OVER = frozenset({Whole.ENDED, Whole.LOST})
_RATES = ("tokens_per_s", "steps_per_s", "tokens_slope")
_SETTLE_S = 10.0
_CALM = frozenset({Standing.WARMING, Standing.PROGRESSING, Standing.IN_PHASE})
_CENSUS_EVERY_LOOKS = 5
"""A census of 64 ranks costs a third of a look."""
_STALLS = frozenset({Standing.STALLED, Standing.STALLED_IO})


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What one look at an epoch found.

    Attributes:
        now_s: The observer's clock.
        launch: What its keepers say.
        sight: What the progress watch says.
        dead: Ranks that died, and were gone at the look before too.
        left: Ranks that are gone because they have done their part, or whose launcher is ending.
        standing: That standing, or the one that a dead rank hides once the run went on without it.
        episode: The crash that nothing completed since,
        episode_words: and in a few words; empty for none.
        closed: Crash episodes that progress has closed so far.
        verified: What was verified, or what is missing.
        in_phase: A rank is in a declared phase, within its budget.
        settle_s: How long a dead rank is given to end the run by itself.
        trouble: What could not be read.
    """

    now_s: float
    launch: LaunchSight
    sight: Sight
    dead: tuple[int, ...]
    left: frozenset[int]
    standing: Standing
    episode: Episode | None
    episode_words: str
    closed: int
    verified: Verified | Pending
    in_phase: bool
    settle_s: float
    trouble: str = ""

    @property
    def run(self) -> Run:
        """What the keepers say, as the machine takes it."""
        return _RUN_OF[self.launch.whole]


class Observer:
    """Watches one epoch.

    Args:
        plan: The run.
        paths: The attempt whose launch it is.
        launch: That launch.
        fences: Where its logs stood when it was adopted; lines before never count.
        logs: Logs beside those of its nodes.
        fs: The seam.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        plan: RunPlan,
        paths: AttemptPaths,
        launch: Launch,
        *,
        fences: Sequence[LogFence] = (),
        logs: Sequence[str] = (),
        fs: FileSystem | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._paths = paths
        self.launch = launch
        self._fences = {fence.path: fence for fence in fences}
        self._logs = (paths.log(KEEPER_LOG), *logs)
        self._fs = fs or FileSystem()
        self._clock = clock
        self._scans: dict[str, LogScan] = {}
        self._episodes = Episodes()
        self._reader = ProgressReader(
            paths.progress, fs=self._fs, clock=clock, log_steps=self._log_step
        )
        began_s = clock()
        self.began_s = began_s
        self._watch = Watch(plan, began_s=began_s)
        self._verification = Verification(plan, began_s=began_s)
        self._closer: frozenset[int] = frozenset()
        self._departures = Departures(plan)
        self._here = this_host()
        self._census_of: dict[int, RankState] = {}
        self._looks_since_census = 0
        self._rates: dict[str, float | None] = {}
        self.excused: frozenset[int] = frozenset()
        self.last: Picture | None = None

    def look(self, checkpoints: Checkpoints | None = None) -> Picture:
        """Looks at everything once.

        Args:
            checkpoints: The newest, for a run whose verification asks for one.
        """
        now_s = self._clock()
        launch = self.launch.look()
        hits = self._scan(final=launch.whole in _OVER)
        ranks = self._reader.look()
        states = self._census(ranks, launch, now_s)
        left = self._departures.look(ranks, states, launch.ends, now_s)
        sight = self._sight(ranks, states, left, now_s, over=launch.whole in _OVER)
        self._closer = frozenset(sight.look_closer)
        self._episodes.feed(hits, _reported(ranks), tuple(self._scans.values()))
        in_phase = self._in_phase(ranks, states, now_s)
        picture = Picture(
            now_s=now_s,
            launch=launch,
            sight=sight,
            dead=self._gone_for_two_looks(sight),
            left=left,
            standing=self._standing(sight),
            episode=self._episodes.open,
            episode_words=self._in_folder(_episode_words(self._episodes.open)),
            closed=self._episodes.closed,
            verified=self._verify(now_s, sight, states, checkpoints, in_phase=in_phase),
            in_phase=in_phase,
            settle_s=self._settle_s(sight),
            trouble=self._trouble(launch),
        )
        self.last = picture
        return picture

    def diagnose(self, *, quiet: bool, slurm: SlurmWord = NO_STEP) -> Diagnosis:
        """How the run died, or why it stands, from all that the last look has seen.

        Args:
            quiet: The watch has raised that nothing completes.
            slurm: What Slurm says of the step that it was.
        """
        picture = self.last or self.look()
        sight = picture.sight
        dead = [rank for rank in sight.dead if rank >= 0]
        return diagnose(
            episodes=self._episodes,
            hits=self._of_the_dead(dead, sight.step),
            ends=picture.launch.ends,
            slurm_state=slurm.cause,
            slurm_exit=slurm.exit_code,
            error_files=error_files(self._paths, self._fs),
            dead_ranks=dead,
            quiet_s=sight.quiet_s if quiet else None,
            step=sight.step,
        )

    def _of_the_dead(self, dead: Sequence[int], step: int | None) -> Sequence[Hit]:
        """The last words of a rank that died, where the others' last steps have closed them.

        Ranks reach their common last step one after the other: what the first said as it died is
        then followed by progress not its own; by one step, where the line names no rank.
        """
        closed = self._episodes.last_closed
        if self._episodes.open is not None or closed is None or not dead:
            return ()
        late = closed.step is not None and step is not None and step - closed.step <= 1
        theirs = late if closed.deciding.rank is None else closed.deciding.rank in dead
        return closed.hits if theirs else ()

    def throughput(self) -> object:
        """What was measured since the warm-up; None for nothing."""
        return self._verification.throughput()

    def close(self) -> None:
        """Closes its logs."""
        for scan in self._scans.values():
            scan.close()

    # -- parts of a look

    def _census(
        self, ranks: Mapping[int, RankProgress], launch: LaunchSight, now_s: float
    ) -> Sequence[RankState]:
        """The ranks' processes: at every look in trouble, at every few while all advances."""
        calm = (
            self.last is not None
            and launch.whole is Whole.RUNNING
            and self.last.sight.standing in _CALM
            and self.last.episode is None
            and not self._closer
            and self._census_of.keys() == ranks.keys()
            and all(self._census_of[one].process == told.process for one, told in ranks.items())
        )
        self._looks_since_census += 1
        if calm and self._looks_since_census < _CENSUS_EVERY_LOOKS:
            return [_brought_up(self._census_of[one], ranks[one], now_s) for one in ranks]
        self._looks_since_census = 0
        states = take_census(
            ranks, here=self._here, ended=launch.ends, now_s=now_s, closer=self._closer
        )
        self._census_of = {state.rank: state for state in states}
        return states

    def _sight(
        self,
        ranks: Mapping[int, RankProgress],
        states: Sequence[RankState],
        left: frozenset[int],
        now_s: float,
        *,
        over: bool,
    ) -> Sight:
        """What the watch says; rates are those of the last step once no step can follow."""
        empty = bool(ranks) and left >= ranks.keys()
        sight = self._watch.observe(
            ranks,
            states,
            now_s,
            trouble=self._reader.trouble,
            excused=frozenset() if empty else left,
        )
        if empty:
            why = "every rank has left, and the launcher is waited for"
            sight = msgspec.structs.replace(sight, standing=Standing.PROGRESSING, why=why, dead=())
        before = self.last.sight.step if self.last else None
        if sight.step != before or not self._rates:
            self._rates = {name: getattr(sight, name) for name in _RATES}
        final = over or empty or _has_reached(self._plan, sight.step)
        return msgspec.structs.replace(sight, **self._rates) if final else sight

    def _scan(self, *, final: bool) -> list[Hit]:
        hits: list[Hit] = []
        for path in dict.fromkeys((*self._logs, *self.launch.log_paths())):
            if path not in self._scans:
                if not self._may_be_there(path):
                    continue  # a command that could not be started has none
                fence = self._fences.get(path)
                self._scans[path] = LogScan(path, fence=fence, fs=self._fs)
            hits += self._scans[path].look(final=final)
        return hits

    def _may_be_there(self, path: str) -> bool:
        try:
            return self._fs.exists(path)
        except OSError:
            return True

    def _log_step(self) -> int | None:
        steps = [scan.step for scan in self._scans.values() if scan.step is not None]
        return max(steps, default=None)

    def _verify(
        self,
        now_s: float,
        sight: Sight,
        states: Sequence[RankState],
        checkpoints: Checkpoints | None,
        *,
        in_phase: bool,
    ) -> Verified | Pending:
        return self._verification.observe(
            now_s,
            step=sight.step,
            tokens_per_s=sight.tokens_per_s,
            saved_step=checkpoints.step if checkpoints else None,
            memory_bytes={state.rank: state.device_memory_bytes for state in states},
            in_phase=in_phase,
        )

    def _in_phase(
        self, ranks: Mapping[int, RankProgress], states: Sequence[RankState], now_s: float
    ) -> bool:
        gone = {state.rank for state in states if state.alive is False}
        for number, rank in ranks.items():
            budget_s = self._plan.phases.get(rank.phase) if rank.phase else None
            if budget_s is None or number in gone:
                continue
            since_s = now_s if rank.phase_since_s is None else rank.phase_since_s
            if now_s - since_s <= budget_s:
                return True
        return False

    def _gone_for_two_looks(self, sight: Sight) -> tuple[int, ...]:
        before = self.last.sight.dead if self.last else ()
        return tuple(rank for rank in sight.dead if rank in before)

    def _standing(self, sight: Sight) -> Standing:
        """What a dead rank hides once it is excused: the run advances without it, or stands."""
        if sight.standing is not Standing.DEAD_RANK or set(sight.dead) - self.excused:
            return sight.standing
        limit_s = alarm_after_s(self._plan.progress, sight.expected)
        quiet = sight.quiet_s is not None and sight.quiet_s >= limit_s
        return Standing.STALLED if quiet else Standing.PROGRESSING

    def _settle_s(self, sight: Sight) -> float:
        alarm_s = alarm_after_s(self._plan.progress, sight.expected)
        step_s = 1.5 * sight.expected.step_s if sight.expected else 0.0
        return min(max(_SETTLE_S, step_s), alarm_s)

    def _trouble(self, launch: LaunchSight) -> str:
        parts = [launch.why if launch.whole is Whole.UNKNOWN else "", self._reader.trouble]
        parts += [scan.trouble for scan in self._scans.values()]
        return self._in_folder("; ".join(part for part in parts if part))

    def _in_folder(self, text: str) -> str:
        """The text with paths as they are in the run's folder: people read it on a terminal."""
        return text.replace(f"{os.path.dirname(self._paths.folder)}/", "")


def _brought_up(state: RankState, rank: RankProgress, now_s: float) -> RankState:
    """A state of an earlier census, with what its rank has reported since."""
    return msgspec.structs.replace(
        state,
        step=rank.step,
        idle_s=None if rank.changed_s is None else max(0.0, now_s - rank.changed_s),
        device_memory_bytes=rank.device_memory_bytes,
        last_line=rank.last_line,
    )


def _has_reached(plan: RunPlan, step: int | None) -> bool:
    """Whether the run has completed the last step that it declares."""
    end = plan.end.step if plan.end else None
    return end is not None and step is not None and step >= end


def _reported(ranks: Mapping[int, RankProgress]) -> int | None:
    """The step that every counting rank has completed; None while none of them counts."""
    steps = [one.step for rank, one in ranks.items() if rank >= 0 and one.step is not None]
    return min(steps, default=None)


def error_files(paths: AttemptPaths, fs: FileSystem) -> list[str]:
    """What the ranks of an attempt left of their first errors; none if that cannot be listed."""
    try:
        names = fs.listdir(paths.errors)
    except OSError:
        return []
    return [f"{paths.errors}/{name}" for name in sorted(names)]


def stalled(picture: Picture) -> bool:
    """Whether the watch says that nothing completes although it should."""
    return picture.standing in _STALLS


def _episode_words(episode: Episode | None) -> str:
    """An open episode in a few words; empty for none."""
    if episode is None:
        return ""
    hit = episode.deciding
    rank = f", rank {hit.rank}" if hit.rank is not None else ""
    return f"{hit.crash}{rank} in {hit.path}, byte {hit.byte}: {hit.text[:120]}"


def measured(value: object) -> dict[str, str | int | float]:
    """A throughput as facts of a record; empty for one that was not measured."""
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else {}
