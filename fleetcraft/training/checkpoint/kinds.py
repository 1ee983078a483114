"""What a save amounts to: EXACT, or WEIGHTS with what is missing, for the topology it declares.

A pure function of the ranks' records. Invariant: what nobody spoke of is missing; a part that a run
does not have is declared so, with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleetcraft.training.checkpoint.records import Kind, Part, PartEntry, RankDone, Topology

OF_EVERY_RANK = frozenset(
    {Part.RNG_PYTHON, Part.RNG_NUMPY, Part.RNG_CPU, Part.RNG_DEVICE, Part.RNG_WORKERS, Part.SAMPLER}
)
"""Parts that differ between ranks, so every rank must speak of its own."""
PROTOCOL = (Part.LEDGER, Part.CRITIC, Part.REWARD_NORM, Part.BRANCH, Part.PROBE)
"""State of the training protocol beside the model's."""
PLAIN_RUN: dict[str, bool | str] = {part.value: "plain training has none" for part in PROTOCOL}
"""The protocol of a run that has nothing beside model, optimizer, schedule and data."""
_NEVER_NONE = frozenset({Part.WEIGHTS, Part.OPTIMIZER, Part.RNG_PYTHON, Part.RNG_CPU})


def kind_of(topology: Topology, ranks: Sequence[RankDone]) -> tuple[Kind, tuple[str, ...]]:
    """Computes what a save amounts to.

    Args:
        topology: As all ranks declare it.
        ranks: The records of all ranks, by rank.

    Returns:
        EXACT and nothing, or WEIGHTS and the parts that are missing, one text each.

    Raises:
        ValueError: There are no weights, so it is no checkpoint at all.
    """
    missing = [text for part in Part if (text := _lacking(part, topology, ranks))]
    if _lacking(Part.WEIGHTS, topology, ranks):
        raise ValueError("it holds no weights")
    return (Kind.WEIGHTS, tuple(missing)) if missing else (Kind.EXACT, ())


def _lacking(part: Part, topology: Topology, ranks: Sequence[RankDone]) -> str:
    """Why a part does not count as present; empty when it does."""
    entries = {rank.rank: rank.parts.get(part) for rank in ranks}
    good = [rank for rank, entry in entries.items() if _is_there(part, entry, topology)]
    needed = part in OF_EVERY_RANK or part in topology.sharded
    bad = sorted(set(entries) - set(good))
    if not (bad if needed else not good):
        return ""
    if not good:
        return f"{part.value}{_why_not(part, list(entries.values()), topology)}"
    shown = ", ".join(map(str, bad[:5])) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
    return f"{part.value} of rank {shown}"


def _is_there(part: Part, entry: PartEntry | None, topology: Topology) -> bool:
    if entry is None:
        return False
    if entry.files or (entry.value and part not in _NEVER_NONE):
        return True
    return bool(entry.none) and not _must_be(part, topology)


def _must_be(part: Part, topology: Topology) -> bool:
    """Whether declaring that there is none contradicts the topology, or can never be true."""
    if part is Part.RNG_DEVICE:
        return topology.device != "cpu"
    if part is Part.RNG_WORKERS:
        return topology.loader_workers > 0
    return part in _NEVER_NONE


def _why_not(part: Part, entries: list[PartEntry | None], topology: Topology) -> str:
    if not any(entry is not None and entry.none for entry in entries):
        return ""
    if part is Part.RNG_DEVICE:
        return f" (declared none, with device {topology.device})"
    if part is Part.RNG_WORKERS:
        return f" (declared none, with {topology.loader_workers} loader workers)"
    return " (cannot be declared none)"
