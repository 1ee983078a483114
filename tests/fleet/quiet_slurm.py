"""A Slurm of small programs with a few jobs and nodes, whose answers a test can spoil one by one.

Not here: what is right. The tables have the very columns that the package asks for; it does not
look at them, so that a table which is asked for otherwise is noticed by the tests of a real Slurm.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from fleetcraft.slurm import nodes, queue
from tests.slurm.fakes import FakePrograms, long_table

_JOB = {
    "Cluster": "lab",
    "UserID": str(os.geteuid()),
    "State": "RUNNING",
    "ArrayTaskID": "N/A",
    "RestartCnt": "0",
    "Partition": "main",
    "Account": "proj",
    "QOS": "normal",
    "NumNodes": "1",
    "NodeList": "",
    "SubmitTime": "1795997310",
    "StartTime": "1795997313",
    "EndTime": "1796083713",
    "TimeLimit": "1-00:00:00",
    "TimeLeft": "3:59:40",
    "tres-per-node": "gres:gpu:2",
    "Reason": "None",
    "Comment": "(null)",
    "Name": "fleet",
}
_NODE = {
    "PartitionName": "main",
    "StateLong": "allocated",
    "CPUs": "4",
    "Memory": "4000",
    "Gres": "gpu:2",
    "GresUsed": "gpu:2",
    "Reason": "none",
}
_CONFIG = """\
Configuration data as of 2026-11-29T20:00:00
AccountingStorageType   = {accounting}
ClusterName             = lab
PriorityType            = priority/multifactor
SLURM_VERSION           = 22.05.8
"""


class QuietSlurm(FakePrograms):
    """Job 7 has n1 and n2 with two GPUs each; there is a free node n3, and no accounting."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patch)
        patch.setenv("FLEET_POLLS_DIR", str(folder / "polls"))
        self.jobs({"JobID": "7", "NodeList": "n1,n2", "NumNodes": "2"})
        self.nodes(
            {"NodeList": "n1"},
            {"NodeList": "n2"},
            {"NodeList": "n3", "StateLong": "idle", "GresUsed": "gpu:0"},
        )
        self.details: dict[str, str] = {}
        self.scontrol()

    def jobs(self, *jobs: Mapping[str, str]) -> None:
        """What squeue lists."""
        rows = [{**_JOB, "JobArrayID": job["JobID"], **job} for job in jobs]
        self.says("squeue", _table(queue._JOBS.columns, rows))

    def nodes(self, *nodes_: Mapping[str, str]) -> None:
        """What sinfo lists."""
        self.says("sinfo", _table(nodes._NODES.columns, [{**_NODE, **one} for one in nodes_]))

    def scontrol(self, accounting: str = "accounting_storage/none") -> None:
        """Expands lists with commas, tells the configuration, and of jobs what is in details."""
        config = self.folder / "config"
        config.write_text(_CONFIG.format(accounting=accounting))
        for job_id, text in self.details.items():
            (self.folder / f"job-{job_id}").write_text(text)
        self.write(
            "scontrol",
            f'case "$2" in\n'
            f"  config) cat '{config}' ;;\n"
            f"  hostnames) echo \"$3\" | tr , '\\n' ;;\n"
            f"  job) cat '{self.folder}'/job-$4 ;;\n"
            f"esac",
        )


def _table(columns: tuple[tuple[str, str], ...], rows: list[dict[str, str]]) -> str:
    return long_table(
        [title.partition("|")[0] for _, title in columns],  # another one is of other versions
        *([row.get(field, "N/A") for field, _ in columns] for row in rows),
    )
