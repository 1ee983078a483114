"""A table that is read again when its file changes, and only then.

Invariant: what `look` returns belongs to one state of the file; an unreadable one is a refusal
that is remembered like a table, never the table from before.
"""

from __future__ import annotations

import os

from fleetcraft.batch_table.records import Table
from fleetcraft.errors import DataError

_Mark = tuple[int, int, int, int]


class TableWatch:
    """The table at one path.

    Args:
        path: Its file; empty for no table at all.

    Attributes:
        version: Counts the states of the file that were seen; 0 before the first look.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.version = 0
        self._mark: _Mark | None = None
        self._table: Table | None = None
        self._problem: DataError | None = None

    def look(self) -> Table | None:
        """The table as it is now; None when there is none.

        Costs one ``stat`` unless the file has changed.

        Raises:
            DataError: It was edited, is not safe, or cannot be read.
        """
        mark = self._look_at_file() if self.path else None
        if self.version == 0 or mark != self._mark:
            self.version += 1
            self._mark = mark
            self._table, self._problem = self._read() if mark else (None, None)
        elif self._is_unread():
            self._table, self._problem = self._read()  # the mount may be well again
            self.version += not self._is_unread()  # whoever was refused meanwhile is asked anew
        if self._problem is not None:
            raise self._problem
        return self._table

    def _is_unread(self) -> bool:
        return isinstance(self._problem and self._problem.__cause__, OSError)

    def _look_at_file(self) -> _Mark | None:
        try:
            facts = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # The mount is away: nothing is known, and it is asked again at the next look.
            return (-1, error.errno or 0, 0, 0)
        return (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)

    def _read(self) -> tuple[Table | None, DataError | None]:
        from fleetcraft.batch_table.reading import read_table

        try:
            return read_table(self.path), None
        except DataError as error:
            return None, error
