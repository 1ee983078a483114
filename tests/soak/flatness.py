"""Whether memory and descriptors of long-lived processes stay what they were after warm-up.

Not here: taking the samples. Invariant: a life that was too short to say anything is not counted
as flat; where none was long enough there is no verdict.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

from tests.soak.evidence import by_kind
from tests.soak.verdict import Verdict

WARM_UP_S = 20.0
LONG_ENOUGH_S = 75.0
MOST_GROWTH_KIB = 2048
"""Of one life, between the medians of the first and the last third after warm-up, its one late
import left out: a worker loads OpenSSL when it first hashes an output."""
IMPORT_KIB = (1024, 6144)
"""What counts as that import: one step from one sample to the next, of at least and at most so
much. It was seen to take 1.3 to 3.7 MiB; a leak comes in many steps, or in one that is larger."""
MOST_FDS = 3
MOST_OF_ALL_FRACTION = 0.15
"""The median life may grow by so much of that: one late import is chance, that of all is a leak."""
ALL = 5
JUDGED = ("worker", "keeper", "logger")


def memory_flat(samples: list[dict[str, Any]]) -> Verdict:
    """Resident memory of workers, keepers and loggers."""
    return _flat(
        samples, "rss_kib", "memory of workers, keepers and loggers is flat", MOST_GROWTH_KIB, "KiB"
    )


def descriptors_flat(samples: list[dict[str, Any]]) -> Verdict:
    """Their open descriptors."""
    return _flat(
        samples, "fds", "open files of workers, keepers and loggers are flat", MOST_FDS, "files"
    )


def _flat(samples: list[dict[str, Any]], what: str, name: str, most: float, unit: str) -> Verdict:
    growths, slopes, against, highest = [], [], [], 0.0
    for (kind, life), points in by_kind(samples).items():
        if kind not in JUDGED:
            continue
        highest = max(highest, *(point[what] for point in points))
        began = points[0]["at"]
        warm = [(point["at"], point[what]) for point in points if point["at"] >= began + WARM_UP_S]
        if not warm or points[-1]["at"] - began < LONG_ENOUGH_S:
            continue
        if what == "rss_kib":
            warm = without_an_import(warm)
        growth, slope = growth_of(warm)
        growths.append(growth)
        slopes.append(slope)
        if growth > most:
            against.append(
                f"{kind} {life}: grew by {growth:,.0f} {unit} in {warm[-1][0] - warm[0][0]:.0f} s"
            )
    middle = statistics.median(growths) if growths else 0.0
    if len(growths) >= ALL and middle > MOST_OF_ALL_FRACTION * most:
        against.append(f"the median of {len(growths)} lives grew by {middle:,.0f} {unit}")
    if not growths:
        return Verdict(name=name, holds=None, found=f"no life of {LONG_ENOUGH_S:g} s")
    found = (
        f"{len(growths)} lives; growth median {statistics.median(growths):,.0f}, most "
        f"{max(growths):,.0f} {unit}; slope median {statistics.median(slopes):+.1f}, most "
        f"{max(slopes):+.1f} {unit} a minute; highest {highest:,.0f} {unit}"
    )
    return Verdict(
        name=name,
        holds=not against,
        count=len(against),
        examples=tuple(against[:20]),
        found=found,
    )


def without_an_import(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The samples with their largest step taken back, if that can be one late import."""
    least, most = IMPORT_KIB
    steps = [later[1] - sooner[1] for sooner, later in pairwise(points)]
    largest = max(steps, default=0.0)
    if not least <= largest <= most:
        return points
    after = steps.index(largest) + 1
    return points[:after] + [(at, value - largest) for at, value in points[after:]]


def growth_of(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Growth from the first third's median to the last third's, and the slope a minute."""
    values = [value for _, value in points]
    third = max(1, len(values) // 3)
    growth = statistics.median(values[-third:]) - statistics.median(values[:third])
    if len(points) < 2:
        return growth, 0.0
    slope = statistics.linear_regression([at for at, _ in points], values).slope
    return growth, slope * 60
