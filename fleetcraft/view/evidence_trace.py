"""Origins, traces and reruns as text and as JSON.

Invariant: each line of a trace says a verdict and the level at which it stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from fleetcraft.evidence.records import Kind, Level, Origin
from fleetcraft.evidence.tracing.nodes import TRACE_SCHEMA, Node, Standing, counts, overall, walk
from fleetcraft.evidence.tracing.origins import as_written
from fleetcraft.view.text import Paint, one_line, plural

STAMP_SCHEMA = "fleetcraft.stamp/1"
_COLOURS = {
    Standing.VERIFIED: "good",
    Standing.CHANGED: "bad",
    Standing.MISSING: "bad",
    Standing.UNKNOWN: "warn",
    Standing.UNRECORDED: "warn",
}
_SHORT_HASH = 12


# ---------------------------------------------------------------------------------------- stamp


def stamp_shape(path: str, beside: str, origin: Origin) -> dict[str, Any]:
    """An origin that was written, as JSON."""
    return {
        "schema": STAMP_SCHEMA,
        "path": path,
        "origin_file": beside,
        "origin": as_written(origin),
    }


def render_stamp(path: str, beside: str, origin: Origin) -> str:
    """An origin that was written, as text."""
    lines = [f"stamped: {one_line(path)}, a {origin.kind.value}, in {one_line(beside)}"]
    for source in origin.sources:
        what = f"{source.kind.value}, {plural(source.size_bytes, 'byte')}"
        lines.append(f"  from {one_line(source.path)}  ({what}, {source.sha256[:_SHORT_HASH]})")
    if not origin.sources:
        lines.append("  from nothing that was named")
    if origin.producer.task:
        attempt = f", attempt {origin.producer.attempt}" if origin.producer.attempt else ""
        lines.append(f"  by task {one_line(origin.producer.task)}{attempt}")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------- trace


def trace_shape(node: Node) -> dict[str, Any]:
    """A trace as JSON: the verdict of all of it, counts, and the tree."""
    return {
        "schema": TRACE_SCHEMA,
        "verdict": overall(node).value,
        "counts": counts(node),
        "levels": _levels(node),
        "root": _shape(node),
    }


def _levels(node: Node) -> dict[str, int]:
    found = Counter(one.level.value for one in walk(node))
    return {level.value: found[level.value] for level in Level if found[level.value]}


def _shape(node: Node) -> dict[str, Any]:
    value: dict[str, Any] = {
        "name": node.name,
        "kind": node.kind.value,
        "verdict": node.verdict.value,
        "level": node.level.value,
        "detail": node.detail,
        "place": node.place,
        "expected_bytes": node.expected_bytes,
        "found_bytes": node.found_bytes,
        "expected_sha256": node.expected_sha256 or None,
        "found_sha256": node.found_sha256 or None,
    }
    value["children"] = [_shape(child) for child in node.children]
    value["left_out"] = node.left_out
    return value


def render_trace(node: Node, *, paint: Paint, width: int | None = None) -> str:
    """A trace as a tree, and what it comes to."""
    lines = [_line(node, "", paint, width), *_tree(node, "", paint, width)]
    return "\n".join([*lines, "", _sum(node, paint)])


def _tree(node: Node, indent: str, paint: Paint, width: int | None) -> Iterator[str]:
    last = len(node.children) - (0 if node.left_out else 1)
    for number, child in enumerate(node.children):
        mark, more = ("└─ ", "   ") if number == last else ("├─ ", "│  ")
        yield _line(child, indent + mark, paint, width)
        yield from _tree(child, indent + more, paint, width)
    if node.left_out:
        yield f"{indent}└─ ... and {node.left_out} more, which stand no worse"


def _line(node: Node, indent: str, paint: Paint, width: int | None) -> str:
    known = [] if node.level is Level.NONE else [node.level.value]
    known += [node.detail] if node.detail else []
    known += [f"in {node.place}"] if node.place else []
    plain = f"{indent}{node.verdict.value} {node.kind.value} "
    said = f"{one_line(node.name)}  {one_line('; '.join(known))}".rstrip()
    room = None if width is None else max(20, width - len(plain))
    verdict = paint(_COLOURS[node.verdict], node.verdict.value)
    return f"{indent}{verdict} {node.kind.value} {one_line(said, room)}"


def _sum(node: Node, paint: Paint) -> str:
    verdict = overall(node)
    kinds = Counter(kind for kind, _ in {(one.kind, one.name) for one in walk(node)})
    tasks, logs = kinds[Kind.TASK], kinds[Kind.LOG]
    reach = f"down to {plural(tasks, 'task')} and {plural(logs, 'log')}"
    if verdict is Standing.VERIFIED:
        return f"{paint('good', 'verified')}: {plural(sum(kinds.values()), 'thing')}, {reach}"
    bad = [f"{number} {name}" for name, number in counts(node).items() if number]
    return f"{paint(_COLOURS[verdict], verdict.value)}: {', '.join(bad)}; {reach}"


# ---------------------------------------------------------------------------------------- rerun


def render_rerun(shape: Mapping[str, Any], *, paint: Paint) -> str:
    """What was compared before a rerun, and what came of it, as text."""
    lines = []
    for check in shape["checks"]:
        verdict = str(check["verdict"])
        colour = {"same": "good", "differs": "bad"}.get(verdict, "warn")
        found = f"  recorded {one_line(check['recorded'])}" if check["recorded"] else ""
        here = f", here {one_line(check['found'])}" if check["found"] else ""
        said = f"  {one_line(check['detail'])}" if check["detail"] else ""
        what = one_line(check["what"])
        lines.append(f"  {paint(colour, f'{verdict:<8}')} {what}{found}{here}{said}")
    return "\n".join([f"{shape['state'].replace('_', ' ')}: {one_line(shape['sentence'])}", *lines])
