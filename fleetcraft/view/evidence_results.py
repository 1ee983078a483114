"""Results, comparisons, grids and gates as text and JSON.

Invariant: text that comes from records or files is printed as one harmless line, lists say how much
they leave out, and a verdict that is not known is called unknown.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from fleetcraft.evidence.release.cells import Completeness
from fleetcraft.evidence.release.gates import Decided, Decision
from fleetcraft.evidence.release.grid import Grid, GridState, Standing
from fleetcraft.evidence.results.arms import judge_arm
from fleetcraft.evidence.results.comparing import Comparison, How
from fleetcraft.evidence.results.sets import Reject, Result, ResultSet
from fleetcraft.view.text import Paint, left_out, one_line, plural, table

_WORDS = {True: "yes", False: "no", None: "unknown"}
_COLOURS = {True: "good", False: "bad", None: "warn"}
_REASONS = {
    "torn": "cut short while they were written",
    "digest": "changed since they were written",
    "schema": "of another version",
    "fields": "no results",
    "unreadable": "files that cannot be read",
    "foreign": "files of no writer",
}


# -- one record


def result_shape(result: Result, set_name: str, file: str = "") -> dict[str, Any]:
    """A record as JSON, with where it lies."""
    found: dict[str, Any] = msgspec.to_builtins(result)
    return {**found, "set": set_name, **({"file": file} if file else {})}


def render_appended(result: Result, set_name: str) -> str:
    """What was appended, in a line."""
    metrics = ", ".join(f"{name}={value:g}" for name, value in sorted(result.metrics.items()))
    parts = [
        f"appended to {set_name}: {_cell(result)}",
        metrics or "no metric",
        plural(len(result.outputs), "output"),
        "timed" if result.timed else "bulk",
    ]
    grid = f", grid {result.grid_sha256[:12]}" if result.grid_sha256 else ""
    return one_line(", ".join(parts) + grid)


def _cell(result: Result) -> str:
    return "/".join(filter(None, (result.arm, result.candidate, str(result.seed))))


# -- a set


def set_shape(found: ResultSet, arm: str, *, limit: int) -> dict[str, Any]:
    """A set as JSON: arms with what is wrong with each, rejects, and the newest records."""
    arms = {name: rows for name, rows in found.arms().items() if arm in ("", name)}
    listed = [row for rows in arms.values() for row in rows]
    return {
        "schema": "fleetcraft.results/1",
        "set": found.name,
        "sha256": found.sha256,
        "records": len(found.rows),
        "files": len(found.files),
        "repeated": found.repeated,
        "superseded": len(found.rows) - len(found.current),
        "rejects": found.counts,
        "rejected": [_reject(each) for each in found.rejects[:limit]],
        "rejected_left_out": max(0, len(found.rejects) - limit),
        "arms": [_arm_shape(name, rows) for name, rows in arms.items()],
        "results": [msgspec.to_builtins(each) for each in listed[:limit]],
        "results_left_out": max(0, len(listed) - limit),
    }


def _reject(each: Reject) -> dict[str, Any]:
    return {"file": each.file, "line": each.line, "reason": each.reason}


def _arm_shape(name: str, rows: Sequence[Result]) -> dict[str, Any]:
    return {
        "arm": name,
        "records": len(rows),
        "candidates": len({row.candidate for row in rows}),
        "seeds": len({row.seed for row in rows}),
        "timed": sum(row.timed for row in rows),
        "metrics": {key: _spread(values) for key, values in _metrics(rows).items()},
        "mixed": [
            {**msgspec.to_builtins(each), "sentence": each.sentence} for each in judge_arm(rows)
        ],
    }


def _metrics(rows: Iterable[Result]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.metrics.items():
            found.setdefault(name, []).append(value)
    return dict(sorted(found.items()))


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "records": len(values),
        "mean": statistics.fmean(values),
        "min": min(values),
        "max": max(values),
    }


def render_set(found: ResultSet, arm: str, *, limit: int, paint: Paint, width: int | None) -> str:
    """A set as text."""
    arms = {name: rows for name, rows in found.arms().items() if arm in ("", name)}
    head = (
        f"set {found.name}: {plural(len(found.rows), 'record')} in "
        f"{plural(len(found.files), 'file')}, sha256 {found.sha256[:12]}"
    )
    blocks = [one_line(head)]
    for name, rows in list(arms.items())[:limit]:
        blocks.append(_render_arm(name, rows, paint, width))
    blocks += left_out(max(0, len(arms) - limit), "arms")
    if superseded := len(found.rows) - len(found.current):
        blocks.append(f"{plural(superseded, 'record')} of earlier attempts, not counted")
    if found.repeated:
        blocks.append(f"{plural(found.repeated, 'line')} repeated, counted once")
    for reason, count in found.counts.items():
        where = next(each for each in found.rejects if each.reason == reason)
        line = f", line {where.line}" if where.line else ""
        said = f"{count} not used: {_REASONS[reason]} (first: {where.file}{line})"
        blocks.append(paint("warn" if reason == "torn" else "bad", one_line(said)))
    return "\n".join(blocks)


def _render_arm(name: str, rows: Sequence[Result], paint: Paint, width: int | None) -> str:
    timed = sum(row.timed for row in rows)
    kinds = "timed" if timed == len(rows) else ("bulk" if not timed else f"{timed} timed")
    facts = [plural(len(rows), "record"), plural(len({row.seed for row in rows}), "seed"), kinds]
    lines = [one_line(f"{name}: {', '.join(facts)}")]
    cells = [
        (
            one_line(key),
            f"{statistics.fmean(values):.6g}",
            f"{min(values):.6g} to {max(values):.6g}"
            + (f", in {len(values)} of {len(rows)}" if len(values) < len(rows) else ""),
        )
        for key, values in _metrics(rows).items()
    ]
    if cells:
        lines.append(table(cells, width=width))
    lines += [paint("bad", f"  mixed  {one_line(each.sentence)}") for each in judge_arm(rows)]
    return "\n".join(lines)


# -- a comparison


def comparison_shape(made: Comparison, *, limit: int, file: str = "") -> dict[str, Any]:
    """A comparison as JSON, with so many pairs."""
    shape: dict[str, Any] = msgspec.to_builtins(made)
    values = shape.pop("values")
    return {
        **shape,
        "schema": "fleetcraft.compare/1",
        "values": values[:limit],
        "values_left_out": max(0, len(values) - limit),
        "file": file or None,
    }


def render_comparison(made: Comparison, *, paint: Paint) -> str:
    """A comparison as text."""
    ratio = made.how is How.RATIO
    sign = "/" if ratio else "-"
    a, b = (_called(made, side) for side in ("a", "b"))
    if made.low is None or made.high is None:
        interval = f"no interval from {plural(made.pairs, 'pair')}"
    else:
        interval = f"{made.level:.0%} interval {made.low:.6g} to {made.high:.6g}"
    what = "geometric mean of ratios" if ratio else "mean of differences"
    head = f"{made.metric}, {b} {sign} {a}: {made.estimate:.6g}  ({interval})"
    rows = [
        ("what", f"{what} over {plural(made.pairs, 'pair')} of candidate and seed"),
        ("median", f"{made.median:.6g}, from {made.least:.6g} to {made.greatest:.6g}"),
        ("higher", f"{b} in {made.b_higher} pairs, lower in {made.b_lower}"),
    ]
    for side, name in ((made.a, a), (made.b, b)):
        said = f"mean {side.mean:.6g}, {plural(side.records, 'record')}"
        for count, words in (
            (side.unmatched, "without a partner"),
            (side.without_metric, "without the metric"),
            (side.repeated, "said again"),
        ):
            said += f", {count} {words}" if count else ""
        rows.append((one_line(name), one_line(said)))
    rows += [(paint("warn", "differs"), one_line(each)) for each in made.differs]
    return f"{paint('strong', one_line(head))}\n{table(rows)}"


def _called(made: Comparison, side: str) -> str:
    arm = made.a if side == "a" else made.b
    return f"{arm.set}:{arm.name}" if made.a.name == made.b.name else arm.name


# -- a grid


def grid_shape(
    standing: Standing,
    *,
    draft: Grid | None = None,
    counted: Completeness | None = None,
    edited: Sequence[str] = (),
    fresh: bool | None = None,
    limit: int = 20,
) -> dict[str, Any]:
    """A grid as JSON.

    Args:
        standing: How it stands.
        draft: What is not frozen yet.
        counted: Its cells.
        edited: Scripts that were edited.
        fresh: Whether this call put the state; None where none was asked for.
        limit: At most so many cells or values of each list.
    """
    grid = draft or standing.grid
    return {
        "schema": "fleetcraft.grid_state/1",
        "name": standing.name,
        "state": (GridState.DRAFT if draft else standing.state).value,
        "result": None if fresh is None else ("done" if fresh else "already"),
        "grid_sha256": grid.sha256,
        "cells": grid.size,
        "arms": list(grid.arms[:limit]),
        "seeds": len(grid.seeds),
        "candidates": len(grid.candidates),
        "endpoints": list(grid.endpoints[:limit]),
        "tasks": grid.tasks or None,
        "scripts": [msgspec.to_builtins(each) for each in grid.scripts[:limit]],
        "scripts_edited": list(edited),
        "states": [
            {"state": state.value, "at": record.at, "sha256": digest, "reason": record.reason}
            for state, (record, digest) in standing.records.items()
        ],
        **(_cells_shape(counted, limit) if counted else {}),
    }


def _cells_shape(counted: Completeness, limit: int) -> dict[str, Any]:
    return {
        "complete": counted.complete,
        "filled": counted.filled,
        "missing": len(counted.missing),
        "missing_cells": list(counted.missing[:limit]),
        "doubled": len(counted.doubled),
        "doubled_cells": list(counted.doubled[:limit]),
        "foreign": counted.foreign,
        "undeclared": counted.undeclared,
        "without_endpoint": counted.without_endpoint,
    }


def render_grid(
    standing: Standing,
    *,
    draft: Grid | None = None,
    counted: Completeness | None = None,
    edited: Sequence[str] = (),
    limit: int = 20,
    paint: Paint,
) -> str:
    """A grid as text."""
    grid = draft or standing.grid
    state = GridState.DRAFT if draft else standing.state
    size = f"{plural(len(grid.arms), 'arm')} x {plural(len(grid.seeds), 'seed')}"
    if grid.candidates != ("",):
        size += f" x {plural(len(grid.candidates), 'candidate')}"
    head = f"grid {standing.name}: {state}, {plural(grid.size, 'cell')} ({size})"
    rows = [("sha256", grid.sha256), ("arms", ", ".join(grid.arms[:limit]))]
    rows += [("reports", ", ".join(grid.endpoints))] if grid.endpoints else []
    rows += [("script", f"{each.path} {each.sha256[:12]}") for each in grid.scripts[:limit]]
    rows += [(state.value.lower(), record.at) for state, (record, _) in standing.records.items()]
    lines = [paint("strong", one_line(head)), table([(a, one_line(b)) for a, b in rows])]
    lines += [paint("bad", f"  script {one_line(each)}") for each in edited]
    if counted is not None:
        lines.append(_cells(counted, limit))
    return "\n".join(lines)


def _cells(counted: Completeness, limit: int) -> str:
    lines = [f"{counted.filled} of {counted.cells} cells have exactly one result"]
    for words, cells in (("missing", counted.missing), ("doubled", counted.doubled)):
        lines += [f"  {words} {one_line(cell)}" for cell in cells[:limit]]
        lines += left_out(max(0, len(cells) - limit), words)
    for count, words in (
        (counted.foreign, "of another grid or none, not counted"),
        (counted.undeclared, "of no declared cell, not counted"),
        (counted.without_endpoint, "without a declared metric, not counted"),
    ):
        lines += [f"  {plural(count, 'result')} {words}"] if count else []
    return "\n".join(lines)


# -- a gate


def gate_shape(decision: Decision, kept: bool | None, path: str = "") -> dict[str, Any]:
    """A decision as JSON; ``kept`` is None where a pass was not to be kept."""
    return {
        "schema": "fleetcraft.gate_decision/1",
        "gate": decision.name,
        "gate_sha256": decision.gate_sha256,
        "passed": decision.passed,
        "kept": kept,
        "path": path or None,
        "predicates": [
            {
                "name": each.name,
                "check": each.check,
                "stage": each.stage.value,
                "asked": each.asked,
                "verdict": _WORDS[each.finding.verdict],
                "found": each.finding.found,
                "expected": each.finding.expected,
                "inputs": [msgspec.to_builtins(i) for i in each.finding.inputs],
            }
            for each in decision.predicates
        ],
    }


def render_gate(decision: Decision, *, paint: Paint, width: int | None) -> str:
    """A decision as text: a line for each predicate, and more where it does not hold."""
    verdict = "passes" if decision.passed else "does not pass"
    head = paint("good" if decision.passed else "bad", f"gate {one_line(decision.name)} {verdict}")
    blocks = [head]
    stage = ""
    for each in decision.predicates:
        if each.stage != stage:
            stage = each.stage.value
            blocks.append(paint("quiet", stage))
        blocks.append(_predicate(each, paint, width))
    return "\n".join(blocks)


def _predicate(each: Decided, paint: Paint, width: int | None) -> str:
    verdict = each.finding.verdict
    word = _WORDS[verdict] if each.asked else "not asked"
    mark = paint(_COLOURS[verdict] if each.asked else "quiet", f"{word:<9}")
    lines = [f"  {mark} {one_line(each.name)}: {one_line(each.finding.found)}"]
    if each.asked and verdict is not True:
        lines.append(f"            expected {one_line(each.finding.expected, width)}")
    return "\n".join(lines)


def render_sets(names: Sequence[tuple[str, int, int]], *, limit: int) -> str:
    """All sets, each with its records and its lines that were not used."""
    rows = [
        (name, plural(records, "record"), f"{rejects} not used" if rejects else "")
        for name, records, rejects in names[:limit]
    ]
    return "\n".join([table(rows, indent=""), *left_out(len(names) - len(rows))])


def sets_shape(names: Sequence[tuple[str, int, int]], *, limit: int) -> dict[str, Any]:
    """All sets as JSON."""
    return {
        "schema": "fleetcraft.result_sets/1",
        "sets": [
            {"set": name, "records": records, "rejects": rejects}
            for name, records, rejects in names[:limit]
        ],
        "sets_left_out": max(0, len(names) - limit),
    }
