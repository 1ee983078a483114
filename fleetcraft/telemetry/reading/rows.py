"""Which lines of a block are rows, how each is laid out, and what the others are.

Reads no values. Invariant: a line that is no row is counted by kind, a header once, and a row is
read by the newest header above it that has as many cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fleetcraft.telemetry.reading.cells import Bools, Ints, Lines
from fleetcraft.telemetry.reading.counts import Example, Rejection, RowCounts, excerpt
from fleetcraft.telemetry.reading.headers import Layout, layouts_without_header, read_header
from fleetcraft.telemetry.reading.lines import MAX_LINE_BYTES
from fleetcraft.telemetry.reading.times import NO_TIME, parse_times

_LIKE_A_TIME = re.compile(rb"\d{4}[-/]\d")
_LETTERS = re.compile(rb"[A-Za-z\x80-\xff]{2}")
_NUMBER_CELL = re.compile(rb",\s*[-+.]?\d")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class Rows(NamedTuple):
    """Rows of one layout: their lines, microseconds since 1970, and which name their zone [N]."""

    layout: Layout
    line: Ints
    t_us: Ints
    zoned: Bools


class RowFinder:
    """Goes through the blocks of one file in order.

    Args:
        counts: What to count in.
    """

    def __init__(self, counts: RowCounts) -> None:
        self._counts = counts
        self._layouts = layouts_without_header()
        self._by_count = {layout.count: n for n, layout in enumerate(self._layouts)}
        self._header: Layout | None = None

    def find(self, lines: Lines, offset: int) -> list[Rows]:
        """The rows of one block, a group for each layout; everything else is counted.

        Args:
            lines: The block's lines.
            offset: Where the block begins in the file, in bytes.
        """
        before = self._counts.lines
        self._counts.lines += len(lines)
        judge = _Judge(self._counts, lines, before, offset)
        left = np.ones(len(lines), dtype=bool)
        lengths = np.diff(lines.breaks, prepend=-1) - 1
        judge.take(left, Rejection.TOO_LONG, np.flatnonzero(lengths > MAX_LINE_BYTES))
        judge.take(left, Rejection.NUL_BYTES, lines.having(0))
        blank = left & (lines.start == lines.end)
        self._counts.blank += int(blank.sum())
        left &= ~blank
        layout_of = self._lay_out(lines, left, judge)
        return self._timed(lines, left, layout_of, judge)

    def too_long(self, offset: int) -> None:
        """Counts a line that was too long to be kept."""
        self._alone(Rejection.TOO_LONG, offset)

    def torn_tail(self, offset: int) -> None:
        """Counts what stands at the end without a newline."""
        self._alone(Rejection.TORN_TAIL, offset)

    def _alone(self, kind: Rejection, offset: int) -> None:
        self._counts.lines += 1
        self._counts.reject(kind, 1, [Example(line=self._counts.lines, offset=offset, excerpt="")])

    def _lay_out(self, lines: Lines, left: Bools, judge: _Judge) -> Ints:
        """The layout of each line, by number, -1 where none has as many cells [L]."""
        layout_of: Ints = np.full(len(lines), -1, dtype=np.int64)
        begin = 0
        has_header = self._header is not None
        for line, layout in self._headers(lines, left, judge):
            self._fill(layout_of, lines, begin, line)
            if not has_header:
                self._by_count.clear()  # a row that was cut short is none of the archives' form
                has_header = True
            begin = line
            self._by_count[layout.count] = len(self._layouts)
            self._layouts.append(layout)
        self._fill(layout_of, lines, begin, len(lines))
        return layout_of

    def _fill(self, layout_of: Ints, lines: Lines, begin: int, end: int) -> None:
        cells = lines.cells[begin:end]
        for count, number in self._by_count.items():
            layout_of[begin:end][cells == count] = number

    def _headers(self, lines: Lines, left: Bools, judge: _Judge) -> Iterator[tuple[int, Layout]]:
        """The headers that change how rows are laid out, with their lines."""
        not_digit = lines.buf[lines.start] - np.uint8(48) > 9
        for line in np.flatnonzero(left & not_digit):
            layout = read_header(lines.text(int(line)))
            if layout is None:
                continue
            if self._header is None:
                self._counts.headers += 1
                left[line] = False
            else:
                judge.take(left, Rejection.HEADER_AGAIN, line.reshape(1))
            if layout != self._header:
                self._header = layout
                yield int(line), layout

    def _timed(self, lines: Lines, left: Bools, layout_of: Ints, judge: _Judge) -> list[Rows]:
        groups = []
        timeless = [np.flatnonzero(left & (layout_of < 0))]
        for number in np.unique(layout_of[left]):
            if number < 0:
                continue
            layout = self._layouts[number]
            group = np.flatnonzero(left & (layout_of == number))
            start, end = lines.bounds(group, layout.columns["timestamp"], layout.count)
            t_us, zoned = parse_times(lines, start, end)
            good = t_us != NO_TIME
            timeless.append(group[~good])
            if good.any():
                groups.append(Rows(layout, group[good], t_us[good], zoned[good]))
        judge.name(np.sort(np.concatenate(timeless)), layout_of)
        return groups


class _Judge:
    """Counts the lines of one block that are no rows."""

    def __init__(self, counts: RowCounts, lines: Lines, before: int, offset: int) -> None:
        self._counts = counts
        self._lines = lines
        self._before = before
        self._offset = offset

    def take(self, left: Bools, kind: Rejection, which: Ints) -> None:
        """Rejects those of some lines that are left."""
        which = which[left[which]]
        if len(which):
            left[which] = False
            self._counts.reject(kind, len(which), (self._example(line) for line in which[:3]))

    def name(self, which: Ints, layout_of: Ints) -> None:
        """Rejects lines in which no time was found, or too many or too few cells."""
        for line in which:
            kind = _what_it_is(self._lines.text(int(line)), has_layout=layout_of[line] >= 0)
            wanted = self._counts.wants_example(kind)
            self._counts.reject(kind, 1, [self._example(line)] if wanted else ())

    def _example(self, line: int) -> Example:
        return Example(
            line=self._before + int(line) + 1,
            offset=self._offset + (int(self._lines.breaks[line - 1]) + 1 if line else 0),
            excerpt=excerpt(self._lines.text(line)),
        )


def _what_it_is(line: bytes, *, has_layout: bool) -> Rejection:
    if _CONTROL.search(line) or not _is_utf8(line):
        return Rejection.NOT_TEXT
    if _LIKE_A_TIME.match(line):
        return Rejection.BAD_TIME if has_layout else Rejection.WRONG_COLUMNS
    if has_layout and _NUMBER_CELL.search(line):
        return Rejection.BAD_TIME
    if _LETTERS.search(line):
        return Rejection.SENTENCE
    return Rejection.BAD_TIME if has_layout else Rejection.WRONG_COLUMNS


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
