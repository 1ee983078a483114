"""Two arms over what both have: paired ratios or differences, with an interval.

A pair is one candidate with one seed. Invariant: arms that are no single measurement each, or that
were encoded or timed differently, are not compared at all, and what has no partner is counted.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from fleetcraft.errors import DataError, FleetError
from fleetcraft.evidence.release.cells import cell_name
from fleetcraft.evidence.results.arms import FIELDS, UNKNOWN, fact, judge_arm
from fleetcraft.evidence.results.sets import Result

SCHEMA = "fleetcraft.comparison/1"
LEVEL = 0.95
_DRAWS = 2000
_LEAST_DRAWS = 200
_MOST_PICKS = 4_000_000
_LEAST_PAIRS = 3
_SEED = 20_240_229
_MUST_AGREE = ("encoder", "timed")
_TOLD = tuple(name for name in FIELDS if name not in (*_MUST_AGREE, "batched"))


class How(StrEnum):
    """How the values of a pair are set against each other: the second arm's against the first's."""

    RATIO = "ratio"
    DIFFERENCE = "difference"


class ComparisonRefusedError(FleetError):
    """The arms cannot be compared as they are; ``reasons`` has all of them. Nothing was computed.

    ``certain`` is False when it is only not known that they can.
    """


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One side.

    Attributes:
        name: The arm's.
        set: Its set.
        set_sha256: Digest over all records of that set.
        records: Of this arm.
        unmatched: Records without a partner on the other side.
        without_metric: Records in which the metric is absent.
        repeated: Records that say the same as another of the same candidate and seed.
        mean: Of the metric over the pairs.
    """

    name: str
    set: str = ""
    set_sha256: str = ""
    records: int
    unmatched: int
    without_metric: int
    repeated: int
    mean: float


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate and seed with the values of both arms."""

    candidate: str
    seed: int
    a: float
    b: float
    value: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it; the same whenever it is made from the same records.

    Attributes:
        schema: `SCHEMA`.
        metric: What was compared.
        how: Ratios b/a or differences b - a.
        a: The first arm, the baseline.
        b: The second.
        pairs: How many.
        estimate: The geometric mean of the ratios, or the mean of the differences.
        low: Lower end of the interval; None with fewer than three pairs.
        high: Upper end.
        level: Of the interval.
        draws: Of the bootstrap over pairs; 0 without an interval.
        median: Of the ratios or differences.
        least: The smallest.
        greatest: The largest.
        b_higher: Pairs in which b is higher.
        b_lower: Pairs in which it is lower.
        differs: Facts other than the arm in which the two differ, as ``field: a against b``.
        values: Every pair, by candidate and seed.
    """

    schema: str = SCHEMA
    metric: str
    how: How
    a: Arm
    b: Arm
    pairs: int
    estimate: float
    low: float | None
    high: float | None
    level: float = LEVEL
    draws: int
    median: float
    least: float
    greatest: float
    b_higher: int
    b_lower: int
    differs: tuple[str, ...] = ()
    values: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Side:
    """One arm as it is given.

    Attributes:
        name: The arm's.
        results: Its records.
        set: Its set.
        set_sha256: Digest over all of that set.
    """

    name: str
    results: Sequence[Result]
    set: str = ""
    set_sha256: str = ""

    def called(self, other: Side) -> str:
        """Its name, with its set where both arms have one name."""
        return f"{self.set}:{self.name}" if self.set and self.name == other.name else self.name


