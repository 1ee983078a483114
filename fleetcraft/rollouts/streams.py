"""The lease of a stream, and the physical slot on which its holder runs.

A stream seeds its prompts, so two holders would make the same records twice. Not here: what a
holder may publish (`publishing`). Invariant: one generation of a stream has one holder for ever,
and a second process stops here, before its first prompt.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from fleetcraft.errors import DeviceError
from fleetcraft.identity import NO_JOB, JobRun, this_host
from fleetcraft.locks import GenerationLock, Held, Judge, LockHeldError, lives_here
from fleetcraft.rollouts.queue import RolloutQueue, cannot, require_stream
from fleetcraft.rollouts.records import PhysicalSlot


class StreamLease:
    """A stream as its holder has it. Made by `acquire` alone; a context manager that beats.

    Attributes:
        stream: Its name.
        slot: Where the holder runs.
    """

    def __init__(self, stream: str, held: Held, slot: PhysicalSlot) -> None:
        self.stream = stream
        self.slot = slot
        self._held = held

    @classmethod
    def acquire(
        cls,
        queue: RolloutQueue,
        stream: str,
        *,
        by_age: bool = False,
        slot: PhysicalSlot | None = None,
        judge: Judge = lives_here,
        run: JobRun = NO_JOB,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> StreamLease:
        """Becomes the holder of a stream, or says who is.

        A holder that is positively gone is followed after three of its lock intervals.

        Args:
            queue: The queue.
            stream: Its name.
            by_age: Consent to follow a silent holder of which nothing else is known, such as one
                on another machine.
            slot: Where this process runs; found out if it is not given.
            judge: Says whether a silent holder lives; this machine's own processes by default.
            run: The Slurm job that this process is part of.
            clock: This process's own monotonic clock, in seconds.
            sleep: Waits by that clock.

        Raises:
            UsageError: A bad name.
            LockHeldError: Another process holds it or may hold it (exit code 75).
            LockUnknownError: The file system does not tell (exit code 75).
            SpoolError: The stream's folders cannot be made.
        """
        _make_folders(queue, require_stream(stream))
        lock = GenerationLock(
            queue.paths.stream(stream),
            purpose=f"stream {stream} of run {queue.settings.run}",
            interval_s=queue.settings.lock_interval_s,
            judge=judge,
            run=run,
            fs=queue.fs,
            clock=clock,
            sleep=sleep,
        )
        here = slot or physical_slot()
        try:
            return cls(stream, lock.acquire(by_age=by_age), here)
        except LockHeldError as error:
            error.hint = _hint(error, stream)
            raise

    @property
    def generation(self) -> int:
        """The number that every record of this holder carries."""
        return self._held.generation

    @property
    def nonce(self) -> str:
        """Tells this holder from any other."""
        return self._held.holder.nonce

    def check(self) -> None:
        """Rereads who holds the stream; to be called before each durable act.

        Raises:
            LockLostError: Another process has followed; this one must publish nothing more.
            LockUnknownError: The file system does not tell.
        """
        self._held.check()

    def release(self) -> bool:
        """Lets the next holder in at once; says whether that could be written."""
        return self._held.release()

    def __enter__(self) -> StreamLease:
        self._held.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.__exit__()


def physical_slot(logical_index: int = 0) -> PhysicalSlot:
    """Where this process runs: its host and the GPU that it calls ``cuda:<logical_index>``.

    Asks the NVIDIA driver for UUIDs; without one, the entry of ``CUDA_VISIBLE_DEVICES`` stands for
    it, and without that the device is left empty.
    """
    from fleetcraft.gpu.nvml import visible_gpus

    devices: list[str] = []
    with contextlib.suppress(DeviceError, OSError):
        devices = visible_gpus()
    known = devices[logical_index] if 0 <= logical_index < len(devices) else ""
    return PhysicalSlot(
        host=this_host().host, device_uuid=known, bus_id=_bus_id(known) if known else ""
    )


def _bus_id(uuid: str) -> str:
    from fleetcraft.gpu.nvml import Library

    try:
        library = Library()
    except DeviceError:
        return ""
    try:
        code, handle = library.ask("nvmlDeviceGetHandleByUUID", uuid)
        return "" if code else library.pci_bus_id(handle)
    finally:
        library.close()


def _make_folders(queue: RolloutQueue, stream: str) -> None:
    try:
        for folder in (queue.paths.stream(stream), queue.paths.ident_folder(stream)):
            with contextlib.suppress(FileExistsError):
                queue.fs.make_folder(folder)
    except OSError as error:
        raise cannot(f"make the folders of stream {stream}", error) from error


def _hint(error: LockHeldError, stream: str) -> str:
    if error.facts.get("may_be_gone"):
        return "if that process is gone for certain, take the stream with by_age=True"
    return f"give this worker a stream of its own; {stream} seeds the prompts of that process"
