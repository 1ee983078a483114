"""What a verification finds, and how two values are compared for it.

Invariant: numbers that were computed agree to a billionth or they differ; everything else agrees
exactly or differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

TOLERANCE = 1e-9
"""Of numbers computed again, relative for those beyond 1. Sums in another order differ by less than
1e-12 for any window; a percentage that was changed by a millionth differs by more."""


class Verdict(StrEnum):
    """Whether a frozen window holds.

    ``UNVERIFIABLE``: it does not say enough to compute anything again.
    """

    VERIFIED = "verified"
    REFUTED = "refuted"
    UNVERIFIABLE = "unverifiable"


@dataclass(frozen=True)
class Difference:
    """One thing that does not hold.

    Attributes:
        field: What it is.
        found: What the frozen window says.
        expected: What was computed or read again.
    """

    field: str
    found: Any
    expected: Any


@dataclass(kw_only=True)
class Verification:
    """What was found.

    Attributes:
        reason: Why it is unverifiable.
        observations: Rows that the summary was computed from.
        sources: ``checked``, ``checked in part``, ``not found``, ``none``, or ``not kept`` for a
            window that does not name them.
        sources_checked: Files whose prefix is still the same.
        not_checked: What could not be, in words.
    """

    verdict: Verdict
    schema_version: int | None
    reason: str = ""
    observations: int = 0
    sources: str = "none"
    sources_checked: int = 0
    differences: list[Difference] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)


def compare(name: str, found: Any, expected: Any) -> Iterator[Difference]:
    """Where two values differ, named by dots and indexes."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted({*found, *expected}):
            if key not in found or key not in expected:
                here = found.get(key, "absent"), expected.get(key, "absent")
                yield Difference(f"{name}.{key}", *here)
            else:
                yield from compare(f"{name}.{key}", found[key], expected[key])
    elif isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        if len(found) != len(expected):
            yield Difference(f"{name}: entries", len(found), len(expected))
            return
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from compare(f"{name}[{index}]", one, other)
    elif not same(found, expected):
        yield Difference(name, found, expected)


def same(found: Any, expected: Any) -> bool:
    """Whether two single values agree."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (found, expected))
    if not numbers or (isinstance(found, int) and isinstance(expected, int)):
        return type(found) is type(expected) and bool(found == expected)
    if not (math.isfinite(found) and math.isfinite(expected)):
        return False
    return bool(abs(found - expected) <= TOLERANCE * max(1.0, abs(expected)))
