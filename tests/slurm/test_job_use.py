"""What the accounting of a real Slurm says of jobs that run and that have ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.evidence.release.accounts import JobUse, look_up
from fleetcraft.slurm.polls import Polls
from tests.slurm.cluster import Cluster


def test_a_job_is_over_when_the_accounting_says_so(
    accounting_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, polls = accounting_cluster, Polls(str(tmp_path / "polls"), interval_s=0)
    monkeypatch.setattr(os, "environ", dict(slurm.env))
    going = slurm.submit("--account=proj", "--nodes=1", script="sleep 600")
    short = slurm.submit("--account=proj", "--nodes=1", "--gres=gpu:1", script="true")
    slurm.wait_for_job(going, "RUNNING")

    def ended() -> JobUse | None:
        use = look_up(polls, [short]).get(short)
        return use if use and use.ended else None

    def runs() -> bool:
        use = look_up(polls, [going]).get(going)
        return use is not None and use.state == "RUNNING"

    # The controller tells the accounting later, and in no order of its own.
    slurm.wait_for("the accounting knows the end", lambda: ended() is not None)
    slurm.wait_for("and what has begun", runs)
    found = look_up(polls, [short, going, "999999"])

    assert (found[short].state, found[short].ended) == ("COMPLETED", True)
    assert found[short].elapsed_s is not None
    assert (found[going].state, found[going].ended) == ("RUNNING", False)
    assert "999999" not in found
    assert (found[short].gpus, found[going].gpu_h) == (1, None)
