"""How a training run died, as text and as JSON.

Invariant: quoted lines come from files that anybody could have written, so they are printed as one
line each, with their control characters spelled out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleetcraft.training.diagnosing.changes import Change
from fleetcraft.training.records import (
    DIAGNOSIS_SCHEMA,
    Crash,
    DeviceOomFacts,
    Diagnosis,
    Evidence,
    Role,
)
from fleetcraft.view.text import Paint, joined, left_out, one_line, printable, table

_SHOWN = 8
_QUOTED = 300
_GIB = 1 << 30


def diagnosis_shape(
    found: Diagnosis, changed: Sequence[Change] | None = None, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The JSON value of ``train diagnose``; ``changes`` is null where there was none to compare."""
    return {
        "schema": DIAGNOSIS_SCHEMA,
        "class": found.crash.value,
        "episode_open": found.episode_open,
        "evidence": [_evidence_shape(one) for one in found.evidence],
        "advice": list(found.advice),
        "step": found.step,
        "ranks": list(found.ranks),
        "oom": None if found.oom is None else _oom_shape(found.oom),
        "changes": None if changed is None else [_change_shape(one) for one in changed],
        "notes": list(notes),
    }


def _evidence_shape(one: Evidence) -> dict[str, Any]:
    return {
        "source": one.source.value,
        "class": one.crash.value,
        "role": one.role.value,
        "text": one.text,
        "path": one.path,
        "line": one.line,
        "byte": one.byte,
        "at": one.at,
        "rank": one.rank,
        "step": one.step,
    }


def _oom_shape(oom: DeviceOomFacts) -> dict[str, Any]:
    return {
        "cause": oom.cause,
        "request_bytes": oom.request_bytes,
        "free_bytes": oom.free_bytes,
        "capacity_bytes": oom.capacity_bytes,
        "allocated_bytes": oom.allocated_bytes,
        "reserved_unallocated_bytes": oom.reserved_unallocated_bytes,
        "shortfall_bytes": oom.shortfall_bytes,
    }


def _change_shape(one: Change) -> dict[str, Any]:
    return {
        "kind": one.kind.value,
        "name": one.name,
        "before": one.before,
        "after": one.after,
        "percent": one.percent,
        "text": one.text,
    }


def render_diagnosis(
    found: Diagnosis,
    changed: Sequence[Change] | None = None,
    notes: Sequence[str] = (),
    *,
    paint: Paint,
    width: int | None = None,
) -> str:
    """The text of ``train diagnose``.

    Args:
        found: The diagnosis.
        changed: What differs from the last healthy epoch; None: there is none to compare with.
        notes: What could not be read.
        paint: Colours.
        width: Where long lines are cut; None never cuts.
    """
    return joined(
        (
            "\n".join((_headline(found, paint), *_facts(found, width))),
            _evidence(found.evidence, paint, width),
            _changes(changed, width),
            "\n".join(("What to do:", *(f"  - {printable(line)}" for line in found.advice))),
            "\n".join(paint("warn", one_line(note, width)) for note in notes),
        )
    )


def _headline(found: Diagnosis, paint: Paint) -> str:
    name = found.crash.value
    if found.crash is Crash.NONE:
        return f"{paint('good', name)}: nothing says that it died"
    if not found.episode_open:
        return f"{paint('good', name)}: over, steps were completed after it"
    return f"{paint('bad', name)}: open, nothing was completed after it"


def _facts(found: Diagnosis, width: int | None) -> list[str]:
    rows = []
    if found.step is not None:
        rows.append(("last step", str(found.step)))
    if found.ranks:
        rows.append(("ranks", ", ".join(str(rank) for rank in found.ranks)))
    if found.oom is not None:
        rows += _oom_rows(found.oom)
    return [table(rows, width=width)] if rows else []


def _oom_rows(oom: DeviceOomFacts) -> list[tuple[str, str]]:
    sizes = (
        ("requested", oom.request_bytes),
        ("free", oom.free_bytes),
        ("shortfall", oom.shortfall_bytes),
        ("reserved, unallocated", oom.reserved_unallocated_bytes),
        ("allocated", oom.allocated_bytes),
        ("of the device's", oom.capacity_bytes),
    )
    told = [(name, f"{count / _GIB:.2f} GiB") for name, count in sizes if count is not None]
    return [("cause", oom.cause), *told]


def _evidence(evidence: Sequence[Evidence], paint: Paint, width: int | None) -> str:
    if not evidence:
        return ""
    lines = ["Evidence, the deciding one first:"]
    for one in evidence[:_SHOWN]:
        lines.append(f"  {_where(one, paint)}")
        lines.append(f"    {one_line(one.text, _QUOTED if width is None else max(20, width - 4))}")
    return "\n".join((*lines, *left_out(max(0, len(evidence) - _SHOWN), "more pieces")))


def _where(one: Evidence, paint: Paint) -> str:
    place = one_line(one.path) if one.path else one.source.value.replace("_", " ")
    if one.line is not None:
        place += f":{one.line}"
    parts = [paint("strong", one.crash.value), place]
    if one.role is not Role.ROOT:
        parts.append(paint("quiet", one.role.value))
    if one.rank is not None:
        parts.append(f"rank {one.rank}")
    if one.step is not None:
        parts.append(f"after step {one.step}")
    return ", ".join(parts)


def _changes(changed: Sequence[Change] | None, width: int | None) -> str:
    if changed is None:
        return ""
    if not changed:
        return "Nothing that is recorded has changed since the last healthy epoch."
    head = "Changed since the last healthy epoch:"
    return "\n".join((head, *(f"  {one_line(one.text, width)}" for one in changed)))
