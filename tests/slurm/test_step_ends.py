"""How a step ended is Slurm's word about exactly that step, or no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.errors import NoAnswerError, SchedulerError
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.step_ends import StepEnd, step_end
from tests.slurm.cluster import Cluster
from tests.slurm.fakes import FakePrograms, recorded


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    made = FakePrograms(tmp_path, monkeypatch)
    made.says("scontrol", recorded("22.05", "scontrol-config"))
    made.says("sacct", recorded("22.05", "sacct-steps"))
    return made


@pytest.fixture
def polls(tmp_path: Path) -> Polls:
    return Polls(str(tmp_path / "polls"), interval_s=0)


@pytest.mark.parametrize(
    ("step", "name", "end"),
    [
        ("1.0", "good", StepEnd(state="COMPLETED", exit_code="0:0")),
        ("1.1", "bad", StepEnd(state="FAILED", exit_code="3:0")),
        ("1.2", "killed", StepEnd(state="CANCELLED", exit_code="0:9")),
        ("1.3", "cancelled", StepEnd(state="CANCELLED by 0", exit_code="0:9")),
        ("1.4", "going", None),
        ("1.1", "good", None),
        ("1.9", "bad", None),
    ],
)
def test_the_row_of_that_step_counts_and_no_other(
    fakes: FakePrograms, polls: Polls, step: str, name: str, end: StepEnd | None
) -> None:
    assert step_end(polls, step, name) == end
    assert fakes.calls("sacct")[-1].words.split()[1] == f"--jobs={step}"


def test_a_step_of_another_cluster_is_another_step(fakes: FakePrograms, polls: Polls) -> None:
    assert step_end(polls, "1.1", "bad", cluster="sandbox") is not None
    assert step_end(polls, "1.1", "bad", cluster="elsewhere") is None


def test_a_killed_step_for_memory_is_told_with_its_code(fakes: FakePrograms, polls: Polls) -> None:
    text = recorded("22.05", "sacct-steps").replace("FAILED|3:0", "OUT_OF_MEMORY|0:125")
    fakes.says("sacct", text)

    assert step_end(polls, "1.1", "bad") == StepEnd(state="OUT_OF_MEMORY", exit_code="0:125")


@pytest.mark.parametrize(
    "body", ["exit 1", "echo 'JobIDRaw|JobName'", "true", "printf 'JobIDRaw|JobName|Cluster|Sta'"]
)
def test_half_an_answer_is_none(fakes: FakePrograms, polls: Polls, body: str) -> None:
    fakes.write("sacct", body)

    with pytest.raises(SchedulerError):
        step_end(polls, "1.1", "bad")


def test_a_step_without_a_state_is_no_answer(fakes: FakePrograms, polls: Polls) -> None:
    fakes.says("sacct", recorded("22.05", "sacct-steps").replace("FAILED", ""))

    with pytest.raises(NoAnswerError, match="without a state"):
        step_end(polls, "1.1", "bad")


def test_without_accounting_nothing_is_asked(fakes: FakePrograms, polls: Polls) -> None:
    fakes.says("scontrol", recorded("22.05", "scontrol-config-without-accounting"))

    with pytest.raises(NoAnswerError, match="keeps no accounts"):
        step_end(polls, "1.1", "bad")

    assert fakes.calls("sacct") == []


@pytest.mark.timeout(200)
def test_a_real_step_is_told_once_it_has_ended(
    accounting_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = accounting_cluster.submit(
        "-N1",
        "--time=5",
        script="srun --job-name=wrong sh -c 'exit 3'; srun --job-name=on sleep 99",
    )
    for name, value in accounting_cluster.env.items():
        monkeypatch.setenv(name, value)
    polls = Polls(str(tmp_path / "polls"), interval_s=0)

    accounting_cluster.wait_for(
        "the end is written down", lambda: step_end(polls, f"{job}.0", "wrong") is not None
    )

    assert step_end(polls, f"{job}.0", "wrong") == StepEnd(state="FAILED", exit_code="3:0")
    assert step_end(polls, f"{job}.1", "on") is None
