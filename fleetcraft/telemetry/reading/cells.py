"""Cells of many lines at once: where they are, what they say, and which number that is.

Works on the bytes of a block with numpy and knows no column's meaning. Invariant: a number is the
one that ``float`` gives for the same text; what is not plainly one is given back as text.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LONGEST_TEXT = 512
"""Texts are compared and kept up to this many bytes."""
_PAD = 520  # behind the last line, so that a window may begin in any cell
_WIDEST_NUMBER = 18
_EXACT_DIGITS = 15  # so many are exact in a double, and so is their quotient by a power of ten
_SPACES = b"\t\r "
_SPACE = np.zeros(256, dtype=bool)
_SPACE[list(_SPACES)] = True
_USUAL_SPACES = 4
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, and without a pattern in its bits
_TENS = 10.0 ** np.arange(_WIDEST_NUMBER + 1)
_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_UNITS = (b"%", b"W", b"MiB", b"MHz", b"J", b"C")  # as nvidia-smi writes them behind a space
_NEWLINE, _COMMA, _DOT, _MINUS, _ZERO = 10, 44, 46, 45, 48


class Lines:
    """The lines of one block.

    Args:
        data: Whole lines, newlines included.

    Attributes:
        buf: The bytes, with some zeros behind them [B].
        start, end: Where each line begins and ends, without newline and surrounding spaces [L].
        cells: How many cells each line has [L].
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.buf: Bytes = np.frombuffer(data + bytes(_PAD), dtype=np.uint8)
        newlines = np.flatnonzero(self.buf == _NEWLINE)
        self.breaks: Ints = newlines
        self.start, self.end = self.strip(np.append(0, newlines[:-1] + 1), newlines)
        self._commas: Ints = np.flatnonzero(self.buf == _COMMA)
        edges = np.searchsorted(self._commas, newlines)
        self._first: Ints = np.append(0, edges[:-1])  # comma of each line
        self.cells: Ints = edges - self._first + 1

    def __len__(self) -> int:
        return len(self.start)

    def text(self, line: int) -> bytes:
        """One line."""
        return self.data[int(self.start[line]) : int(self.end[line])]

    def having(self, byte: int) -> Ints:
        """The lines in which this byte stands."""
        positions = np.flatnonzero(self.buf[: len(self.data)] == byte)
        return np.unique(np.searchsorted(self.breaks, positions))

    def bounds(self, rows: Ints, column: int, of: int) -> tuple[Ints, Ints]:
        """Where a cell begins and ends, without surrounding spaces.

        Args:
            rows: Lines, all with ``of`` cells [N].
            column: Which cell.
            of: How many there are.
        """
        first = self._first[rows]
        start = self.start[rows] if column == 0 else self._commas[first + column - 1] + 1
        end = self.end[rows] if column == of - 1 else self._commas[first + column]
        return self.strip(start, end)

    def strip(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Leaves out spaces at both ends."""
        for _ in range(_USUAL_SPACES):
            lead = _SPACE[self.buf[start]] & (start < end)
            start = start + lead
            trail = _SPACE[self.buf[end - 1]] & (start < end)
            end = end - trail
            if not (lead.any() or trail.any()):
                return start, end
        for row in np.flatnonzero(lead | trail):  # a cell of thousands of them must not cost rounds
            text = self.data[int(start[row]) : int(end[row])]
            start[row] += len(text) - len(text.lstrip(_SPACES))
            end[row] -= len(text) - len(text.rstrip(_SPACES)) if text.strip(_SPACES) else 0
        return start, end

    def window(self, start: Ints, width: int) -> Bytes:
        """The bytes from each start on [N, width]."""
        return np.lib.stride_tricks.sliding_window_view(self.buf, width)[start]

    def without_units(self, start: Ints, end: Ints) -> Ints:
        """The ends of cells, before a unit."""
        for unit in _UNITS:
            there = (end - start) > len(unit)
            for back, byte in enumerate(reversed(unit), 1):
                there &= self.buf[end - back] == byte
                if not there.any():
                    break
            else:
                end = self.strip(start, end - there * len(unit))[1]
        return end


def numbers(lines: Lines, start: Ints, end: Ints) -> tuple[Floats, Bools]:
    """Plain decimal numbers of cells.

    Returns:
        Values, NaN where a cell is none of at most 15 digits, and where it is one [N].
    """
    end = lines.without_units(start, end)
    length = end - start
    window = np.ascontiguousarray(lines.window(start, _WIDEST_NUMBER).T)
    negative = (window[0] == _MINUS) & (length > 1)
    mantissa = np.zeros(len(start), dtype=np.int64)
    digits = np.zeros(len(start), dtype=np.int64)
    decimals = np.zeros(len(start), dtype=np.int64)
    dots = np.zeros(len(start), dtype=np.int64)
    for place in range(int(min(_WIDEST_NUMBER, length.max(initial=0)))):
        inside = place < length
        digit = window[place] - np.uint8(_ZERO)  # anything else wraps to 10 and more
        is_digit = (digit <= 9) & inside
        mantissa = np.where(is_digit, mantissa * 10 + digit, mantissa)
        digits += is_digit
        decimals += is_digit & (dots > 0)
        dots += (window[place] == _DOT) & inside
    plain = (digits + dots + negative == length) & (dots <= 1)
    plain &= (digits >= 1) & (digits <= _EXACT_DIGITS)
    values = np.where(plain, mantissa / _TENS[np.minimum(decimals, _WIDEST_NUMBER)], np.nan)
    return np.where(negative & (values != 0), -values, values), plain


def number_or_none(text: bytes) -> float | None:
    """The number that one cell says, with or without a unit; None when it says none."""
    for unit in _UNITS:
        text = text.removesuffix(unit).rstrip()
    return float(text) if _NUMBER.fullmatch(text) else None


def distinct(lines: Lines, start: Ints, end: Ints) -> tuple[Ints, list[bytes]]:
    """The different texts of cells.

    Returns:
        For each cell the place of its text in the list [N], and the texts in the order in which
        they come, each cut to 512 bytes.
    """
    if not len(start):
        return np.zeros(0, dtype=np.int64), []
    length = np.minimum(end - start, LONGEST_TEXT)
    width = max(8, -(-int(length.max()) // 8) * 8)
    window = lines.window(start, width)
    window = window * (np.arange(width) < length[:, None])
    codes, samples = _group(np.ascontiguousarray(window).view(np.uint64))
    first = start[samples]
    sizes = length[samples]
    texts = [lines.data[at : at + size] for at, size in zip(first, sizes, strict=True)]
    return codes, texts


def _group(words: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Equal rows of words [N, W]: the group of each row [N], and one row of each group."""
    if (words == words[0]).all():
        return np.zeros(len(words), dtype=np.int64), np.zeros(1, dtype=np.int64)
    odd = np.cumprod(np.full(words.shape[1], _MIX))  # modulo 2**64
    mixed = (words * odd).sum(axis=1, dtype=np.uint64)
    _, samples, codes = np.unique(mixed, return_index=True, return_inverse=True)
    if not (words[samples][codes] == words).all():  # two texts with one sum: compare them whole
        _, samples, codes = np.unique(words, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(samples)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place[codes.reshape(-1)], samples[order]
