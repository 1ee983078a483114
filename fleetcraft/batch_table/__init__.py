"""The frozen batch table: one row a family, which batch it runs with, and where that was measured.

Reading, writing, comparing; no torch, no click, and what runs is never decided here. The names are
loaded when they are first used, since reading needs YAML. Invariant: a table whose content is not
what its hash says, or that another user could have written, gives no row to anybody.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetcraft.batch_table.judging import Change as Change
    from fleetcraft.batch_table.judging import diff as diff
    from fleetcraft.batch_table.judging import require as require
    from fleetcraft.batch_table.judging import require_row as require_row
    from fleetcraft.batch_table.reading import read_table as read_table
    from fleetcraft.batch_table.records import Device as Device
    from fleetcraft.batch_table.records import Found as Found
    from fleetcraft.batch_table.records import Next as Next
    from fleetcraft.batch_table.records import Peak as Peak
    from fleetcraft.batch_table.records import Row as Row
    from fleetcraft.batch_table.records import Stack as Stack
    from fleetcraft.batch_table.records import Table as Table
    from fleetcraft.batch_table.records import make_table as make_table
    from fleetcraft.batch_table.watching import TableWatch as TableWatch
    from fleetcraft.batch_table.writing import write_table as write_table

_HOME = {
    "Change": "judging",
    "Device": "records",
    "Found": "records",
    "Next": "records",
    "Peak": "records",
    "Row": "records",
    "Stack": "records",
    "Table": "records",
    "TableWatch": "watching",
    "diff": "judging",
    "make_table": "records",
    "read_table": "reading",
    "require": "judging",
    "require_row": "judging",
    "write_table": "writing",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
