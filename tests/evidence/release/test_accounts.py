"""What the accounting says of jobs, and what a gate makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetcraft.errors import NoAnswerError, UsageError
from fleetcraft.evidence.records import Producer
from fleetcraft.evidence.release.accounts import look_up
from fleetcraft.evidence.release.finding import Surroundings
from fleetcraft.evidence.release.gate_file import read_gate_file
from fleetcraft.evidence.release.gates import decide
from fleetcraft.slurm.polls import Polls
from tests.evidence.result_rows import fill, result, room
from tests.slurm.fakes import FakePrograms, recorded

_HEAD = "JobIDRaw|Cluster|State|ElapsedRaw|AllocTRES\n"
_DONE = "41|c|COMPLETED|7200|billing=8,cpu=8,gres/gpu=4,mem=9G,node=1\n"
_CUT = "42|c|CANCELLED by 1000|1800|cpu=8,gres/gpu=2,node=1\n"
_RUNS = "43|c|RUNNING|60|cpu=8,gres/gpu=2,node=1\n"
_NO_GPUS = "44|c|TIMEOUT|60|cpu=8,node=1\n"


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    made = FakePrograms(tmp_path, monkeypatch)
    made.says("scontrol", recorded("22.05", "scontrol-config"))
    made.says("sacct", _HEAD + _DONE + _CUT + _RUNS + _NO_GPUS)
    return made


@pytest.fixture
def polls(tmp_path: Path) -> Polls:
    return Polls(str(tmp_path / "polls"), interval_s=0)


def test_jobs_are_known_by_state_time_and_gpus(fakes: FakePrograms, polls: Polls) -> None:
    found = look_up(polls, ["41", "42", "43", "44", "45"])

    assert {job: use.ended for job, use in found.items()} == {
        "41": True, "42": True, "43": False, "44": True,
    }  # fmt: skip
    assert (found["41"].gpu_h, found["42"].gpu_h, found["44"].gpu_h) == (8.0, 1.0, None)
    [call] = fakes.calls("sacct")
    assert "--jobs=41,42,43,44,45" in call.words


def test_many_jobs_are_asked_for_in_few_questions(fakes: FakePrograms, polls: Polls) -> None:
    assert set(look_up(polls, map(str, range(1, 402)))) == {"41", "42", "43", "44"}
    assert len(fakes.calls("sacct")) == 3
    assert look_up(polls, []) == {}


def test_what_is_no_number_is_not_asked_for(fakes: FakePrograms, polls: Polls) -> None:
    for job in ("41;reboot", "L0123", "", "4_1", "٤"):
        with pytest.raises(UsageError):
            look_up(polls, [job])
    assert fakes.calls("sacct") == []


@pytest.mark.parametrize("text", ["", "Job|State\n", _HEAD + "41|c||1|\n", _HEAD + "41|c|COMP"])
def test_what_is_no_answer_says_nothing(fakes: FakePrograms, polls: Polls, text: str) -> None:
    fakes.says("sacct", text)
    with pytest.raises(NoAnswerError):
        look_up(polls, ["41"])


def _verdict(tmp_path: Path, polls: Polls, check: str) -> tuple[Any, str]:
    path = tmp_path / "gate.yaml"
    path.write_text(f"name: out\naccounting:\n- {{check: {check}}}\n")
    around = Surroundings(paths=room(tmp_path), base=str(tmp_path), polls=lambda: polls)
    [found] = decide(read_gate_file(str(path)), around).predicates
    return found.finding.verdict, found.finding.found


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    ("check", "verdict", "said"),
    [
        ("jobs_ended, jobs: [41, 42]", True, "CANCELLED"),
        ("jobs_ended, jobs: [41, 43]", None, "job 43 is RUNNING"),
        ("jobs_ended, jobs: [41, 99]", None, "does not know job 99"),
        ("gpu_hours, jobs: [41, 42]", True, "9.00 GPU-hours of 2 jobs"),
        ("gpu_hours, jobs: [41, 42], at_most: 8.9", False, "9.00 GPU-hours"),
        ("gpu_hours, jobs: [41, 43]", None, "no end of 43"),
        ("gpu_hours, jobs: [41, 44]", None, "no count of GPUs for 44"),
    ],
)
def test_a_gate_passes_only_with_ends_that_are_written_down(
    tmp_path: Path, polls: Polls, check: str, verdict: Any, said: str
) -> None:
    found = _verdict(tmp_path, polls, check)
    assert (found[0], said in found[1]) == (verdict, True)


def test_jobs_are_those_that_made_the_results(
    tmp_path: Path, fakes: FakePrograms, polls: Polls
) -> None:
    paths = room(tmp_path)
    fill(paths, "s", *(result("a", int(job), producer=Producer(job=job)) for job in ("41", "42")))
    assert _verdict(tmp_path, polls, "jobs_ended, set: s")[0] is True

    fill(paths, "s", result("a", 7))
    assert _verdict(tmp_path, polls, "jobs_ended, set: s") == (
        None,
        "1 results name no job of Slurm",
    )


@pytest.mark.parametrize("body", ["exit 1", "echo 'sacct: error: no' >&2; exit 1"])
def test_an_accounting_that_does_not_answer_leaves_the_gate_closed(
    tmp_path: Path, fakes: FakePrograms, polls: Polls, body: str
) -> None:
    fakes.write("sacct", body)
    assert _verdict(tmp_path, polls, "jobs_ended, jobs: [41]")[0] is None
    assert _verdict(tmp_path, polls, "gpu_hours, jobs: [41]")[0] is None
