"""What a reader counts beside the samples: rows by kind, rejected lines, cells without a value.

Invariant: every line of a file is counted exactly once, as a row of its kind, a header, a blank
line, or rejected; what is kept for people is bounded in number and length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

import msgspec

OUT_OF_RANGE = "out of range"
MORE_THAN_TOTAL = "more than the total"
OTHER = "other"
_MAX_TEXTS = 24
_MAX_TEXT = 40
_MAX_EXAMPLES = 3
_MAX_EXCERPT = 60


class Rejection(StrEnum):
    """Why a line is no row."""

    TORN_TAIL = "torn_tail"
    """The end of the file without a newline: a row may be half a row, its last number too short."""
    HEADER_AGAIN = "header_again"
    NUL_BYTES = "nul_bytes"
    TOO_LONG = "too_long"
    NOT_TEXT = "not_text"
    """No UTF-8, or control characters, and no time."""
    WRONG_COLUMNS = "wrong_columns"
    BAD_TIME = "bad_time"
    SENTENCE = "sentence"
    """Words where a row should be, such as what a driver says when a GPU is lost."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One rejected line.

    Attributes:
        line: Its number, from 1.
        offset: Where it begins, in bytes.
        excerpt: Its beginning, in printable characters.
    """

    line: int
    offset: int
    excerpt: str


class RowCounts(msgspec.Struct, kw_only=True):
    """What was counted in one file, or in several.

    Attributes:
        kinds: Rows by kind, ``gpu``, ``mig``, ``host``, ``event``, ``heartbeat``.
        rejected: Lines that are no rows, by `Rejection`; a torn tail is one.
        statuses: Rows of every kind by their status; a row without one is not among them.
        missing: Cells of GPU rows without a value, by column and text as found; an empty cell has
            the empty text, a number that cannot be is ``out of range``.
        causes: The same cells by column and cause, where the row itself names one.
        headers: Header lines that opened a form of row; those again are rejected.
        blank: Lines of nothing but spaces.
        lines: All lines, a torn tail among them.
        examples: The first rejected lines of each kind.
    """

    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    statuses: dict[str, int] = msgspec.field(default_factory=dict)
    missing: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    causes: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    headers: int = 0
    blank: int = 0
    lines: int = 0
    examples: dict[str, list[Example]] = msgspec.field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of every kind."""
        return sum(self.kinds.values())

    @property
    def rejected_total(self) -> int:
        """Rejected lines of every kind."""
        return sum(self.rejected.values())

    def count_kind(self, text: str, number: int) -> None:
        """Counts rows of one kind."""
        _count(self.kinds, text, number)

    def count_status(self, text: str, number: int) -> None:
        """Counts rows of one status."""
        _count(self.statuses, text, number)

    def count_missing(self, column: str, text: str, number: int) -> None:
        """Counts cells of one column without a value."""
        _count(self.missing.setdefault(column, {}), text, number)

    def count_cause(self, column: str, cause: str, number: int) -> None:
        """Counts cells of one column whose row says why they are empty."""
        _count(self.causes.setdefault(shown(column), {}), cause, number)

    def reject(self, kind: Rejection, number: int, examples: Iterable[Example] = ()) -> None:
        """Counts rejected lines of one kind; of the examples the first few are kept."""
        self.rejected[kind.value] = self.rejected.get(kind.value, 0) + number
        kept = self.examples.setdefault(kind.value, [])
        for example in examples:
            if len(kept) == _MAX_EXAMPLES:
                return
            kept.append(example)

    def wants_example(self, kind: Rejection) -> bool:
        """Whether fewer than enough examples of one kind are kept."""
        return len(self.examples.get(kind.value, ())) < _MAX_EXAMPLES

    def add(self, other: RowCounts) -> None:
        """Adds what was counted elsewhere, without its examples."""
        self.kinds = _sum(self.kinds, other.kinds)
        self.statuses = _sum(self.statuses, other.statuses)
        self.rejected = _sum(self.rejected, other.rejected)
        self.headers += other.headers
        self.blank += other.blank
        self.lines += other.lines
        for mine, theirs in ((self.missing, other.missing), (self.causes, other.causes)):
            for column, texts in theirs.items():
                for text, number in texts.items():
                    _count(mine.setdefault(column, {}), text, number)


def shown(text: str | bytes, longest: int = _MAX_TEXT) -> str:
    """A text of a file in one short line of printable characters."""
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    text = "".join(c if c.isprintable() else "�" for c in text[: longest + 1])
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def excerpt(line: bytes) -> str:
    """The beginning of a line, for people."""
    return shown(line[: 4 * _MAX_EXCERPT], _MAX_EXCERPT)


def _count(counts: dict[str, int], text: str, number: int) -> None:
    text = shown(text)
    if text not in counts and len(counts) >= _MAX_TEXTS:
        text = OTHER
    counts[text] = counts.get(text, 0) + number


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return dict(Counter(one) + Counter(other))
