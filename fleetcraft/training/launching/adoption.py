"""Whether a launch of an earlier supervisor still runs, and may be adopted: LIVE, DEAD or UNKNOWN.

Not here: stopping it, or deciding what follows. Invariants: LIVE needs a keeper that is identified
(or the step in a successful answer of Slurm) and a counter that was seen to move, never a recent
file; DEAD needs that every process is positively gone, or that an order to stop was put before any
keeper reported, so that none will begin; everything else is UNKNOWN.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fleetcraft.errors import DataError, SchedulerError
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token
from fleetcraft.layout.runs import AttemptPaths, RunPaths
from fleetcraft.training.launching.epochs import Epochs
from fleetcraft.training.launching.fencing import fence_logs, move_logs
from fleetcraft.training.launching.looking import AskSteps, Launch
from fleetcraft.training.launching.reading import read_order
from fleetcraft.training.launching.sights import Answer, Archived, LaunchSight, Whole
from fleetcraft.training.launching.signalling import PROC
from fleetcraft.training.launching.steps import find_step
from fleetcraft.training.launching.stop import order_stop
from fleetcraft.training.launching.sweeping import Net
from fleetcraft.training.records import Epoch, EpochKind, LogFence, NodeEnd

_LOOK_S = 0.5
_SETTLE_S = 5.0
_GOING = frozenset({Whole.RUNNING, Whole.STARTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What became of the launches of a run.

    Attributes:
        answer: LIVE: adopt `launch`. DEAD: nothing of any launch runs, and none will begin.
            UNKNOWN: nothing may be launched; `launch` can be stopped when it is there.
        why: In a sentence.
        epoch: The launch's own epoch (not one that adopted it); None where there is none.
        launch: The launch that lives or may live; None when it is DEAD or there is no order.
        alive: Whether a process of it is known to live.
        ends: What its nodes have told of their end.
        fences: Where its logs stand, for LIVE.
        archived: Logs of gone writers that were moved, and copies of the beginning of living ones.
    """

    answer: Answer
    why: str
    epoch: Epoch | None = None
    launch: Launch | None = None
    alive: bool | None = None
    ends: tuple[NodeEnd, ...] = ()
    fences: tuple[LogFence, ...] = ()
    archived: tuple[Archived, ...] = ()
    log_paths: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """One launch: whether it lives (None: not known), and why."""

    epoch: Epoch
    launch: Launch | None
    alive: bool | None
    kept: bool
    why: str
    ends: tuple[NodeEnd, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patience:
    """Waits for a counter to move."""

    moved: Callable[[], bool]
    limit_s: float
    wait: Callable[[float], None]
    clock: Callable[[], float]

    def sees_movement(self, launch: Launch) -> bool:
        deadline = self.clock() + self.limit_s
        while not self.moved():
            now = self.clock()
            if now >= deadline or launch.look().whole not in _GOING:
                return False
            self.wait(min(_LOOK_S, deadline - now))
            if self.clock() - now < _LOOK_S / 2 and self.clock() < deadline:
                return False  # cut short: the caller is to leave
        return True


def find_live(
    paths: RunPaths,
    *,
    moved: Callable[[], bool],
    steps: AskSteps | None = None,
    generation: int = 0,
    patience_s: float = 0.0,
    fs: FileSystem | None = None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    proc: str = PROC,
) -> Adoption:
    """Finds out what became of every launch of a run, and keeps the books of an adoption.

    Called under the run's lock, before anything is launched. Launches that have not begun are
    closed by an order to stop. Logs of launches that are gone are moved to the archive; those of
    one that is adopted are copied up to a fence.

    Args:
        paths: The run.
        moved: Whether a counter of the run was seen to move since the caller first looked. It may
            wait as long as that takes.
        steps: Asks Slurm for this user's steps, anew; None where there is no Slurm.
        generation: Of the caller's lock; it marks copies in the archive.
        patience_s: How long ``moved`` is asked again and again while the launch lives; once if 0.
        fs: The seam.
        wait: Waits so many seconds; when it returns early, waiting is over.
        clock: Monotonic seconds.
        proc: Where processes are described; a stand-in in tests.
    """
    fs = fs or FileSystem()
    try:
        epochs = [e for e in Epochs(paths, fs).all() if e.kind is EpochKind.LAUNCHED]
        findings = [_examine(paths, epoch, steps, fs, proc) for epoch in epochs]
    except (OSError, DataError) as error:
        return Adoption(answer=Answer.UNKNOWN, why=f"the run's records cannot be read: {error}")
    if not findings:
        return Adoption(answer=Answer.DEAD, why="nothing was launched before")
    standing = [finding for finding in findings if finding.alive is not False]
    if not standing:
        return _dead(paths, findings, fs)
    if len(standing) > 1:
        numbers = ", ".join(str(finding.epoch.number) for finding in standing)
        why = f"several launches live or may live (epochs {numbers}); {standing[-1].why}"
        return _of(standing[-1], Answer.UNKNOWN, why)
    patience = _Patience(moved=moved, limit_s=patience_s, wait=wait, clock=clock)
    return _standing(paths, standing[0], patience, generation, fs)


def _standing(
    paths: RunPaths, finding: _Finding, patience: _Patience, generation: int, fs: FileSystem
) -> Adoption:
    """The one launch that lives or may live."""
    launch = finding.launch
    if not finding.alive or not finding.kept or launch is None:
        return _of(finding, Answer.UNKNOWN, finding.why)
    if not patience.sees_movement(launch):
        why = f"{finding.why}, but no counter of it was seen to move"
        return _of(finding, Answer.UNKNOWN, why)
    sight = launch.look()
    if sight.whole not in _GOING:
        why = f"it changed while it was looked at: {sight.why or sight.whole.value}"
        return _of(finding, Answer.UNKNOWN, why)
    try:
        mark = f"adopted-{generation}-{new_launch_token()}"
        fenced = fence_logs(paths, launch.paths, mark, fs)
    except OSError as error:
        return _of(finding, Answer.UNKNOWN, f"it lives, but its logs cannot be fenced: {error}")
    return Adoption(
        answer=Answer.LIVE,
        why=f"{finding.why}, and its progress was seen to move",
        epoch=finding.epoch,
        launch=launch,
        alive=True,
        ends=sight.ends,
        fences=fenced.fences,
        archived=fenced.archived,
        log_paths=tuple(fence.path for fence in fenced.fences),
    )


def _dead(paths: RunPaths, findings: list[_Finding], fs: FileSystem) -> Adoption:
    """No launch lives: their logs are moved away, and the last one's end is told."""
    last = findings[-1]
    archived: list[Archived] = []
    try:
        for finding in findings:
            archived += move_logs(paths, paths.attempt(finding.epoch.attempt), fs)
    except OSError as error:
        why = f"{last.why}, but its logs cannot be moved to the archive: {error}"
        return _of(last, Answer.UNKNOWN, why)
    return Adoption(
        answer=Answer.DEAD,
        why=last.why,
        epoch=last.epoch,
        alive=False,
        ends=last.ends,
        archived=tuple(archived),
    )


def _of(finding: _Finding, answer: Answer, why: str) -> Adoption:
    return Adoption(
        answer=answer,
        why=f"epoch {finding.epoch.number}: {why}",
        epoch=finding.epoch,
        launch=finding.launch,
        alive=finding.alive,
        ends=finding.ends,
    )


# -- one launch


def _examine(
    paths: RunPaths, epoch: Epoch, steps: AskSteps | None, fs: FileSystem, proc: str
) -> _Finding:
    """Whether one launch lives.

    Raises:
        OSError: Its folder cannot be read or made.
        DataError: Its order is torn.
    """
    attempt = paths.attempt(epoch.attempt)
    order = read_order(attempt, fs)
    if order is None:
        close_unbegun(attempt, fs)
        order = read_order(attempt, fs)  # it may have been given meanwhile; its keepers will obey
    if order is None:
        return _Finding(
            epoch=epoch, launch=None, alive=False, kept=False, why="it was closed before it began"
        )
    launch = Launch(attempt, order, steps=steps, fs=fs, proc=proc)
    launch.read()
    if not launch.has_reports:
        close_unbegun(attempt, fs)
        launch.read()
    return _judge(epoch, launch, proc)


def close_unbegun(attempt: AttemptPaths, fs: FileSystem) -> None:
    """Puts the order to stop where a launch has not begun.

    A keeper reports before it looks for that order, and whoever calls this looks for keepers
    after it: so no keeper that is not seen then will start anything. A launch that is only now
    given finds its folder taken.

    Raises:
        OSError: It is not known to stand.
    """
    with contextlib.suppress(FileExistsError):
        fs.make_folder(attempt.folder)
    order_stop(attempt, by="a later supervisor", why="it had not begun", fs=fs)


def _judge(epoch: Epoch, launch: Launch, proc: str) -> _Finding:
    """One launch, all of whose keepers have reported that ever will begin something.

    Raises:
        OSError: The processes of this machine cannot be listed.
    """
    sight = launch.look()

    def finding(alive: bool | None, why: str, *, kept: bool = False) -> _Finding:
        return _Finding(
            epoch=epoch, launch=launch, alive=alive, kept=kept, why=why, ends=sight.ends
        )

    if sight.clean:  # each keeper has looked for itself that nothing is left
        return finding(False, "it has ended, and nothing of it is left")
    open_nodes = [node for node in sight.nodes if node.end is None]
    if any(node.alive for node in open_nodes):
        return finding(True, "its keeper lives", kept=sight.whole in _GOING)
    if any(node.alive is None for node in open_nodes) or not sight.nodes:
        away = _judge_away(launch, sight, finding)
        if away is not None:
            return away
    # Keepers and srun leave a moment after they have told the end.
    swept = Net(launch.nonce, proc=proc).sweep(None, _SETTLE_S)
    if not swept.quiet:
        pids = ", ".join(str(record.process.pid) for record in swept.left[:5]) or "change"
        return finding(True, f"it has no keeper any more, but processes of it live (pids {pids})")
    unclean = [end.node for end in sight.ends if not end.clean and end.node != launch.here.host]
    if unclean and not (launch.order.step_name and _in_queue(launch) is False):
        return finding(None, f"processes of it may be left on {', '.join(unclean)}")
    return finding(False, f"nothing of it is left ({sight.why})" if sight.why else "it is gone")


def _judge_away(
    launch: Launch, sight: LaunchSight, finding: Callable[..., _Finding]
) -> _Finding | None:
    """What Slurm or nobody can tell of keepers elsewhere; None when they are gone."""
    if not launch.order.step_name:
        if not sight.nodes:
            return None  # it was closed before a keeper reported
        names = ", ".join(node.node for node in sight.nodes if node.end is None)
        return finding(None, f"it runs on {names}, which cannot be looked at from here")
    present = _in_queue(launch)
    if present is None:
        return finding(None, f"Slurm did not tell whether step {launch.order.step_name} is there")
    if present:
        kept = bool(sight.nodes) and sight.whole in _GOING
        return finding(True, f"Slurm has its step {launch.order.step_name}", kept=kept)
    return None


def _in_queue(launch: Launch) -> bool | None:
    if launch.steps is None:
        return None
    try:
        return find_step(launch.steps(), launch.order.step_name, launch.step) is not None
    except SchedulerError:
        return None
