"""Who holds memory on a GPU: this process tree, or others.

Reads through `nvml`; decides nothing. Invariant: what the driver cannot tell apart is None, never a
share of anybody.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from fleetcraft.errors import DeviceError
from fleetcraft.gpu.nvml import Library, visible_gpus


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's memory at one moment.

    Attributes:
        total_bytes: What it has.
        used_bytes: What all hold, without what the driver keeps for itself.
        by_pid: What each process holds; None for one of which the driver does not say.
    """

    total_bytes: int | None = None
    used_bytes: int | None = None
    by_pid: dict[int, int | None] = {}

    def others_bytes(self, own: Collection[int]) -> int | None:
        """What processes other than these hold: used less their own.

        Returns:
            None when the driver does not name a process of these, or not what it holds: in a
            container it counts pids of another namespace.
        """
        mine = [self.by_pid[pid] for pid in own if pid in self.by_pid]
        known = [size for size in mine if size is not None]
        if self.used_bytes is None or not known or len(known) < len(mine):
            return None
        return max(0, self.used_bytes - sum(known))


class MemoryWatch:
    """Reads one GPU again and again. A call into a stuck driver never returns.

    Args:
        uuid: The GPU, ``GPU-...`` or ``MIG-...``; see `gpu_of`.

    Raises:
        DeviceError: The driver does not answer, or does not know it.
    """

    def __init__(self, uuid: str) -> None:
        self._library = Library()
        binding = self._library.binding
        code, handle = self._library.ask("nvmlDeviceGetHandleByUUID", uuid)
        if code:
            self._library.close()
            raise DeviceError(
                f"the driver does not know GPU {uuid} (NVML code {code}); it is not watched",
                hint="nvidia-smi -L lists the GPUs",
                uuid=uuid,
            )
        self._handle = handle
        # Version 2 alone leaves out the memory that the driver reserves.
        self._version = getattr(binding, "nvmlMemory_v2", None)

    def read(self) -> MemoryUse:
        """One reading; what the driver does not say is None or left out."""
        before = self._memory()
        held: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            found = self._library.ask(f"nvmlDeviceGet{kind}RunningProcesses", self._handle)[1]
            for process in found or ():
                held[int(process.pid)] = _size(process.usedGpuMemory)
        after = self._memory()
        known = before is not None and after is not None
        return MemoryUse(
            total_bytes=int(after.total) if known else None,
            # What a process gave back or took between the questions is nobody else's.
            used_bytes=int(min(before.used, after.used)) if known else None,
            by_pid=held,
        )

    def _memory(self) -> Any:
        code, memory = self._library.ask("nvmlDeviceGetMemoryInfo", self._handle, self._version)
        return memory if code == 0 and memory.total else None

    def close(self) -> None:
        """Ends the use of the driver."""
        self._library.close()


def gpu_of(device: str) -> str:
    """The GPU that torch calls ``cuda`` or ``cuda:N`` in this environment.

    Raises:
        DeviceError: There is none of that number, or the driver does not answer.
    """
    index = int(device.partition(":")[2] or 0)
    gpus = visible_gpus()
    if index >= len(gpus):
        raise DeviceError(f"{device} is not there: {len(gpus)} GPUs are visible")
    return gpus[index]


def _size(value: Any) -> int | None:
    return None if value is None else int(value)
