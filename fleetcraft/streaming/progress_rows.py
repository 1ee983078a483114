"""Turns what ranks report into rows: one row for each line that says something of its own.

Reads no file. Of several ranks that tell the same thing the lowest counts, as in `train status`.
Tokens per second are a sum over the ranks that were heard of lately, by the writers' own clocks.
Invariant: what no line told is in no row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from fleetcraft.clock import parse_timestamp
from fleetcraft.streaming.rows import Row, key_of, word
from fleetcraft.training.progress.lines import ProgressLine, parse_line

STEP = "train/step"
_MOST_KEYS = 256
_FRESH_INTERVALS = 5.0
_FRESH_AT_LEAST_S = 60.0
_MIB = 1 << 20


class _At(msgspec.Struct):
    at: str | None = None


_decode_at = msgspec.json.Decoder(_At).decode


class RankState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is known of one rank, so that its next line can be understood.

    Attributes:
        at_s: Of its last line that told tokens, in seconds since 1970 by its own clock.
        step: As it told last.
        tokens_per_s: Over its last interval.
        interval_s: That interval.
        memory_bytes: Of its device.
    """

    at_s: float | None = None
    step: int | None = None
    tokens_per_s: float | None = None
    interval_s: float = 0.0
    memory_bytes: int | None = None


class Ranks(msgspec.Struct, kw_only=True):
    """All ranks of one launch, and which of them each key is taken from."""

    ranks: dict[int, RankState] = {}
    owners: dict[str, int] = {}


def told_lines(rank: int, lines: Iterable[bytes]) -> Iterator[tuple[float, int, ProgressLine]]:
    """Lines of one rank with their times; a line without one is of the time before it."""
    last_s = 0.0
    for raw in lines:
        last_s = time_of(raw) or last_s
        yield last_s, rank, parse_line(raw)


def time_of(raw: bytes) -> float | None:
    """When a line says that it was written, in seconds since 1970; None when it does not."""
    try:
        at = parse_timestamp(_decode_at(raw).at or "")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return None if at is None or at.tzinfo is None else at.timestamp()


def rows_of(
    told: Iterable[tuple[float, int, ProgressLine]], ranks: Ranks, epoch: int, wrong: Counter[str]
) -> list[Row]:
    """The rows of some lines, in order of time.

    Args:
        told: Lines of all ranks with their times.
        ranks: What was known before; it is brought up to date.
        epoch: Of the launch.
        wrong: Lines that were not, or not wholly, taken are counted here by kind.
    """
    rows = []
    for at_s, rank, line in sorted(told, key=lambda one: (one[0], one[1])):
        if line.wrong:
            wrong[line.wrong] += 1
        state = ranks.ranks.setdefault(rank, RankState())
        _learn(state, line, at_s)
        values = dict(_values(line, rank, ranks, wrong))
        if not values:
            continue
        if STEP not in values and state.step is not None:
            values[STEP] = state.step
        values["train/epoch"] = epoch
        if at_s:
            values["_timestamp"] = at_s
        rows.append(values)
    return rows


def _learn(state: RankState, line: ProgressLine, at_s: float) -> None:
    if line.hello:  # a new process: the time since the last one's line is no time of work
        state.at_s = state.tokens_per_s = None
    if line.step is not None:
        state.step = line.step
    if line.device_memory_bytes is not None:
        state.memory_bytes = line.device_memory_bytes
    if line.tokens is None or not at_s:
        return
    if state.at_s is not None and at_s > state.at_s:
        state.interval_s = at_s - state.at_s
        state.tokens_per_s = line.tokens / state.interval_s
    state.at_s = at_s


def _values(
    line: ProgressLine, rank: int, ranks: Ranks, wrong: Counter[str]
) -> Iterator[tuple[str, float | str]]:
    """What this line says that no lower rank says too."""
    for key, value in _told(line):
        owner = ranks.owners.get(key)
        if owner is None and len(ranks.owners) >= _MOST_KEYS:
            wrong[f"more than {_MOST_KEYS} names"] += 1
        elif owner is None or rank <= owner:
            ranks.owners[key] = rank
            yield key, value
            if key == STEP:
                yield from _of_all(ranks, ranks.ranks[rank])


def _told(line: ProgressLine) -> Iterator[tuple[str, float | str]]:
    if line.step is not None:
        yield STEP, line.step
    if line.loss is not None:
        yield "train/loss", line.loss
    for name, (depth, capacity) in (line.queues or {}).items():
        yield key_of("queues", name), depth
        if capacity:
            yield key_of("queues", f"{name}_fill_fraction"), depth / capacity
    for name, value in (line.metrics or {}).items():
        yield key_of("metrics", name), value
    if not line.hello and (phase := word(line.phase)):
        yield "train/phase", phase


def _of_all(ranks: Ranks, leader: RankState) -> Iterator[tuple[str, float | str]]:
    now_s = leader.at_s
    if now_s is not None:
        heard = [
            one.tokens_per_s
            for one in ranks.ranks.values()
            if one.tokens_per_s is not None
            and one.at_s is not None
            and now_s - one.at_s <= max(_FRESH_AT_LEAST_S, _FRESH_INTERVALS * one.interval_s)
        ]
        if heard:
            yield "train/tokens_per_s", sum(heard)
            yield "train/ranks_heard", len(heard)
    memory = [one.memory_bytes for one in ranks.ranks.values() if one.memory_bytes is not None]
    if memory:
        yield "train/device_memory_mib_max", max(memory) / _MIB
