"""What ``calibrate check`` found: a line for each question, as text and as JSON, and its exit code.

Invariant: a question that could not be put is neither ok nor no, and has its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from fleetcraft.calibration.records import Environment
from fleetcraft.view.text import Paint, one_line, plural, table


class Answer(StrEnum):
    """How a check ended."""

    OK = "ok"
    NO = "no"
    NOT_RUN = "could not be run"
    NONE = "none"
    """There is nothing to check, which is no fault."""


_COLORS = {Answer.OK: "good", Answer.NO: "bad", Answer.NOT_RUN: "warn", Answer.NONE: "quiet"}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One check.

    Attributes:
        part: ``table``, ``row``, ``sdpa``, ``noise`` or ``family``.
        subject: What was checked: a path, a family, an attention backend.
        answer: How it ended.
        field: The field of the table that is to blame.
        failure: The class of the failure, as of a trial.
        detail: One sentence.
        measured: Largest difference found.
        is_bad_data: Whether a file is to blame that can no longer be trusted.
    """

    part: str
    subject: str
    answer: Answer
    field: str = ""
    failure: str = ""
    detail: str = ""
    measured: float | None = None
    is_bad_data: bool = False


def exit_code(lines: Sequence[Line]) -> int:
    """0: all is well. 7: a file that cannot be trusted, 1: a no, 7: a check that was not run."""
    answers = {line.answer for line in lines}
    if any(line.is_bad_data for line in lines):
        return 7
    if Answer.NO in answers:
        return 1
    return 7 if Answer.NOT_RUN in answers else 0


def check_shape(
    lines: Sequence[Line],
    device: str,
    environment: Environment | None,
    not_usable: Mapping[str, str],
) -> dict[str, Any]:
    """The JSON value of ``calibrate check``."""
    return {
        "schema": "fleetcraft.calibrate_check/1",
        "ok": exit_code(lines) == 0,
        "device": device,
        "environment": None if environment is None else msgspec.to_builtins(environment),
        "checks": [
            {
                "part": line.part,
                "subject": line.subject,
                "answer": line.answer.value,
                "field": line.field,
                "class": line.failure or None,
                "detail": line.detail,
                "measured": _finite(line.measured),
            }
            for line in lines
        ],
        "not_usable": dict(not_usable),
    }


def _finite(value: float | None) -> float | None:
    """JSON has no word for what is not finite; the sentence beside it says it."""
    return value if value is not None and math.isfinite(value) else None


def render_check(
    lines: Sequence[Line],
    environment: Environment | None,
    not_usable: Mapping[str, str],
    *,
    paint: Paint,
    width: int | None = None,
) -> str:
    """The text of ``calibrate check``."""
    rows = [
        [line.part, one_line(line.subject), line.answer.value, one_line(line.detail)]
        for line in lines
    ]
    printed = table(rows, indent="", width=width).split("\n") if rows else []
    coloured = [
        text if line.answer is Answer.OK else paint(_COLORS[line.answer], text)
        for line, text in zip(lines, printed, strict=True)
    ]
    unusable = [
        paint("quiet", f"attention backend {name} cannot run here: {one_line(reason)}")
        for name, reason in not_usable.items()
    ]
    return "\n".join([*_where(environment), *coloured, *unusable, _sum(lines, paint)])


def _where(environment: Environment | None) -> list[str]:
    if environment is None:
        return []
    parts = [environment.device, f"torch {environment.torch}", f"attention {environment.sdpa}"]
    if environment.alloc:
        parts.append(f"allocator {environment.alloc}")
    return [", ".join(one_line(part) for part in parts)]


def _sum(lines: Sequence[Line], paint: Paint) -> str:
    count = {answer: sum(line.answer is answer for line in lines) for answer in Answer}
    words = f"{plural(count[Answer.OK], 'check')} ok"
    if count[Answer.NO]:
        words += ", " + paint("bad", f"{count[Answer.NO]} no")
    if count[Answer.NOT_RUN]:
        words += ", " + paint("warn", f"{count[Answer.NOT_RUN]} could not be run")
    return words
