"""Small parts: a changed clock, the judge of a lock's holder, a post-mortem, events as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetcraft.errors import SlurmTimeoutError
from fleetcraft.identity import JobRun
from fleetcraft.locks import Holder
from fleetcraft.slurm.queue import Jobs
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import Crash, NodeEnd, State
from fleetcraft.training.supervision.history import this_moment
from fleetcraft.training.supervision.journal import Event, Journal, read_events
from fleetcraft.training.supervision.judging import HolderJudge
from fleetcraft.training.supervision.post_mortem import look_at_the_dead
from fleetcraft.training.supervision.status_file import StatusFile, read_status
from fleetcraft.training.supervision.telling import Teller
from fleetcraft.view.text import Paint
from fleetcraft.view.train_events import render_event

HOLDER = Holder(
    schema="fleetcraft.lock/1",
    generation=1,
    nonce="n",
    purpose="run distill",
    host="n017",
    boot_id="another",
    pid_namespace="",
    pid=7,
    start_ticks=9,
    interval_s=5.0,
    taken_at="",
    after="",
    run=JobRun(job="77", cluster="c1"),
)


class Clocks:
    """A monotonic clock and a wall clock that can be stepped."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ahead_s = 1e9

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + self.ahead_s


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_wall_clock_that_was_changed_is_recorded_and_not_used(
    tmp_path: Path, step_s: float
) -> None:
    clocks = Clocks()
    journal = Journal(str(tmp_path / "events.jsonl"), run="distill")
    teller = Teller(
        journal,
        StatusFile(str(tmp_path / "status.json"), nonce="n"),
        plan=RunPlan(run="distill", command=("true",)),
        clock=clocks.monotonic,
        wall=clocks.wall,
    )
    teller.state(State.HEALTHY, State.VERIFYING, "verified")

    clocks.now_s, clocks.ahead_s = 105.0, clocks.ahead_s + step_s
    teller._clock_changed()
    teller._clock_changed()
    teller.refresh()

    told = [event for event in read_events(str(tmp_path / "events.jsonl")).events]
    assert [event["by_s"] for event in told if event["event"] == "clock"] == [step_s]
    status = read_status(str(tmp_path / "status.json"))
    assert status is not None
    assert status.since_s == 5.0


def jobs(**found: Any) -> Jobs:
    return Jobs(cluster="c1", age_s=0.0, jobs=found)


def test_a_holder_elsewhere_is_gone_only_by_a_whole_answer_of_its_own_cluster() -> None:
    def silent() -> Jobs:
        raise SlurmTimeoutError("squeue", 15)

    other = msgspec.structs.replace(HOLDER, run=JobRun(job="77", cluster="c2"))
    outside = msgspec.structs.replace(HOLDER, run=JobRun())

    assert HolderJudge(jobs)(HOLDER) is False
    assert HolderJudge(silent)(HOLDER) is None
    assert HolderJudge(jobs)(other) is None
    assert HolderJudge(silent)(outside) is None


def end(**facts: Any) -> NodeEnd:
    return NodeEnd(**{"node": "n1", "nonce": "n", "exit_code": 0, **facts})


@pytest.mark.parametrize(
    ("ends", "declared", "crash", "well"),
    [
        ((), False, Crash.NONE, False),
        ((end(),), False, Crash.NONE, True),
        ((end(clean=False),), False, Crash.NONE, True),
        ((end(),), True, Crash.UNKNOWN, False),
        ((end(exit_code=1),), False, Crash.UNKNOWN, False),
        ((end(exit_code=None, signal=9),), False, Crash.KILLED_UNCONFIRMED, False),
        ((end(exit_code=None, signal=9, oom_kills=1),), False, Crash.HOST_OOM, False),
        ((end(exit_code=None, signal=15, told_to_stop=True),), False, Crash.NONE, False),
    ],
)
def test_a_post_mortem_calls_an_end_well_only_when_nothing_else_is_declared(
    ends: tuple[NodeEnd, ...], declared: bool, crash: Crash, well: bool
) -> None:
    found = look_at_the_dead(ends, (), (), (), end_declared=declared, why="it ended unseen")

    assert (found.diagnosis.crash, found.ended_well) == (crash, well)


def test_logs_that_cannot_be_read_explain_nothing(tmp_path: Path) -> None:
    found = look_at_the_dead(
        (end(),), (str(tmp_path / "gone.log"),), (), (), end_declared=False, why=""
    )

    assert found.diagnosis.crash is Crash.UNKNOWN
    assert not found.ended_well


@pytest.mark.parametrize("kind", list(Event))
def test_every_event_is_a_printable_line_also_when_it_lacks_everything(kind: Event) -> None:
    text = render_event({"event": str(kind), "why": "\x1b[2J", "at": ""}, Paint(False))

    assert text
    assert "\x1b" not in text


def test_a_moment_of_this_boot_has_an_age() -> None:
    assert this_moment().boot_s > 0
    assert this_moment().boot_id


def test_a_long_event_is_wrapped_on_a_terminal_and_whole_elsewhere() -> None:
    why = "CODE_ERROR, rank 3 in attempt-000001/logs/n1.log, byte 81: " + "a long line " * 20
    event = {"event": "evidence", "at": "2026-11-30T12:00:00Z", "epoch": 1, "why": why}

    narrow = render_event(event, Paint(False), 80).split("\n")
    whole = render_event(event, Paint(False))

    assert len(narrow) > 3
    assert max(map(len, narrow)) <= 80
    assert "\n" not in whole
    assert " ".join(" ".join(narrow).split()) == " ".join(whole.split())
