"""What workers tell while they work, and how a local run ended: lines, a tally and a summary.

Invariant: a failure is told with what a person needs next: its log, and the command to retry it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.spool.dependencies import Blocked
from fleetcraft.units import format_seconds
from fleetcraft.view.text import Paint, how_it_ended, left_out, one_line, plural
from fleetcraft.worker.settings import LocalRunReport

_MAX_FAILURES = 1000


@dataclass(kw_only=True)
class Tally:
    """Counts of a run, from its events.

    Attributes:
        total: Tasks to do as known at the start; grows when more turn up.
        done: Tasks completed.
        failed: Tasks that failed for good.
        again: Attempts that ended and were put back.
        running: Tasks that run now, each with the worker that told of it.
        failures: End events of tasks that failed for good, the first thousand.
    """

    total: int
    done: int = 0
    failed: int = 0
    again: int = 0
    running: dict[str, object] = field(default_factory=dict)
    failures: list[Mapping[str, object]] = field(default_factory=list)

    def take(self, event: Mapping[str, object]) -> None:
        """Counts one event."""
        task = str(event.get("task", ""))
        if event["event"] == "start":
            self.running[task] = event.get("worker")
        elif event["event"] == "end":
            self.running.pop(task, None)
            if event["to"] == "done":
                self.done += 1
            elif event["to"] == "failed":
                self.failed += 1
                if len(self.failures) < _MAX_FAILURES:
                    self.failures.append(event)
            else:
                self.again += 1
        self.total = max(self.total, self.settled + len(self.running))

    @property
    def settled(self) -> int:
        """Tasks that will not run again."""
        return self.done + self.failed

    def line(self) -> str:
        """The state in one line."""
        parts = [f"{self.settled} of {plural(self.total, 'task')}"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.again:
            parts.append(f"{self.again} put back")
        if self.running:
            parts.append(f"{len(self.running)} running")
        return ", ".join(parts)


def event_line(event: Mapping[str, object], paint: Paint) -> str | None:
    """One event as a line for people; None for those that say nothing new."""
    kind = event["event"]
    if kind in {"note", "refused"}:
        who = f"worker {event['worker']}: " if "worker" in event else ""
        return who + one_line(str(event.get("text", "")))
    if kind != "end":
        return None
    outcome = str(event["outcome"])
    colour = {"done": "good", "failed": "bad"}.get(str(event["to"]), "warn")
    ended = how_it_ended(outcome, _number(event.get("exit_code")))
    wall_s = event.get("wall_s")
    wall = f" in {format_seconds(wall_s)}" if isinstance(wall_s, int | float) else ""
    text = f"{event['task']} attempt {event['attempt']}: {paint(colour, ended)}{wall}"
    if event["to"] == "pending":
        text += ", put back"
    if outcome != "completed":
        reason = f" ({one_line(str(event['reason']), 200)})" if event.get("reason") else ""
        text += f"{reason}, log {event['log']}" if event.get("log") else reason
    return text


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def run_shape(report: LocalRunReport) -> dict[str, Any]:
    """The JSON value of ``run``."""
    return {
        "schema": "fleetcraft.run/1",
        "done": report.done,
        "failed": report.failed,
        "interrupted": report.interrupted,
        "retried": report.retried,
        "recovered": report.recovered,
        "wall_s": report.wall_s,
        "left": report.left,
        "stopped": report.stopped,
        "exit_code": report.exit_code,
    }


def render_run(
    report: LocalRunReport,
    failures: Sequence[Mapping[str, object]],
    blocked: Sequence[Blocked],
    blocked_left_out: int,
    *,
    command: str,
    limit: int,
    paint: Paint,
) -> str:
    """The summary for people.

    Args:
        report: How the run ended.
        failures: End events of tasks that failed for good.
        blocked: What still waits, and on whom.
        blocked_left_out: How many more wait.
        command: How this spool is reached, such as ``fleetcraft --root DIR``.
        limit: Entries a list.
        paint: Colours.
    """
    return "\n".join(
        [
            _headline(report, paint),
            *_failed(report, failures, command, limit, paint),
            *_waiting(report, blocked, blocked_left_out, paint),
            *_stopped(report, command, paint),
        ]
    )


def _headline(report: LocalRunReport, paint: Paint) -> str:
    parts = [paint("good", f"{report.done} done") if report.done else "0 done"]
    parts.append(paint("bad", f"{report.failed} failed") if report.failed else "0 failed")
    for count, word in (
        (report.retried, "retried"),
        (report.interrupted, "interrupted"),
        (report.recovered, "recovered"),
    ):
        if count:
            parts.append(paint("warn", f"{count} {word}"))
    return f"{', '.join(parts)} in {format_seconds(report.wall_s)}"


def _failed(
    report: LocalRunReport,
    failures: Sequence[Mapping[str, object]],
    command: str,
    limit: int,
    paint: Paint,
) -> list[str]:
    if not report.failed:
        return []
    lines = [paint("strong", "failed")]
    for event in failures[:limit]:
        ended = how_it_ended(str(event["outcome"]), _number(event.get("exit_code")))
        reason = f": {one_line(str(event['reason']), 200)}" if event.get("reason") else ""
        lines.append(f"  {event['task']}  {ended}{reason}")
        if event.get("log"):
            lines.append(f"    log {event['log']}")
    lines += left_out(report.failed - min(limit, len(failures)))
    names = " ".join(str(event["task"]) for event in failures)
    names = names if len(failures) == report.failed and len(names) < 60 else "--failed"
    return [*lines, f"  {command} retry {names}  puts {_them(report.failed)} back"]


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _waiting(
    report: LocalRunReport, blocked: Sequence[Blocked], blocked_left_out: int, paint: Paint
) -> list[str]:
    waiting, pending = report.left.get("waiting", 0), report.left.get("pending", 0)
    lines = []
    if waiting:
        lines.append(f"{paint('strong', 'still waiting')}: {waiting}")
        lines += [f"  {b.task}  waits for {b.blocker} ({b.blocker_state})" for b in blocked]
        lines += left_out(blocked_left_out)
    if pending:
        lines.append(f"{paint('strong', 'still pending')}: {pending}")
    return lines


def _stopped(report: LocalRunReport, command: str, paint: Paint) -> list[str]:
    if not report.stopped:
        return []
    shown = [f"  {one_line(reason)}" for reason in report.stopped[:10]]
    lines = [paint("strong", "workers left early"), *shown, *left_out(len(report.stopped[10:]))]
    if any("marker" in reason for reason in report.stopped):
        lines.append(f"  {command} resume removes the marker")
    return lines
