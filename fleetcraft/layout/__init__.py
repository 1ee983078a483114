"""Every path of the scratch tree; nothing else spells a file name of it.

Here the tree and its spools; training runs, their checkpoints, trajectory queues, evidence and
caches are in `runs`, `checkpoints`, `rollouts`, `evidence` and `caches`. Pure text: no function
here touches a disk. Invariant: a claim's file name is the task's file name and the owner, so it can
be parsed from the right whatever the task is called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from fleetcraft.identity import Owner

RECORD_SUFFIX = ".sh"
OUTER_SPOOL = "taskq"
INNER_SPOOL = "taskq_gpu"
_ATTEMPT = re.compile(r"0|[1-9][0-9]{0,17}")
_TELEMETRY_FILE = re.compile(r"(.+)_job([A-Za-z0-9-]+)_(\d{8}T\d{6}Z)\.csv")


class State(StrEnum):
    """Where a task is; each value is the folder's name."""

    WAITING = "waiting"
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Lane(StrEnum):
    """The order in which pending tasks are claimed: first, then the plain folder, then last."""

    FIRST = "first"
    PLAIN = ""
    LAST = "last"


LANES = (Lane.FIRST, Lane.PLAIN, Lane.LAST)
_DONE = State.DONE


class SpoolPaths:
    """The paths of one spool.

    Attributes are absolute folder paths without a trailing slash.
    """

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.tmp = f"{self.root}/tmp"
        self.names = f"{self.root}/names"
        self.waiting = f"{self.root}/waiting"
        self.pending = f"{self.root}/pending"
        self.running = f"{self.root}/running"
        self.done = f"{self.root}/done"
        self.failed = f"{self.root}/failed"
        self.logs = f"{self.root}/logs"
        self.workers = f"{self.root}/workers"
        self.cancel = f"{self.root}/cancel"
        self.drain_marker = f"{self.root}/DRAIN"
        self.stop_marker = f"{self.root}/STOP"
        self.grids = f"{self.root}/grids"
        self.last_grid = f"{self.root}/LAST_GRID"

    def folders(self) -> tuple[str, ...]:
        """Every folder of a spool, parents before children."""
        return (
            self.root, self.tmp, self.names, self.waiting, self.pending,
            self.lane(Lane.FIRST), self.lane(Lane.LAST), self.running, self.done, self.failed,
            self.logs, self.workers, self.cancel,
        )  # fmt: skip

    def lane(self, lane: Lane) -> str:
        """The pending folder of one lane."""
        return f"{self.pending}/{lane.value}" if lane else self.pending

    def temporary(self, record_id: str) -> str:
        """Where a record lies before it is published."""
        return f"{self.tmp}/{record_id}"

    def name(self, name: str) -> str:
        """The identity link of a task."""
        return f"{self.names}/{name}"

    def waiting_record(self, name: str) -> str:
        """A task whose dependencies are not met."""
        return f"{self.waiting}/{name}{RECORD_SUFFIX}"

    def pending_record(self, name: str, lane: Lane) -> str:
        """A claimable task."""
        return f"{self.lane(lane)}/{name}{RECORD_SUFFIX}"

    def claim(self, name: str, owner: Owner) -> str:
        """A claimed task: the name belongs to one claim for ever."""
        return f"{self.running}/{name}{RECORD_SUFFIX}.{owner}"

    def finished_record(self, name: str, state: State) -> str:
        """A task in ``done`` or ``failed``."""
        folder = self.done if state is _DONE else self.failed
        return f"{folder}/{name}{RECORD_SUFFIX}"

    def log(self, name: str, attempt: int) -> str:
        """The output of one attempt."""
        return f"{self.logs}/{name}.{attempt}.log"

    def cancel_marker(self, name: str) -> str:
        """The request to cancel a task."""
        return f"{self.cancel}/{name}"

    def grid(self, digest: str) -> str:
        """A frozen list of tasks, named by the sha256 of its bytes."""
        return f"{self.grids}/{digest}.json"

    def lease(self, lease_name: str) -> str:
        """A worker's promise that it is alive."""
        return f"{self.workers}/{lease_name}.json"

    def journal(self, lease_name: str) -> str:
        """What one worker did, one JSON object a line."""
        return f"{self.workers}/{lease_name}.jsonl"


