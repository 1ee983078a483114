"""Leases and journals: how a launch says that it lives, and what it did.

A lease is one small JSON file that its launch replaces at every heartbeat; a journal is one JSON
object a line, written by that launch alone. Invariant: the lease is published before the first
claim and never removed while a claim of that launch may exist.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from fleetcraft.clock import age_on_mount_s, timestamp
from fleetcraft.identity import (
    NO_JOB,
    HostId,
    JobRun,
    ProcessId,
    is_of_another_cluster,
    lives_at,
    new_launch_token,
    new_record_id,
    process_id,
    this_host,
)
from fleetcraft.spool.record import escaped
from fleetcraft.spool.tree import SpoolTree


class Lease(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A launch's promise that it is alive.

    ``counter`` grows at every heartbeat; observers watch it change by their own clock and never
    compare wall clocks. ``left_at`` is set by a launch that left holding nothing. ``gpus`` is how
    many it may use; ``slot_gpus`` is the GPU of each slot, and empty where slots are not GPUs. Of a
    launch in a Slurm job, ``cluster``, ``job_start_s`` (the job's start as Slurm gives it, seconds
    since 1970) and ``restarts`` tell this run of the job from an earlier or later one with the same
    id.
    """

    job: str
    rank: str
    launch: str
    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int
    started_at: str
    interval_s: float
    counter: int = 0
    slots: int = 1
    role: str = "worker"
    step: str = ""
    gpus: int = 0
    cluster: str = ""
    job_start_s: int | None = None
    restarts: int | None = None
    slot_gpus: tuple[str, ...] = ()
    left_at: str | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """The stem of the lease's and the journal's file names."""
        return f"{self.job}.{self.rank}.{self.launch}"

    @property
    def process(self) -> ProcessId:
        """The process that holds it, as it was when it began."""
        return ProcessId(self.pid, self.start_ticks)


SILENT_INTERVALS = 3
"""A lease that has not changed for so many of its own intervals is silent."""

_decode = msgspec.json.Decoder(Lease).decode
_encode = msgspec.json.Encoder().encode


def new_lease(
    *,
    rank: str,
    interval_s: float,
    slots: int = 1,
    gpus: int = 0,
    slot_gpus: tuple[str, ...] = (),
    role: str = "worker",
    run: JobRun = NO_JOB,
) -> Lease:
    """A lease of this process with a fresh launch token; not yet published."""
    here = this_host()
    me = process_id(os.getpid())
    return Lease(
        job=run.job or here.local_job,
        rank=rank,
        launch=new_launch_token(),
        host=here.host,
        boot_id=here.boot_id,
        pid_namespace=here.pid_namespace,
        pid=os.getpid(),
        start_ticks=me.start_ticks if me else 0,
        started_at=timestamp(),
        interval_s=interval_s,
        slots=slots,
        gpus=gpus,
        slot_gpus=slot_gpus,
        role=role,
        step=run.step,
        cluster=run.cluster,
        job_start_s=run.start_s,
        restarts=run.restarts,
    )


def publish(tree: SpoolTree, lease: Lease) -> None:
    """Writes the lease, replacing what it said before."""
    path = tree.paths.lease(lease.name)
    temporary = f"{path}.new"
    try:
        tree.fs.create(temporary, _encode(lease) + b"\n")
    except FileExistsError:
        # Left by an earlier heartbeat of this launch that was cut short.
        tree.fs.unlink(temporary)
        tree.fs.create(temporary, _encode(lease) + b"\n")
    tree.fs.replace(temporary, path)


def withdraw(tree: SpoolTree, lease: Lease) -> None:
    """Removes the lease of a short command that holds no claim any more."""
    with contextlib.suppress(FileNotFoundError):
        tree.fs.unlink(tree.paths.lease(lease.name))


def read(tree: SpoolTree, lease_name: str) -> Lease | None:
    """The lease of a launch; None when there is none or it cannot be read."""
    try:
        return _decode(tree.fs.read(tree.paths.lease(lease_name)))
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def read_all(tree: SpoolTree) -> list[Lease]:
    """Every lease of the spool, in name order; unreadable ones are left out."""
    return list(each(tree))


def each(tree: SpoolTree) -> Iterator[Lease]:
    """Like `read_all`, read one by one, for who looks for one and may stop there."""
    names = sorted(name for name in tree.fs.listdir(tree.paths.workers) if name.endswith(".json"))
    for name in names:
        lease = read(tree, name[: -len(".json")])
        if lease is not None:
            yield lease


def lives_here(lease: Lease, here: HostId) -> bool | None:
    """Whether the lease's process lives, if this machine can tell; None when it cannot."""
    if is_of_another_cluster(lease.cluster):
        return None
    return lives_at(HostId(lease.host, lease.boot_id, lease.pid_namespace), lease.process, here)


@contextlib.contextmanager
def ages_on_mount(tree: SpoolTree) -> Iterator[Callable[[Lease], float]]:
    """How many seconds ago leases were written, by the clock of the file system that holds them.

    For those who look only once: they compare with a file that is written there for it.

    Raises:
        OSError: Nothing can be written there; or, from the function, a lease cannot be seen.
    """
    probe = tree.paths.temporary(f"probe-{new_record_id()}")
    tree.fs.create(probe, b"")
    try:
        yield lambda lease: age_on_mount_s(tree.paths.lease(lease.name), probe)
    finally:
        tree.fs.unlink(probe)


class Journal:
    """The append-only diary of one launch.

    Lines are written in one call each; the last may be missing or torn after a crash. ``lost``
    counts those that a full disk did not take.
    """

    def __init__(self, tree: SpoolTree, lease_name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(tree.paths.journal(lease_name), flags, 0o600)
        self.lost = 0

    def write(self, event: Any) -> Any:
        """Appends one event; a full disk loses the line, never the work.

        Returns:
            The event as it was written: what is no UTF-8 in it, such as a file name, is escaped.
        """
        try:
            data = _encode(event)
        except UnicodeEncodeError:
            event = escaped(dict(event))
            data = _encode(event)
        try:
            os.write(self._fd, data + b"\n")
        except OSError:
            self.lost += 1
        return event

    def close(self) -> None:
        """Closes the file; a mount that fails even then loses lines, never the work."""
        try:
            os.close(self._fd)
        except OSError:
            self.lost += 1


def read_journal(tree: SpoolTree, lease_name: str) -> tuple[list[dict[str, Any]], int]:
    """The events of one launch, and the number of lines (torn ones) that cannot be read."""
    try:
        data = tree.fs.read(tree.paths.journal(lease_name))
    except FileNotFoundError:
        return [], 0
    events: list[dict[str, Any]] = []
    damaged = 0
    for line in data.splitlines():
        try:
            events.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.DecodeError, RecursionError):
            damaged += 1
    return events, damaged
