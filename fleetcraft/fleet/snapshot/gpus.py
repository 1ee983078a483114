"""The state of every GPU that Slurm gave to a job, from what was last seen of it.

Two sources are joined: Slurm's word on how many a job has on a node, and sightings of them (rows of
telemetry, a probe). Nothing here reads a file or asks anybody. Invariant: a GPU that was allocated
and not seen is unknown, never idle and never left out, so that the states add up to the allocation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from fleetcraft.gpu.states import GpuState, Sighting, Sightings, classify

_COUNTED = re.compile(r"\bgpu(?::(?=[\w.-]*[A-Za-z])[\w.-]+)?(?:[:=]([0-9]{1,9}))?(?=[,(]|$)")


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


def count_gpus(gres: str) -> int | None:
    """GPUs in what a job asked for: ``gres:gpu:2``, ``gres/gpu:a100:4``; None if it names none."""
    counts = [int(count or 1) for count in _COUNTED.findall(gres)]
    return sum(counts) if counts else None


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
