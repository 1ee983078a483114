"""What is counted of earlier attempts: every launch, and the worst where nothing is written."""

from __future__ import annotations

import pytest

from fleetcraft.training.plan.records import BudgetPlan, LadderPlan, RunPlan
from fleetcraft.training.records import (
    EPOCH_SCHEMA,
    Crash,
    Epoch,
    EpochKind,
    Knob,
    Rung,
    RungKind,
)
from fleetcraft.training.supervision.deciding import Checkpoints, next_launch, present_knobs
from fleetcraft.training.supervision.history import Moment, age_s, read_history

NOW = Moment(boot_id="boot-1", boot_s=1000.0)
MICRO_BATCH = Knob(name="micro_batch", value=16, floor=4, quantum=4, variable="MICRO_BATCH")
PLAN = RunPlan(
    run="distill",
    command=("train",),
    ladder=LadderPlan(expandable_segments=False, knobs=(MICRO_BATCH,)),
    budgets=BudgetPlan(each=2),
)


def epoch(number: int, *, attempt: int | None = None, knob: int = 16, **facts: object) -> Epoch:
    values: dict[str, object] = {
        "schema": EPOCH_SCHEMA,
        "number": number,
        "generation": 1,
        "run": "distill",
        "kind": EpochKind.LAUNCHED if attempt is None else EpochKind.ADOPTED,
        "attempt": number if attempt is None else attempt,
        "nonce": "n",
        "at": "2026-11-30T10:00:00.000Z",
        "why": "",
        "command": ("train",),
        "command_sha256": "",
        "environment_sha256": "",
        "knobs": (Knob(name="micro_batch", value=knob, floor=4, quantum=4),),
        **facts,
    }
    return Epoch(**values)  # type: ignore[arg-type]


def outcome(attempt: int, crash: Crash, *, checkpoint: int | None = None) -> dict[str, object]:
    return {
        "event": "outcome",
        "at": "2026-11-30T10:05:00.000Z",
        "attempt": attempt,
        "diagnosis": {"class": str(crash), "episode_open": crash is not Crash.NONE},
        "checkpoint_step": checkpoint,
        "checkpoint_known": True,
        "moment": {"boot_id": "boot-1", "boot_s": 1000.0 - 10 * attempt},
    }


def test_attempts_are_counted_by_epochs_and_told_by_the_journal() -> None:
    history = read_history(
        [epoch(1), epoch(2), epoch(3, attempt=2)],
        [outcome(1, Crash.CUDA_OOM, checkpoint=20)],
        NOW,
    )

    (past,) = history.past
    assert (past.attempt, past.crash, past.checkpoint_step) == (1, Crash.CUDA_OOM, 20)
    assert past.age_s == 10.0
    assert history.unrecorded is not None
    assert history.unrecorded.number == 2


def test_an_attempt_without_an_outcome_counts_as_one_that_died_of_something_unknown() -> None:
    torn = {**outcome(2, Crash.RENDEZVOUS), "diagnosis": {"class": 7}}

    history = read_history(
        [epoch(1), epoch(2), epoch(3)], [torn, outcome(3, Crash.RENDEZVOUS)], NOW
    )

    assert [(past.attempt, past.crash, past.recorded) for past in history.past] == [
        (1, Crash.UNKNOWN, False),
        (2, Crash.UNKNOWN, False),
        (3, Crash.RENDEZVOUS, True),
    ]
    assert history.unrecorded is None


def test_attempts_before_the_word_of_an_operator_are_not_counted() -> None:
    events = [outcome(1, Crash.CODE_ERROR), {"event": "anew", "after": 1}]

    history = read_history([epoch(1)], events, NOW)

    assert history.past == ()
    assert history.anew


@pytest.mark.parametrize(
    ("moment", "at", "expected_s"),
    [
        ({"boot_id": "boot-1", "boot_s": 940.0}, "1999-01-01T00:00:00Z", 60.0),
        ({"boot_id": "boot-0", "boot_s": 940.0}, "2999-01-01T00:00:00Z", 0.0),
        (None, "rubbish", 0.0),
    ],
)
def test_an_age_is_that_of_the_boot_clock_and_a_time_ahead_is_now(
    moment: object, at: str, expected_s: float
) -> None:
    assert age_s(moment, at, NOW) == expected_s


def test_the_next_launch_lowers_one_knob_and_tells_the_command() -> None:
    history = read_history([epoch(1)], [outcome(1, Crash.CUDA_OOM)], NOW)

    decision = next_launch(PLAN, history, [epoch(1)], Checkpoints(), {})

    assert decision.rung == Rung(kind=RungKind.KNOB, knob="micro_batch", before=16, after=12)
    assert decision.environment == {"MICRO_BATCH": "12"}


def test_a_lowered_knob_stays_lowered_in_the_launches_after_it() -> None:
    assert present_knobs(PLAN, epoch(2, knob=12)) == (
        Knob(name="micro_batch", value=12, floor=4, quantum=4, variable="MICRO_BATCH"),
    )


def test_a_newer_checkpoint_takes_restarts_off_and_an_unreadable_one_does_not() -> None:
    epochs = [epoch(1), epoch(2), epoch(3)]
    events = [outcome(n, Crash.CUDA_OOM, checkpoint=10) for n in (1, 2, 3)]
    history = read_history(epochs, events, NOW)

    def allowed(checkpoints: Checkpoints) -> bool | None:
        return next_launch(PLAN, history, epochs, checkpoints, {}).spend.allowed

    assert allowed(Checkpoints(step=10)) is False
    assert allowed(Checkpoints(step=11)) is True
    assert allowed(Checkpoints(known=False)) is None


def test_an_attempt_that_was_stopped_on_order_costs_nothing() -> None:
    history = read_history([epoch(1, knob=12)], [outcome(1, Crash.NONE)], NOW)

    decision = next_launch(PLAN, history, [epoch(1, knob=12)], Checkpoints(), {})

    assert decision.rung == Rung(kind=RungKind.UNCHANGED)
    assert decision.knobs[0].value == 12
    assert decision.spend.allowed is True