def compare(a: Side, b: Side, metric: str, *, how: How = How.RATIO) -> Comparison:
    """Sets the second arm against the first, over the candidates and seeds that both have.

    The interval is a percentile bootstrap over pairs with a fixed seed, so that it comes out the
    same every time.

    Args:
        a: The baseline.
        b: What is set against it.
        metric: Which.
        how: Ratios ``b / a``, which need values above zero, or differences ``b - a``.

    Raises:
        ComparisonRefusedError: An arm is mixed, has two different records of one candidate and
            seed, or both were encoded or timed differently.
        DataError: An arm has no record, nobody has the metric, no pair is left, or a value has no
            ratio.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    _refuse_unfit(a, b)
    ours, theirs = _values(a, metric), _values(b, metric)
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        raise DataError(
            f"{a.called(b)} and {b.called(a)} have no candidate and seed in common "
            f"with {metric!r} ({len(ours)} against {len(theirs)}); nothing was compared",
            hint="fleetcraft evidence results lists arms, seeds and metrics",
            metric=metric,
        )
    pairs = [_pair(key, ours[key], theirs[key], how) for key in shared]
    values = [pair.value for pair in pairs]
    low, high, draws = _interval(values, how)
    return Comparison(
        metric=metric,
        how=how,
        a=_arm(a, metric, ours, shared),
        b=_arm(b, metric, theirs, shared),
        pairs=len(pairs),
        estimate=_centre(values, how),
        low=low,
        high=high,
        draws=draws,
        median=statistics.median(values),
        least=min(values),
        greatest=max(values),
        b_higher=sum(pair.b > pair.a for pair in pairs),
        b_lower=sum(pair.b < pair.a for pair in pairs),
        differs=tuple(_differences(a, b)),
        values=tuple(pairs),
    )


# -- whether they may be compared


def _refuse_unfit(a: Side, b: Side) -> None:
    for side, other in ((a, b), (b, a)):
        if not side.results:
            raise DataError(
                f"no record of arm {side.name!r} in set {side.set!r}; nothing was compared",
                hint=f"fleetcraft evidence results {side.set} lists its arms",
                arm=side.called(other),
            )
    found = [*_unfit(a, b)]
    if not found:
        return
    certain = any(sure for _, sure in found)
    reasons = [reason for reason, _ in found]
    verb = "cannot be compared" if certain else "may not be comparable"
    raise ComparisonRefusedError(
        f"{a.called(b)} and {b.called(a)} {verb}: {'; '.join(reasons)}; nothing was computed",
        hint="append each kind of run as an arm of its own, and state what is not stated",
        reasons=reasons,
        certain=certain,
    )


def _unfit(a: Side, b: Side) -> Iterable[tuple[str, bool]]:
    for side, other in ((a, b), (b, a)):
        for mixed in judge_arm(side.results):
            yield f"{side.called(other)} mixes {mixed.sentence}", mixed.certain
        twice = _contradicting(side.results)
        if twice:
            more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
            yield f"{side.called(other)} has different records of {twice[0]}{more}", True
    for name in _MUST_AGREE:
        ours, theirs = _stated(a, name), _stated(b, name)
        if ours != theirs:
            yield (
                f"{name}: {_words(ours)} against {_words(theirs)}",
                bool(all(ours) and all(theirs)),
            )


def _stated(side: Side, name: str) -> tuple[str, ...]:
    return tuple(sorted({fact(result, name) for result in side.results}))


def _words(values: Iterable[str]) -> str:
    return ", ".join(value or UNKNOWN for value in values)


def _contradicting(results: Sequence[Result]) -> list[str]:
    said: dict[tuple[str, int], set[object]] = {}
    for result in results:
        said.setdefault((result.candidate, result.seed), set()).add(_what_it_says(result))
    return [
        cell_name("", candidate, seed)
        for (candidate, seed), found in sorted(said.items())
        if len(found) > 1
    ]


def _what_it_says(result: Result) -> object:
    """Everything by which two records of one candidate and seed may differ."""
    digests = tuple(sorted(output.sha256 for output in result.outputs))
    return tuple(sorted(result.metrics.items())), digests


def _differences(a: Side, b: Side) -> Iterable[str]:
    for name in _TOLD:
        ours, theirs = _stated(a, name), _stated(b, name)
        if ours != theirs:
            yield f"{name}: {_words(ours)} against {_words(theirs)}"


# -- numbers


def _values(side: Side, metric: str) -> dict[tuple[str, int], float]:
    found = {
        (result.candidate, result.seed): result.metrics[metric]
        for result in side.results
        if metric in result.metrics
    }
    if not found:
        known = sorted({name for result in side.results for name in result.metrics})
        raise DataError(
            f"no record of arm {side.name!r} has the metric {metric!r}; nothing was compared",
            hint=f"it has {', '.join(known[:12])}" if known else "it has no metric at all",
            metric=metric,
            arm=side.name,
        )
    return found


def _pair(key: tuple[str, int], a: float, b: float, how: How) -> Pair:
    candidate, seed = key
    if how is How.DIFFERENCE:
        return Pair(candidate=candidate, seed=seed, a=a, b=b, value=b - a)
    if a <= 0 or b <= 0:
        raise DataError(
            f"{cell_name('', candidate, seed)} has {a:g} against {b:g}, which has no ratio of "
            "positive numbers; nothing was compared",
            hint="add --difference",
        )
    return Pair(candidate=candidate, seed=seed, a=a, b=b, value=b / a)


def _centre(values: Sequence[float], how: How) -> float:
    return statistics.geometric_mean(values) if how is How.RATIO else statistics.fmean(values)


def _interval(values: Sequence[float], how: How) -> tuple[float | None, float | None, int]:
    count = len(values)
    if count < _LEAST_PAIRS:
        return None, None, 0
    ratio = how is How.RATIO
    scale = [math.log(value) for value in values] if ratio else list(values)
    draws = max(_LEAST_DRAWS, min(_DRAWS, _MOST_PICKS // count))
    source = random.Random(_SEED)
    means = sorted(sum(source.choices(scale, k=count)) / count for _ in range(draws))
    tail = (1 - LEVEL) / 2
    low, high = (means[min(draws - 1, int(draws * part))] for part in (tail, 1 - tail))
    return (math.exp(low), math.exp(high), draws) if ratio else (low, high, draws)


def _arm(
    side: Side,
    metric: str,
    values: dict[tuple[str, int], float],
    shared: Sequence[tuple[str, int]],
) -> Arm:
    with_metric = sum(metric in result.metrics for result in side.results)
    return Arm(
        name=side.name,
        set=side.set,
        set_sha256=side.set_sha256,
        records=len(side.results),
        unmatched=len(values) - len(shared),
        without_metric=len(side.results) - with_metric,
        repeated=with_metric - len(values),
        mean=statistics.fmean(values[key] for key in shared),
    )
