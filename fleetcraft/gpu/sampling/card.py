"""One GPU of a session: what it is called, its handle, and the rows of it and its slices.

What is read is in `gauges`. Invariant: whatever the driver says about this GPU ends in a row of it,
with the identity that was last known, and touches no other GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fleetcraft.gpu import causes
from fleetcraft.gpu.causes import status_of
from fleetcraft.gpu.nvml import Library
from fleetcraft.gpu.sampling.cells import Cells
from fleetcraft.gpu.sampling.gauges import Gauges
from fleetcraft.gpu.sampling.samples import Device, Sample
from fleetcraft.gpu.sampling.selection import Listed
from fleetcraft.gpu.sampling.slices import Slices
from fleetcraft.gpu.sampling.utilization import Fold
from fleetcraft.gpu.sampling.zero_watch import ZeroWatch
from fleetcraft.gpu.status import Status

_CELLS = (
    *("util_pct", "mem_used_mib", "mem_total_mib", "power_w"),
    *("mem_util_pct", "energy_j", "temp_c", "sm_clock_mhz", "throttle"),
)
_OF_THE_MOMENT = frozenset(
    {Status.LOST, Status.RESET_REQUIRED, Status.ABSENT, Status.TIMEOUT, Status.UNKNOWN}
)


class Card:
    """One GPU. Calls for two of them may come from two threads, calls for one from one at a time.

    Args:
        library: The driver's library.
        known: What it is called, as far as that is known.
        interval_s: Between two rows.
        host_bytes: The host's own memory.
        slices: The slices that are wanted, by UUID; None for all there are.

    Attributes:
        handle: The driver's handle of it; None while there is none.
        is_watched: Its XIDs are being told.
        is_absent: The driver does not list it any more.
        gone: The code, after an answer that only a new session can help against; else 0.
    """

    def __init__(
        self,
        library: Library,
        known: Device,
        *,
        interval_s: float,
        host_bytes: int,
        slices: tuple[str, ...] | None = None,
    ) -> None:
        self._library = library
        self.known = known
        self._names = _names(known)
        self._host_bytes = host_bytes
        self._fold = Fold(interval_s)
        self._zeros = ZeroWatch()
        self._slices = Slices(library, slices, host_bytes)
        self._gauges: Gauges | None = None
        self.handle: Any = None
        self._offered: Any = None
        self.is_watched = False
        self.is_absent = False
        self.gone = 0

    def connect(self) -> int:
        """Gets the handle, by UUID where that is known, and reads what the GPU is called.

        Returns:
            NVML's code; 0 when there is a handle.
        """
        handle, self._offered = self._offered, None
        code, handle = self._find() if handle is None else (0, handle)
        self.known = msgspec.structs.replace(self.known, status=_why_no_handle(code))
        if code:
            self._note(code)
            return code
        self.handle = handle
        self._identify()
        self._slices.bind(handle)
        self._bind_gauges()
        return 0

    def _bind_gauges(self) -> Gauges:
        self._gauges = Gauges(self._library, self.handle, self._fold, self._zeros, self._host_bytes)
        return self._gauges

    def _find(self) -> tuple[int, Any]:
        if self.known.uuid:
            return self._library.ask("nvmlDeviceGetHandleByUUID", self.known.uuid)
        if self.known.index is not None:
            return self._library.ask("nvmlDeviceGetHandleByIndex", self.known.index)
        return self._slices.find_parent()

    def _identify(self) -> None:
        """Reads the names of the GPU; one that the driver does not tell now is kept."""
        library, handle, known = self._library, self.handle, self.known
        index_code, index = library.ask("nvmlDeviceGetIndex", handle)
        self.known = msgspec.structs.replace(
            known,
            uuid=library.text("nvmlDeviceGetUUID", handle) or known.uuid,
            name=library.text("nvmlDeviceGetName", handle) or known.name,
            pci_bus_id=library.pci_bus_id(handle) or known.pci_bus_id,
            index=known.index if index_code else index,
        )
        self._names = _names(self.known)

    def offer(self, handle: Any) -> None:
        """Gives it a handle to begin with, instead of asking for one."""
        if self._gauges is None:
            self._offered = handle

    def is_same(self, device: Device) -> bool:
        """Whether a device is this one, by UUID, or by what there is while that is not known."""
        known = self.known
        if known.uuid and device.uuid:
            return known.uuid == device.uuid
        if known.index is not None or device.index is not None:
            return known.index == device.index
        return known.mig == device.mig

    def learn(self, device: Device) -> None:
        """Takes names that were not known before."""
        known = self.known
        self.known = msgspec.structs.replace(
            known,
            uuid=known.uuid or device.uuid,
            index=device.index if known.index is None else known.index,
        )
        self._names = _names(self.known)

    def note_listed(self, listed: Sequence[Listed]) -> None:
        """Notes whether the driver lists it. One without a name may be any of those missed."""
        if self.known.uuid:
            uuids = {one.uuid for one in listed}
            is_absent = self.known.uuid not in uuids and "" not in uuids
            if self.is_absent and not is_absent:
                self.forget_handle()
            self.is_absent = is_absent

    def forget_handle(self) -> None:
        """Has the next row ask for the GPU anew, as after it was away."""
        self._gauges = None

    def device(self) -> Device:
        """What the GPU is called now, its slices listed anew."""
        if self.is_absent:
            return msgspec.structs.replace(self.known, status=Status.ABSENT)
        if self._gauges is None:
            self.connect()
        if self._gauges is not None:
            total_mib = self._gauges.memory.total_mib()
            self._slices.look()
            self.known = msgspec.structs.replace(
                self.known,
                mem_total_mib=self.known.mem_total_mib if total_mib is None else total_mib,
                mig=self._slices.uuids(),
            )
        return self.known

    def drain(self, now_s: float) -> None:
        """Takes what is new in the buffer of utilization samples, for the next row."""
        if self._gauges is not None and not self.is_absent and not self._slices.is_cut:
            self._gauges.utilization.drain(now_s)

    def sample(self, now_s: float) -> list[Sample]:
        """The row of the GPU, and one for each of its slices."""
        if self.is_absent:
            return self._without(Status.ABSENT, 0)
        code = self.connect() if self._gauges is None else 0
        if code or self._gauges is None:
            return self._without(_why_no_handle(code), code)
        self._slices.look_for_row()
        row, causes_met = self._read(self._gauges, now_s)
        if row.status in _OF_THE_MOMENT and set(causes_met) == {row.status}:
            self.forget_handle()  # the driver may know the GPU under another by now
        return [row, *self._slices.sample(row)] if self._slices.any else [row]

    def _read(self, gauges: Gauges, now_s: float) -> tuple[Sample, list[Status]]:
        """The row of a GPU that has a handle, and what became of its main readings."""
        slices = self._slices
        cells = Cells(**self._names)
        gauges.read(now_s, cells, is_cut=slices.is_cut)
        if cells.missing:
            if not slices.is_cut and "util_pct" not in cells.values and slices.look():
                # It was cut since the last look. Fresh gauges: what was refused just now is not
                # unsupported for good.
                return self._read(self._bind_gauges(), now_s)
            for _, _, code in cells.missing:
                self._note(code)
        return cells.sample(), cells.primary

    def _without(self, status: Status, code: int) -> list[Sample]:
        """The rows of a GPU that cannot be asked."""
        cells = Cells(**self._names)
        cells.primary.append(status)
        cells.lacks(status, code, *_CELLS)
        if status is Status.UNKNOWN:
            cells.words.append(f"code={code}")
        row = cells.sample()
        rows = self._slices.without(row, status, code)
        # A slice that is wanted may be all that is known; a row without any name is of no use.
        return [row, *rows] if row.uuid or row.index is not None or not rows else rows

    def _note(self, code: int) -> None:
        if code in causes.SESSION_GONE:
            self.gone = code


def _names(known: Device) -> dict[str, Any]:
    return {
        "index": known.index,
        "uuid": known.uuid,
        "pci_bus_id": known.pci_bus_id,
        "name": known.name,
    }


def _why_no_handle(code: int) -> Status:
    """What a code means where a handle was asked for: there, "not found" is an answer."""
    if code in (causes.NOT_FOUND, causes.INVALID_ARGUMENT):
        return Status.ABSENT
    return status_of(code)
