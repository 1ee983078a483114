"""What a header line says about the cells below it.

Knows the names of columns, ours and those of nvidia-smi. Invariant: rows are read by the header's
names, never by position, and a file without a header by the archives' form alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from fleetcraft.telemetry.columns import ARCHIVE_COLUMNS, COLUMNS

_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_NAMES_OF_NVIDIA_SMI = {
    "memory.used": "mem_used_mib",
    "memory.total": "mem_total_mib",
    "memory.reserved": "mem_reserved_mib",
    "utilization.gpu": "util_pct",
    "utilization.memory": "mem_util_pct",
    "power.draw": "power_w",
    "power.draw.average": "power_w",
    "power.draw.instant": "power_w",
    "temperature.gpu": "temp_c",
    "clocks.sm": "sm_clock_mhz",
    "clocks.current.sm": "sm_clock_mhz",
    "index": "gpu_index",
    "uuid": "gpu_uuid",
    "pci.bus_id": "pci_bus_id",
    "gpu_bus_id": "pci_bus_id",
}
"""Source: ``nvidia-smi --help-query-gpu``."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Which column stands where.

    Attributes:
        columns: Place of each column, by its name; of two equal names the first counts.
        count: Cells of a row.
    """

    columns: Mapping[str, int]
    count: int


def read_header(line: bytes) -> Layout | None:
    """The layout that a header line gives; None if the line is no header."""
    if b"timestamp" not in line.lower():
        return None
    names = [_name(cell) for cell in line.decode("utf-8", "replace").split(",")]
    return _layout(names) if "timestamp" in names else None


def layouts_without_header() -> list[Layout]:
    """How rows are read that no header stands above: by their number of cells.

    A header can be lost (a crash that leaves zeros at a file's beginning), but a form of which
    only the number of cells is known is none that could be guessed.
    """
    return [_layout(list(ARCHIVE_COLUMNS)), _layout(list(COLUMNS))]


def _name(cell: str) -> str:
    name = _UNIT.sub("", cell.strip().strip('"').lower())
    return _NAMES_OF_NVIDIA_SMI.get(name, name)


def _layout(names: list[str]) -> Layout:
    columns: dict[str, int] = {}
    for place, name in enumerate(names):
        columns.setdefault(name, place)
    return Layout(columns=columns, count=len(names))
