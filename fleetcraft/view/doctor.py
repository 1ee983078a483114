"""What an examination found, as text and as JSON.

Every text of a finding may hold a file's name or a program's words, so all is made printable.
Invariant: what is wrong stands in the last line too, whatever scrolled by before it.
"""

from __future__ import annotations

from itertools import groupby
from textwrap import wrap
from typing import Any

from fleetcraft.doctor.findings import Answer, Examination, Finding, Verdict
from fleetcraft.view.text import Paint, joined, one_line, plural

_MARKS = {
    Verdict.OK: ("ok", "good"),
    Verdict.ADVICE: ("advice", "warn"),
    Verdict.WRONG: ("WRONG", "bad"),
    Verdict.UNKNOWN: ("unknown", "quiet"),
}
_MARK_WIDTH = 9
_NAME_WIDTH = 22
_LEAST_TEXT_WIDTH = 40
_ANSWERS = {
    Answer.FINE: ("fine: nothing that was checked is wrong", "good"),
    Answer.WRONG: ("something has to be put right", "bad"),
    Answer.UNKNOWN: ("unknown: nothing could be checked", "bad"),
}


def doctor_shape(found: Examination) -> dict[str, Any]:
    """The JSON value of ``doctor``; findings in the order of the sections."""
    return {
        "schema": "fleetcraft.doctor/1",
        "host": found.host,
        "user": found.user,
        "made_at": found.made_at,
        "quick": found.quick,
        "answer": found.answer.value,
        "exit_code": found.answer.exit_code,
        "counts": {verdict.value: found.count(verdict) for verdict in Verdict},
        "left_out": list(found.left_out),
        "findings": [
            {
                "section": finding.section,
                "name": finding.name,
                "verdict": finding.verdict.value,
                "found": finding.found,
                "expected": finding.expected,
                "hint": finding.hint,
            }
            for finding in found.findings
        ],
    }


def render_doctor(
    found: Examination, *, problems: bool = False, paint: Paint, width: int | None = None
) -> str:
    """The findings, section by section, and the answer.

    Args:
        found: The examination.
        problems: Leave out what is well.
        paint: Colours.
        width: Where lines are wrapped; None never wraps.
    """
    shown = [one for one in found.findings if not (problems and one.verdict is Verdict.OK)]
    # One column for all sections; a longer name moves its own line only.
    wide = min(_NAME_WIDTH, max((len(one_line(one.name)) for one in shown), default=0))
    sections = [
        _section(section, list(findings), wide, paint, width)
        for section, findings in groupby(shown, key=lambda one: one.section)
    ]
    left_out = ""
    if found.left_out:
        left_out = f"not checked, to be quick: {', '.join(found.left_out)}"
    return joined([*sections, left_out, summary(found, paint)])


def summary(found: Examination, paint: Paint) -> str:
    """One line: the answer and how many findings there are of each kind."""
    words, colour = _ANSWERS[found.answer]
    counts = ", ".join(
        f"{found.count(verdict)} {verdict.value}"
        for verdict in (Verdict.WRONG, Verdict.ADVICE, Verdict.UNKNOWN, Verdict.OK)
    )
    total = plural(len(found.findings), "finding")
    return f"{paint(colour, words)} ({total} on {one_line(found.host)}: {counts})"


def _section(name: str, findings: list[Finding], wide: int, paint: Paint, width: int | None) -> str:
    lines = [paint("strong", name)]
    for finding in findings:
        lines += _finding(finding, wide, paint, width)
    return "\n".join(lines)


def _finding(finding: Finding, wide: int, paint: Paint, width: int | None) -> list[str]:
    word, colour = _MARKS[finding.verdict]
    head = f"  {paint(colour, word)}{' ' * (_MARK_WIDTH - len(word))}"
    head += f"{one_line(finding.name):<{wide}}  "
    indent = " " * (2 + _MARK_WIDTH + wide + 2)
    lines = _wrapped(finding.found, width, len(indent))
    told = [head + lines[0], *(indent + line for line in lines[1:])]
    if finding.verdict is Verdict.OK:
        return told
    if finding.expected:
        told += _more("expected", finding.expected, indent, width)
    if finding.hint:
        told += _more("hint", finding.hint, indent, width)
    return told


def _more(word: str, text: str, indent: str, width: int | None) -> list[str]:
    return [indent + line for line in _wrapped(f"{word}: {text}", width, len(indent))]


def _wrapped(text: str, width: int | None, indent: int) -> list[str]:
    line = one_line(text)
    if width is None:
        return [line]
    room = max(_LEAST_TEXT_WIDTH, width - indent)
    # A path or command that is longer than a line stays whole: it is there to be copied.
    return wrap(line, room, break_long_words=False, break_on_hyphens=False) or [""]
