"""What became of the earlier attempts of a run: what the ladder and the budgets count.

Launches are counted by their epochs, which are published once each, and the journal says how each
ended. Invariant: an attempt of which no outcome can be read counts as one that died of something
unknown, so a torn journal makes nothing free.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fleetcraft.clock import now_at, parse_timestamp
from fleetcraft.identity import this_host
from fleetcraft.training.records import Crash, Diagnosis, Epoch, EpochKind, Knob, Rung
from fleetcraft.training.supervision.journal import Event


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that has ended.

    Attributes:
        attempt: The epoch that launched it.
        rung: What it tried.
        knobs: Its knobs.
        diagnosis: How it ended.
        checkpoint_step: The newest validated checkpoint then; None when there was none.
        checkpoint_known: Whether that was known.
        age_s: How long ago that was.
        throughput: What was measured in it after its warm-up, by name; empty for nothing.
        recorded: Whether its outcome was read; else all but its rung is a guess to the safe side.
    """

    attempt: int
    rung: Rung
    knobs: tuple[Knob, ...]
    diagnosis: Diagnosis
    checkpoint_step: int | None = None
    checkpoint_known: bool = True
    age_s: float = 0.0
    throughput: dict[str, Any] = {}
    recorded: bool = True

    @property
    def crash(self) -> Crash:
        """The class of its end."""
        return self.diagnosis.crash


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """When something was, so that later its age is known also if the wall clock was changed.

    Attributes:
        boot_id: The boot whose clock ``boot_s`` is.
        boot_s: Seconds since that boot, suspended time included.
    """

    boot_id: str
    boot_s: float


def this_moment() -> Moment:
    """Now."""
    return Moment(boot_id=this_host().boot_id, boot_s=time.clock_gettime(time.CLOCK_BOOTTIME))


def age_s(moment: Any, at: str, now: Moment) -> float:
    """How long ago something was.

    By the clock of the boot where that is this one; else by wall clocks, and then 0 for a time
    that lies ahead: what seems recent counts.

    Args:
        moment: The event's ``moment``, as read.
        at: Its wall clock.
        now: This moment.
    """
    try:
        then = msgspec.convert(moment, Moment)
    except msgspec.ValidationError:
        then = None
    if then is not None and then.boot_id and then.boot_id == now.boot_id:
        return max(0.0, now.boot_s - then.boot_s)
    written = parse_timestamp(at)
    if written is None or written.tzinfo is None:
        return 0.0
    return max(0.0, (now_at() - written).total_seconds())


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of the present series, oldest first.

    Attributes:
        past: Those that have ended.
        unrecorded: The last attempt, when no outcome of it was read.
        diagnosed: What its supervisor had found of it before it died itself.
        last: The last epoch; None before the first.
        anew: Whether the series has begun with an operator's word and nothing was launched since.
        done: Whether the last attempt of the series has ended well, as written down.
        resumed: Whether a resume was claimed and nothing was launched since: one launch is due.
        resumes: The checkpoints of all resumes that were told so far.
    """

    past: tuple[Past, ...] = ()
    unrecorded: Epoch | None = None
    diagnosed: Diagnosis | None = None
    last: Epoch | None = None
    anew: bool = False
    done: bool = False
    resumed: bool = False
    resumes: frozenset[str] = frozenset()


def read_history(
    epochs: Sequence[Epoch], events: Iterable[Mapping[str, Any]], now: Moment | None = None
) -> History:
    """Puts epochs and outcomes together.

    Args:
        epochs: All of the run, in the order of their numbers.
        events: The journal's.
        now: This moment.
    """
    now = now or this_moment()
    outcomes: dict[int, Mapping[str, Any]] = {}
    diagnoses: dict[int, Mapping[str, Any]] = {}
    begins_after, resumed_after = 0, -1
    resumes: set[str] = set()
    for event in events:
        if event.get("event") == Event.DIAGNOSIS and isinstance(event.get("attempt"), int):
            diagnoses[event["attempt"]] = event
        if event.get("event") == Event.OUTCOME and isinstance(event.get("attempt"), int):
            outcomes[event["attempt"]] = event
        if event.get("event") == Event.ANEW and isinstance(event.get("after"), int):
            begins_after = max(begins_after, event["after"])
        if event.get("event") == Event.RESUMED and isinstance(event.get("after"), int):
            resumed_after = max(resumed_after, event["after"])
            resumes.add(str(event.get("checkpoint")))
    last = epochs[-1] if epochs else None
    launched = [epoch for epoch in epochs if epoch.kind is EpochKind.LAUNCHED]
    ours = [epoch for epoch in launched if epoch.number > begins_after]
    open_attempt = last.attempt if last and last.attempt not in outcomes else None
    return History(
        past=tuple(
            _past(epoch, outcomes.get(epoch.number), now)
            for epoch in ours
            if epoch.number != open_attempt
        ),
        unrecorded=next((e for e in launched if e.number == open_attempt), None),
        diagnosed=None if open_attempt is None else _diagnosis(diagnoses.get(open_attempt)),
        last=last,
        anew=begins_after > 0 and not ours,
        done=bool(ours) and outcomes.get(ours[-1].number, {}).get("done") is True,
        resumed=last is not None and resumed_after >= last.number,
        resumes=frozenset(resumes),
    )


def _diagnosis(event: Mapping[str, Any] | None) -> Diagnosis | None:
    try:
        return None if event is None else msgspec.convert(event.get("diagnosis"), Diagnosis)
    except msgspec.ValidationError:
        return None


def _past(epoch: Epoch, outcome: Mapping[str, Any] | None, now: Moment) -> Past:
    if outcome is not None:
        try:
            return Past(
                attempt=epoch.number,
                rung=epoch.rung,
                knobs=epoch.knobs,
                diagnosis=msgspec.convert(outcome.get("diagnosis"), Diagnosis),
                checkpoint_step=msgspec.convert(outcome.get("checkpoint_step"), int | None),
                checkpoint_known=outcome.get("checkpoint_known") is True,
                throughput=msgspec.convert(outcome.get("throughput") or {}, dict[str, Any]),
                age_s=age_s(outcome.get("moment"), str(outcome.get("at")), now),
            )
        except msgspec.ValidationError:
            pass  # a line that cannot be understood is no outcome
    return Past(
        attempt=epoch.number,
        rung=epoch.rung,
        knobs=epoch.knobs,
        diagnosis=Diagnosis(crash=Crash.UNKNOWN, episode_open=True),
        checkpoint_known=False,
        age_s=age_s(None, epoch.at, now),
        recorded=False,
    )
