"""A job that lost its launcher's node is given back by the last worker, and only then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.fleet.allocation.bereft import give_back_job
from fleetcraft.identity import JobRun
from fleetcraft.slurm import queue
from fleetcraft.slurm.polls import Polls
from fleetcraft.spool import leases
from fleetcraft.spool.store import Spool
from fleetcraft.spool.tree import SpoolTree
from tests.fleet.quiet_slurm import QuietSlurm, _table


class Stage(QuietSlurm):
    """Job 7 had n1, its launcher's node, n2 and n3; the worker on n2 asks."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patch)
        self.tree: SpoolTree = Spool.create(str(folder / "taskq")).tree
        self.shown = folder / "shown"
        self.job()
        self.steps("7.batch batch", "7.0 fleet-0", "7.1 fleet-1")
        self.write("scancel", "exit 0")
        self.write(
            "scontrol",
            f'case "$2" in hostnames) echo "$3" | tr , "\\n" ;; job) cat {self.shown} ;; esac',
        )
        self.lease("n1", left=False)
        self.lease("n2", left=True)

    def job(self, node_list: str = "n2,n3", state: str = "RUNNING", host: str = "n1") -> None:
        self.shown.write_text(
            f"JobId=7 JobName=fleet\n   JobState={state} Reason=None\n"
            f"   NodeList={node_list}\n   BatchHost={host}\n   NumNodes=2\n"
        )

    def steps(self, *steps: str) -> None:
        rows = [
            {"StepID": step, "JobID": "7", "StepName": name, "Nodes": "n2", "Cluster": "lab"}
            | {"UserID": str(os.geteuid()), "StepState": "RUNNING", "StartTime": "1795997313"}
            for step, name in map(str.split, steps)
        ]
        self.says("squeue", _table(queue._STEPS.columns, rows))

    def lease(self, host: str, *, left: bool) -> None:
        lease = leases.new_lease(run=JobRun(job="7"), rank=host[1:], interval_s=30.0)
        lease.host = host
        lease.left_at = "2026-11-29T20:00:00.000Z" if left else None
        leases.publish(self.tree, lease)

    def ask(self) -> str:
        return give_back_job(self.tree, "7", "n1", Polls())

    @property
    def cancelled(self) -> bool:
        return [call.words for call in self.calls("scancel")] == ["7"]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_the_last_worker_gives_back_a_job_that_lost_its_launchers_node(stage: Stage) -> None:
    assert "was cancelled" in stage.ask()
    assert stage.cancelled


def test_while_another_worker_has_not_left_nobody_asks_slurm(stage: Stage) -> None:
    stage.lease("n3", left=False)

    assert stage.ask() == ""
    assert not stage.calls("scontrol")


def test_a_lease_that_cannot_be_read_may_be_of_a_living_worker(stage: Stage) -> None:
    Path(stage.tree.paths.lease("7.3.abcdefgh")).write_text("{")

    assert stage.ask() == ""
    assert not stage.cancelled


@pytest.mark.parametrize(
    "facts",
    [{"node_list": "n1,n2,n3"}, {"state": "COMPLETING"}, {"host": "n2"}, {"host": ""}],
)
def test_a_job_that_has_its_launchers_node_is_left_alone(
    stage: Stage, facts: dict[str, str]
) -> None:
    stage.job(**facts)

    assert stage.ask() == ""
    assert not stage.cancelled


def test_a_step_of_somebody_else_keeps_the_job(stage: Stage) -> None:
    stage.steps("7.batch batch", "7.4 bash")

    assert "step 7.4 runs on" in stage.ask()
    assert not stage.cancelled


@pytest.mark.parametrize("program", ["scontrol", "squeue"])
@pytest.mark.parametrize("body", ["exit 1", "exit 0", "echo JobId=8 NodeList=n2"])
def test_what_slurm_did_not_say_cancels_nothing(stage: Stage, program: str, body: str) -> None:
    stage.write(program, body)

    assert "not known" in stage.ask()
    assert not stage.cancelled
