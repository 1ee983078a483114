"""What Slurm says of a launch's end is asked for that step, awaited for a while, never guessed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fleetcraft.errors import NoAnswerError
from fleetcraft.identity import process_id, this_host
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.slurm.step_ends import StepEnd
from fleetcraft.training.launching.order import ORDER_SCHEMA, Order
from fleetcraft.training.records import Crash, Keeper, NodeEnd, ProcessRecord, StepRecord
from fleetcraft.training.supervision.post_mortem import look_at_the_dead
from fleetcraft.training.supervision.slurm_word import NO_STEP, PATIENCE_S, SlurmWord, ask_slurm

STEP = StepRecord(job="12", step="3", cluster="c")


class Clock:
    """Goes on only while somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    paths = AttemptPaths(str(tmp_path / "attempt"))
    for folder in paths.folders():
        Path(folder).mkdir()
    return paths


def publish(paths: AttemptPaths, *, name: str = "train-r-n") -> None:
    me = process_id(1)
    assert me is not None
    keeper = ProcessRecord(place=this_host(), process=me, nonce="n")
    order = Order(
        schema=ORDER_SCHEMA,
        run="r",
        epoch=1,
        generation=1,
        nonce="n",
        attempt=paths.folder,
        command=("x",),
        step_name=name,
    )
    Path(paths.order).write_bytes(msgspec.json.encode(order))
    record = Keeper(node="n1", keeper=keeper, step=STEP)
    Path(paths.keeper("n1")).write_bytes(msgspec.json.encode(record))


def test_the_step_is_asked_for_until_its_end_is_written_down(attempt: AttemptPaths) -> None:
    publish(attempt)
    clock, answers = Clock(), [None, None, StepEnd(state="OUT_OF_MEMORY", exit_code="0:125")]
    asked = []

    def ask(step: StepRecord, name: str, patience_s: float) -> StepEnd | None:
        asked.append((step.id, name))
        return answers.pop(0)

    word = ask_slurm(attempt, ask, wait=clock.wait, clock=clock)

    assert word == SlurmWord(step="12.3", state="OUT_OF_MEMORY", exit_code="0:125")
    assert asked == [("12.3", "train-r-n")] * 3


def test_an_end_that_does_not_come_is_not_known_after_a_while(attempt: AttemptPaths) -> None:
    publish(attempt)
    clock = Clock()

    word = ask_slurm(attempt, lambda *_: None, wait=clock.wait, clock=clock)

    assert (word.state, word.trouble) == (None, "no end of it is written down yet")
    assert clock.now_s <= PATIENCE_S + 1
    hurried = ask_slurm(attempt, lambda *_: None, wait=lambda _: None, clock=clock)
    assert hurried.state is None


def test_no_answer_is_no_answer(attempt: AttemptPaths) -> None:
    publish(attempt)

    def ask(*_: object) -> StepEnd | None:
        raise NoAnswerError("sacct", "it is down")

    word = ask_slurm(attempt, ask)

    assert word.state is None
    assert "it is down" in word.trouble


def test_a_launch_that_was_no_step_asks_nothing(attempt: AttemptPaths) -> None:
    def ask(*_: object) -> StepEnd | None:
        raise AssertionError("nothing was to be asked")

    assert ask_slurm(attempt, ask) == NO_STEP
    publish(attempt, name="")
    assert ask_slurm(attempt, ask) == NO_STEP
    assert ask_slurm(attempt, None) == NO_STEP


def test_a_torn_record_is_trouble(attempt: AttemptPaths) -> None:
    publish(attempt)
    Path(attempt.keeper("n1")).write_text("{")

    assert "cannot be read" in ask_slurm(attempt, lambda *_: None).trouble


@pytest.mark.parametrize(
    ("state", "exit_code", "crash"),
    [
        ("OUT_OF_MEMORY", "0:125", Crash.HOST_OOM),
        ("TIMEOUT", "0:15", Crash.TIME_LIMIT),
        ("PREEMPTED", "0:15", Crash.PREEMPTED),
        ("CANCELLED by 1000", "0:15", Crash.CANCELLED),
        ("CANCELLED", "0:9", Crash.UNKNOWN),  # a task that any signal ended
        (None, "", Crash.UNKNOWN),
    ],
)
def test_it_says_how_a_launch_died_of_which_no_record_is_left(
    tmp_path: Path, state: str | None, exit_code: str, crash: Crash
) -> None:
    log = tmp_path / "n1.log"
    log.write_text("step 5\n")
    word = SlurmWord(step="12.3", state=state, exit_code=exit_code)

    found = look_at_the_dead(
        (), (str(log),), (), (), end_declared=False, why="it was lost", slurm=word
    )

    assert found.diagnosis.crash is crash
    assert found.slurm == word


def test_a_crash_signal_of_a_node_is_explained_by_it(tmp_path: Path) -> None:
    killed = NodeEnd(node="n1", nonce="n", signal=9, oom_kills=0)
    word = SlurmWord(step="12.3", state="OUT_OF_MEMORY", exit_code="0:125")

    found = look_at_the_dead((killed,), (), (), (), end_declared=False, why="", slurm=word)

    assert found.diagnosis.crash is Crash.HOST_OOM


def test_a_step_that_somebody_cancelled_did_not_die_of_being_killed(tmp_path: Path) -> None:
    log = tmp_path / "keeper.log"
    log.write_text("srun: error: n1: task 0: Killed\n")
    word = SlurmWord(step="12.3", state="CANCELLED by 1000", exit_code="0:9")

    found = look_at_the_dead(
        (), (str(log),), (), (), end_declared=False, why="it was lost", slurm=word
    )

    assert found.diagnosis.crash is Crash.CANCELLED
