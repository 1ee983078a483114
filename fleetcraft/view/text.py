"""Text for people: aligned columns, colour where a terminal shows it, nothing that could hurt it.

Invariant: a name is never cut; only the last column of a table gives way, and only on a terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

_KEPT = (9, 10)
_CONTROLS = tuple(c for c in (*range(32), *range(127, 160)) if c not in _KEPT)
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LINES = (0x2028, 0x2029)
_SPELLED = {
    **{c: f"\\x{c:02x}" for c in _CONTROLS},
    # They show text in another order than it has, so that a name looks like another one.
    **{c: f"\\u{c:04x}" for c in (*_DIRECTIONS, *_LINES)},
}
_CODES = {"bad": "31", "good": "32", "warn": "33", "quiet": "2", "strong": "1"}
_PAINTED = re.compile(rf"(\x1b\[(?:0|{'|'.join(_CODES.values())})m)|[^\n -~]")


def printable(text: str) -> str:
    """Text whose control characters are spelled out: terminal escapes, and those that turn text."""
    return text.translate(_SPELLED)


def one_line(text: str, width: int | None = None) -> str:
    """A text as one printable line, cut to a width if one is given."""
    line = printable(text.replace("\n", "\\n").replace("\t", " "))
    return line if width is None or len(line) <= width else f"{line[: max(1, width - 1)]}…"


def harmless(text: str) -> str:
    """A whole output, in which no escape is left but the colours of `Paint`.

    What comes from files is made printable where it is put into the text; this is the last door.
    """
    if text.isprintable():
        return text
    return _PAINTED.sub(lambda found: found[1] or printable(found[0]), text)


class Paint:
    """Colours text, or leaves it alone.

    Args:
        on: Whether to colour.
    """

    def __init__(self, on: bool) -> None:
        self._on = on

    @classmethod
    def for_stream(cls, stream: IO[Any], environ: Mapping[str, str] | None = None) -> Paint:
        """Colour only on a terminal that has it and whose user did not say no (NO_COLOR)."""
        environ = os.environ if environ is None else environ
        wanted = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        return cls(wanted and stream.isatty())

    def __call__(self, kind: str, text: str) -> str:
        """The text as ``bad``, ``good``, ``warn``, ``quiet`` or ``strong``."""
        return f"\x1b[{_CODES[kind]}m{text}\x1b[0m" if self._on and text else text


def table(rows: Sequence[Sequence[str]], *, indent: str = "  ", width: int | None = None) -> str:
    """Rows in aligned columns, two spaces apart.

    Args:
        rows: Cells as text; rows may differ in length.
        indent: Stands before every row.
        width: Where the last column is cut; None never cuts.
    """
    if not rows:
        return ""
    count = max(len(row) for row in rows)
    widths = [max(len(row[i]) if i < len(row) - 1 else 0 for row in rows) for i in range(count)]
    lines = []
    for row in rows:
        head = indent + "".join(f"{cell:<{widths[i]}}  " for i, cell in enumerate(row[:-1]))
        room = None if width is None else max(12, width - len(head))
        lines.append((head + one_line(row[-1], room)).rstrip())
    return "\n".join(lines)


def left_out(count: int, what: str = "more") -> list[str]:
    """The line that says how many entries a list does not show; none if it shows all."""
    return [f"  ... and {count} {what}"] if count else []


def plural(count: int, noun: str, many: str = "") -> str:
    """``1 task``, ``2 tasks``."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def how_it_ended(outcome: str | None, exit_code: int | None, signal: int | None = None) -> str:
    """``failed, exit code 3``, ``failed, signal 9``, ``running``."""
    if outcome is None:
        return "running"
    words = outcome.replace("_", " ")
    if signal is not None:
        return f"{words}, signal {signal}"
    if exit_code:
        return f"{words}, exit code {exit_code}"
    return words


def joined(parts: Iterable[str]) -> str:
    """The parts that are not empty, with blank lines between."""
    return "\n\n".join(part for part in parts if part)
