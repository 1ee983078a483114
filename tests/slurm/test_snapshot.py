"""A snapshot of a real Slurm: jobs, nodes, GPUs, limits, balance, and the probe of nodes.

Not here: answers that a healthy Slurm does not give; they are in tests/fleet and tests/cli.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.fleet.shapes import Mark, root_mark
from fleetcraft.fleet.snapshot.probe_step import Allocation, probe_jobs
from fleetcraft.slurm.polls import Polls
from tests.fleet.telemetry_files import Telemetry, row
from tests.slurm.cluster import Cluster

REPO = Path(__file__).resolve().parents[2]


class Looker:
    """Calls the command on one scratch tree, with polls of its own."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.root = folder / "root"
        self._polls = folder / "polls"
        self._number = 0
        self.call("init")

    def call(self, *words: str) -> tuple[int, str]:
        """The exit code and what was printed; never an answer that an earlier call had."""
        self._number += 1
        more = {"PYTHONPATH": str(REPO), "FLEET_POLLS_DIR": f"{self._polls}{self._number}"}
        done = self.cluster.run(
            *("env", *(f"{name}={value}" for name, value in more.items())),
            *(sys.executable, "-m", "fleetcraft", "--root", self.root, *words),
            timeout_s=60,
            check=False,
        )
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout

    def look(self, *words: str) -> dict[str, Any]:
        """The JSON value of a snapshot that is whole."""
        code, out = self.call("snapshot", "--json", *words)
        value: dict[str, Any] = json.loads(out)
        assert (code, value["unknown"]) == (0, {})
        return value


@pytest.fixture
def looker(cluster: Cluster, tmp_path: Path) -> Looker:
    return Looker(cluster, tmp_path)


