"""Rows as text: what was seen of GPUs and host becomes lines of a telemetry file.

Nothing here reads a GPU or writes a file. Invariant: a line has exactly the cells of
`columns.COLUMNS` in their order; a value that is missing or not finite is an empty cell.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache

from fleetcraft.gpu.sampling.samples import Event, Missing, Sample
from fleetcraft.gpu.status import Status
from fleetcraft.telemetry.columns import RowKind
from fleetcraft.telemetry.logger.host import HostReading

# A cell holds no comma, quote, line break or anything else that a reader could stumble over.
_IN_CELLS: dict[int, str] = {
    **dict.fromkeys([*range(32), *range(127, 160), 0x2028, 0x2029], " "),
    ord(","): ";",
    ord('"'): "'",
}
_NO_DEVICE = "," * 17  # mem_used_mib to ecc, and the comma before status
_BEHIND_UUID = "," * 11  # pci_bus_id to ecc, and the comma before status
_NO_SOURCES = "," * 5  # util_source to missing


@lru_cache(maxsize=512)
def clean(text: str) -> str:
    """A text as it may stand in a cell."""
    return text.translate(_IN_CELLS).strip()


@lru_cache(maxsize=1024)  # most values of a GPU are those of the sample before
def number(value: float | int | None) -> str:
    """A number as it stands in a cell: at most three decimals, none that are zeros."""
    if value is None:
        return ""
    if isinstance(value, int) or value.is_integer():
        return str(int(value))
    if not math.isfinite(value):
        return ""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


@lru_cache(maxsize=4)  # the rows of one sample
def stamp(at_s: float) -> str:
    """A moment as ``2026-11-30T02:00:00.000Z``, cut to the millisecond."""
    whole_s, ms = divmod(math.floor(at_s * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole_s))}.{ms:03d}Z"


@lru_cache(maxsize=256)  # a GPU is called the same in every row
def _names(index: int | None, uuid: str, pci_bus_id: str, mig_uuid: str) -> str:
    return ",".join([number(index), clean(uuid), clean(pci_bus_id), clean(mig_uuid)])


@lru_cache(maxsize=256)
def _missing(missing: tuple[Missing, ...]) -> str:
    return clean(" ".join(f"{column}={status}" for column, status, _ in missing))


class RowWriter:
    """Writes the lines of one sample.

    Args:
        host: What the node said of itself at that moment; stands in every row.
        job: The job's id.
        step: Slurm's step.
    """

    def __init__(self, host: HostReading, job: str, step: str) -> None:
        cells = [number(value) for value in host]
        self._middle = ",".join([*cells, clean(job), clean(step)])

    def device(self, sample: Sample, at_s: float) -> str:
        """The row of a GPU or of one of its slices."""
        # Joined, not formatted: formatting a member of an enumeration costs more than a cell.
        return ",".join(
            (
                stamp(at_s),
                number(sample.mem_used_mib),
                number(sample.mem_total_mib),
                number(sample.util_pct),
                number(sample.power_w),
                _names(sample.index, sample.uuid, sample.pci_bus_id, sample.mig_uuid),
                number(sample.util_max_pct),
                number(sample.util_samples),
                number(sample.mem_util_pct),
                number(sample.energy_j),
                number(sample.temp_c),
                number(sample.sm_clock_mhz),
                "" if sample.throttle is None else hex(sample.throttle),
                number(sample.ecc),
                sample.status,
                self._middle,
                RowKind.MIG if sample.is_slice else RowKind.GPU,
                sample.util_source,
                sample.mem_source,
                number(sample.mem_reserved_mib),
                sample.power_source,
                _missing(sample.missing),
                clean(sample.detail) + "\n",
            )
        )

    def host(self, at_s: float, status: Status, detail: str = "") -> str:
        """The row of a node on which no GPU can be read."""
        return self._plain(RowKind.HOST, at_s, status, detail)

    def heartbeat(self, at_s: float, status: Status, detail: str = "") -> str:
        """The row that says that the logger lives while the driver does not answer."""
        return self._plain(RowKind.HEARTBEAT, at_s, status, detail)

    def event(self, at_s: float, event: Event) -> str:
        """The row of something that happened; it names the GPU that it happened to, if any."""
        device = f",,,,,{number(event.index)},{clean(event.uuid)}{_BEHIND_UUID}"
        return self._plain(RowKind.EVENT, at_s, event.status, event.text, device=device)

    def _plain(
        self, kind: RowKind, at_s: float, status: Status, detail: str, device: str = _NO_DEVICE
    ) -> str:
        line = f"{stamp(at_s)}{device}{status},{self._middle},{kind}{_NO_SOURCES}"
        return f"{line},{clean(detail)}\n"
