"""Who an actor is: host, boot, process with its start time, launch tokens and owner names.

An owner is written ``<job>.<rank>.<slot>.<token>``; a token is eight random characters of the
launch, a dash and a counter. Invariant: a token is never used again, so a claim file's name
belongs to one claim for ever.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

try:
    # The interpreter's own code: hashlib loads OpenSSL, which costs every start 5 ms.
    from _sha2 import sha256  # type: ignore[import-not-found]
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]  # Python 3.11
    except ImportError:
        from hashlib import sha256

_TOKEN_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_PART = re.compile(r"[A-Za-z0-9_-]+")
_COUNT = re.compile(r"[0-9]{1,18}")
OWNER_MAX_BYTES = 48
OWNER_VARIABLE = "FLEET_OWNER"
"""By it every process of a task knows who holds the task's claim."""


class ProcessId(msgspec.Struct, frozen=True):
    """One process for good: its pid may be used again, pid and start time together are not.

    ``start_ticks`` is field 22 of ``/proc/<pid>/stat``: clock ticks after boot.
    """

    pid: int
    start_ticks: int


class Owner(msgspec.Struct, frozen=True):
    """Who holds a claim: job, fleet rank, slot, and a token that is never used twice."""

    job: str
    rank: str
    slot: str
    token: str

    def __str__(self) -> str:
        return f"{self.job}.{self.rank}.{self.slot}.{self.token}"

    @property
    def launch(self) -> str:
        """The part of the token that names the launch: what stands before the dash."""
        return self.token.partition("-")[0]

    @property
    def lease_name(self) -> str:
        """The stem of the lease and journal files of the launch that owns this."""
        return f"{self.job}.{self.rank}.{self.launch}"

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Reads ``<job>.<rank>.<slot>.<token>``; None when the text is no owner."""
        parts = text.split(".")
        if len(parts) != 4 or len(text) > OWNER_MAX_BYTES or not all(map(_PART.fullmatch, parts)):
            return None
        return cls(*parts)


class HostId(msgspec.Struct, frozen=True):
    """One boot of one machine, and the pid namespace in which its pids mean something."""

    host: str
    boot_id: str
    pid_namespace: str

    @property
    def local_job(self) -> str:
        """The job name of work without Slurm: ``L`` and 12 hex digits of host and boot id."""
        text = f"{self.host}\n{self.boot_id}".encode()
        return "L" + sha256_hex(text)[:12]


class JobRun(msgspec.Struct, kw_only=True, frozen=True):
    """One run of one Slurm job; all empty outside Slurm.

    Attributes:
        job: Slurm's job id.
        step: Its step id.
        cluster: The cluster's name.
        start_s: When this run began, as Slurm itself gives it, in seconds since 1970. A requeued
            job keeps its id, and ids are used again.
        restarts: How often the job was requeued before this run.
    """

    job: str = ""
    step: str = ""
    cluster: str = ""
    start_s: int | None = None
    restarts: int | None = None


NO_JOB = JobRun()


def this_job_run(environ: Mapping[str, str]) -> JobRun:
    """The run of the Slurm job that this process is part of, as its environment tells.

    ``FLEET_JOB_START`` and ``FLEET_JOB_RESTARTS`` are what the launcher asked of Slurm about job
    ``FLEET_JOB_ID``: a job that was submitted from inside another one inherits that one's. Source:
    sbatch(1) and srun(1), "OUTPUT ENVIRONMENT VARIABLES": the restart count is set only when the
    job was restarted.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        return NO_JOB
    told: Mapping[str, str] = environ if environ.get("FLEET_JOB_ID") == job else {}
    restarts = told.get("FLEET_JOB_RESTARTS") or environ.get("SLURM_RESTART_COUNT") or "0"
    start = told.get("FLEET_JOB_START") or environ.get("SLURM_JOB_START_TIME") or ""
    return JobRun(
        job=job,
        step=environ.get("SLURM_STEP_ID", ""),
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        start_s=int(start) if _COUNT.fullmatch(start) else None,
        restarts=int(restarts) if _COUNT.fullmatch(restarts) else None,
    )


def is_of_another_cluster(cluster: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether that is another cluster than this process's, as far as both have a name.

    Two clusters on one mount may each have a node of one name: the boot of the other one's is not
    over because this one's is another.

    Args:
        cluster: As a record names it; empty where that is not known.
        environ: This process's own if None.
    """
    here = this_job_run(os.environ if environ is None else environ).cluster
    return bool(cluster and here) and cluster != here


def sha256_hex(data: bytes) -> str:
    """The SHA-256 of some bytes in hex, for short data; files are hashed where they are read."""
    return str(sha256(data).hexdigest())


def this_host() -> HostId:
    """This machine, this boot, this pid namespace.

    ``SLURMD_NODENAME`` names the node where several run on one machine, else the host name does.
    A boot id or namespace that cannot be read is empty, which never equals a real one.
    """
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    return HostId(
        host=name,
        boot_id=_read_text("/proc/sys/kernel/random/boot_id"),
        pid_namespace=_read_link("/proc/self/ns/pid"),
    )


def process_id(pid: int) -> ProcessId | None:
    """The identity of a living process; None when there is none (a zombie counts as none).

    Raises:
        OSError: It could not be looked at, which does not mean that there is none.

    Source: proc_pid_stat(5). The command name may hold spaces and parentheses, so fields are
    counted after the last closing one.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return ProcessId(pid=pid, start_ticks=int(fields[19]))


def is_alive(process: ProcessId) -> bool:
    """Whether this very process lives: same pid and same start time.

    Raises:
        OSError: It could not be looked at.
    """
    return process_id(process.pid) == process


def is_seen_from(place: HostId, here: HostId) -> bool | None:
    """Whether pids of a place mean something here; False when that boot is over, with its pids.

    None, where nothing is known: another host, another pid namespace, or a boot without a name.
    """
    if place.host != here.host or not place.boot_id or not here.boot_id:
        return None
    if place.boot_id != here.boot_id:
        return False
    same = bool(here.pid_namespace) and place.pid_namespace == here.pid_namespace
    return True if same else None


def lives_at(place: HostId, process: ProcessId, here: HostId) -> bool | None:
    """Whether a process lives, if this machine can tell; None when it cannot.

    Args:
        place: Where it began.
        process: The process.
        here: This machine.
    """
    seen = is_seen_from(place, here)
    if not seen:
        return seen
    try:
        return is_alive(process)
    except OSError:  # out of descriptors or memory
        return None


def new_launch_token() -> str:
    """Eight random characters that name one launch of a worker or command."""
    return "".join(_TOKEN_ALPHABET[byte & 31] for byte in os.urandom(8))


def new_record_id() -> str:
    """Twelve hex digits that name one record, whatever becomes of its task's name."""
    return os.urandom(6).hex()


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
