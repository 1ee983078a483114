"""The crash matrix as text: the table, the totals, and the page that explains them.

Not here: any trial, and the words around the numbers (`page.md`). Invariant: every number
comes from the rows that are handed in.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import machine
from tests.crash.engine import Cell, Row
from tests.crash.faults import COLUMNS, FAULTS

if TYPE_CHECKING:
    from tests.crash.__main__ import Mutant

_TEXT = Path(__file__).with_name("page.md")


def matrix(rows: Sequence[Row]) -> str:
    """The table: trials of each protocol by column; where some did not hold, how many."""
    head = ["protocol", "operations", *COLUMNS, "trials"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for row in rows:
        if row.broken:
            lines.append(_line([row.protocol, "no trial could be made", *[""] * (len(head) - 2)]))
            continue
        cells = [_cell(_of_column(row, column)) for column in COLUMNS]
        lines.append(_line([row.protocol, str(len(row.operations)), *cells, str(row.points)]))
    return "\n".join(lines)


def _of_column(row: Row, column: str) -> Cell:
    found = Cell()
    for fault in FAULTS:
        if fault.column == column and fault.name in row.cells:
            cell = row.cells[fault.name]
            found.tried += cell.tried
            found.missed += cell.missed
            found.troubles += cell.troubles
    return found


def _cell(cell: Cell) -> str:
    return f"{cell.tried}, **{len(cell.troubles)} bad**" if cell.troubles else str(cell.tried)


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def totals(rows: Sequence[Row], mutants: Sequence[Mutant], seconds: float) -> str:
    """The sums, in a few sentences."""
    points = sum(row.points for row in rows)
    bad = sum(len(row.troubles) for row in rows) + sum(bool(row.broken) for row in rows)
    missed = sum(row.missed for row in rows)
    text = f"{len(rows)} protocols, {points:,} trials, {bad} that did not hold, {seconds:,.0f} s."
    if missed:
        text += (
            f" {missed} more trials did not come to their operation, since the act took another "
            "way; they held and are not counted."
        )
    if mutants:
        seen = sum(mutant.trouble is not None for mutant in mutants)
        text += f" {seen} of {len(mutants)} broken rules were seen."
    return text


def whole(
    rows: Sequence[Row],
    mutants: Sequence[Mutant],
    seconds: float,
    command: str,
    mount: Path | None,
) -> str:
    """The page.

    Args:
        rows: The matrix.
        mutants: Broken rules, and whether they were seen.
        seconds: How long it all took.
        command: The command line.
        mount: Where the trees were; None for memory.
    """
    facts = _facts(command, mount)
    head = ["| | |", "|---|---|", *(f"| {key} | {fact} |" for key, fact in facts.items())]
    return _TEXT.read_text(encoding="utf-8").format(
        head="\n".join(head),
        totals=totals(rows, mutants, seconds),
        matrix=matrix(rows),
        broken_rules=_broken_rules(mutants),
    )


def _facts(command: str, mount: Path | None) -> dict[str, str]:
    base = mount or Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=base if base.is_dir() else None) as folder:
        facts = machine.describe(Path(folder), command)
    return {**facts, "load when it ended": machine.load()}


def _broken_rules(mutants: Sequence[Mutant]) -> str:
    lines = [
        _line(["protocol", "broken rule", "trials until it showed", "at"]),
        "|---|---|---:|---|",
    ]
    for mutant in mutants:
        rule = mutant.mutation.replace("_", " ")
        at = "**not seen**"
        if mutant.trouble is not None:
            where = f", {mutant.trouble.operation} ({mutant.trouble.at})"
            at = f"{mutant.trouble.fault}{where if mutant.trouble.at else ''}"
        lines.append(_line([mutant.protocol, rule, str(mutant.points), at]))
    return "\n".join(lines)
