"""Tables of the page: titles, rows of text, sentences; and how they are printed.

Nothing here knows what is measured. Invariant: a cell that could not be had says why, and is never
an empty zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Table:
    """One table, with what stands before and after it.

    ``failed`` are sentences about what did not hold: the command then ends with 1.
    """

    title: str
    how: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """As Markdown."""
        lines = [f"## {self.title}", "", self.how]
        if self.rows:
            lines += ["", f"| {' | '.join(self.columns)} |"]
            lines += [f"|---|{'---:|' * (len(self.columns) - 1)}"]
            lines += [f"| {' | '.join(row)} |" for row in self.rows]
        for text in [*self.after, *(f"**Did not hold:** {text}" for text in self.failed)]:
            lines += ["", text]
        return lines
