"""A supervised run over two of a job's three nodes, on a real Slurm: healed, the rest left alone.

What a step is and how it is cancelled is `test_train_step`'s. Every wait is for a condition.
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
rank, epoch = int(os.environ["FLEET_NODE_RANK"]), int(os.environ["FLEET_EPOCH"])
os.environ["RANK"] = str(rank)
for step in range(1, 31):
    time.sleep(0.05)
    report_progress(step, tokens=10, name=f"on {os.environ['SLURMD_NODENAME']}")
    if epoch == 1 and step == 10:
        if rank == 1:
            print("RuntimeError: Connection closed by peer [10.0.0.7]:29500", file=sys.stderr)
            sys.exit(1)
        time.sleep(600)  # in a collective, for a rank that will not come
"""
PLAN = {
    "run": "distill",
    "look_s": 0.2,
    "warmup_s": 0.5,
    "verify_steps": 3,
    "grace_s": 1,
    "inner_grace_s": 0,
    "progress": {"stall_least_s": 5},
    "budgets": {"backoff_s": [0.1]},
}


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "trainer.py").write_text(TRAINER)
    command = [sys.executable, "trainer.py"]
    (tmp_path / "run.yaml").write_text(json.dumps({**PLAN, "command": command}))
    (tmp_path / "root").mkdir()
    yield tmp_path
    for event in told(tmp_path, "launched"):
        Net(event["nonce"]).sweep(signal.SIGKILL, 10.0)


def told(base: Path, kind: str) -> list[dict[str, Any]]:
    events = read_events(f"{base}/root/runs/distill/events.jsonl").events
    return [event for event in events if event["event"] == kind]


def supervisor(base: Path) -> str:
    words = [sys.executable, "-m", "fleetcraft", "--root", f"{base}/root", "train", "supervise"]
    return shlex.join([*words, "--nodes", "2", "run.yaml"])


@pytest.mark.timeout(300)
def test_a_run_over_two_of_three_nodes_is_healed_and_the_surplus_node_is_left_alone(
    cluster: Cluster, base: Path
) -> None:
    job = cluster.submit(
        "-N3",
        f"--output={base}/batch.log",
        f"--chdir={base}",
        "--time=10",
        script=f"export PYTHONPATH={shlex.quote(str(REPO))}\n"
        f"{supervisor(base)} & supervisor=$!\n"
        f"until [ -e root/runs/distill/attempt-000001/progress/rank-00001.jsonl ]; do "
        "sleep 0.2; done\n"
        f"srun -N1 -n1 --job-name=beside sleep 500 &\n"
        "wait $supervisor; echo $? > code.new; mv code.new code; sleep 500\n",
    )

    cluster.wait_for("the supervisor has left", (base / "code").exists, patience_s=200)

    log = (base / "batch.log").read_text()
    assert (base / "code").read_text().strip() == "0", log
    assert [event["nodes"] for event in told(base, "launched")] == [2, 2]
    names = {rank["name"] for event in told(base, "dead_rank") for rank in event["ranks"]}
    assert "on n2" in names, log
    (found,) = told(base, "diagnosis")
    assert found["diagnosis"]["class"] == "DIST_NETWORK"
    assert [event["stopped"]["result"] for event in told(base, "stopped")] == ["REAPED"]
    steps = cluster.run("squeue", "-h", "-s", "-j", job, "-o", "%j").stdout
    assert "beside" in steps.split()
    assert cluster.job_state(job) == "RUNNING"
    cluster.run("scancel", "--me")


@pytest.mark.timeout(300)
def test_a_step_that_somebody_cancels_is_known_by_slurms_own_word(
    accounting_cluster: Cluster, base: Path
) -> None:
    (base / "trainer.py").write_text(
        "import time\nfrom fleetcraft.training.progress.writing import report_progress\n"
        "step = 0\nwhile True:\n    time.sleep(0.1)\n    step += 1\n    report_progress(step)\n"
    )
    job = accounting_cluster.submit(
        "-N2",
        f"--output={base}/batch.log",
        f"--chdir={base}",
        "--time=10",
        script=f"export PYTHONPATH={shlex.quote(str(REPO))}\n{supervisor(base)}\n"
        "echo $? > code.new; mv code.new code",
    )

    accounting_cluster.wait_for(
        "it runs",
        lambda: any(told(base, "state")) and told(base, "state")[-1]["state"] == "HEALTHY",
    )
    keeper = next((base / "root/runs/distill/attempt-000001/nodes").glob("*.keeper.json"))
    step = json.loads(keeper.read_text())["step"]
    assert step["job"] == job
    accounting_cluster.run("scancel", f"{job}.{step['step']}")
    accounting_cluster.wait_for("the supervisor has left", (base / "code").exists, patience_s=200)

    (found,) = told(base, "diagnosis")
    assert found["slurm"]["step"] == f"{job}.{step['step']}"
    assert found["slurm"]["state"].startswith("CANCELLED by")
    assert found["diagnosis"]["class"] == "CANCELLED", found
    assert (base / "code").read_text().strip() == "1"
