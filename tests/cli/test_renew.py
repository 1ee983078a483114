"""The verb renew: its words, its settings, what it prints and its exit codes.

Slurm is played by small programs. Not here: what a pass decides (tests/fleet) and the real Slurm
(tests/slurm).
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fleetcraft.cli import renew
from fleetcraft.fleet.shapes import Mark, root_mark
from fleetcraft.slurm import polls
from fleetcraft.slurm.queue import _JOBS
from tests.cli.conftest import Fleet
from tests.slurm.fakes import FakePrograms, long_table

TITLES = [title.split("|")[0] for _, title in _JOBS.columns]
CONFIG = "Configuration data as of 2026-11-29T20:00:00\nClusterName = toy\n"
CONFIG += "AccountingStorageType = accounting_storage/none\nPriorityType = priority/basic\n"


def row(job_id: str, **fields: str) -> list[str]:
    given = {
        "JobID": job_id, "JobArrayID": job_id, "ArrayTaskID": "N/A", "Cluster": "toy",
        "UserID": str(os.geteuid()), "State": "PENDING", "RestartCnt": "0", "Partition": "main",
        "Account": "(null)", "QOS": "(null)", "NumNodes": "2", "NodeList": "",
        "SubmitTime": "1764450000", "StartTime": "N/A", "EndTime": "N/A", "TimeLimit": "1:00:00",
        "TimeLeft": "1:00:00", "tres-per-node": "N/A", "tres-alloc": "N/A", "Reason": "Resources",
        "Name": "fleet", "Comment": "(null)", **fields,
    }  # fmt: skip
    return [given[field] for field, _ in _JOBS.columns]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    """A Slurm with an empty queue, which takes every submission as job 501."""
    programs = tmp_path / "slurm"
    programs.mkdir()
    made = FakePrograms(programs, monkeypatch)
    made.says("squeue", long_table(TITLES))
    made.says("sbatch", "501\n")
    made.says("scontrol", CONFIG)
    monkeypatch.setenv("FLEET_POLLS_DIR", str(tmp_path / "polls"))
    # What is spaced by ten seconds elsewhere follows at once here.
    monkeypatch.setattr(renew, "_PASS_S", 0.1)
    monkeypatch.setattr(polls, "Polls", partial(polls.Polls, interval_s=0.0))
    return made


@pytest.fixture
def work(fleet: Fleet, put: Callable[..., None]) -> Fleet:
    """Two pending tasks."""
    put("a")
    put("b")
    return fleet


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lane", "8"], "not a lane: '8'"),
        (["--lane", "8x0s"], "not a usable duration"),
        (["--every", "5m"], "--every needs --for"),
        (["--for", "1h"], "no --every says how often"),
        (["--every", "5s", "--for", "1h"], "at least 10 s"),
        (["--every", "5m", "--for", "1h", "--once"], "cannot go with"),
        (["--every", "5m", "--for", "1h", "--dry-run"], "cannot go with"),
        (["--every", "soon", "--for", "1h"], "not a usable duration"),
    ],
    ids=" ".join,
)
def test_wrong_words_are_two_lines_and_exit_2(fleet: Fleet, words: list[str], message: str) -> None:
    called = fleet("renew", *words)
    assert (called.code, called.out) == (2, "")
    assert message in called.err.splitlines()[0]


def test_without_a_lane_the_settings_are_asked_and_named(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = fleet("renew")
    assert called.code == 3
    assert "no --lane, and no renew.lanes" in called.err
    monkeypatch.setenv("FLEET_RENEW_LANES", "8x12:00:00 four")
    called = fleet("renew")
    assert called.code == 3
    assert "environment FLEET_RENEW_LANES" in called.err
    assert "not a lane: 'four'" in called.err


def test_a_headroom_in_hours_of_what_has_no_known_cost_is_refused(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_BALANCE_HEADROOM_H", "10")
    monkeypatch.setenv("FLEET_BALANCE_TRES", "billing")
    called = fleet("renew", "--lane", "8x1h")
    assert called.code == 3
    assert "'billing' is not known" in called.err


def test_without_slurm_nothing_is_submitted_and_it_says_so(
    work: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    called = work("renew", "--lane", "1x1h", "--json")
    assert called.error["exit_code"] == 4
    assert "sbatch is not on PATH" in called.error["message"]


def test_inside_a_job_it_refuses_and_names_the_setting(
    work: Fleet, slurm: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    called = work("renew", "--lane", "1x1h")
    assert called.code == 3
    assert "inside job 77" in called.err
    assert "login.reach" in called.err
    assert slurm.calls("sbatch") == slurm.calls("squeue") == []


def test_the_way_to_a_login_node_gets_the_same_call(
    work: Fleet, slurm: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("FLEET_LOGIN_REACH", "reach login1")
    monkeypatch.setenv("FLEET_RENEW_MAX_JOBS", "5")
    slurm.write("reach", 'printf "%s\\n" "$2" > "$0.line"; exit 75')
    called = work("renew", "--lane", "1x1h", "--every", "30s", "--for", "2m", "--json")
    assert called.code == 75
    line = (slurm.bin / "reach.line").read_text()
    words = shlex.split(line)
    assert words[0] == "env"
    assert "FLEET_RENEW_MAX_JOBS=5" in words
    assert words[words.index("--root") + 1] == str(work.root)
    assert words[words.index("renew") :] == [
        *("renew", "--reached", "--json", "--lane=1x01:00:00", "--every=30s", "--for=2m"),
    ]
    assert slurm.calls("sbatch") == []


def test_a_fleet_is_submitted_and_shown(work: Fleet, slurm: FakePrograms) -> None:
    called = work.ok("renew", "--lane", "2x1h", "--lane", "8x1h", "--now")
    first, second, seen = called.out.splitlines()
    assert first.split()[:3] == ["2x01:00:00", "submitted", "501"]
    assert second.startswith("8x01:00:00  not needed")
    assert seen.startswith("2 tasks pending, 1 fleet in the queue; squeue answered")
    (submission,) = slurm.calls("sbatch")
    mark = root_mark(str(work.root))
    assert "--nodes=2 --time=01:00:00 --job-name=fleet-" in submission.words
    assert f"--comment=fleetcraft root={mark} lane=2x01:00:00 intent=" in submission.words


def test_two_passes_see_the_need_before_a_fleet_is_submitted(
    work: Fleet, slurm: FakePrograms
) -> None:
    called = work.ok("renew", "--lane", "2x1h", "--lane", "1x1h@other")
    # The second lane has nothing left to do once the first one has its fleet.
    assert called.err == (
        "2x01:00:00: seen; needed in 1 of 2 passes in a row; looking again\n"
        "1x01:00:00@other: seen; needed in 1 of 2 passes in a row; looking again\n"
    )
    first, second, _ = called.out.splitlines()
    assert first.startswith("2x01:00:00        submitted 501")
    assert second.startswith("1x01:00:00@other  not needed")
    assert len(slurm.calls("squeue")) == 2
    assert len(slurm.calls("sbatch")) == 1


def test_an_answer_that_sbatch_lost_is_looked_for_at_once(work: Fleet, slurm: FakePrograms) -> None:
    # The job is there: squeue lists it by the name that sbatch was given.
    slurm.says("squeue", long_table(TITLES, row("501", Name="of the job")))
    table = shlex.quote(str(slurm.folder / "squeue.text"))
    find_name = "for word; do case $word in --job-name=*) name=${word#*=};; esac; done"
    slurm.write("sbatch", f'{find_name}; sed -i "s/of the job/$name/" {table}; exit 1')
    called = work.ok("renew", "--lane", "2x1h", "--now", "--json")
    assert "may or may not have been submitted" in called.err
    (found,) = called.json["settled"]
    assert (found["how"], found["job_id"]) == ("submitted", "501")
    assert len(slurm.calls("sbatch")) == 1


def test_a_steady_renewal_prints_a_line_a_pass(
    fleet: Fleet, slurm: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renew, "_LEAST_EVERY_S", 1)
    called = fleet.ok("renew", "--lane", "2x1h", "--every", "1s", "--for", "2s", "--json")
    passes = [json.loads(line) for line in called.out.splitlines()]
    assert len(passes) >= 2
    assert {value["lanes"][0]["decision"] for value in passes} == {"not_needed"}
    assert {value["generation"] for value in passes} == {1}
    assert (fleet.root / "control/locks/renew/released.1").exists()


def test_json_has_every_figure_with_its_age(work: Fleet, slurm: FakePrograms) -> None:
    value = work.ok("renew", "--lane", "2x1h@gpu/2", "--now", "--json").json
    assert value["schema"] == "fleetcraft.renew/1"
    assert (value["dry_run"], value["generation"], value["submitted"]) == (False, 1, ["501"])
    assert (value["pending"], value["unread"], value["unfit"], value["trouble"]) == (2, 0, 0, None)
    assert value["queue_age_s"] >= 0
    assert value["demand_age_s"] >= 0
    (lane,) = value["lanes"]
    assert (lane["lane"], lane["nodes"], lane["time_s"]) == ("2x01:00:00@gpu/2", 2, 3600)
    assert (lane["decision"], lane["job_id"], lane["cost_h"]) == ("submitted", "501", 2.0)
    assert lane["demand"] == {"tasks": 2, "nodes": 2.0, "taken_by_supply": 0, "open_nodes": 2.0}
    assert lane["balance"]["status"] == "not_checked"
    assert "--partition=gpu" in lane["sbatch"]
    assert lane["sbatch"][lane["sbatch"].index("--slots") + 1] == "2"


def test_a_dry_run_submits_and_writes_nothing(work: Fleet, slurm: FakePrograms) -> None:
    called = work.ok("renew", "--lane", "2x1h", "--dry-run")
    assert "2x01:00:00  would submit  2 tasks fit it" in called.out
    assert "2x01:00:00: sbatch --parsable --nodes=2" in called.out
    assert called.err == "nothing was submitted (--dry-run)\n"
    assert slurm.calls("sbatch") == []
    assert not (work.root / "control").exists()
    assert work.ok("renew", "--lane", "2x1h", "--dry-run", "--json").json["dry_run"] is True


def test_what_waits_already_is_supply(work: Fleet, slurm: FakePrograms) -> None:
    mark = str(Mark(root_mark(str(work.root))))
    slurm.says("squeue", long_table(TITLES, row("7", Comment=mark), row("8")))
    value = work.ok("renew", "--lane", "2x1h", "--now", "--json").json
    (lane,) = value["lanes"]
    assert lane["decision"] == "not_needed"
    assert [job["job_id"] for job in lane["supply"]] == ["7"]
    assert lane["demand"]["taken_by_supply"] == 2


@pytest.mark.parametrize(
    ("body", "words"),
    [("exit 0", "not even a header"), ("echo no >&2; exit 1", "failed with exit code 1: no")],
    ids=["empty", "failed"],
)
def test_a_squeue_without_an_answer_is_exit_4(
    work: Fleet, slurm: FakePrograms, body: str, words: str
) -> None:
    slurm.write("squeue", body)
    called = work("renew", "--lane", "2x1h", "--now")
    assert called.code == 4
    assert called.out.startswith("2x01:00:00  unknown  squeue did not answer")
    assert words in called.out
    assert slurm.calls("sbatch") == []


def test_a_refused_submission_is_exit_4_and_leaves_nothing_open(
    work: Fleet, slurm: FakePrograms
) -> None:
    slurm.write("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    called = work("renew", "--lane", "2x1h", "--now")
    assert called.code == 4
    assert "refused" in called.out
    assert "invalid partition" in called.out
    (end,) = (work.root / "control/intents").glob("*.end.json")
    assert json.loads(end.read_bytes())["how"] == "refused"


def test_too_many_nodes_are_refused_before_anything_is_recorded(
    work: Fleet, slurm: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_SLURM_MAX_NODES", "4")
    called = work("renew", "--lane", "8x1h")
    assert called.code == 2
    assert "slurm.max_nodes" in called.err
    assert slurm.calls("squeue") == []
    assert not (work.root / "control").exists()


def test_markers_are_a_decision_and_no_error(work: Fleet, slurm: FakePrograms) -> None:
    work.ok("drain", "--reason", "maintenance")
    called = work.ok("renew", "--lane", "2x1h")
    assert "DRAIN stands, written by" in called.out
    assert slurm.calls("sbatch") == []


def test_a_control_folder_that_others_can_write_is_refused(
    work: Fleet, slurm: FakePrograms
) -> None:
    (work.root / "control").mkdir()
    (work.root / "control").chmod(0o777)
    called = work("renew", "--lane", "2x1h", "--now")
    assert called.code == 5
    assert "not a private folder" in called.err
    assert slurm.calls("sbatch") == []


def test_a_lock_that_may_be_anothers_is_exit_75_until_a_person_consents(
    work: Fleet, slurm: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renew, "_BEAT_S", 0.05)
    work.ok("renew", "--lane", "8x1h", "--now")
    folder = work.root / "control/locks/renew"
    (folder / "released.1").unlink()
    record = json.loads((folder / "gen.1").read_bytes())
    # With a nonce of its own: what this process itself was given it knows to have released.
    other = {**record, "host": "login2", "pid": 4711, "nonce": "another"}
    (folder / "gen.1").write_text(json.dumps(other))
    called = work("renew", "--lane", "8x1h", "--now")
    assert called.code == 75
    assert "process 4711 on login2" in called.err
    assert "nothing says that it is gone" in called.err
    assert "renew --take-over, once you know that it is gone" in called.err
    value = work.ok("renew", "--lane", "8x1h", "--now", "--take-over", "--json").json
    assert value["generation"] == 2
