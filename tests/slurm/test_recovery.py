"""Recovery with the truth of a real Slurm, and with every way in which Slurm can fail to tell it.

Workers are started by plain batch scripts: what a launch adds is tested with it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.spool import leases
from fleetcraft.spool.store import Spool
from tests.slurm.cluster import Cluster
from tests.worker.harness import wait_until

pytestmark = pytest.mark.timeout(240)
FLEETCRAFT = [sys.executable, "-m", "fleetcraft"]


class Site:
    """A scratch tree and a cluster, as a person on the login node has them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.root = folder / "scratch"
        self.root.mkdir(mode=0o700)
        self.spool = Spool.create(str(self.root / "taskq"))
        self.tmp = folder
        self._polls = 0

    def recover(self, *options: str, path: str = "", **env: str) -> tuple[int, dict[str, Any]]:
        """One recovery pass by the command, as if the last poll were long ago."""
        self._polls += 1
        polls = self.tmp / f"polls-{self._polls}"
        polls.mkdir(mode=0o700)
        more = {"FLEET_POLLS_DIR": str(polls), **env}
        if path:
            more["PATH"] = path + os.pathsep + os.environ["PATH"]
        done = subprocess.run(
            [*FLEETCRAFT, "--root", str(self.root), "recover", "--json", *options],
            env={**self.cluster.env, **more},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def start_workers(self, *nodes: str, heartbeat_s: float = 0.3, **env: str) -> str:
        """A job with one worker step on each of these nodes; returns its id."""
        worker = shlex.join(
            [*FLEETCRAFT, "--root", str(self.root), "worker", "--heartbeat", str(heartbeat_s)]
        )
        steps = "\n".join(
            f"FLEET_RANK={rank} FLEET_RANKS={len(nodes)} srun -N1 -n1 -w {node} {worker} &"
            for rank, node in enumerate(nodes)
        )
        exports = "\n".join(f"export {name}={value}" for name, value in env.items())
        return self.cluster.submit(
            "--nodelist", ",".join(nodes), "--nodes", str(len(nodes)), "--exclusive", "--no-kill",
            "--requeue", "--time", "10",
            "--output", self.tmp / "job.out", "--open-mode", "append",
            script=f"{exports}\n{steps}\nwait; wait",
        )  # fmt: skip

    def kill_workers(self, job: str) -> None:
        """Kills every worker of a job, at which its steps and the job end."""
        for lease in leases.read_all(self.spool.tree):
            if lease.job == job:
                os.kill(lease.pid, signal.SIGKILL)
        self.cluster.wait_for_job(job, "CANCELLED", "FAILED", "COMPLETED", "NODE_FAIL")

    def running(self) -> int:
        return self.spool.counts()["running"]

    def wait_running(self, count: int) -> None:
        wait_until(lambda: self.running() == count, f"{count} tasks run")


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path)


def fake(folder: Path, body: str) -> str:
    """A folder to put first on PATH, whose squeue does something else."""
    folder.mkdir()
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return str(folder)


def test_claims_of_a_job_that_is_gone_come_back_and_no_failing_squeue_brings_them(
    site: Site,
) -> None:
    for name in "ab":
        site.spool.enqueue(name, "trap '' TERM; sleep 300")
    job = site.start_workers("n1", "n2")
    site.wait_running(2)

    code, said = site.recover()
    assert (code, said["recovered"], said["alive"]) == (0, 0, 2)

    site.kill_workers(job)
    for number, body in enumerate(
        [
            "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
            "exit 0",
            "echo 'slurm_load_jobs error: Socket timed out' >&2; exit 0",
            "echo JOBID; exit 0",
        ]
    ):
        code, said = site.recover(path=fake(site.tmp / f"fake{number}", body))
        assert (code, said["recovered"], said["unknown"]) == (4, 0, 2), body
        assert said["reason"], body
        assert site.running() == 2

    code, said = site.recover("--dry-run")
    assert (code, said["recovered"], said["would_recover"]) == (0, 0, 2)
    code, said = site.recover()
    assert (code, said["recovered"], said["unknown"]) == (0, 2, 0)
    assert site.spool.counts()["pending"] == 2
    assert site.spool.show("a").attempts[0].outcome == "lost"
    assert site.spool.check().ok


def test_a_squeue_that_hangs_requeues_nothing_and_ends_within_a_minute(site: Site) -> None:
    site.spool.enqueue("a", "sleep 300")
    job = site.start_workers("n1")
    site.wait_running(1)
    site.kill_workers(job)

    code, said = site.recover(
        path=fake(site.tmp / "fake", "trap '' TERM; while :; do sleep 1; done")
    )

    assert (code, said["recovered"], said["unknown"]) == (4, 0, 1)
    assert "15 s" in said["reason"]
    assert site.running() == 1


def test_in_a_living_job_a_dead_step_and_a_dead_node_give_their_claims_back_after_their_lease(
    site: Site,
) -> None:
    for name in "abc":
        site.spool.enqueue(name, "sleep 300")
    job = site.start_workers("n1", "n2", "n3")
    site.wait_running(3)
    quick = {"FLEET_FLEET_LEASE_SILENT_S": "1"}
    holders = {lease.host: lease for lease in leases.read_all(site.spool.tree)}
    step = holders["n2"].step

    site.cluster.run("scancel", "--signal=KILL", f"{job}.{step}")
    site.cluster.wait_for(
        f"step {step} is gone",
        lambda: f"{job}.{step} " not in site.cluster.run("squeue", "-h", "-s", "-o", "%i ").stdout,
    )
    code, said = site.recover()  # its lease has not been silent for minutes
    assert (code, said["recovered"]) == (0, 0)
    wait_until(lambda: site.recover(**quick)[1]["recovered"] == 1, "the dead step's claim is back")
    assert site.running() == 2

    site.cluster.kill_node("n3")
    code, said = site.recover(**quick)  # Slurm does not know it yet
    assert (code, said["recovered"], site.running()) == (0, 0, 2)
    site.cluster.wait_for("n3 is down", lambda: site.cluster.node_states()["n3"] == "down*")
    wait_until(lambda: site.recover(**quick)[1]["recovered"] == 1, "the dead node's claim is back")

    assert site.running() == 1  # on n1, which lives
    assert site.cluster.job_state(job) == "RUNNING"
    assert site.spool.check().ok


def test_a_requeued_job_is_told_apart_from_its_earlier_run(site: Site) -> None:
    site.spool.enqueue("a", "trap '' TERM; sleep 300", lane="first")
    job = site.start_workers("n1")
    site.wait_running(1)
    site.spool.drain("the second run shall claim nothing")

    site.cluster.run("scontrol", "requeue", job)
    wait_until(
        lambda: site.recover()[1]["recovered"] == 1, "the claim of the first run is back",
    )  # fmt: skip

    assert site.spool.counts()["pending"] == 1


def test_a_suspended_job_is_unknown(site: Site) -> None:
    if os.geteuid() != 0:
        pytest.skip("only an operator may suspend a job")
    site.spool.enqueue("a", "sleep 300")
    job = site.start_workers("n1")
    site.wait_running(1)
    site.cluster.run("scontrol", "suspend", job)

    code, said = site.recover(FLEET_FLEET_LEASE_SILENT_S="1")

    assert (code, said["recovered"], said["unknown"]) == (0, 0, 1)
    assert "SUSPENDED" in said["reason"]
    site.cluster.run("scontrol", "resume", job)
