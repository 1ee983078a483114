"""``fleetcraft launch``: what it prints, and what it refuses. Nothing here reaches a real Slurm."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleetcraft.cli.allocation import _teller
from tests.cli.conftest import Fleet
from tests.slurm.fakes import FakePrograms


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    """An sbatch that says what it was called with, and no other program of Slurm's."""
    programs = FakePrograms(tmp_path, monkeypatch)
    programs.write("sbatch", "echo 4711")
    return programs


def test_a_launch_says_the_job_its_line_and_its_checks(fleet: Fleet, slurm: FakePrograms) -> None:
    said = fleet.ok("launch", "-N", "4", "--time", "00:05:00", "--json").json
    assert said["schema"] == "fleetcraft.launch/1"
    assert said["job_id"] == "4711"
    assert said["dry_run"] is False
    assert said["log"] == f"{fleet.root}/logs/fleet-4711.log"
    assert shlex.split(said["sbatch"]) == said["argv"]
    assert said["argv"][:2] == ["sbatch", "--parsable"]
    assert {check["name"] for check in said["checks"]} >= {"spool", "balance", "login guard"}
    assert all(set(check) == {"name", "status", "text"} for check in said["checks"])
    assert len(slurm.calls("sbatch")) == 1


def test_a_dry_run_prints_the_same_line_and_submits_nothing(
    fleet: Fleet, slurm: FakePrograms
) -> None:
    words = ("launch", "-N", "4", "--time", "5", "--partition", "gpu", "--slots", "gpu")
    dry = fleet.ok(*words, "--dry-run", "--json").json
    assert dry["job_id"] is None
    assert dry["dry_run"] is True
    printed = fleet.ok(*words, "--dry-run").out
    assert slurm.calls("sbatch") == []
    assert not (fleet.root / "logs").exists()
    assert dry["sbatch"] in printed.splitlines()
    assert "--time=00:05:00" in dry["argv"]
    assert "--partition=gpu" in dry["argv"]
    assert fleet.ok(*words, "--json").json["argv"] == dry["argv"]


def test_a_person_is_told_the_job_its_logs_and_what_to_do_next(
    fleet: Fleet, slurm: FakePrograms
) -> None:
    called = fleet.ok("launch", "-N", "4", "--time", "30")
    assert "submitted job 4711: 4 nodes" in called.out
    assert f"{fleet.root}/logs/fleet-4711.log" in called.out
    assert "squeue -j 4711" in called.out
    assert "warning: 0 tasks are pending" in called.err


def test_further_options_of_sbatch_stand_after_two_dashes(
    fleet: Fleet, slurm: FakePrograms
) -> None:
    said = fleet.ok("--json", "launch", "-N", "1", "--time", "5", "--", "--nice=5", "-x", "n9").json
    script = next(i for i, word in enumerate(said["argv"]) if word.endswith("fleet.sbatch"))
    assert said["argv"][script - 3 : script] == ["--nice=5", "-x", "n9"]


@pytest.mark.parametrize(
    ("words", "missing"),
    [(("--time", "5"), "-N NODES"), (("-N", "4"), "--time TIME"), ((), "-N NODES")],
)
def test_nodes_and_time_are_asked_for(
    fleet: Fleet, slurm: FakePrograms, words: tuple[str, ...], missing: str
) -> None:
    called = fleet("launch", *words, "--json")
    assert called.code == 2
    assert called.error["message"] == f"{missing} is missing; nothing was submitted"
    assert slurm.calls("sbatch") == []


@pytest.mark.parametrize(
    "words",
    [
        ("-N", "0", "--time", "5"),
        ("-N", "1", "--time", "forever"),
        ("-N", "1", "--time", "5", "--idle", "soon"),
        ("-N", "1", "--time", "5", "--slots", "many"),
        ("-N", "1", "--time", "5", "--gpus-per-node", "x"),
        ("-N", "1", "--time", "5", "--beside", "train"),
        ("-N", "1", "--time", "5", "--beside-nodes", "1"),
        ("-N", "1", "--time", "5", "--beside", "train", "--beside-nodes", "2"),
    ],
)
def test_bad_options_are_usage_errors(
    fleet: Fleet, slurm: FakePrograms, words: tuple[str, ...]
) -> None:
    assert fleet("launch", *words).code == 2
    assert slurm.calls("sbatch") == []


