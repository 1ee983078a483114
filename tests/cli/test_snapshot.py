"""``fleetcraft snapshot``: what it prints, for people and for programs, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Fleet
from tests.fleet.quiet_slurm import QuietSlurm
from tests.fleet.telemetry_files import Telemetry, row

Put = Callable[..., None]
PARTS = {"jobs", "nodes", "gpus", "limits", "balance", "outer_spool", "inner_spool"}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QuietSlurm:
    return QuietSlurm(tmp_path, monkeypatch)


@pytest.fixture
def telemetry(fleet: Fleet) -> Telemetry:
    return Telemetry(fleet.root)


@pytest.mark.usefixtures("slurm")
def test_every_part_is_there_with_its_age(fleet: Fleet, put: Put, telemetry: Telemetry) -> None:
    put("one")
    telemetry.write("n1", row(gpu_index=0), row(gpu_index=1, util_pct=0))
    value = fleet.ok("snapshot", "--json").json
    assert value["schema"] == "fleetcraft.snapshot/1"
    assert set(value["ages_s"]) == PARTS
    assert [job["job_id"] for job in value["jobs"]] == ["7"]
    assert value["jobs"][0]["nodes"] == ["n1", "n2"]
    assert value["jobs"][0]["fleet"] is False
    assert {node["name"]: node["state"] for node in value["nodes"]} == {
        **{"n1": "allocated", "n2": "allocated"},
    }
    assert value["gpu_states"] == {
        **{"allocated": 4, "working": 1, "resident_idle": 1, "free_idle": 0},
        **{"silent": 0, "lost": 0, "unknown": 2},
    }
    assert len(value["gpus"]) == 4
    assert value["gpus"][0]["source"] == "telemetry"
    assert value["limits"]["status"] == value["balance"]["status"] == "not_checked"
    assert value["spools"]["outer"]["pending"] == 1
    assert value["unknown"] == {}
    assert value["probe"] is None
    assert value["summary"] == (
        "4 GPUs allocated: 1 working, 1 resident idle, 2 unknown; "
        "outer spool 1 pending, 0 running; inner spool 0 pending, 0 running"
    )


@pytest.mark.usefixtures("slurm")
def test_people_read_the_same_and_what_needs_a_look_comes_first(
    fleet: Fleet, telemetry: Telemetry
) -> None:
    telemetry.write("n1", row(gpu_index=0), row(gpu_index=1, util_pct="", status="lost"))
    out = fleet.ok("snapshot").out
    head, _, gpus = out.partition("\ngpus (")
    assert head.splitlines()[1].startswith("4 GPUs allocated: 1 working, 1 lost, 2 unknown; outer")
    assert "  7  fleet  RUNNING  2 nodes n1,n2  03:59:40 left" in head
    assert "  n1  allocated  2 of 2 GPUs used  job 7" in head
    assert "  whole cluster: 2 allocated, 1 idle" in head
    lost, unseen, working = gpus.splitlines()[1:4]
    assert lost.startswith("  job 7  n1  GPU 1   lost     ? %, ")
    assert unseen == "  job 7  n2  2 GPUs  unknown  no telemetry file"
    assert working.startswith("  job 7  n1  GPU 0   working  97 %, 60000 of 81559 MiB (telemetry, ")
    assert "--probe asks the nodes" in gpus
    assert "balance: not checked: this cluster keeps no accounts" in gpus


def test_pending_jobs_say_why_they_wait_and_until_when(fleet: Fleet, slurm: QuietSlurm) -> None:
    slurm.jobs(
        {"JobID": "8", "State": "PENDING", "Reason": "Resources", "NumNodes": "4"},
        {"JobID": "9", "State": "PENDING", "Reason": "Dependency", "StartTime": "N/A"},
    )
    jobs = fleet.ok("snapshot", "--json").json["jobs"]
    assert [(job["reason"], job["expected_start_at"], job["started_at"]) for job in jobs] == [
        ("Resources", "2026-11-30T00:08:33Z", None),
        ("Dependency", None, None),
    ]
    out = fleet.ok("snapshot").out
    assert "PENDING  4 nodes  Resources, expected to start 2026-11-30T00:08:33Z" in out
    assert "PENDING  1 node   Dependency, no start expected yet" in out


@pytest.mark.parametrize("body", ["exit 1", "", "echo nonsense"])
def test_an_unanswered_part_is_null_with_its_reason_and_the_exit_code_says_so(
    fleet: Fleet, slurm: QuietSlurm, body: str
) -> None:
    slurm.write("squeue", body)
    called = fleet("snapshot", "--json")
    assert called.code == 4
    value = called.json
    assert (value["jobs"], value["gpus"], value["gpu_states"]) == (None, None, None)
    assert value["nodes"] is None  # which of them are ours nobody has said
    assert value["node_states"] == {"allocated": 2, "idle": 1}
    assert set(value["unknown"]) == {"jobs", "nodes", "gpus"}
    assert "squeue" in value["unknown"]["jobs"]
    assert value["ages_s"]["jobs"] is None
    assert value["summary"].startswith("GPUs not known; outer spool 0 pending")
    called = fleet("snapshot")
    assert called.code == 4
    assert "\njobs: unknown: squeue " in called.out


def test_an_empty_queue_is_an_answer(fleet: Fleet, slurm: QuietSlurm) -> None:
    slurm.jobs()
    value = fleet.ok("snapshot", "--json").json
    assert (value["jobs"], value["nodes"], value["gpus"]) == ([], [], [])
    assert "0 GPUs allocated; " in fleet.ok("snapshot").out


def test_without_slurm_what_is_known_is_shown(
    fleet: Fleet, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("one")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FLEET_POLLS_DIR", str(tmp_path / "polls"))
    called = fleet("snapshot", "--json")
    assert called.code == 4
    assert set(called.json["unknown"]) == {"jobs", "nodes", "gpus", "limits", "balance"}
    assert called.json["limits"]["status"] == called.json["balance"]["status"] == "unknown"
    assert called.json["spools"]["outer"]["pending"] == 1


def test_without_a_scratch_tree_it_says_how_to_name_one(fleet: Fleet) -> None:
    called = fleet.bare("snapshot", "--json")
    assert called.code == 3
    assert called.error["facts"]["setting"] == "root"


def test_a_failed_probe_is_told_and_ends_with_4(fleet: Fleet, slurm: QuietSlurm) -> None:
    slurm.write("srun", "echo 'srun: error: no' >&2; exit 1")
    called = fleet("snapshot", "--probe", "--json")
    assert called.code == 4
    assert called.json["probe"]["failures"] == {"7": "its srun ended with 1: srun: error: no"}
    assert {gpu["state"] for gpu in called.json["gpus"]} == {"unknown"}
    assert "job 7: its srun ended with 1: srun: error: no" in fleet("snapshot", "--probe").out


def test_lists_for_people_are_bounded_and_json_is_whole(fleet: Fleet, slurm: QuietSlurm) -> None:
    slurm.jobs(*({"JobID": str(number), "NodeList": "n1"} for number in range(1, 31)))
    out = fleet("snapshot", "--limit", "5").out
    jobs = out.partition("\njobs")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(jobs) == 6
    assert jobs[-1] == "  ... and 25 more"
    assert len(fleet("snapshot", "--json", "--limit", "5").json["jobs"]) == 30


def test_no_text_of_others_reaches_the_terminal_as_it_is(
    fleet: Fleet, slurm: QuietSlurm, telemetry: Telemetry
) -> None:
    evil = "a\x1b[31m\u2028b\nc"
    slurm.jobs(
        {"JobID": "7", "NodeList": "n1", "Name": evil, "Reason": evil},
        {"JobID": "8", "State": "PENDING", "Name": evil, "Reason": evil},
    )
    slurm.nodes({"NodeList": "n1", "Reason": evil, "StateLong": f"down{evil}"})
    slurm.write("srun", "printf 'bad \\033[31m\\n' >&2; exit 1")
    telemetry.write("n1", row(gpu_index=0, util_pct="", status="\x1b[32m"))
    out = fleet("snapshot", "--probe").out
    assert "\x1b" not in out
    assert "a\\x1b[31m" in out
    assert "\nc" not in out


def test_limits_and_balance_are_those_of_the_settings(
    fleet: Fleet, slurm: QuietSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_SLURM_ACCOUNT", "proj")
    monkeypatch.setenv("FLEET_SLURM_QOS", "fast")
    monkeypatch.setenv("FLEET_BALANCE_TRES", "gres/gpu")
    slurm.scontrol(accounting="accounting_storage/slurmdbd")
    slurm.write("sacctmgr", "exit 1")
    slurm.write("sshare", "exit 1")
    called = fleet("snapshot", "--json")
    assert called.code == 4
    assert called.json["balance"]["tres"] == "gres/gpu"
    assert set(called.json["unknown"]) == {"limits", "balance"}
    assert any("assoc" in call.words for call in slurm.calls("sacctmgr"))
