"""The slices of a GPU that is cut by MIG: which there are now, and a row for each.

Invariant: a slice is known by its UUID alone, since handles and numbers are given out anew whenever
a GPU is cut again; and the utilization of a slice, which NVML does not tell, is never a number.
"""

from __future__ import annotations

import ctypes
from typing import Any

from fleetcraft.gpu import causes
from fleetcraft.gpu.causes import status_of
from fleetcraft.gpu.nvml import Library
from fleetcraft.gpu.sampling.cells import Cells
from fleetcraft.gpu.sampling.questions import Question, forms
from fleetcraft.gpu.sampling.readers import MemoryReader
from fleetcraft.gpu.sampling.samples import Missing, Sample
from fleetcraft.gpu.status import Status

_NOT_TOLD: tuple[Missing, ...] = (("util_pct", Status.MIG, 0), ("power_w", Status.MIG, 0))
_NO_SUCH = frozenset({causes.NOT_FOUND, causes.INVALID_ARGUMENT})
LOOK_EVERY = 20
"""Rows of a GPU that is not cut from one look at its mode to the next; ten minutes at 30 s. Once it
is cut its utilization is refused, and then it is looked at once more."""


class _Slice:
    def __init__(self, uuid: str, name: str, address: int, memory: MemoryReader) -> None:
        self.uuid, self.name, self.address, self.memory = uuid, name, address, memory
        self.code = 0


class Slices:
    """The slices of one GPU.

    Args:
        library: The driver's library.
        wanted: UUIDs of those that are wanted, or their beginnings; None for all.
        host_bytes: The host's own memory.
    """

    def __init__(self, library: Library, wanted: tuple[str, ...] | None, host_bytes: int) -> None:
        self._library = library
        self._wanted = wanted
        self._host_bytes = host_bytes
        self._known: dict[str, _Slice] = {}
        self._rows = 0
        self.is_cut = False

    def bind(self, handle: Any) -> None:
        """Takes another handle of the GPU."""
        self._handle = handle
        self._current = ctypes.c_uint()
        functions = self._library.functions("nvmlDeviceGetMigMode")
        arguments = (handle, ctypes.byref(self._current))
        # The second answer is the mode after the next reset.
        self._mode = Question(forms(functions, arguments, ctypes.c_uint()))
        self._rows = 0

    def find_parent(self) -> tuple[int, Any]:
        """The handle of the GPU that a wanted slice is cut from; NVML's code and the handle."""
        code = causes.NOT_FOUND
        for uuid in self._wanted or ():
            code, handle = self._library.ask("nvmlDeviceGetHandleByUUID", uuid)
            if code == 0:
                return self._library.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return code, None

    @property
    def any(self) -> bool:
        """Whether there are rows of slices to write."""
        return bool(self._known or self._wanted)

    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the slices as last seen."""
        return tuple(self._known)

    def look_for_row(self) -> None:
        """Looks before a row: each time where the GPU is cut, else every `LOOK_EVERY` rows."""
        if self.is_cut or self._rows % LOOK_EVERY == 0:
            self.look()
        self._rows += 1

    def look(self) -> bool:
        """Looks which slices there are; whether the GPU is cut. One call where it is not."""
        code = self._mode.ask()
        if code == 0:
            self.is_cut = self._current.value == 1
        elif status_of(code) in (Status.UNSUPPORTED, Status.UNSUPPORTED_DRIVER):
            self.is_cut = False
        if not self.is_cut:
            self._known.clear()
            return False
        found: dict[str, _Slice] = {}
        trouble = 0
        code, count = self._library.ask("nvmlDeviceGetMaxMigDeviceCount", self._handle)
        for number in range(count or 0):
            one, refused = self._slice(number)
            trouble = trouble or refused
            if one is not None:
                found[one.uuid] = one
        kept: dict[str, _Slice] = {}
        for uuid, one in self._known.items():
            if uuid in found:
                kept[uuid] = found.pop(uuid)
            elif trouble or code:
                one.code = trouble or code  # it may well be there
                kept[uuid] = one
        self._known = kept | found
        return True

    def _slice(self, number: int) -> tuple[_Slice | None, int]:
        """One slice, and the code when there is one that cannot be told; both may be nothing."""
        library = self._library
        code, handle = library.ask("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, number)
        if code:
            return None, 0 if code in _NO_SUCH else code
        uuid = library.text("nvmlDeviceGetUUID", handle)
        if not uuid:
            return None, causes.UNKNOWN
        if self._wanted is not None and not uuid.startswith(self._wanted):
            return None, 0
        address = ctypes.cast(handle, ctypes.c_void_p).value or 0
        one = self._known.get(uuid)
        if one is None or one.address != address:
            memory = MemoryReader(library, handle, self._host_bytes)
            one = _Slice(uuid, library.text("nvmlDeviceGetName", handle), address, memory)
        one.code = 0
        return one, 0

    def sample(self, parent: Sample) -> list[Sample]:
        """A row for each slice, as last seen.

        Args:
            parent: The row of the GPU.
        """
        rows = [self._row(parent, one) for one in self._known.values()]
        return rows + self._absent(parent, Status.ABSENT)

    def without(self, parent: Sample, status: Status, code: int) -> list[Sample]:
        """A row without values for each slice that is known or wanted, all for one cause."""
        missing = tuple(
            (column, status, code) for column in ("util_pct", "mem_used_mib", "power_w")
        )
        rows = [
            _identity(parent, one.uuid, one.name, status=status, missing=missing)
            for one in self._known.values()
        ]
        return rows + self._absent(parent, status)

    def _absent(self, parent: Sample, status: Status) -> list[Sample]:
        return [
            _identity(parent, wanted, "", status=status)
            for wanted in self._wanted or ()
            if not any(uuid.startswith(wanted) for uuid in self._known)
        ]

    def _row(self, parent: Sample, one: _Slice) -> Sample:
        cells = Cells()
        if one.code:
            cells.primary.append(status_of(one.code))
            cells.lacks(status_of(one.code), one.code, "mem_used_mib", "mem_total_mib")
        else:
            one.memory.read(cells)
        return _identity(
            parent,
            one.uuid,
            one.name,
            status=causes.worst((Status.MIG, *cells.primary)),
            missing=(*_NOT_TOLD, *cells.missing),
            **cells.values,
        )


def _identity(parent: Sample, uuid: str, name: str, **cells: Any) -> Sample:
    return Sample(
        index=parent.index,
        uuid=parent.uuid,
        pci_bus_id=parent.pci_bus_id,
        mig_uuid=uuid,
        name=name,
        is_slice=True,
        **cells,
    )
