"""What a supervisor tells: events into the journal, and the status file after each look.

Tells what has changed, once. Invariant: nothing is decided here, and what cannot be written is kept
for later or shown as trouble; the run does not notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.plan.verification import Comparison
from fleetcraft.training.records import (
    Crash,
    Diagnosis,
    Epoch,
    ProcessRecord,
    RankState,
    Standing,
    State,
    Stopped,
)
from fleetcraft.training.supervision.deciding import Checkpoints, Decision
from fleetcraft.training.supervision.history import History
from fleetcraft.training.supervision.journal import Event, Journal
from fleetcraft.training.supervision.machine import Move, Run, Trouble
from fleetcraft.training.supervision.observing import Picture
from fleetcraft.training.supervision.slurm_word import NO_STEP, SlurmWord
from fleetcraft.training.supervision.status_file import Status, StatusFile

_CLOCK_JUMP_S = 2.0
_STATUS_EVERY_S = 5.0
"""Between two writings of the status; replacing a file costs as much as half a look at 64 ranks."""


class Teller:
    """Tells of one supervisor's course.

    Args:
        journal: Takes the events.
        status: Takes how the run stands.
        plan: The run.
        supervisor: Who tells.
        generation: Of its lock.
        clock: Monotonic seconds.
        wall: Wall clock in seconds, watched for changes only.
    """

    def __init__(
        self,
        journal: Journal,
        status: StatusFile,
        *,
        plan: RunPlan,
        supervisor: ProcessRecord | None = None,
        generation: int = 0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self._file = status
        self._clock = clock
        self._wall = wall
        self._ahead_s = wall() - clock()
        self._entered_s = clock()
        journal.generation = generation
        self._status = Status(
            run=plan.run,
            state=State.IDLE,
            generation=generation,
            supervisor=supervisor,
            end_step=plan.end.step if plan.end else None,
            knobs=plan.ladder.knobs,
        )
        self._unknown = ""
        self._abort: bool | None = False
        self._standing: Standing | None = None
        self._episode = ""
        self._closed = 0
        self._queues = ""
        self._dead: frozenset[int] = frozenset()
        self._seen: tuple[Picture, Checkpoints] | None = None
        self._written_s = clock() - _STATUS_EVERY_S

    # -- events

    def event(self, event: Event, *, durable: bool = False, **facts: Any) -> None:
        """Writes one event."""
        self._journal.write(event, durable=durable, **facts)

    def state(self, to: State, before: State, why: str) -> None:
        """The supervisor is in another state."""
        self._entered_s = self._clock()
        course: dict[str, Any] = {"state": to, "from": before, "why": why}
        self.event(Event.STATE, **course)
        self._set(state=to, why=why)
        self.refresh()

    def follow(self, epoch: Epoch) -> None:
        """Events and status are about this epoch from now on."""
        self._journal.epoch = epoch.number
        self._standing, self._episode, self._closed, self._queues = None, "", 0, ""
        self._dead = frozenset()
        self._seen = None
        self._set(
            epoch=epoch.number,
            attempt=epoch.attempt,
            rung=epoch.rung,
            knobs=epoch.knobs,
            comparison=(),
            ranks=(),
            dead=(),
            eta_s=None,
            provisional=True,
        )

    def epoch(self, event: Event, epoch: Epoch) -> None:
        """An epoch was launched or adopted."""
        self.follow(epoch)
        self.event(
            event,
            attempt=epoch.attempt,
            command=epoch.command,
            nodes=epoch.nodes,
            rung=epoch.rung,
            knobs=epoch.knobs,
            nonce=epoch.nonce,
        )

    def decision(self, decision: Decision, history: History, *, due: bool) -> None:
        """What the next launch tries, or that there is none; told for launches after the first.

        Args:
            decision: That.
            history: The attempts before.
            due: Another launch is wanted; otherwise nothing is told.
        """
        goes_on = due and decision.rung is not None and decision.spend.allowed is True
        before = history.past if goes_on else history.past[:-1]
        self._set(restarts=sum(past.crash is not Crash.NONE for past in before))
        if not history.past or not due:
            return
        if decision.spend.why:
            self._budget(decision)
        if goes_on:
            self.event(
                Event.RUNG,
                rung=decision.rung,
                knobs=decision.knobs,
                pause_s=decision.spend.pause_s,
            )

    def _budget(self, decision: Decision) -> None:
        self.event(
            Event.BUDGET,
            allowed=decision.spend.allowed,
            why=decision.spend.why,
            restarts=decision.spend.since_progress,
        )

    def suspicion(self, move: Move, picture: Picture) -> None:
        """A run is suspected: of a standstill with its arithmetic and all that is known of it."""
        assert move.suspicion is not None
        if move.suspicion.trouble is Trouble.STALL:
            sight = picture.sight
            self.event(
                Event.ALARM,
                why=move.why,
                census=sight.ranks,
                queues=sight.queues,
                alarm_s=sight.alarm_s,
                **_progress(picture),
            )

    def _dead_ranks(self, picture: Picture) -> None:
        """Ranks that are gone while the run goes on, all of them, whenever there is another."""
        dead = frozenset(picture.dead)
        if dead - self._dead and picture.run is Run.RUNNING:
            sight = picture.sight
            self.event(
                Event.DEAD_RANK,
                why=sight.why,
                ranks=_named(sight.ranks, picture.dead),
                **_progress(picture),
            )
        self._dead = dead

    def diagnosis(
        self,
        found: Diagnosis,
        changes: Sequence[str],
        picture: Picture | None,
        slurm: SlurmWord = NO_STEP,
    ) -> None:
        """How a run died, what Slurm says, and what differs from the last healthy epoch."""
        self._set(diagnosis=found)
        self.event(
            Event.DIAGNOSIS,
            durable=True,
            attempt=self._status.attempt,
            diagnosis=found,
            changes=tuple(changes),
            slurm=slurm,
            ends=picture.launch.ends if picture else (),
            census=picture.sight.ranks if picture else (),
        )

    def stopped(self, stopped: Stopped) -> None:
        """A stop is over."""
        self.event(Event.STOPPED, durable=True, stopped=stopped)

    def verified(self, report: Comparison) -> None:
        """An epoch is healthy: the report before and after."""
        lines = tuple(report.text().split("\n"))
        self._set(comparison=lines)
        self.event(
            Event.VERIFIED,
            durable=True,
            report=lines,
            comparison=report,
            throughput_ratio=report.throughput_ratio,
        )

    def abort(self, stands: bool | None) -> None:
        """Whether the ABORT marker stands."""
        if stands is self._abort:
            return
        self._abort = stands
        self._set(abort=stands)
        why = {
            True: "ABORT stands: the run is asked to finish its step, save and leave",
            False: "ABORT was cleared",
            None: "whether ABORT stands cannot be read",
        }[stands]
        self.event(Event.UNKNOWN if stands is None else Event.ABORT, why=why)

    def unknown(self, why: str) -> None:
        """Something could not be read; told when it is another thing than before."""
        if why and why != self._unknown:
            self.event(Event.UNKNOWN, why=why)
        self._unknown = why

    def ended(self, state: State, exit_code: int, why: str, next_step: str) -> None:
        """The supervisor leaves."""
        self.event(
            Event.ENDED,
            durable=True,
            state=state,
            exit_code=exit_code,
            why=why,
            next_step=next_step,
        )
        # One that was followed leaves the file to its follower.
        if state is not State.LOCK_LOST:
            self.refresh()
        self._journal.close()

    # -- after a look

    def look(self, picture: Picture, checkpoints: Checkpoints) -> None:
        """Tells what a look has changed, and how the run stands."""
        self._clock_changed()
        self.unknown("; ".join(part for part in (picture.trouble, checkpoints.why) if part))
        self._evidence(picture)
        self._dead_ranks(picture)
        sight = picture.sight
        if sight.standing is Standing.SLOW and self._standing is not Standing.SLOW:
            self.event(Event.SLOW, why=sight.why)
        self._standing = sight.standing
        verdict = str(sight.queues_verdict or "")
        if verdict != self._queues:
            self._queues = verdict
            self.event(Event.QUEUES, why=sight.queues_why, verdict=verdict, queues=sight.queues)
        self._seen = (picture, checkpoints)
        if self._clock() - self._written_s >= _STATUS_EVERY_S:
            self.refresh()

    def refresh(self) -> None:
        """Writes how the run stands."""
        if self._seen is not None:
            self._set_sight(*self._seen)
            self._seen = None
        self._written_s = self._clock()
        since_s = round(self._clock() - self._entered_s, 1)
        trouble = (self._unknown, self._journal.trouble, self._file.trouble)
        self._set(since_s=since_s, trouble="; ".join(part for part in trouble if part))
        self._file.write(self._status)

    def _set_sight(self, picture: Picture, checkpoints: Checkpoints) -> None:
        sight = picture.sight
        verdict = str(sight.queues_verdict or "")
        self._set(
            standing=picture.standing,
            standing_why=sight.why,
            step=sight.step,
            loss=sight.loss,
            metrics=sight.metrics,
            steps_per_s=sight.steps_per_s,
            tokens_per_s=sight.tokens_per_s,
            tokens_slope=sight.tokens_slope,
            throughput_ratio=sight.throughput_ratio,
            throughput_words=sight.alive_ratio,
            expected=sight.expected.arithmetic if sight.expected else "",
            quiet_s=sight.quiet_s,
            queues=sight.queues,
            queues_verdict=": ".join(part for part in (verdict, sight.queues_why) if part),
            ranks=tuple(_plain(rank) for rank in sight.ranks),
            dead=tuple(
                rank.rank
                for rank in sight.ranks
                if rank.alive is False and rank.rank not in picture.left
            ),
            eta_s=sight.eta_s,
            provisional=sight.provisional,
            checkpoint_step=checkpoints.step,
        )

    def _set(self, **facts: Any) -> None:
        self._status = msgspec.structs.replace(self._status, **facts)

    def _evidence(self, picture: Picture) -> None:
        if picture.closed > self._closed:
            self.event(Event.EVIDENCE_CLOSED, why="steps were completed after it")
            self._episode = ""
        self._closed = picture.closed
        words = picture.episode_words
        if words and words != self._episode:
            self.event(Event.EVIDENCE, why=words)
        self._episode = words

    def _clock_changed(self) -> None:
        ahead_s = self._wall() - self._clock()
        if abs(ahead_s - self._ahead_s) > _CLOCK_JUMP_S:
            by_s = round(ahead_s - self._ahead_s, 1)
            self.event(Event.CLOCK, why=f"the wall clock was changed by {by_s:+g} s", by_s=by_s)
            self._ahead_s = ahead_s


def _progress(picture: Picture) -> dict[str, Any]:
    sight = picture.sight
    return {
        "step": sight.step,
        "quiet_s": sight.quiet_s,
        "expected": sight.expected,
        "throughput_ratio": sight.throughput_ratio,
        "throughput_words": sight.alive_ratio,
    }


def _named(ranks: Sequence[RankState], dead: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"rank": rank.rank, "name": rank.name, "step": rank.step, "last_line": rank.last_line}
        for rank in ranks
        if rank.rank in dead
    ]


def _plain(rank: RankState) -> RankState:
    """Only the fields of `RankState`: a census has more of a rank that it looked at closely."""
    return RankState(**{field: getattr(rank, field) for field in RankState.__struct_fields__})