class Scratch:
    """The scratch tree: the two spools, and the rooms of telemetry, calibration and runs."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.outer = f"{self.root}/{OUTER_SPOOL}"
        self.inner = f"{self.root}/{INNER_SPOOL}"
        self.logs = f"{self.root}/logs"
        self.telemetry = f"{self.root}/telemetry"
        self.forwards = forwards_folder(self.telemetry)
        self.calibration = f"{self.root}/calibration"
        self.batch_table = f"{self.calibration}/batch-table.yaml"
        self.control = f"{self.root}/control"
        self.intents = f"{self.control}/intents"
        self.locks = f"{self.control}/locks"
        self.runs = f"{self.root}/runs"
        self.rollouts = f"{self.root}/rollouts"
        self.evidence = f"{self.root}/evidence"
        self.caches = f"{self.root}/caches"

    def family_folder(self, family: str) -> str:
        """Where the calibration runs of a family lie; ``/`` in its key becomes ``@``."""
        return f"{self.calibration}/{family.replace('/', '@')}"

    def calibration_run(self, family: str, run: str) -> str:
        """One calibration run: its record, its trials' folders, its figure."""
        return f"{self.family_folder(family)}/{run}"

    def run_folder(self, run: str) -> str:
        """Everything that is decided about one training run; see `RunPaths`."""
        return f"{self.runs}/{run}"

    def rollout_queue(self, run: str) -> str:
        """The trajectory queue of one run; see `RolloutPaths`."""
        return f"{self.rollouts}/{run}"

    def worker_log(self, job: str, rank: int) -> str:
        """What the worker of one node of a fleet prints, over all its starts."""
        return f"{self.logs}/fleet-{job}.{rank}.log"

    def beside_log(self, job: str) -> str:
        """What the command that runs beside a fleet's workers prints."""
        return f"{self.logs}/fleet-{job}.beside.log"

    def batch_log(self, job_id: str) -> str:
        """What a fleet's batch script prints; ``%j`` for the job id gives the pattern of them."""
        return f"{self.logs}/fleet-{job_id}.log"


def task_of(file_name: str) -> str | None:
    """The task's name from ``NAME.sh``; None for any other file."""
    return file_name[: -len(RECORD_SUFFIX)] if file_name.endswith(RECORD_SUFFIX) else None


def tasks_of(file_names: Iterable[str]) -> list[str]:
    """The tasks' names from ``NAME.sh``; other files are left out."""
    end = -len(RECORD_SUFFIX)
    return [name[:end] for name in file_names if name.endswith(RECORD_SUFFIX)]


def parse_claim(file_name: str) -> tuple[str, Owner] | None:
    """Task name and owner from ``NAME.sh.<job>.<rank>.<slot>.<token>``; None for anything else."""
    stem, *parts = file_name.rsplit(".", 4)
    if len(parts) != 4:
        return None
    owner = Owner.parse(".".join(parts))
    name = task_of(stem)
    return (name, owner) if owner and name else None


def parse_log(file_name: str) -> tuple[str, int] | None:
    """Task name and attempt from ``NAME.<attempt>.log``; None for anything else."""
    stem, _, suffix = file_name.rpartition(".")
    name, _, attempt = stem.rpartition(".")
    # Another spelling of the number, such as with a leading zero, would be a second log of it.
    whole = suffix == "log" and name and _ATTEMPT.fullmatch(attempt)
    return (name, int(attempt)) if whole else None


def forwards_folder(telemetry_dir: str) -> str:
    """Where tasks report their forward calls: a folder of the telemetry folder."""
    return f"{telemetry_dir}/forwards"


def forwards_file(telemetry_dir: str, owner: str) -> str:
    """What the task of one claim reports of its forward calls, one JSON object a line."""
    return f"{forwards_folder(telemetry_dir)}/{owner}.jsonl"


def calibration_record(run_folder: str) -> str:
    """The record of a calibration run; the run is whole when this is there."""
    return f"{run_folder}/calibration.json"


def trial_folder(run_folder: str, name: str) -> str:
    """The folder of one trial: ``batch-004`` or ``preflight``."""
    return f"{run_folder}/{name}"


def telemetry_file(node: str, job: str, started: str) -> str:
    """The name of a telemetry file; see `parse_telemetry_file`."""
    return f"{node}_job{job}_{started}.csv"


def sidecar(csv_path: str) -> str:
    """The file beside a telemetry CSV that says what the rows cannot."""
    return f"{csv_path.removesuffix('.csv')}.json"


class TelemetryFile(NamedTuple):
    """What a telemetry file's name says: node, job, and its start as ``YYYYmmddTHHMMSSZ``."""

    node: str
    job: str
    started: str


def parse_telemetry_file(file_name: str) -> TelemetryFile | None:
    """Reads ``<node>_job<JOB>_<YYYYmmddTHHMMSSZ>.csv``; None for anything else."""
    found = _TELEMETRY_FILE.fullmatch(file_name)
    return TelemetryFile(*found.groups()) if found else None
