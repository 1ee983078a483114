"""What the globs of waiting tasks match, and which of it is not done, for one pass over the spool.

One listing of ``names/`` serves every pattern that was announced before it, and keeps only what
matches. Invariant: names are listed before ``done/`` is looked at, so a match that is missing from
``done/`` was not done when the pass began to look.
"""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable

from fleetcraft.layout import State
from fleetcraft.spool.tree import SpoolTree

_FEW = 256
"""So many matches are looked at one by one; for more, one listing of ``done/`` costs less."""
_SPECIAL = re.compile(r"[*?\[]")

_Match = Callable[[str], object]


class Globs:
    """Patterns over task names, for one pass.

    Costs one listing of ``names/`` if any pattern is asked for, one more for each time that
    patterns are asked for that were not announced, and one of ``done/`` if a pattern has more than
    256 matches. Holds the names that match, and no others.

    Args:
        tree: The spool.
        is_done: Says of one task whether it is done; by a look if None.
    """

    def __init__(self, tree: SpoolTree, is_done: Callable[[str], bool] | None = None) -> None:
        self._tree = tree
        self._is_done = is_done or self._look
        self._wanted: set[str] = set()
        self._matched: dict[str, list[str]] = {}
        self._unmet: dict[str, list[str]] = {}
        self._done: set[str] | None = None

    def announce(self, patterns: Iterable[str]) -> None:
        """Has these looked up together with the next pattern that is asked for."""
        self._wanted.update(patterns)

    def matching(self, pattern: str) -> list[str]:
        """The names that match, sorted.

        Raises:
            OSError: The spool cannot be listed.
        """
        if pattern not in self._matched:
            self._list({*self._wanted, pattern} - self._matched.keys())
        return self._matched[pattern]

    def unmet(self, pattern: str) -> list[str]:
        """Those of them that are not done, sorted.

        Raises:
            OSError: The spool cannot be listed or looked at.
        """
        if pattern not in self._unmet:
            found = self.matching(pattern)
            if len(found) <= _FEW:
                self._unmet[pattern] = [name for name in found if not self._is_done(name)]
            else:
                done = self._done_among_matches()
                self._unmet[pattern] = [name for name in found if name not in done]
        return self._unmet[pattern]

    def _list(self, patterns: set[str]) -> None:
        self._done = None  # of the matches so far
        found: dict[str, list[str]] = {pattern: [] for pattern in patterns}
        tables = _by_prefix(patterns)
        for name in self._tree.each(self._tree.paths.names):
            if name.startswith("."):  # .nfs*, .probe-*: no task
                continue
            for size, table in tables:
                for pattern, match in table.get(name[:size], ()):
                    if match is None or match(name):
                        found[pattern].append(name)
        for names in found.values():
            names.sort()
        self._matched.update(found)

    def _done_among_matches(self) -> set[str]:
        if self._done is None:
            matches = {name for names in self._matched.values() for name in names}
            listed = self._tree.scan_records(self._tree.paths.done)
            self._done = {name for names in listed for name in names if name in matches}
        return self._done

    def _look(self, name: str) -> bool:
        return self._tree.fs.exists(self._tree.paths.finished_record(name, State.DONE))


def is_among(name: str, names: list[str]) -> bool:
    """Whether a sorted list has a name."""
    place = bisect_left(names, name)
    return place < len(names) and names[place] == name


def first_but(name: str, names: Iterable[str]) -> str:
    """The first name that is not the given one; empty when there is none."""
    return next((other for other in names if other != name), "")


def _by_prefix(
    patterns: Iterable[str],
) -> list[tuple[int, dict[str, list[tuple[str, _Match | None]]]]]:
    """Patterns by the text before their first special character, and that by its length.

    Nearly all patterns are a prefix and ``*``; a name is then compared with the prefixes of one
    length by one look into a table, however many patterns there are.
    """
    tables: dict[int, dict[str, list[tuple[str, _Match | None]]]] = {}
    for pattern in patterns:
        special = _SPECIAL.search(pattern)
        prefix = pattern[: special.start()] if special else pattern
        whole = pattern == f"{prefix}*"
        match = None if whole else re.compile(fnmatch.translate(pattern)).match
        tables.setdefault(len(prefix), {}).setdefault(prefix, []).append((pattern, match))
    return list(tables.items())