def test_a_marker_refuses_a_launch_and_a_dry_run_says_so(fleet: Fleet, slurm: FakePrograms) -> None:
    fleet.ok("drain", "--reason", "maintenance")
    words = ("launch", "-N", "1", "--time", "5", "--json")
    called = fleet(*words)
    assert called.code == 5
    assert "DRAIN" in called.error["message"]
    assert called.error["facts"]["check"] == "markers"
    dry = fleet(*words, "--dry-run")
    assert dry.code == 5
    assert {"name", "status", "text"} == set(dry.json["checks"][0])
    assert [check["name"] for check in dry.json["checks"] if check["status"] == "failed"] == [
        "markers"
    ]
    assert slurm.calls("sbatch") == []


def test_a_slurm_that_refuses_is_named_with_its_own_words(
    fleet: Fleet, slurm: FakePrograms
) -> None:
    slurm.write("sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    called = fleet("launch", "-N", "1", "--time", "5", "--json")
    assert called.code == 4
    assert "invalid partition" in called.error["message"]
    assert "no job was submitted" in called.error["message"]


def test_a_submission_whose_answer_was_lost_is_not_made_again(
    fleet: Fleet, slurm: FakePrograms
) -> None:
    slurm.write("sbatch", "echo 'sbatch: error: Socket timed out on send/recv' >&2; exit 1")
    called = fleet("launch", "-N", "1", "--time", "5", "--json")
    assert called.code == 4
    assert called.error["type"] == "SubmissionUnknownError"
    assert len(slurm.calls("sbatch")) == 1


def test_without_slurm_the_hint_names_a_way(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    called = fleet("launch", "-N", "1", "--time", "5", "--json")
    assert called.code == 4
    assert "fleetcraft run" in called.error["hint"]


def test_an_unknown_site_is_named_with_a_near_one(fleet: Fleet, slurm: FakePrograms) -> None:
    called = fleet("launch", "-N", "1", "--time", "5", "--site", "generik", "--json")
    assert called.code == 3
    assert "'generic'" in called.error["hint"]


@pytest.mark.parametrize(
    ("site", "option"),
    [("gh200-one-gpu", "--partition=gh"), ("a100-three-gpus", "--gpus-per-node=3")],
)
def test_the_example_sites_need_no_editing_to_be_read(
    fleet: Fleet, slurm: FakePrograms, site: str, option: str
) -> None:
    words = ("launch", "-N", "4", "--time", "5", "--site", site, "--dry-run", "--json")
    said = fleet.ok(*words).json
    assert option in said["argv"]
    assert said["argv"][said["argv"].index("--site") + 1] == site


def test_here_outside_an_allocation_starts_nothing(fleet: Fleet) -> None:
    called = fleet("launch", "--here", "--json")
    assert called.code == 2
    assert "salloc" in called.error["hint"]


@pytest.mark.parametrize("words", [("--dry-run",), ("-N", "2"), ("--time", "5"), ("--", "-x")])
def test_here_takes_no_option_of_a_submission(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    called = fleet("--json", "launch", "--here", *words)
    assert called.code == 2
    assert "no worker was started" in called.error["message"]


def test_here_obeys_a_marker(
    fleet: Fleet, slurm: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    fleet.ok("stop")
    called = fleet("launch", "--here", "--json")
    assert called.code == 5
    assert "no worker was started" in called.error["message"]


def test_help_names_the_syntax_of_time_and_the_way_into_an_allocation(fleet: Fleet) -> None:
    text = " ".join(fleet.bare("launch", "--help").out.split())
    assert "a bare number is minutes" in text
    assert "salloc -N 4 --time 01:00:00 fleetcraft launch --here" in text


@pytest.mark.parametrize(("json", "stream"), [(False, "stderr"), (True, "stdout")])
def test_a_log_that_takes_no_more_lines_does_not_end_the_launcher(
    json: bool, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115 # closing it fails too
    monkeypatch.setattr(sys, stream, full)
    tell = _teller(SimpleNamespace(json=json))  # fleetcraft.cli.allocation

    tell({"event": "died", "node": "n1", "rank": 0, "text": "it died"})

    monkeypatch.undo()
    with contextlib.suppress(OSError):
        full.close()
