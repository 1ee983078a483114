"""What a throughput suggests about who still works, in words; and ranks by their names.

Invariant: a ratio is a witness, never evidence: nothing is decided by what is said here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from fleetcraft.training.records import RankProgress, RankState

_NUMBER_AT_END = re.compile(r"[-_. ]?\d+$")
_WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NEAR = 0.05
_MOST_NAMED = 8


def alive_ratio(ratio: float, states: Sequence[RankState]) -> str:
    """What a ratio of throughputs suggests, if it is near a share of ranks of one kind.

    Args:
        ratio: Throughput over that of a healthy run, from 0.
        states: The census; ranks of one kind have names that differ in their last number.

    Returns:
        Such as ``0.32: one of three drafters alive``. ``as if`` stands before it where the census
        does not say so; empty when the ratio suggests nothing.
    """
    best: tuple[bool, float, str] | None = None
    for kind, group in _kinds(states).items():
        count = len(group)
        alive = round(ratio * count)
        off = abs(ratio - alive / count)
        if not 0 < alive < count or off > _NEAR:
            continue
        dead = sum(state.alive is False for state in group)
        sure = count - dead == alive
        text = f"{_word(alive)} of {_word(count)} {kind}s"
        said = f"{text} alive" if sure else f"as if {text} were alive"
        if best is None or (not sure, off) < best[:2]:
            best = (not sure, off, f"{ratio:.2f}: {said}")
    return best[2] if best else ""


def names_of(ranks: Collection[int], known: Mapping[int, RankProgress]) -> str:
    """Ranks by name and number, the first few."""
    shown = sorted(ranks)[:_MOST_NAMED]
    text = ", ".join(_name(rank, known) for rank in shown)
    return text + (f" and {len(ranks) - len(shown)} more" if len(ranks) > len(shown) else "")


def _name(rank: int, known: Mapping[int, RankProgress]) -> str:
    name = known[rank].name if rank in known else ""
    if rank < 0:  # not a rank: the log, see `reading.LOG_RANK`
        return name
    return f"{name} (rank {rank})" if name else f"rank {rank}"


def _kinds(states: Sequence[RankState]) -> dict[str, list[RankState]]:
    kinds: dict[str, list[RankState]] = {}
    for state in states:
        kinds.setdefault(_NUMBER_AT_END.sub("", state.name) or "rank", []).append(state)
    return {kind: group for kind, group in kinds.items() if len(group) > 1}


def _word(number: int) -> str:
    return _WORDS[number] if number < len(_WORDS) else str(number)
