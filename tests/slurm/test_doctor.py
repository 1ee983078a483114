"""The doctor on a real Slurm: what it asks, and what wrong settings look like."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.slurm.cluster import Cluster

ASK = """
import sys, msgspec
from fleetcraft.doctor.checks import CHECKS
from fleetcraft.doctor.examining import examine
found = examine({}, checks=[check for check in CHECKS if check.section == "slurm"])
sys.stdout.buffer.write(msgspec.json.encode(found.findings))
"""


def ask(cluster: Cluster, polls: Path, **environ: str) -> dict[str, Any]:
    """The findings about Slurm, by name."""
    polls.mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**cluster.env, "FLEET_POLLS_DIR": str(polls), **environ},
        stdout=subprocess.PIPE,
        timeout=100,
        check=True,
    )
    return {finding["name"]: finding for finding in json.loads(done.stdout)}


def test_a_cluster_that_answers_is_well_and_wrong_settings_are_named(
    accounting_cluster: Cluster, tmp_path: Path
) -> None:
    polls = tmp_path / "polls"
    found = ask(
        accounting_cluster,
        polls,
        FLEET_SLURM_ACCOUNT="proj",
        FLEET_SLURM_PARTITION="main",
        FLEET_SLURM_GPUS_PER_NODE="2",
    )
    assert {one["verdict"] for one in found.values()} == {"ok"}, found
    assert ": 4 nodes, 0 of them down" in found["controller"]["found"]
    assert "may charge proj" in found["accounting"]["found"]
    assert found["this job"]["found"] == "not inside a job"
    wrong = ask(
        accounting_cluster,
        polls,
        FLEET_SLURM_ACCOUNT="nobodys",
        FLEET_SLURM_PARTITION="mian",
        FLEET_SLURM_GPUS_PER_NODE="8",
        SLURM_JOB_ID="999999",
    )
    for name in ("partition", "accounting", "GPUs of nodes"):
        assert wrong[name]["verdict"] == "wrong", wrong[name]
    assert "main" in wrong["partition"]["hint"]
    assert wrong["this job"]["verdict"] == "advice"
