"""What a preflight found, as text and as JSON, and its exit code.

Invariant: what was not told is neither ok nor no, and the text says what could not be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from fleetcraft.training.plan.built import Built, BuiltReport
from fleetcraft.training.plan.preflight import Answer, Finding, worst
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.plan.rehearsal import Rehearsal
from fleetcraft.units import format_bytes, format_seconds
from fleetcraft.view.text import Paint, joined, left_out, one_line, table

SCHEMA = "fleetcraft.train-preflight/1"
_COLORS = {Answer.OK: "good", Answer.NO: "bad", Answer.CAUTION: "warn", Answer.NOT_KNOWN: "warn"}
_VERDICTS = {
    Answer.OK: "built as declared",
    Answer.CAUTION: "built as declared, with something to look at",
    Answer.NO: "not built as declared",
    Answer.NOT_KNOWN: "not everything could be compared",
}
_RANKS = 8


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """One preflight.

    Attributes:
        plan: What was declared.
        built: What the ranks have told.
        findings: The comparison.
        folder: The attempt.
        rehearsal: The launch, if there was one.
    """

    plan: RunPlan
    built: Built
    findings: tuple[Finding, ...]
    folder: str
    rehearsal: Rehearsal | None = None


def exit_code(preflight: Preflight) -> int:
    """0: as declared, cautions included. 1: not as declared. 7: not everything was told."""
    answer = worst(preflight.findings)
    if answer is Answer.NO:
        return 1
    rehearsal = preflight.rehearsal
    unclean = rehearsal is not None and not rehearsal.is_clean
    return 7 if answer is Answer.NOT_KNOWN or unclean else 0


def preflight_shape(preflight: Preflight) -> dict[str, Any]:
    """The JSON value of ``train preflight``."""
    rehearsal = preflight.rehearsal
    return {
        "schema": SCHEMA,
        "run": preflight.plan.run,
        "ok": exit_code(preflight) == 0,
        "folder": preflight.folder,
        "findings": msgspec.to_builtins(preflight.findings),
        "ranks": [
            {name: value for name, value in msgspec.to_builtins(report).items() if name != "schema"}
            for report in preflight.built.reports
        ],
        "problems": list(preflight.built.problems),
        "launch": None
        if rehearsal is None
        else {
            "seconds": rehearsal.seconds,
            "why": rehearsal.why,
            "stopped": msgspec.to_builtins(rehearsal.stopped),
            "clean": rehearsal.is_clean,
            "logs": list(rehearsal.log_paths),
        },
    }


def render_preflight(preflight: Preflight, *, paint: Paint, width: int | None = None) -> str:
    """The findings, what each rank holds, and the verdict."""
    return joined(
        [
            _findings(preflight.findings, paint, width),
            _ranks(preflight.built.reports, width),
            _launch(preflight.rehearsal, paint),
            _verdict(preflight, paint),
        ]
    )


def _findings(findings: Sequence[Finding], paint: Paint, width: int | None) -> str:
    lines = []
    answers = max(len(finding.answer.value) for finding in findings)
    subjects = [_subject(finding) for finding in findings]
    column = max(map(len, subjects))
    for finding, subject in zip(findings, subjects, strict=True):
        says = "; ".join(filter(None, (_against(finding), finding.detail)))
        head = f"{paint(_COLORS[finding.answer], f'{finding.answer.value:<{answers}}')}  "
        room = None if width is None else max(20, width - answers - column - 4)
        lines.append(f"{head}{subject:<{column}}  {one_line(says, room)}".rstrip())
    return "\n".join(lines)


def _subject(finding: Finding) -> str:
    name = one_line(finding.module)
    return f"{finding.subject} of {name}" if name else finding.subject


def _against(finding: Finding) -> str:
    if finding.declared and finding.found:
        return f"declared {finding.declared}, built {finding.found}"
    return finding.found or (f"declared {finding.declared}" if finding.declared else "")


def _ranks(reports: Sequence[BuiltReport], width: int | None) -> str:
    rows = [("rank", "node", "module", "parameters", "held", "sharded over", "wrapper")]
    for report in reports[:_RANKS]:
        for name, module in report.modules.items():
            shards = module.shard_group_size
            rows.append(
                (
                    str(report.rank),
                    one_line(report.node),
                    one_line(name),
                    _count(module.parameters),
                    format_bytes(module.held_bytes),
                    "" if shards is None else str(shards),
                    one_line(module.wrapper) or "none",
                )
            )
    if len(rows) == 1:
        return ""
    more = left_out(max(0, len(reports) - _RANKS), "more ranks; --json has all")
    return "\n".join([table(rows, indent="", width=width), *more])


def _launch(rehearsal: Rehearsal | None, paint: Paint) -> str:
    if rehearsal is None:
        return ""
    lines = []
    if rehearsal.why:
        lines.append(paint("bad", one_line(rehearsal.why)))
        lines += [f"log: {one_line(path)}" for path in rehearsal.log_paths]
    if not rehearsal.is_clean and rehearsal.stopped is not None:
        lines.append(paint("bad", f"something is left of it: {one_line(rehearsal.stopped.why)}"))
    return "\n".join(lines)


def _verdict(preflight: Preflight, paint: Paint) -> str:
    answer = worst(preflight.findings)
    said = f"{one_line(preflight.plan.run)}: {_VERDICTS[answer]}"
    built = preflight.plan.built
    declared = (preflight.plan.world_size, built.shard_group_size, built.activation_checkpointing)
    if not any(declared):
        said += " (the run file declares nothing to compare: see its keys world_size and built)"
    return paint(_COLORS[answer], said)


def _count(number: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)


class WaitProgress:
    """One line on a terminal that says how long it is waited for already.

    Args:
        on: Whether stderr is a terminal.
    """

    def __init__(self, on: bool) -> None:
        self._on = on
        self._shown = False

    def __call__(self, seconds: float) -> None:
        """Shows the seconds so far."""
        if self._on:
            sys.stderr.write(f"\rwaiting for every rank to tell: {format_seconds(seconds)}\x1b[K")
            sys.stderr.flush()
            self._shown = True

    def close(self) -> None:
        """Clears the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
