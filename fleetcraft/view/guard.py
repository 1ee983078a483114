"""What the login guard found, as text and as JSON.

Invariant: a number that is only what could be seen says so, and one that could not be is empty.
"""

from __future__ import annotations

from typing import Any

from fleetcraft.fleet.guard.causes import Cause
from fleetcraft.fleet.guard.verdict import GuardReport, Limit, Verdict
from fleetcraft.view.text import Paint, joined, left_out, one_line, plural, printable, table

_COLOURS = {
    Verdict.GO: "good",
    Verdict.CAUTION: "warn",
    Verdict.NO_GO: "bad",
    Verdict.UNKNOWN: "bad",
}
_NAMES = {"ssh": "ssh connections", "cgroup": "threads in cgroup"}
_NONE = "-"


def guard_shape(report: GuardReport, *, limit: int) -> dict[str, Any]:
    """The JSON value of ``guard``; at most `limit` causes."""
    return {
        "schema": "fleetcraft.guard/1",
        "verdict": report.verdict.value,
        "exit_code": report.verdict.exit_code,
        "reasons": list(report.reasons),
        "processes": report.processes,
        "threads": report.threads,
        "ssh_sessions": report.ssh_sessions,
        "ssh_clients": report.ssh_clients,
        "is_complete": report.is_complete,
        "includes_itself": report.processes is not None,
        "limits": {
            measure.name: {
                "found": measure.found,
                "caution": measure.caution,
                "stop": measure.stop,
                "ceiling": measure.ceiling,
                "source": measure.source,
                "verdict": measure.verdict.value,
            }
            for measure in report.limits
        },
        "causes": [
            {
                "name": cause.name,
                "kind": cause.kind.value,
                "processes": cause.processes,
                "threads": cause.threads,
                "pids": list(cause.pids),
            }
            for cause in report.causes[:limit]
        ],
        "causes_left_out": max(0, len(report.causes) - limit),
        "unknowns": list(report.unknowns),
        "notes": list(report.notes),
    }


def render_guard(report: GuardReport, *, limit: int, paint: Paint, width: int | None) -> str:
    """The text of ``guard``: the verdict on the first line, then limits and causes."""
    return joined([_verdict(report, paint), _limits(report), _causes(report, limit, paint, width)])


def _verdict(report: GuardReport, paint: Paint) -> str:
    verdict = paint(_COLOURS[report.verdict], report.verdict.value)
    reasons = report.reasons or (_found(report),)
    lines = [f"{verdict}: {printable('; '.join(reasons))}"]
    if report.verdict is not Verdict.UNKNOWN:
        lines += [f"not known: {printable(unknown)}" for unknown in report.unknowns]
    lines += [f"note: {printable(note)}" for note in report.notes]
    return "\n".join(lines)


def _found(report: GuardReport) -> str:
    counts = (
        (report.processes, "process with this one", "processes with this one"),
        (report.threads, "thread", ""),
        (report.ssh_sessions, "ssh session", ""),
        (report.ssh_clients, "ssh client", ""),
    )
    return ", ".join(plural(count or 0, noun, many) for count, noun, many in counts)


def _limits(report: GuardReport) -> str:
    rows = [["", "found", "caution", "stop", "at most", "from"]]
    rows += [_row(measure, at_least=not report.is_complete) for measure in report.limits]
    for column in range(1, 5):
        wide = max(len(row[column]) for row in rows)
        for row in rows:
            row[column] = row[column].rjust(wide)
    return table(rows)


def _row(measure: Limit, *, at_least: bool) -> list[str]:
    found = _NONE if measure.found is None else str(measure.found)
    if at_least and measure.found is not None and measure.name != "cgroup":
        found = f">={found}"
    ends = (measure.caution, measure.stop, measure.ceiling)
    return [
        _NAMES.get(measure.name, measure.name),
        found,
        *(_NONE if end is None else str(end) for end in ends),
        measure.source,
    ]


def _causes(report: GuardReport, limit: int, paint: Paint, width: int | None) -> str:
    shown = report.causes[:limit]
    if not shown:
        return ""
    lines = table([_cause(cause) for cause in shown], width=width)
    more = left_out(len(report.causes) - len(shown))
    return "\n".join([paint("strong", "what they are, worst first"), lines, *more])


def _cause(cause: Cause) -> list[str]:
    more = ", ..." if cause.processes > len(cause.pids) else ""
    return [
        one_line(cause.name),
        plural(cause.processes, "process", "processes"),
        plural(cause.threads, "thread"),
        f"pid {', '.join(map(str, cause.pids))}{more}",
    ]
