"""A training run beside the workers of one job, on a real Slurm: one supervisor on its own nodes.

Every wait is for a condition.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.training.launching.sweeping import Net
from fleetcraft.training.supervision.journal import read_events
from tests.slurm.cluster import Cluster

REPO = Path(__file__).resolve().parents[2]
TRAINER = """
import os, sys, time
from fleetcraft.training.progress.writing import report_progress
rank, epoch = os.environ["FLEET_NODE_RANK"], os.environ["FLEET_EPOCH"]
os.environ["RANK"], node = rank, os.environ["SLURMD_NODENAME"]
open(f"on-{node}-epoch-{epoch}", "w").write(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
step = 0
while not os.path.exists("evaluated"):
    step += 1
    time.sleep(0.05)
    report_progress(step, tokens=10)
    if epoch == "1" and step == 10:
        if rank == "1":
            time.sleep(1)  # until the other one has told of that step too
            print("RuntimeError: Connection closed by peer [10.0.0.7]:29500", file=sys.stderr)
            sys.exit(1)
        time.sleep(600)
"""
PLAN = {
    "run": "distill", "nodes": 2, "look_s": 0.2, "warmup_s": 0.5, "verify_steps": 3, "grace_s": 1,
    "inner_grace_s": 0, "progress": {"stall_least_s": 30}, "budgets": {"backoff_s": [0.1]},
}  # fmt: skip


@pytest.fixture
def base(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "trainer.py").write_text(TRAINER)
    command = [sys.executable, "trainer.py"]
    (tmp_path / "run.yaml").write_text(json.dumps({**PLAN, "command": command}))
    cluster.env["PYTHONPATH"] = str(REPO)
    cluster.env["FLEET_POLLS_DIR"] = str(tmp_path / "polls")
    fleetcraft(cluster, tmp_path, "init")
    yield tmp_path
    cluster.run("scancel", "--me")
    for event in told(tmp_path, "launched"):
        Net(event["nonce"]).sweep(signal.SIGKILL, 10.0)


def fleetcraft(cluster: Cluster, base: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "fleetcraft", "--root", f"{base}/root"]
    command += ["--project-dir", str(base), "--json", *words]
    return json.loads(cluster.run(*command, timeout_s=90.0).stdout or "null")


def told(base: Path, kind: str) -> list[dict[str, Any]]:
    events = read_events(f"{base}/root/runs/distill/events.jsonl").events
    return [event for event in events if event["event"] == kind]


def launch(cluster: Cluster, base: Path) -> str:
    words = [sys.executable, "-m", "fleetcraft", "--root", f"{base}/root", "train", "supervise"]
    launched = fleetcraft(
        cluster, base, "launch", "-N", "3", "--gpus-per-node", "2", "--time", "10",
        "--idle", "1", "--heartbeat", "1",
        "--beside", shlex.join([*words, "run.yaml"]), "--beside-nodes", "2",
    )  # fmt: skip
    return str(launched["job_id"])


def logs(base: Path) -> str:
    return "\n".join(path.read_text() for path in (base / "root" / "logs").glob("*.log"))


@pytest.mark.timeout(300)
def test_two_nodes_train_under_one_supervisor_while_the_third_evaluates(
    cluster: Cluster, base: Path
) -> None:
    evaluation = "until [ -e on-n1-epoch-2 ]; do sleep 0.1; done; touch evaluated"
    fleetcraft(cluster, base, "enqueue", "-n", "evaluation", "--", evaluation)

    job = launch(cluster, base)
    state = cluster.wait_for_job(job, "COMPLETED", "FAILED", "CANCELLED", patience_s=200)

    assert state == "COMPLETED", logs(base)
    assert [event["nodes"] for event in told(base, "launched")] == [2, 2]
    assert {event["generation"] for event in told(base, "state")} == {1}
    assert told(base, "diagnosis")[0]["diagnosis"]["class"] == "DIST_NETWORK"
    gpus = {path.name: path.read_text() for path in base.glob("on-*")}
    assert gpus == {f"on-{node}-epoch-{epoch}": "0,1" for node in ("n1", "n2") for epoch in (1, 2)}
    assert "supervises the run for all ranks of this step; this one waits" in logs(base)


@pytest.mark.timeout(300)
def test_a_job_that_is_told_to_end_stops_the_run_whole_before_its_step_falls(
    cluster: Cluster, base: Path
) -> None:
    fleetcraft(cluster, base, "enqueue", "-n", "evaluation", "--", "sleep 600")
    job = launch(cluster, base)
    cluster.wait_for("it trains", (base / "on-n2-epoch-2").exists, patience_s=120)

    cluster.run("scancel", "--batch", "--signal=INT", job)
    cluster.wait_for_job(job, "COMPLETED", "FAILED", "CANCELLED", patience_s=120)

    assert [event["stopped"]["result"] for event in told(base, "stopped")] == ["REAPED"] * 2
    # Of the other rank, too, if it got the lock between the supervisor's end and its own order.
    assert {event["exit_code"] for event in told(base, "ended")} == {130}, logs(base)
    assert len(told(base, "launched")) == 2, logs(base)
