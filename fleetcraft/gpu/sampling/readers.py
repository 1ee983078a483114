"""Utilization, memory and power of one GPU: the three readings that have more than one way.

Each reader says in the row which way gave the value. Invariant: a value that cannot be, such as a
total of 0 or 9.2e18 percent, is no value; and the host's memory is not the GPU's.
"""

from __future__ import annotations

import ctypes
from typing import Any

from fleetcraft.gpu import causes
from fleetcraft.gpu.causes import status_of
from fleetcraft.gpu.nvml import Library
from fleetcraft.gpu.sampling.cells import Cells
from fleetcraft.gpu.sampling.layouts import MEMORY_V2, MemoryV1, MemoryV2, Rates
from fleetcraft.gpu.sampling.questions import FieldQuestion, Question, SampleBuffer, forms
from fleetcraft.gpu.sampling.utilization import Fold
from fleetcraft.gpu.status import Status

MIB = 1 << 20
_GPU_SAMPLES = 1
"""Source: nvml.h, NVML_GPU_UTILIZATION_SAMPLES."""
_MOST_W = 10_000.0
"""More than any GPU or module draws; drivers have answered with the greatest integer."""
_HAS_BUFFER = frozenset({causes.SUCCESS, causes.NOT_FOUND})


class UtilizationReader:
    """The driver's buffer of samples where there is one, else the plain call.

    Args:
        library: The driver's library.
        handle: The GPU.
        fold: Keeps what was seen, also over a new handle.
    """

    def __init__(self, library: Library, handle: Any, fold: Fold) -> None:
        self._fold = fold
        self._buffer = SampleBuffer(library.functions("nvmlDeviceGetSamples"), handle, _GPU_SAMPLES)
        self._rates = Question(
            forms(library.functions("nvmlDeviceGetUtilizationRates"), (handle,), Rates())
        )

    def drain(self, now_s: float) -> int:
        """Takes what is new in the buffer; NVML's code, also for "nothing new"."""
        fold = self._fold
        code, times_us, values_pct = self._buffer.read(fold.since_us)
        if code == 0:
            fold.add(times_us, values_pct, now_s)
        elif code == causes.NOT_FOUND and fold.is_overdue(now_s):
            again, times_us, values_pct = self._buffer.read(0)
            if again == 0:
                fold.add_whole(times_us, values_pct, now_s)
        return code

    def read(self, now_s: float, cells: Cells) -> None:
        """Reads utilization since the last row, and memory utilization, which is an instant."""
        buffer_code = self.drain(now_s)
        folded = self._fold.take()
        code = self._rates.ask()
        rates = None if code else self._rates.value
        values = cells.values
        status = Status.OK
        if folded.mean_pct is not None:
            values["util_pct"], values["util_source"] = folded.mean_pct, "samples"
            values["util_max_pct"], values["util_samples"] = folded.max_pct, folded.count
        else:
            status = _take_percent(cells, "util_pct", rates and rates.gpu, code)
            if status is Status.OK:
                values["util_source"] = "instant"
            # Nothing new, or nothing valid, is no cause: there is a buffer.
            if buffer_code not in _HAS_BUFFER:
                cells.lacks(status_of(buffer_code), buffer_code, "util_max_pct", "util_samples")
        _take_percent(cells, "mem_util_pct", rates and rates.memory, code)
        if folded.invalid:
            cells.words.append(f"invalid_samples={folded.invalid}")
        cells.primary.append(status)


def _take_percent(cells: Cells, column: str, value: int | None, code: int) -> Status:
    if value is not None and 0 <= value <= 100:
        cells.values[column] = float(value)
        return Status.OK
    status = Status.INVALID if value is not None else status_of(code)
    cells.lacks(status, code, column)
    return status


class MemoryReader:
    """Memory of one GPU or slice, by version 2 of the call where the driver has it.

    Args:
        library: The driver's library.
        handle: The GPU or slice.
        host_bytes: The host's own memory; a GPU that reports exactly that has none of its own.
    """

    def __init__(self, library: Library, handle: Any, host_bytes: int) -> None:
        self._host_bytes = host_bytes
        second = library.functions("nvmlDeviceGetMemoryInfo_v2")
        self._first_form_is_v2 = bool(second)
        self._question = Question(
            forms(second, (handle,), MemoryV2(version=MEMORY_V2))
            + forms(library.functions("nvmlDeviceGetMemoryInfo"), (handle,), MemoryV1())
        )

    def total_mib(self) -> float | None:
        """How much there is; None when that is not known, or none is the GPU's own."""
        cells = Cells()
        self.read(cells)
        return cells.values.get("mem_total_mib")

    def read(self, cells: Cells) -> None:
        """Reads memory now."""
        code = self._question.ask()
        status = self._judge(code)
        cells.primary.append(status)
        if status is not Status.OK:
            cells.lacks(status, code, "mem_used_mib", "mem_total_mib")
            return
        value, values = self._question.value, cells.values
        values["mem_used_mib"], values["mem_total_mib"] = value.used / MIB, value.total / MIB
        if self._first_form_is_v2 and not self._question.form:
            values["mem_source"], values["mem_reserved_mib"] = "v2", value.reserved / MIB
        else:
            values["mem_source"] = "v1"
            cells.lacks(Status.UNSUPPORTED_DRIVER, causes.FUNCTION_NOT_FOUND, "mem_reserved_mib")

    def _judge(self, code: int) -> Status:
        if code:
            # NVML supports this call on every GPU that has memory of its own.
            return Status.UNIFIED if code == causes.NOT_SUPPORTED else status_of(code)
        total, used = self._question.value.total, self._question.value.used
        if total == self._host_bytes and total:
            return Status.UNIFIED
        return Status.OK if total and used <= total else Status.INVALID


class PowerReader:
    """Power of one GPU, by the first of five ways that it answers.

    The average of the last second comes first: rows are integrated over half a minute, and an
    average strays less from the mean of that time than an instant. The plain call is one or the
    other, by GPU, and does not say which. A module draws more than its GPU, so that comes last.

    Source: NVML API reference, nvmlDeviceGetPowerUsage, NVML_FI_DEV_POWER_AVERAGE and
    NVML_FI_DEV_POWER_INSTANT, NVML_POWER_SCOPE_MODULE.
    """

    def __init__(self, library: Library, handle: Any) -> None:
        functions = library.functions("nvmlDeviceGetFieldValues")
        plain = library.functions("nvmlDeviceGetPowerUsage")
        average, instant, gpu, module = 185, 186, 0, 1
        self._ways: tuple[tuple[str, Question], ...] = (
            ("average", FieldQuestion(functions, handle, average, gpu)),
            ("instant", FieldQuestion(functions, handle, instant, gpu)),
            ("usage", Question(forms(plain, (handle,), ctypes.c_uint()))),
            ("average/module", FieldQuestion(functions, handle, average, module)),
            ("instant/module", FieldQuestion(functions, handle, instant, module)),
        )

    def read(self, cells: Cells) -> None:
        """Reads power now."""
        refused: list[tuple[Status, int]] = []
        for source, question in self._ways:
            code = question.ask()
            if code == 0:
                watts = question.number() / 1000
                # What is switched on draws something: 0 is how some drivers say "not known".
                if 0 < watts <= _MOST_W:
                    cells.values["power_w"], cells.values["power_source"] = watts, source
                    cells.primary.append(Status.OK)
                    return
            refused.append((Status.INVALID if code == 0 else status_of(code), code))
        grave = causes.worst(status for status, _ in refused)
        cells.primary.append(grave)
        cells.lacks(grave, next(code for status, code in refused if status is grave), "power_w")
