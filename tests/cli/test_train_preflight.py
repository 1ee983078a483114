"""``fleetcraft train preflight``: its answers as text, as JSON, and as exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import REPO, Fleet, environment

GIB = 1 << 30
TELL = """
import os, sys
path = os.path.join(os.environ["FLEET_TRAIN_BUILT"], "rank-00000.json")
with open(path + ".tmp", "w") as file:
    file.write(sys.argv[1])
os.replace(path + ".tmp", path)
"""


def module(**facts: Any) -> dict[str, Any]:
    return {
        "wrapper": "FSDP HYBRID_SHARD",
        "shard_group_size": 1,
        "parameters": 3 * GIB,
        "parameter_bytes": 12 * GIB,
        "held_bytes": 12 * GIB,
        "trainable_bytes": 12 * GIB,
        "activation_checkpointing": True,
        "how": "30 checkpoint wrappers",
        **facts,
    }


def report(rank: int, size: int, **modules: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": "fleetcraft.train-built/1",
        "rank": rank,
        "world_size": size,
        "node": f"node{rank}",
        "local_world_size": 1,
        "modules": modules,
    }


def write_attempt(folder: Path, *reports: dict[str, Any]) -> Path:
    (folder / "built").mkdir(parents=True)
    for one in reports:
        (folder / "built" / f"rank-{one['rank']:05d}.json").write_text(json.dumps(one))
    return folder


def run_file(folder: Path, text: str = "") -> str:
    path = folder / "run.yaml"
    path.write_text(f"run: drafter\ncommand: [python, train.py]\n{text}")
    return str(path)


BUILT = "world_size: 2\nbuilt: {shard_group_size: 2, activation_checkpointing: {policy: true}}\n"


def test_a_replicated_policy_is_answered_with_no(fleet: Fleet, tmp_path: Path) -> None:
    attempt = write_attempt(
        tmp_path / "one", *(report(rank, 2, policy=module()) for rank in range(2))
    )

    called = fleet("train", "preflight", run_file(tmp_path, BUILT), str(attempt))

    assert called.code == 1
    lines = called.out.splitlines()
    assert lines[0].startswith("ok  world size")
    assert any(
        line.startswith("no  sharding of policy")
        and "declared over 2, built replicated (FSDP HYBRID_SHARD)" in line
        and "each node has one rank" in line
        for line in lines
    )
    assert lines[-1] == "drafter: not built as declared"


def test_the_same_as_json(fleet: Fleet, tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "one", report(0, 1, policy=module()))

    called = fleet("train", "preflight", run_file(tmp_path, BUILT), str(attempt), "--json")

    value = called.json
    assert called.code == 1
    assert value["schema"] == "fleetcraft.train-preflight/1"
    assert (value["ok"], value["run"], value["launch"]) == (False, "drafter", None)
    answers = {(one["subject"], one["module"]): one["answer"] for one in value["findings"]}
    assert answers["world size", ""] == "no"
    assert answers["activation checkpointing", "policy"] == "ok"
    assert value["ranks"][0]["modules"]["policy"]["held_bytes"] == 12 * GIB


def test_what_is_built_as_declared_exits_with_zero(fleet: Fleet, tmp_path: Path) -> None:
    sharded = module(wrapper="fully_shard", shard_group_size=2, held_bytes=6 * GIB)
    write_attempt(
        fleet.root / "runs" / "drafter" / "attempt-000002",
        *(report(rank, 2, policy=sharded) for rank in range(2)),
    )
    (fleet.root / "runs" / "drafter" / "attempt-000003" / "built").mkdir(parents=True)

    called = fleet.ok("train", "preflight", run_file(tmp_path, BUILT))

    assert (
        "attempt-000002"
        in fleet.ok("train", "preflight", run_file(tmp_path, BUILT), "--json").json["folder"]
    )
    assert called.out.splitlines()[-1] == "drafter: built as declared"


def test_ranks_that_have_not_told_leave_it_open(fleet: Fleet, tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "one", report(0, 2, policy=module(shard_group_size=2)))

    called = fleet("train", "preflight", run_file(tmp_path, BUILT), str(attempt))

    assert called.code == 7
    assert "nothing of rank 1" in called.out


def test_a_run_that_declares_nothing_is_told_so(fleet: Fleet, tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "one", report(0, 1, policy=module()))

    called = fleet.ok("train", "preflight", run_file(tmp_path), str(attempt))

    assert "the run file declares nothing to compare" in called.out


def test_names_from_a_report_do_not_reach_the_terminal_as_escapes(
    fleet: Fleet, tmp_path: Path
) -> None:
    evil = report(0, 1, **{"\x1b[31mpolicy": module(wrapper="\x1b]0;x\x07", how="\x1b[2J")})
    attempt = write_attempt(tmp_path / "one", evil)

    called = fleet("train", "preflight", run_file(tmp_path), str(attempt))

    assert "\x1b" not in called.out
    assert "\x07" not in called.out


def test_launch_builds_once_and_leaves_nothing_running(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    script = tmp_path / "train.py"
    script.write_text(TELL)
    told = json.dumps(report(0, 1, policy=module(wrapper="", shard_group_size=1)))
    words = json.dumps([sys.executable, str(script), told])
    path = tmp_path / "launched.yaml"
    path.write_text(f"run: drafter\ncommand: {words}\nworld_size: 1\n")

    called = fleet.ok("train", "preflight", str(path), "--launch", "--within", "60", "--json")

    assert called.json["ok"]
    assert called.json["launch"]["why"] == ""
    assert called.json["launch"]["clean"]
    assert str(fleet.root / "runs" / "drafter") in called.json["folder"]


def test_a_launch_that_tells_nothing_shows_where_its_log_is(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    path = tmp_path / "launched.yaml"
    path.write_text("run: drafter\ncommand: ['false']\n")

    called = fleet("train", "preflight", str(path), "--launch", "--within", "60")

    assert called.code == 7
    assert "the command ended before every rank had told (exit code 1)" in called.out
    assert "log: " in called.out


def test_one_that_is_ended_by_term_stops_what_it_launched(fleet: Fleet, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
                      "time.sleep(1000)\n")  # fmt: skip
    told = tmp_path / "pid"
    words = json.dumps([sys.executable, str(script), str(told)])
    path = tmp_path / "launched.yaml"
    path.write_text(f"run: drafter\ncommand: {words}\ngrace_s: 1\ninner_grace_s: 0\n")
    process = subprocess.Popen(
        fleet.command("train", "preflight", str(path), "--launch"),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: told.exists() and told.read_text() != "")
        process.terminate()
        assert process.wait(timeout=60) == 143
    finally:
        process.kill()
        process.wait()
    assert not Path(f"/proc/{told.read_text()}").exists()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def test_wrong_calls_say_what_to_do(fleet: Fleet, tmp_path: Path) -> None:
    path = run_file(tmp_path)

    nothing = fleet("train", "preflight", path, "--json")
    assert (nothing.code, nothing.error["hint"].startswith("add --launch")) == (2, True)
    assert fleet("train", "preflight", path, "--nodes", "2").code == 2
    assert fleet("train", "preflight", path, str(tmp_path), "--launch").code == 2
    assert fleet("train", "preflight", path, str(tmp_path), "--within", "-1").code == 2
    assert fleet("train", "preflight", str(tmp_path / "none.yaml")).code == 3
    wrong = fleet("train", "preflight", run_file(tmp_path, "warmup: 3\n"), "--json")
    assert wrong.code == 3
    assert wrong.error["facts"]["line"] == 3
