"""Reading what Slurm prints: tables with an exact header, and the values in their cells.

Not here: asking. Invariant: text without exactly the header that was asked for, or with one row
that does not fit it, is a NoAnswerError; and a cell that holds no number is None, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fleetcraft.errors import NoAnswerError

# Names, comments and reasons are free text. No keyboard types these two, so they separate.
_FIELD_END = "\x1f"
_ROW_END = "\x1e"
_CLUSTER_LINE = re.compile(r"CLUSTER: ([\w.-]+)")
_DURATION = re.compile(r"(?:(\d{1,9})-)?(?:(?:(\d{1,9}):)?(\d{1,9}):)?(\d{1,9})", re.ASCII)
_MOST_DIGITS = 20
"""Slurm counts in 64 bits; what has more digits is damage, and Python refuses to read thousands."""
_EMPTY = frozenset({"", "(null)", "N/A", "n/a", "None", "none", "NULL"})

Row = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The rows of one table, and the cluster that it says it is about, if it says so."""

    rows: list[Row]
    cluster: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongTable:
    """A table of squeue or sinfo, asked for with ``-O``.

    Args:
        program: Whose table it is.
        columns: Field name as ``-O`` takes it, with the title that stands above it; with a bar
            between where versions differ.

    Each field ends with a control character instead of being cut or padded to a width, and each
    row with another, so that any text can stand in a field.
    """

    program: str
    columns: tuple[tuple[str, str], ...]

    @property
    def format(self) -> str:
        """The argument of ``-O``."""
        ends = [_FIELD_END] * (len(self.columns) - 1) + [_ROW_END]
        return ",".join(
            f"{field}:{end}" for (field, _), end in zip(self.columns, ends, strict=True)
        )

    def read(self, text: str) -> Answer:
        """Reads the table.

        Raises:
            NoAnswerError: It has not this header, or a row does not fit it.
        """
        text, cluster = _without_cluster_line(text)
        header, *rows = text.split(f"{_ROW_END}\n")
        _check_header(self.program, self.columns, header.split(_FIELD_END), text)
        _check_end(self.program, rows)
        fields = [field for field, _ in self.columns]
        return Answer(
            rows=list(_as_rows(self.program, fields, (row.split(_FIELD_END) for row in rows))),
            cluster=cluster,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BarTable:
    """A table of sacct, sacctmgr or sshare, asked for with ``--parsable2``.

    These print a bar between fields and know no other way in every version, so that only fields
    are asked for in which none can stand.

    Args:
        program: Whose table it is.
        columns: Field name as ``--format`` takes it, with the title that stands above it.
    """

    program: str
    columns: tuple[tuple[str, str], ...]

    @property
    def format(self) -> str:
        """The argument of ``--format``."""
        return ",".join(field for field, _ in self.columns)

    def read(self, text: str) -> Answer:
        """Reads the table.

        Raises:
            NoAnswerError: It has not this header, or a row does not fit it.
        """
        text, cluster = _without_cluster_line(text)
        header, *rows = text.split("\n")
        _check_header(self.program, self.columns, header.split("|"), text)
        _check_end(self.program, rows)
        fields = [field for field, _ in self.columns]
        cells = (row.split("|") for row in rows)
        return Answer(rows=list(_as_rows(self.program, fields, cells)), cluster=cluster)


def _check_header(
    program: str, columns: Sequence[tuple[str, str]], titles: list[str], text: str
) -> None:
    if len(titles) != len(columns) or not all(
        found in title.split("|") for found, (_, title) in zip(titles, columns, strict=True)
    ):
        raise NoAnswerError(program, _wrong_header(text))


def _check_end(program: str, rows: list[str]) -> None:
    """Takes off what stands behind the last row's end; it must be there and be empty."""
    if not rows or rows.pop():
        raise NoAnswerError(program, "what it printed is cut off")


def _without_cluster_line(text: str) -> tuple[str, str | None]:
    # Printed above the header where SLURM_CLUSTERS says whom to ask.
    first, _, rest = text.partition("\n")
    found = _CLUSTER_LINE.fullmatch(first)
    return (rest, found[1]) if found else (text, None)


def _as_rows(program: str, names: Sequence[str], rows: Iterator[list[str]]) -> Iterator[Row]:
    for number, cells in enumerate(rows, start=1):
        if len(cells) != len(names):
            reason = f"row {number} has {len(cells)} fields instead of {len(names)}"
            raise NoAnswerError(program, reason)
        yield dict(zip(names, cells, strict=True))


def _wrong_header(text: str) -> str:
    if not text.strip():
        return "it printed nothing, not even a header"
    shown = "".join(c if c.isprintable() else " " for c in text.partition("\n")[0])[:120]
    return f"its first line is not the header that was asked for: {shown!r}"


def text_or_none(cell: str) -> str | None:
    """The text of a cell; None where Slurm prints one of its words for nothing."""
    cell = cell.strip()
    return None if cell in _EMPTY else cell


def count_or_none(cell: str) -> int | None:
    """A whole number of at least 0; None for anything else (``N/A``, ``UNLIMITED``, ``1+``)."""
    cell = cell.strip()
    is_count = cell.isdecimal() and cell.isascii() and len(cell) <= _MOST_DIGITS
    return int(cell) if is_count else None


def amounts(text: str) -> dict[str, int]:
    """Reads ``cpu=5000,node=100,gres/gpu=8``; what is no number is left out."""
    pairs = (part.partition("=") for part in text.split(","))
    found = ((name.strip(), count_or_none(value)) for name, _, value in pairs)
    return {name: value for name, value in found if value is not None}


def duration_s_or_none(cell: str) -> int | None:
    """A time as ``[D-]HH:MM:SS``, ``MM:SS`` or ``D-HH:MM``, in seconds; None for anything else.

    ``UNLIMITED``, ``INVALID``, ``NOT_SET``, ``N/A`` and ``Partition_Limit`` are no numbers.
    """
    cell = cell.strip()
    found = _DURATION.fullmatch(cell)
    if found is None or ":" not in cell:
        return None
    days, first, second, third = (int(part) if part else 0 for part in found.groups())
    if found[1] and not found[2]:
        return days * 86400 + second * 3600 + third * 60
    return days * 86400 + first * 3600 + second * 60 + third


def time_or_none(cell: str) -> datetime | None:
    """A time printed as seconds since 1970; None for anything else (``N/A``, ``Unknown``, 0)."""
    seconds = count_or_none(cell)
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None
