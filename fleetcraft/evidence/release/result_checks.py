"""Predicates of a gate over results: grids, arms, outputs, metrics and comparisons.

Invariant: records that cannot be trusted, and a metric that is absent, leave a predicate unknown.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fleetcraft.errors import DataError
from fleetcraft.evidence.digests import hash_file
from fleetcraft.evidence.release.cells import completeness
from fleetcraft.evidence.release.finding import Finding, Input, InputKind, Surroundings, some, worst
from fleetcraft.evidence.release.grid import GridState, changed_scripts, read_standing
from fleetcraft.evidence.results.arms import FIELDS, UNKNOWN, fact, judge_arm, not_stated
from fleetcraft.evidence.results.comparing import (
    ComparisonRefusedError,
    How,
    Side,
    compare,
)
from fleetcraft.evidence.results.sets import (
    OutputFile,
    Result,
    ResultSet,
    digest_over,
    read_set,
)

_OVER: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
}


def read_whole(around: Surroundings, name: str) -> tuple[ResultSet, Input]:
    """A set whose records can all be trusted, and it as an input.

    Raises:
        DataError: There is none, or a record was changed or cannot be read.
    """
    if name not in around.sets:
        around.sets[name] = read_set(around.room.folder, name)
    found = around.sets[name]
    if found.damaged:
        counts = ", ".join(f"{count} {reason}" for reason, count in found.counts.items())
        raise DataError(f"result set {name!r} has lines that cannot be trusted: {counts}")
    return found, Input(kind=InputKind.SET, name=name, sha256=found.sha256)


def _arms(found: ResultSet, wanted: Sequence[str]) -> dict[str, list[Result]]:
    """The arms that are asked for, or all.

    Raises:
        DataError: One has no record.
    """
    arms = found.arms()
    missing = [name for name in wanted if name not in arms]
    if missing or not arms:
        raise DataError(f"result set {found.name!r} has no record of {some(missing) or 'any arm'}")
    return {name: arms[name] for name in wanted or arms}


def check_grid_complete(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """Every cell of a frozen grid has exactly one result, and no frozen script was edited."""
    standing = read_standing(around.room, given["grid"])
    found, there = read_whole(around, given["grid"])
    counted = completeness(standing.grid, ((row.result, row.sha256) for row in found.current))
    edited = changed_scripts(standing)
    record = around.file_input(around.room.grid_state(given["grid"], GridState.FROZEN))
    scripts = [
        around.file_input(path)
        for script in standing.grid.scripts
        if os.path.exists(path := f"{standing.base}/{script.path}")
    ]
    wrong = [*edited]
    closed = standing.records.get(GridState.COMPLETE)
    kept = closed is None or closed[0].results_sha256 == counted.sha256
    if not kept:
        wrong.append("other results than those it was completed with")
    if counted.missing:
        wrong.append(f"missing: {some(list(counted.missing))}")
    if counted.doubled:
        wrong.append(f"more than one result: {some(list(counted.doubled))}")
    for what in ("foreign", "undeclared", "without_endpoint"):
        if count := getattr(counted, what):
            wrong.append(f"{count} {what.replace('_', ' ')}")
    return Finding(
        verdict=counted.complete and kept and not edited,
        found="; ".join([f"{counted.filled} of {counted.cells} cells", *wrong]),
        expected=f"{counted.cells} cells with one result each, scripts as frozen",
        inputs=(record, *scripts, there),
    )


def check_arms(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """No arm mixes what makes it two measurements."""
    stated = given.get("stated", ())
    unknown = [name for name in stated if name not in FIELDS]
    if unknown:
        raise DataError(f"no fact is called {unknown[0]!r}", hint=f"known: {', '.join(FIELDS)}")
    found, there = read_whole(around, given["set"])
    verdicts: list[bool | None] = []
    words = []
    arms = _arms(found, given.get("arms", ()))
    for name, results in arms.items():
        for mixed in judge_arm(results):
            verdicts.append(False if mixed.certain else None)
            words.append(f"{name} mixes {mixed.sentence}")
        for field, count in not_stated(results, stated).items():
            verdicts.append(None)
            words.append(f"{count} records of {name} do not state {field}")
    return Finding(
        verdict=worst(verdicts),
        found="; ".join(words) or f"{', '.join(arms)}: each of one kind",
        expected="each arm of one kind" + (f", {', '.join(stated)} stated" if stated else ""),
        inputs=(there,),
    )


def check_encoder(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """All arms have one and the same encoder record."""
    found, there = read_whole(around, given["set"])
    by_encoder: dict[str, set[str]] = {}
    for name, results in _arms(found, given.get("arms", ())).items():
        for result in results:
            by_encoder.setdefault(fact(result, "encoder"), set()).add(name)
    words = [
        f"{encoder or UNKNOWN} ({', '.join(sorted(arms))})"
        for encoder, arms in sorted(by_encoder.items())
    ]
    stated = len(by_encoder) - ("" in by_encoder)
    verdict = False if stated > 1 else (None if "" in by_encoder else True)
    return Finding(
        verdict=verdict, found="; ".join(words), expected="one encoder record", inputs=(there,)
    )


def check_outputs(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """Outputs of results still have their digests."""
    found, there = read_whole(around, given["set"])
    arms = given.get("arms", ())
    outputs = _outputs(found, arms)
    verdicts: list[bool | None] = []
    wrong = []
    for output in outputs:
        try:
            now = hash_file(os.path.join(os.path.realpath(found.folder), output.path))
        except OSError as error:
            verdicts.append(None)
            wrong.append(f"{output.path}: {error.strerror or error}")
            continue
        verdicts.append(now == (output.size_bytes, output.sha256))
        if not verdicts[-1]:
            wrong.append(f"{output.path} was changed")
    if not verdicts:
        return Finding(
            verdict=None, found="no result names an output", expected="outputs", inputs=(there,)
        )
    return Finding(
        verdict=worst(verdicts),
        found=some(wrong) or f"{len(verdicts)} outputs hold at level hashed",
        expected=f"{len(verdicts)} outputs with their digests",
        inputs=(there, _outputs_input(found.name, arms, outputs)),
    )


def _outputs(found: ResultSet, arms: Sequence[str]) -> list[OutputFile]:
    results = [result for of_arm in _arms(found, arms).values() for result in of_arm]
    return [output for result in results for output in result.outputs]


def _outputs_input(name: str, arms: Sequence[str], outputs: Iterable[OutputFile]) -> Input:
    called = f"{name}:{','.join(arms)}" if arms else name
    lines = (f"{each.path} {each.size_bytes} {each.sha256}" for each in outputs)
    return Input(kind=InputKind.OUTPUTS, name=called, sha256=digest_over(lines))


def outputs_digest(around: Surroundings, which: str) -> str:
    """The digest over outputs as they are now.

    Args:
        around: The surroundings.
        which: The name of an input: a set, or ``set:arm,arm``.

    Raises:
        DataError: The set or an arm cannot be read.
        OSError: An output cannot be read.
    """
    name, _, text = which.partition(":")
    arms = tuple(text.split(",")) if text else ()
    found = read_set(around.room.folder, name)
    now = []
    for output in _outputs(found, arms):
        size_bytes, sha256 = hash_file(os.path.join(os.path.realpath(found.folder), output.path))
        now.append(OutputFile(path=output.path, size_bytes=size_bytes, sha256=sha256))
    return _outputs_input(name, arms, now).sha256


def check_metric(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """A metric of an arm is within bounds."""
    found, there = read_whole(around, given["set"])
    name, over = given["metric"], given.get("over", "mean")
    results = _arms(found, (given["arm"],))[given["arm"]]
    values = [result.metrics[name] for result in results if name in result.metrics]
    expected = f"{over} {_bounds(given)}"
    if len(values) < len(results):
        absent = f"{name} is absent in {len(results) - len(values)} of {len(results)} records"
        return Finding(verdict=None, found=absent, expected=expected, inputs=(there,))
    if bulk := _bulk(given, results):
        return Finding(verdict=False, found=bulk, expected=expected, inputs=(there,))
    mixed = judge_arm(results)
    if mixed:
        words = "; ".join(each.sentence for each in mixed)
        verdict = False if any(each.certain for each in mixed) else None
        return Finding(
            verdict=verdict, found=f"the arm mixes {words}", expected=expected, inputs=(there,)
        )
    least, greatest = (min(values), max(values)) if over == "each" else (_OVER[over](values),) * 2
    told = f"{least:.6g}" if least == greatest else f"{least:.6g} to {greatest:.6g}"
    return Finding(
        verdict=_within(least, greatest, given),
        found=f"{told} over {len(values)} records",
        expected=expected,
        inputs=(there,),
    )


def check_comparison(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """Two arms compared over their pairs are within bounds."""
    sides, inputs, bulk = [], [], []
    for key in ("a", "b"):
        name, _, arm = given[key].rpartition(":")
        found, there = read_whole(around, name or given.get("set", ""))
        inputs.append(there)
        results = found.arms().get(arm, [])
        sides.append(Side(arm, results, set=found.name, set_sha256=found.sha256))
        bulk.append(_bulk(given, results))
    how = How.DIFFERENCE if given.get("difference") else How.RATIO
    on = given.get("on", "interval")
    expected = f"{how} {on} {_bounds(given)}"
    unique = tuple({each.name: each for each in inputs}.values())
    if any(bulk):
        words = "; ".join(filter(None, bulk))
        return Finding(verdict=False, found=words, expected=expected, inputs=unique)
    try:
        made = compare(sides[0], sides[1], given["metric"], how=how)
    except ComparisonRefusedError as error:
        verdict = False if error.facts["certain"] else None
        return Finding(verdict=verdict, found=error.message, expected=expected, inputs=unique)
    ends = (made.low, made.high) if on == "interval" else (made.estimate, made.estimate)
    low, high = ends
    told = f"{made.estimate:.6g} over {made.pairs} pairs"
    if low is None or high is None:
        told += "; too few for an interval"
        return Finding(verdict=None, found=told, expected=expected, inputs=unique)
    if on == "interval":
        told += f", {made.level:.0%} interval {low:.6g} to {high:.6g}"
    return Finding(verdict=_within(low, high, given), found=told, expected=expected, inputs=unique)


def _bulk(given: Mapping[str, Any], results: Sequence[Result]) -> str:
    """What speaks against an arm whose timing is reported; empty if nothing does."""
    count = sum(not result.timed for result in results) if given.get("timed") else 0
    return f"{count} of {len(results)} records of {results[0].arm} are not timed" if count else ""


def _within(least: float, greatest: float, given: Mapping[str, Any]) -> bool:
    at_least, at_most = given.get("at_least", -math.inf), given.get("at_most", math.inf)
    return bool(least >= at_least and greatest <= at_most)


def _bounds(given: Mapping[str, Any]) -> str:
    words = {"at_least": "at least", "at_most": "at most"}
    return ", ".join(f"{text} {given[key]:g}" for key, text in words.items() if key in given)