@pytest.fixture
def here(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This very process finds the cluster."""
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FLEET_POLLS_DIR", str(tmp_path / "polls"))


def steps(cluster: Cluster) -> list[str]:
    return cluster.run("squeue", "-h", "-s", "-o", "%i %j").stdout.splitlines()


def test_every_gpu_that_jobs_have_is_listed_however_they_asked_for_it(looker: Looker) -> None:
    cluster = looker.cluster
    mark = Mark(root_mark(str(looker.root)))
    sleep = "sleep 300"
    by_node = cluster.submit("-N2", "--gpus-per-node=2", f"--comment={mark}", "-t9", script=sleep)
    cluster.wait_for_job(by_node, "RUNNING")
    in_all = cluster.submit("-N1", "-n1", "--gpus=1", script=sleep)
    whole = cluster.submit("-N1", "--exclusive", script=sleep)
    for job in (in_all, whole):
        cluster.wait_for_job(job, "RUNNING")
    waits = cluster.submit("-N4", "--gpus-per-node=2", script=sleep)
    cluster.wait_for(
        "the last job has a reason to wait",
        lambda: "Resources" in cluster.run("squeue", "-h", "-j", waits, "-o", "%r").stdout,
    )
    telemetry = Telemetry(looker.root)
    first_node = cluster.run("squeue", "-h", "-j", by_node, "-o", "%N").stdout.strip()
    assert first_node == "n[1-2]"
    telemetry.write("n1", row(gpu_index=0), row(gpu_index=1, util_pct=0), job=by_node)

    value = looker.look()
    jobs = {job["job_id"]: job for job in value["jobs"]}
    assert set(jobs) == {by_node, in_all, whole, waits}
    assert jobs[by_node]["nodes"] == ["n1", "n2"]
    assert [job for job in jobs if jobs[job]["fleet"]] == [by_node]
    assert (jobs[waits]["state"], jobs[waits]["nodes"]) == ("PENDING", [])
    assert jobs[waits]["reason"] == "Resources"
    assert jobs[by_node]["time_limit_s"] == 540

    counts = {job: sum(gpu["job_id"] == job for gpu in value["gpus"]) for job in jobs}
    assert counts == {by_node: 4, in_all: 1, whole: 2, waits: 0}
    assert value["gpus_uncounted"] == []
    assert value["gpu_states"]["allocated"] == 7
    assert [gpu["state"] for gpu in value["gpus"] if gpu["node"] == "n1"] == [
        *("working", "resident_idle"),
    ]
    assert {node["name"] for node in value["nodes"]} == {"n1", "n2", "n3", "n4"}
    assert all(node["gpus"] == 2 for node in value["nodes"])
    assert value["cluster"]
    assert value["balance"]["status"] == value["limits"]["status"] == "not_checked"


def test_the_probe_asks_nodes_and_leaves_no_step_behind(looker: Looker) -> None:
    cluster = looker.cluster
    # A step holds the GPUs already, as the worker of a fleet does.
    job = cluster.submit("-N2", "--gpus-per-node=2", script="srun --gpus-per-node=2 sleep 300")
    cluster.wait_for("the job's own step runs", lambda: f"{job}.0 sleep" in steps(cluster))
    before = steps(cluster)

    value = looker.look("--probe")
    assert value["probe"] == {"nodes_answered": 2, "failures": {}, "steps_left": []}
    assert [(gpu["node"], gpu["index"]) for gpu in value["gpus"]] == [
        *(("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)),
    ]
    assert all(gpu["state"] == "unknown" for gpu in value["gpus"])  # devices that do nothing
    assert all("driver does not answer" in gpu["reason"] for gpu in value["gpus"])
    cluster.wait_for("only the job's own steps are left", lambda: steps(cluster) == before)
    assert cluster.job_state(job) == "RUNNING"


@pytest.mark.usefixtures("here")
def test_a_probe_that_hangs_on_a_node_is_cancelled_and_the_job_goes_on(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = tmp_path / "stuck"
    stuck.write_text("#!/bin/sh\ntrap '' TERM INT\nsleep 600 & wait\nwait\n")
    stuck.chmod(0o755)
    job = cluster.submit("-N2", "--gpus-per-node=2", script="srun sleep 300")
    cluster.wait_for("the job's own step runs", lambda: f"{job}.0 sleep" in steps(cluster))
    before = steps(cluster)

    with monkeypatch.context() as patch:  # the sandbox too is started by what this names
        patch.setattr(sys, "executable", str(stuck))
        probed = probe_jobs([Allocation(job_id=job, nodes=("n1", "n2"))], Polls(), bound_s=2)
    assert "did not end within 2 s" in probed.failures[job]
    assert probed.left == []
    cluster.wait_for("only the job's own steps are left", lambda: steps(cluster) == before)
    assert cluster.job_state(job) == "RUNNING"


@pytest.fixture
def limited(accounting_cluster: Cluster) -> Iterator[Cluster]:
    """The account has 100 node-hours, and its user may have 20 jobs."""

    def modify(*words: str) -> None:
        accounting_cluster.run("sacctmgr", "-i", "modify", *words)

    modify("account", "proj", "set", "GrpTRESMins=node=6000")
    modify("user", "where", "account=proj", "set", "MaxJobs=20", "MaxSubmitJobs=40")
    yield accounting_cluster
    modify("account", "proj", "set", "GrpTRESMins=node=-1")
    modify("user", "where", "account=proj", "set", "MaxJobs=-1", "MaxSubmitJobs=-1")


def test_limits_and_balance_are_told_where_slurm_keeps_accounts(
    limited: Cluster, tmp_path: Path
) -> None:
    value = Looker(limited, tmp_path).look()
    assert value["limits"]["status"] == "known"
    assert (value["limits"]["max_jobs"], value["limits"]["max_submit"]) == (20, 40)
    assert value["balance"]["status"] == "known"
    assert value["balance"]["limit_h"] == 100
    assert value["balance"]["left_h"] <= 100
    assert value["ages_s"]["balance"] is not None
    _, text = Looker(limited, tmp_path).call("snapshot")
    assert "limits: 20 jobs running, 40 jobs in the queue; account proj" in text
    assert "of 100.0 node hours left" in text
