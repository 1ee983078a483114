"""What an examination finds: one finding for each thing that was looked at, and what to do.

Records only; who looks is not here. Invariant: what could not be looked at is `Verdict.UNKNOWN`
with its reason, and the answer of an examination in which nothing could be is not "fine".
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """What a finding means: ``wrong`` has to be put right, ``advice`` is worth knowing."""

    OK = "ok"
    ADVICE = "advice"
    WRONG = "wrong"
    UNKNOWN = "unknown"


class Answer(StrEnum):
    """What an examination says in one word: ``unknown`` if nothing at all could be checked."""

    FINE = "fine"
    WRONG = "wrong"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """What the command exits with: 0, 1 or 7."""
        return {Answer.FINE: 0, Answer.WRONG: 1, Answer.UNKNOWN: 7}[self]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        section: Its subject, such as ``scratch``; the examiner fills it in.
        name: What was looked at.
        verdict: What it means.
        found: What is there, in words; of an unknown, why it is not known.
        expected: What should be there; empty where `found` says it all.
        hint: What to do: the next command, or a step.
    """

    section: str = ""
    name: str
    verdict: Verdict
    found: str
    expected: str = ""
    hint: str = ""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found on one machine.

    Attributes:
        host: The machine.
        user: The user's number.
        made_at: When it began.
        quick: Whether slow checks were left out.
        findings: In the order of the sections.
        left_out: Checks that were not made because it was to be quick, as ``section: name``.
    """

    host: str
    user: int
    made_at: str
    quick: bool
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...] = ()

    def count(self, verdict: Verdict) -> int:
        """How many findings have a verdict."""
        return Counter(finding.verdict for finding in self.findings)[verdict]

    @property
    def answer(self) -> Answer:
        """The answer: wrong if anything is, fine if something was checked and nothing is wrong."""
        if self.count(Verdict.WRONG):
            return Answer.WRONG
        checked = len(self.findings) - self.count(Verdict.UNKNOWN)
        return Answer.FINE if checked else Answer.UNKNOWN


def ok(name: str, found: str, expected: str = "") -> Finding:
    """A finding with which all is well."""
    return Finding(name=name, verdict=Verdict.OK, found=found, expected=expected)


def advice(name: str, found: str, expected: str = "", hint: str = "") -> Finding:
    """A finding that is worth knowing and stops nothing."""
    return Finding(name=name, verdict=Verdict.ADVICE, found=found, expected=expected, hint=hint)


def wrong(name: str, found: str, expected: str = "", hint: str = "") -> Finding:
    """A finding that has to be put right."""
    return Finding(name=name, verdict=Verdict.WRONG, found=found, expected=expected, hint=hint)


def unknown(name: str, reason: str, hint: str = "") -> Finding:
    """A finding about something that could not be looked at."""
    return Finding(name=name, verdict=Verdict.UNKNOWN, found=reason, hint=hint)
