"""The state of every GPU that Slurm gave to a job, from what was last seen of it.

Two sources are joined: Slurm's word on how many a job has on a node, and sightings of them (rows of
telemetry, a probe). Nothing here reads a file or asks anybody. Invariant: a GPU that was allocated
and not seen is unknown, never idle and never left out, so that the states add up to the allocation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
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
_COUNTED = re.compile(r"\bgpu(?::(?=[\w.-]*[A-Za-z])[\w.-]+)?(?:[:=](\d+))?(?=[,(]|$)")


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


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm gave to one job on one node.

    Attributes:
        count: Its GPUs; None when Slurm does not say.
        reason: Why not.
    """

    job_id: str
    node: str
    count: int | None
    reason: str = ""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One allocated GPU. ``seen`` is None when nobody has looked at it."""

    job_id: str
    node: str
    index: int | None
    state: GpuState
    reason: str = ""
    seen: Sighting | None = None


def number(value: object, least: float = 0.0, most: float = math.inf) -> float | None:
    """A measured value; None for anything that is no number, not finite, or out of range."""
    try:
        measured = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return measured if math.isfinite(measured) and least <= measured <= most else None


def count_gpus(gres: str) -> int | None:
    """GPUs in what a job asked for: ``gres:gpu:2``, ``gres/gpu:a100:4``; None if it names none."""
    counts = [int(count or 1) for count in _COUNTED.findall(gres)]
    return sum(counts) if counts else None


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


def list_gpus(shares: Iterable[Share], sightings: Mapping[tuple[str, str], Sightings]) -> list[Gpu]:
    """Every allocated GPU with its state.

    Where Slurm does not say how many a job has, those that were seen are listed.

    Args:
        shares: What Slurm gave.
        sightings: What was seen, by job and node.
    """
    nothing = Sightings(reason="nobody looked at it")
    return [
        gpu
        for share in shares
        for gpu in _pair(share, sightings.get((share.job_id, share.node), nothing))
    ]


def _pair(share: Share, sightings: Sightings) -> list[Gpu]:
    seen = sorted(sightings.gpus, key=lambda one: (one.index is None, one.index or 0))
    by_index = {one.index: one for one in seen if one.index is not None}
    count = len(seen) if share.count is None else share.count
    indexes = sightings.indexes if len(sightings.indexes) == count else ()
    reason = sightings.reason or "it was not among the GPUs that were seen"
    if indexes and by_index.keys() >= set(indexes):
        return [_gpu(share, index, by_index[index]) for index in indexes]
    if len(seen) == count:
        # A job that sees only its own GPUs counts them from 0, whatever their indexes are.
        places = indexes or [one.index for one in seen]
        return [_gpu(share, index, one) for index, one in zip(places, seen, strict=True)]
    if indexes:
        return [_gpu(share, index, by_index.get(index), reason) for index in indexes]
    if len(seen) > count:
        reason = f"{len(seen)} GPUs were seen there, and Slurm does not say which of them it is"
        return [_gpu(share, None, None, reason) for _ in range(count)]
    known = [_gpu(share, one.index, one) for one in seen]
    return known + [_gpu(share, None, None, reason) for _ in range(count - len(seen))]


def _gpu(share: Share, index: int | None, seen: Sighting | None, reason: str = "") -> Gpu:
    state = GpuState.UNKNOWN
    if seen is not None:
        state, reason = classify(seen)
    return Gpu(
        job_id=share.job_id, node=share.node, index=index, state=state, reason=reason, seen=seen
    )


def count_states(gpus: Sequence[Gpu]) -> dict[GpuState, int]:
    """How many are in each state, every state named."""
    counts = dict.fromkeys(GpuState, 0)
    for gpu in gpus:
        counts[gpu.state] += 1
    return counts
