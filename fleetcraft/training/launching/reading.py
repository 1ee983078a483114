"""Reading what the keepers of a launch have published: who they are, and how their nodes ended.

Not here: whether they live. Invariant: a record that cannot be read is an error with its path; it
never looks like a record that is not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.training.launching.order import Order
from fleetcraft.training.records import Keeper, NodeEnd

_T = TypeVar("_T")


class Reports:
    """What the keepers of one launch have published; each record is read once, as it never changes.

    Args:
        paths: The attempt.
        fs: The seam.
    """

    def __init__(self, paths: AttemptPaths, fs: FileSystem) -> None:
        self._paths = paths
        self._fs = fs
        self.keepers: dict[str, Keeper] = {}
        self.ends: dict[str, NodeEnd] = {}

    def read(self) -> None:
        """Reads what is new.

        Raises:
            OSError: The folder or a record cannot be read.
            DataError: A record is torn.
        """
        try:
            names = self._fs.listdir(self._paths.nodes)
        except FileNotFoundError:
            return  # a launch that was cut short before its folders were made
        self._read_new(names, self._paths.keeper, Keeper, self.keepers)
        self._read_new(names, self._paths.ended, NodeEnd, self.ends)

    def nodes(self) -> tuple[str, ...]:
        """Every node that has published anything, by name."""
        return tuple(sorted(self.keepers.keys() | self.ends.keys()))

    def _read_new(
        self, names: list[str], path_of: Callable[[str], str], kind: type[_T], known: dict[str, _T]
    ) -> None:
        suffix = os.path.basename(path_of(""))
        for name in names:
            node = name.removesuffix(suffix)
            if node != name and node and node not in known:
                known[node] = read_record(self._fs, path_of(node), kind)


def read_order(paths: AttemptPaths, fs: FileSystem) -> Order | None:
    """The order of a launch; None when none was given.

    Raises:
        OSError: It cannot be read.
        DataError: It is torn.
    """
    try:
        return read_record(fs, paths.order, Order)
    except FileNotFoundError:
        return None


def read_record(fs: FileSystem, path: str, kind: type[_T]) -> _T:
    """One published record.

    Raises:
        OSError: It is not there or cannot be read.
        DataError: It is torn.
    """
    data = fs.read(path)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"cannot read {path}: {error}; what it says is not known",
            hint="look at that file; such a record is never written a second time",
            path=path,
        ) from error
