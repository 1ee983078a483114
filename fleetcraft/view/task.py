"""One task with its attempts, as text and as JSON.

Invariant: what was not measured is null in JSON and empty in text, never zero.
"""

from __future__ import annotations

from typing import Any

from fleetcraft.layout import State
from fleetcraft.spool.record import HistoryLine, closing_lines
from fleetcraft.spool.views import AttemptView, TaskView
from fleetcraft.units import format_bytes, format_clock, format_seconds
from fleetcraft.view.text import Paint, how_it_ended, joined, one_line, printable, table

_COLOURS = {"done": "good", "failed": "bad", "running": "strong"}


def task_shape(view: TaskView) -> dict[str, Any]:
    """The JSON value of ``show``."""
    spec = view.record.spec
    waits = view.waits_for
    return {
        "schema": "fleetcraft.task/1",
        "name": view.name,
        "state": view.state.value,
        "command": spec.command,
        "project_dir": spec.project_dir,
        "record": view.path,
        "id": view.record.id,
        "owner": view.owner or None,
        "cancel_requested": view.cancel_requested,
        "waits_for": (
            {"blocker": waits.blocker, "blocker_state": waits.blocker_state} if waits else None
        ),
        "directives": {
            "family": spec.family or None,
            "timed": spec.timed,
            "time_s": spec.time_s,
            "timeout_s": spec.timeout_s,
            "retries": spec.retries,
            "after": list(spec.after),
            "after_files": list(spec.after_files),
            "outputs": list(spec.outputs),
            "lane": spec.lane.value or None,
            "slot": spec.slot or None,
            "env_file": spec.env_file or None,
            "login": spec.login,
        },
        "attempts": [_attempt(attempt) for attempt in view.attempts],
        "ended_before_start": [_unstarted(line) for line in unstarted_lines(view)],
        "damaged_history_lines": view.record.damaged,
    }


def _attempt(attempt: AttemptView) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "outcome": attempt.outcome,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "host": attempt.host or None,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "wall_s": attempt.wall_s,
        "cpu_s": attempt.cpu_s,
        "max_rss_bytes": attempt.max_rss_bytes,
        "log": attempt.log or None,
        "to": attempt.to,
        "reason": attempt.reason,
        "outputs": list(attempt.outputs),
    }


def unstarted_lines(view: TaskView) -> list[HistoryLine]:
    """Closing lines of claims that never became an attempt, such as a cancel before it ran."""
    return [line for line in closing_lines(view.record) if not line.attempt]


def _unstarted(line: HistoryLine) -> dict[str, Any]:
    return {
        "outcome": line.outcome.value,
        "to": line.to,
        "reason": line.reason,
        "ended_at": line.ended_at,
    }


def render_task(view: TaskView, *, paint: Paint, width: int | None) -> str:
    """The text of ``show``."""
    return joined(
        [
            _head(view, paint),
            _indented("command", view.record.spec.command, paint),
            _attempts(view, paint, width),
            _unstarted_text(view, paint),
        ]
    )


def _head(view: TaskView, paint: Paint) -> str:
    spec = view.record.spec
    waits = view.waits_for
    ended = view.state in (State.DONE, State.FAILED)
    facts = [
        ("waits for", f"{waits.blocker} ({waits.blocker_state})" if waits else ""),
        ("cancel", "requested" if view.cancel_requested and not ended else ""),
        ("owner", view.owner),
        ("after", " ".join(spec.after)),
        ("after files", " ".join(spec.after_files)),
        ("outputs", " ".join(spec.outputs)),
        ("timed", "alone on its node" if spec.timed else ""),
        ("time", format_clock(spec.time_s) if spec.time_s else ""),
        ("timeout", format_clock(spec.timeout_s) if spec.timeout_s else ""),
        ("retries", str(spec.retries) if spec.retries else ""),
        ("family", spec.family),
        ("lane", spec.lane.value),
        ("slot", spec.slot),
        ("env file", spec.env_file),
        ("login shell", "yes" if spec.login else ""),
        ("runs in", spec.project_dir),
        ("record", view.path),
    ]
    state = paint(_COLOURS.get(view.state.value, "strong"), view.state.value)
    rows = [[paint("quiet", label), value] for label, value in facts if value]
    return f"{paint('strong', view.name)}  {state}\n{table(rows)}"


def _indented(title: str, text: str, paint: Paint) -> str:
    lines = printable(text).split("\n")
    return "\n".join([paint("strong", title), *(f"  {line}" for line in lines)])


def _attempts(view: TaskView, paint: Paint, width: int | None) -> str:
    if not view.attempts:
        return ""
    rows = [
        [
            str(attempt.attempt),
            how_it_ended(attempt.outcome, attempt.exit_code, attempt.signal),
            one_line(attempt.host),
            one_line(attempt.started_at or ""),
            format_seconds(attempt.wall_s),
            format_bytes(attempt.max_rss_bytes),
        ]
        for attempt in view.attempts
    ]
    header = ["#", "outcome", "host", "started", "wall", "memory"]
    lines = [paint("strong", "attempts"), table([header, *rows], width=width)]
    for attempt in view.attempts:
        lines += _details(attempt)
    return "\n".join(lines)


def _details(attempt: AttemptView) -> list[str]:
    lines = []
    if attempt.reason:
        lines.append(f"  {attempt.attempt}: {one_line(attempt.reason)}")
    if attempt.log:
        lines.append(f"  {attempt.attempt}: log {one_line(attempt.log)}")
    for output in attempt.outputs:
        said = output.get("problem") or f"{output.get('size_bytes')} bytes"
        lines.append(one_line(f"  {attempt.attempt}: output {output.get('path')}: {said}"))
    return lines


def _unstarted_text(view: TaskView, paint: Paint) -> str:
    lines = [
        f"  {line.outcome.value.replace('_', ' ')} at "
        f"{one_line(line.ended_at or 'an unknown time')}: {one_line(line.reason)}"
        for line in unstarted_lines(view)
    ]
    return "\n".join([paint("strong", "without an attempt"), *lines]) if lines else ""
