"""The launcher's own recovery: it asks Slurm only in doubt, and says each trouble once."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.errors import SchedulerError
from fleetcraft.fleet import judge
from fleetcraft.fleet.recovery import FleetRecovery
from fleetcraft.identity import JobRun, Owner, this_host
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.queue import Jobs
from fleetcraft.spool import claims, leases
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.store import Spool
from fleetcraft.spool.tree import SpoolTree

INTERVAL_S = 0.2


class Slurm:
    """Answers as a test wants, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.fault: SchedulerError | None = None
        self.then: Callable[[], None] = lambda: None

    def my_jobs(self, polls: Polls, **how: object) -> Jobs:
        assert how["fresh"] is True
        self.asked += 1
        if self.fault:
            raise self.fault
        self.then()
        return Jobs(cluster="big", age_s=0.0, jobs={})


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    fake = Slurm()
    monkeypatch.setattr(judge, "my_jobs", fake.my_jobs)
    return fake


def hold(spool: Spool, name: str) -> Lease:
    """A claim of a worker on another node, whose lease is there."""
    spool.enqueue(name, "true")
    lease = leases.new_lease(
        run=JobRun(job="77", step="0", cluster="big"), rank="0", interval_s=INTERVAL_S
    )
    lease.host = "n9"
    leases.publish(spool.tree, lease)
    owner = Owner("77", "0", "0", f"{lease.launch}-1")
    [path] = [entry.path for entry in os.scandir(spool.tree.paths.pending) if entry.is_file()]
    assert claims.claim(spool.tree, name, path, owner) is not None
    return lease


def beat(spool: Spool, lease: Lease) -> None:
    lease.counter += 1
    leases.publish(spool.tree, lease)


def test_a_beating_worker_costs_no_question_and_a_silent_one_of_a_gone_job_is_recovered(
    tmp_path: Path, slurm: Slurm
) -> None:
    spool = Spool.create(str(tmp_path / "taskq"))
    lease = hold(spool, "a")
    said: list[str] = []
    recovery = FleetRecovery([spool.tree], Polls(), stop_survivors=None, note=said.append)

    for _ in range(5):
        beat(spool, lease)
        assert recovery.run().alive == 1
    assert slurm.asked == 0

    time.sleep(1.6 * INTERVAL_S)
    assert recovery.run().recovered == 1
    assert slurm.asked == 1
    assert spool.counts()["pending"] == 1
    assert "knows no job 77" in said[0]


def test_an_unanswered_question_leaves_the_claim_and_is_said_once(
    tmp_path: Path, slurm: Slurm
) -> None:
    spool = Spool.create(str(tmp_path / "taskq"))
    hold(spool, "a")
    slurm.fault = SchedulerError("squeue did not answer")
    said: list[str] = []
    missing = SpoolTree(str(tmp_path / "not-made"))
    recovery = FleetRecovery([spool.tree, missing], Polls(), stop_survivors=None, note=said.append)

    recovery.run()
    time.sleep(3.2 * INTERVAL_S)
    for age_s in range(3):
        slurm.fault = SchedulerError(f"squeue did not answer ({age_s} s ago)")
        report = recovery.run()
        assert (report.unknown, report.unanswered, report.recovered) == (1, 1, 0)

    assert [text for text in said if "squeue did not answer" in text] == said
    assert len(said) == 1
    assert spool.counts()["running"] == 1


def test_the_last_pass_puts_back_what_died_on_this_host_and_asks_nobody(
    tmp_path: Path, slurm: Slurm
) -> None:
    spool = Spool.create(str(tmp_path / "taskq"))
    hold(spool, "far")
    dead = hold(spool, "here")
    dead.host = this_host().host
    with subprocess.Popen(["true"]) as ended:
        dead.pid = ended.pid
    leases.publish(spool.tree, dead)
    said: list[str] = []
    recovery = FleetRecovery([spool.tree], Polls(), stop_survivors=None, note=said.append)

    assert recovery.run_here().recovered == 1

    assert [record for record in said if "'here' to pending" in record] == said
    assert spool.counts()["running"] == 1
    assert slurm.asked == 0


def test_a_claim_that_appears_after_slurm_answered_about_another_spool_is_asked_about_anew(
    tmp_path: Path, slurm: Slurm
) -> None:
    first = Spool.create(str(tmp_path / "taskq"))
    second = Spool.create(str(tmp_path / "taskq_gpu"))
    hold(first, "a")
    recovery = FleetRecovery(
        [first.tree, second.tree], Polls(), stop_survivors=None, note=lambda text: None
    )
    recovery.run()
    time.sleep(1.6 * INTERVAL_S)

    def a_worker_without_a_lease_claims() -> None:
        slurm.fault = SchedulerError("squeue did not answer")
        lease = hold(second, "b")
        os.unlink(second.tree.paths.lease(lease.name))

    slurm.then = a_worker_without_a_lease_claims
    report = recovery.run()

    assert (report.recovered, report.unknown) == (1, 1)
    assert second.counts()["running"] == 1
