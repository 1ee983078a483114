"""Whether the records of one arm may be taken together.

An arm that mixes batched and unbatched runs, attention backends, stacks or encoders is not one
measurement. Invariant: a value that is stated by some records only is mixed too, since nobody
knows what the others had; a value that none states is absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from fleetcraft.evidence.results.sets import Result

UNKNOWN = "(not stated)"


class Mixed(msgspec.Struct, frozen=True, kw_only=True):
    """One fact in which the records of an arm differ.

    Attributes:
        field: The fact.
        values: How many records have which value; `UNKNOWN` for those that do not state it.
        certain: Whether two stated values differ; else only unknown ones stand beside one.
        where: The family in which they differ; empty for the whole arm.
    """

    field: str
    values: dict[str, int]
    certain: bool
    where: str = ""

    @property
    def sentence(self) -> str:
        """It in words: ``batch: 4 (12 records), 1 (3)``."""
        inside = f" of family {self.where}" if self.where else ""
        counted = ", ".join(f"{value} ({count})" for value, count in self.values.items())
        return f"{self.field}{inside}: {counted}"


def _batched(result: Result) -> str:
    return "" if result.batch is None else ("batched" if result.batch > 1 else "unbatched")


def _stack(result: Result) -> str:
    words = " ".join(f"{name}={version}" for name, version in sorted(result.stack.items()))
    return words or result.stack_sha256[:12]


def _encoder(result: Result) -> str:
    # Two records of one codec may differ in its version: the digest decides.
    return " ".join(filter(None, (result.encoder, result.encoder_sha256[:12])))


_FACTS: dict[str, Callable[[Result], str]] = {
    "batched": _batched,
    "batch_table": lambda result: result.batch_table_sha256[:12],
    "timed": lambda result: "timed" if result.timed else "bulk",
    "attention_backend": lambda result: result.attention_backend,
    "stack": _stack,
    "encoder": _encoder,
    "device": lambda result: result.device,
    "grid": lambda result: result.grid_sha256[:12],
}
"""Facts that every record of an arm shares, each as the text by which it is compared."""
FIELDS = (*_FACTS, "batch")


def fact(result: Result, field: str) -> str:
    """One fact of a record as text; empty where it is not stated."""
    if field == "batch":
        return "" if result.batch is None else str(result.batch)
    return _FACTS[field](result)


def judge_arm(results: Iterable[Result]) -> tuple[Mixed, ...]:
    """In what the records of one arm differ; empty when they may be taken together.

    The batch itself is compared within each family, since families have batches of their own;
    whether it is one at all is compared over the whole arm.
    """
    records = list(results)
    found = [_mixed(name, records) for name in _FACTS]
    families: dict[str, list[Result]] = {}
    for result in records:
        families.setdefault(result.family, []).append(result)
    whole = [mixed for mixed in found if mixed is not None]
    told = any(mixed.field == "batched" and mixed.certain for mixed in whole)
    parts = [_mixed("batch", rows, where=family) for family, rows in sorted(families.items())]
    return (*whole, *(mixed for mixed in parts if mixed is not None and not told))


def _mixed(field: str, results: Sequence[Result], where: str = "") -> Mixed | None:
    counts = Counter(fact(result, field) for result in results)
    if len(counts) < 2:
        return None
    values = {value or UNKNOWN: count for value, count in sorted(counts.items())}
    return Mixed(field=field, values=values, certain=len(counts) - ("" in counts) > 1, where=where)


def not_stated(results: Iterable[Result], fields: Iterable[str]) -> dict[str, int]:
    """How many records do not state a fact, for each of those that are asked for."""
    records = list(results)
    counts = {name: sum(not fact(result, name) for result in records) for name in fields}
    return {name: count for name, count in counts.items() if count}
