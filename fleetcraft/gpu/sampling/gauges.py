"""All that is read from one GPU for a row, bound to one handle of it.

Identity and what becomes of a GPU without a handle are for `card`. Invariant: a reading that fails
leaves its cells empty with a cause and keeps no other reading from being taken.
"""

from __future__ import annotations

import ctypes
from typing import Any

from fleetcraft.gpu import causes
from fleetcraft.gpu.causes import status_of
from fleetcraft.gpu.nvml import Library
from fleetcraft.gpu.sampling.cells import Cells
from fleetcraft.gpu.sampling.layouts import TEMPERATURE_V1, TemperatureV1
from fleetcraft.gpu.sampling.questions import Form, Question, forms
from fleetcraft.gpu.sampling.readers import MIB, MemoryReader, PowerReader, UtilizationReader
from fleetcraft.gpu.sampling.utilization import Fold
from fleetcraft.gpu.sampling.zero_watch import ZeroWatch
from fleetcraft.gpu.status import Status

ECC_EVERY = 20
"""Rows from one look at the error counter to the next, which changes rarely; ten minutes at 30 s.
In between its cell is empty and has no cause, since nothing failed."""
_SM_CLOCK, _UNCORRECTED, _VOLATILE = 1, 1, 0  # source: nvml.h
_ANY = range(1 << 64)


class Gauges:
    """The questions to one GPU.

    Args:
        library: The driver's library.
        handle: The GPU.
        fold: Its utilization samples, kept over handles.
        zeros: What is known of its zeros, kept over handles.
        host_bytes: The host's own memory.
    """

    def __init__(
        self, library: Library, handle: Any, fold: Fold, zeros: ZeroWatch, host_bytes: int
    ) -> None:
        self._library, self._handle, self._zeros = library, handle, zeros
        self._rows = 0
        self.utilization = UtilizationReader(library, handle, fold)
        self.memory = MemoryReader(library, handle, host_bytes)
        self._power = PowerReader(library, handle)
        narrow, wide = ctypes.c_uint, ctypes.c_ulonglong

        def ask(value: Any, *names: str, which: tuple[int, ...] = ()) -> list[Form]:
            return forms(library.functions(*names), (handle, *map(ctypes.c_uint, which)), value)

        self._limit = Question(ask(narrow(), "nvmlDeviceGetEnforcedPowerLimit"))
        errors = (_UNCORRECTED, _VOLATILE)
        self._ecc = Question(ask(wide(), "nvmlDeviceGetTotalEccErrors", which=errors))
        energy = ask(wide(), "nvmlDeviceGetTotalEnergyConsumption")
        # The binding says that CUDA 14 removes the first.
        temperature = ask(narrow(), "nvmlDeviceGetTemperature", which=(0,))
        temperature += ask(TemperatureV1(version=TEMPERATURE_V1), "nvmlDeviceGetTemperatureV")
        clock = ask(narrow(), "nvmlDeviceGetClockInfo", which=(_SM_CLOCK,))
        # The second is the first's name before driver 535.
        throttle = ask(
            wide(),
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        )
        self._others = (
            ("energy_j", Question(energy), _ANY, 1000),
            ("temp_c", Question(temperature), range(-60, 201), 1),
            ("sm_clock_mhz", Question(clock), range(100_001), 1),
            ("throttle", Question(throttle), _ANY, 0),
        )

    def read(self, now_s: float, cells: Cells, *, is_cut: bool) -> None:
        """Everything, now.

        Args:
            now_s: This host's time, in seconds since 1970.
            cells: Where it goes.
            is_cut: The GPU is cut in slices, and has no utilization of its own.
        """
        if is_cut:
            cells.lacks(Status.MIG, 0, "util_pct", "mem_util_pct")
            cells.primary.append(Status.MIG)
        else:
            self.utilization.read(now_s, cells)
        self.memory.read(cells)
        self._power.read(cells)
        self._read_others(cells)
        self._add_words(cells, is_cut)
        self._rows += 1

    def _read_others(self, cells: Cells) -> None:
        for column, question, valid, divisor in self._others:
            code = question.ask()
            if code:
                cells.lacks(status_of(code), code, column)
                continue
            value = question.value.value
            if value in valid:
                cells.values[column] = value / divisor if divisor else value
            else:
                cells.lacks(Status.INVALID, 0, column)
        if self._rows % ECC_EVERY == 0:
            code = self._ecc.ask()
            if code:
                cells.lacks(status_of(code), code, "ecc")
            else:
                cells.values["ecc"] = self._ecc.value.value

    def _add_words(self, cells: Cells, is_cut: bool) -> None:
        values, words = cells.values, cells.words
        if mask := values.get("throttle"):
            words.append(f"throttle={causes.throttle_words(mask)}")
        if not is_cut and not self._zeros.was_busy:
            contradiction = self._zeros.look(
                values.get("util_pct"),
                values.get("mem_util_pct"),
                values.get("power_w"),
                self._limit_w,
                lambda: len(self._processes()),
            )
            if contradiction:
                words.extend(("util_zero_suspect", f"contradicted_by={contradiction}"))
        if cells.missing:
            if Status.UNIFIED in cells.primary:
                self._add_process_memory(cells)
            codes = {code for _, status, code in cells.missing if status is Status.UNKNOWN}
            words.extend(f"code={code}" for code in sorted(codes))

    def _add_process_memory(self, cells: Cells) -> None:
        """The GPU has no memory of its own: what its processes hold is all that can be told."""
        used = [one.usedGpuMemory for one in self._processes() if one.usedGpuMemory is not None]
        if used:
            cells.words.append(f"process_mem_mib={sum(used) / MIB:.0f}")

    def _processes(self) -> list[Any]:
        """The compute processes that can be seen from here; in a container often none."""
        for name in (
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetComputeRunningProcesses_v2",
        ):
            code, found = self._library.ask(name, self._handle)
            if code not in causes.FUNCTION_MISSING:
                return found or []
        return []

    def _limit_w(self) -> float | None:
        return None if self._limit.ask() else self._limit.value.value / 1000
