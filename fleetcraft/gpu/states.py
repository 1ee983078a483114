"""What a GPU does, as far as a single look at it tells: its state, and why it is not known.

Nothing here looks at a GPU or reads a file. Invariant: what was not measured makes the state
unknown, never idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from fleetcraft.units import format_seconds

ACTIVE_PCT = 5.0
"""A GPU works from this utilization on. Source: the word "active fraction" in the glossary."""
RESIDENT_MIB = 100.0
"""A GPU is held from this much memory on. Source: archived traces of one-GPU hosts, every 30 s: of
rows below 5 percent utilization 2,576 have less, 2 have up to 128 MiB, 17,377 have more; of rows
at work none has less than 1,024."""
SILENT_INTERVALS = 3
_GONE = frozenset({"lost", "absent"})
_FINE = frozenset({"", "ok"})


class GpuState(StrEnum):
    """What a GPU does, as far as is known.

    ``RESIDENT_IDLE`` holds memory and computes nothing; ``FREE_IDLE`` holds none either.
    ``SILENT``: nobody wrote about it for three intervals. ``LOST``: the driver has lost it.
    """

    WORKING = "working"
    RESIDENT_IDLE = "resident_idle"
    FREE_IDLE = "free_idle"
    SILENT = "silent"
    LOST = "lost"
    UNKNOWN = "unknown"


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """The last that was seen of one GPU.

    Attributes:
        source: ``telemetry`` or ``probe``.
        age_s: Seconds ago.
        interval_s: Between rows of telemetry; None for what is seen only once.
        index: As the driver of its node numbers it there.
        status: Why a value is missing, in the words of telemetry; ``ok`` or empty when none is.
    """

    source: str
    age_s: float
    interval_s: float | None = None
    index: int | None = None
    uuid: str = ""
    util_pct: float | None = None
    mem_used_mib: float | None = None
    mem_total_mib: float | None = None
    status: str = ""


class Sightings(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one job on one node.

    Attributes:
        gpus: The GPUs.
        indexes: Slurm's numbers of the job's GPUs, as it tells them on the node itself.
        reason: Why there are none, or not all.
    """

    gpus: tuple[Sighting, ...] = ()
    indexes: tuple[int, ...] = ()
    reason: str = ""


def number(value: object, least: float = 0.0, most: float = math.inf) -> float | None:
    """A measured value; None for anything that is no number, not finite, or out of range."""
    try:
        measured = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return measured if math.isfinite(measured) and least <= measured <= most else None


def classify(seen: Sighting) -> tuple[GpuState, str]:
    """What a sighting says, and the reason where that is not plain from its numbers."""
    if seen.interval_s is not None and seen.age_s > SILENT_INTERVALS * seen.interval_s:
        return GpuState.SILENT, f"its newest row is {format_seconds(seen.age_s)} old"
    if seen.status in _GONE:
        return GpuState.LOST, f"status {seen.status}"
    if seen.util_pct is None:
        return GpuState.UNKNOWN, _missing("utilization", seen)
    if seen.util_pct >= ACTIVE_PCT:
        return GpuState.WORKING, ""
    if seen.mem_used_mib is None:
        return GpuState.UNKNOWN, _missing("memory", seen)
    resident = seen.mem_used_mib >= RESIDENT_MIB
    return (GpuState.RESIDENT_IDLE if resident else GpuState.FREE_IDLE), ""


def _missing(what: str, seen: Sighting) -> str:
    return f"no {what} reading" + ("" if seen.status in _FINE else f": status {seen.status}")


def count_states(states: Iterable[GpuState]) -> dict[GpuState, int]:
    """How many are in each state, every state named."""
    counts = dict.fromkeys(GpuState, 0)
    for state in states:
        counts[state] += 1
    return counts
