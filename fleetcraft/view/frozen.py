"""Whether a frozen window holds, as text and as JSON.

Invariant: what was not checked is printed beside every verdict.
"""

from __future__ import annotations

from typing import Any

from fleetcraft.telemetry.windows.verdicts import Verdict, Verification
from fleetcraft.view.text import Paint, left_out, one_line, plural, printable

_COLOURS = {Verdict.VERIFIED: "good", Verdict.REFUTED: "bad", Verdict.UNVERIFIABLE: "warn"}
_SHOWN = 20
_WIDTH = 160


def verification_shape(found: Verification, *, path: str) -> dict[str, Any]:
    """The JSON value of ``telemetry verify``."""
    return {
        "schema": "fleetcraft.telemetry_verification/1",
        "path": path,
        "verdict": found.verdict.value,
        "schema_version": found.schema_version,
        "reason": found.reason,
        "observations": found.observations,
        "sources": found.sources,
        "sources_checked": found.sources_checked,
        "differences": [
            {"field": each.field, "found": each.found, "expected": each.expected}
            for each in found.differences
        ],
        "not_checked": found.not_checked,
    }


def render_verification(found: Verification, *, path: str, paint: Paint) -> str:
    """The text of ``telemetry verify``."""
    verdict = paint(_COLOURS[found.verdict], found.verdict.value)
    lines = [f"{verdict}: {printable(path)}{_basis(found)}"]
    for each in found.differences[:_SHOWN]:
        lines.append(
            f"  {one_line(each.field)}: found {one_line(repr(each.found), _WIDTH)}, "
            f"expected {one_line(repr(each.expected), _WIDTH)}"
        )
    lines += left_out(max(0, len(found.differences) - _SHOWN), "more differences")
    lines += [f"not checked: {printable(text)}" for text in found.not_checked]
    return "\n".join(lines)


def _basis(found: Verification) -> str:
    if found.verdict is Verdict.UNVERIFIABLE:
        return f": {printable(found.reason)}"
    rows = f"{found.observations} observations"
    if found.verdict is Verdict.REFUTED:
        return f": {plural(len(found.differences), 'difference')} ({rows})"
    files = f", {plural(found.sources_checked, 'source')} read again"
    return f": recomputed from {rows}{files if found.sources_checked else ''}"
