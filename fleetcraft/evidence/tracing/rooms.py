"""Where a file or a spool can be by now: where a record says, in the scratch tree, in archives.

Looks, and decides nothing about what it finds. Invariant: what a record names is looked for beside
the record first, and elsewhere only below the folders that the caller named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from fleetcraft.layout import Scratch, SpoolPaths

_MOST_INDEXED = 500_000
_MOST_OF_ONE_NAME = 64


class Roots(msgspec.Struct, frozen=True, kw_only=True):
    """The folders below which evidence may lie.

    Attributes:
        scratch: The scratch tree; empty if it is not known.
        spools: Folders of spools that settings name, also outside the scratch tree.
        telemetry: The folder of telemetry that settings name.
        archives: Folders into which parts of any tree were copied.
    """

    scratch: str = ""
    spools: tuple[str, ...] = ()
    telemetry: str = ""
    archives: tuple[str, ...] = ()


class Place(NamedTuple):
    """One place where something may lie; ``label`` is empty where the record itself says so."""

    path: str
    label: str


class Rooms:
    """The places of some roots, each found once.

    Args:
        roots: The folders.
    """

    def __init__(self, roots: Roots) -> None:
        self.roots = Roots(
            scratch=roots.scratch and os.path.abspath(roots.scratch),
            spools=tuple(map(os.path.abspath, roots.spools)),
            telemetry=roots.telemetry and os.path.abspath(roots.telemetry),
            archives=tuple(map(os.path.abspath, roots.archives)),
        )
        self._names: dict[str, dict[str, list[str]]] = {}
        self._spools: dict[tuple[str, str], list[tuple[SpoolPaths, str]]] = {}

    def files(self, folder: str, recorded: str) -> Iterator[Place]:
        """Where a file may be that a record in a folder names; the likeliest first.

        Args:
            folder: Of the record.
            recorded: The path in it, relative.
        """
        seen: set[str] = set()
        for place in self._every_place(folder, recorded):
            real = os.path.realpath(place.path)
            if real not in seen and os.path.lexists(place.path):
                seen.add(real)
                yield place

    def _every_place(self, folder: str, recorded: str) -> Iterator[Place]:
        yield Place(os.path.normpath(os.path.join(folder, recorded)), "")
        parts = [part for part in recorded.split("/") if part not in ("", ".", "..")]
        if not parts:
            return
        for root, label in self._named():
            for start in range(len(parts)):
                yield Place(os.path.join(root, *parts[start:]), label)
        for archive in self.roots.archives:
            for path in self._index(archive).get(parts[-1], ())[:_MOST_OF_ONE_NAME]:
                yield Place(path, f"archive {os.path.basename(os.path.abspath(archive))}")

    def _named(self) -> Iterator[tuple[str, str]]:
        if self.roots.scratch:
            yield self.roots.scratch, "the scratch tree"
        if self.roots.telemetry:
            yield self.roots.telemetry, "the telemetry folder"
        for archive in self.roots.archives:
            yield archive, f"archive {os.path.basename(os.path.abspath(archive))}"

    def _index(self, archive: str) -> dict[str, list[str]]:
        """Files of an archive by name, those of a huge one in part."""
        if archive not in self._names:
            names: dict[str, list[str]] = {}
            count = 0
            for folder, _, files in os.walk(archive):
                for name in sorted(files):
                    names.setdefault(name, []).append(os.path.join(folder, name))
                count += len(files)
                if count > _MOST_INDEXED:
                    break
            self._names[archive] = names
        return self._names[archive]

    # -- spools

    def spools(self, spool: str, *, beside: str = "") -> list[tuple[SpoolPaths, str]]:
        """The spools that a record can mean, with the label of each place.

        Args:
            spool: ``outer``, ``inner`` or ``gpu``, or a spool's folder relative to the scratch
                tree; empty for any.
            beside: A spool that is known to be the right one, if it is there.
        """
        key = (spool, beside)
        if key not in self._spools:
            there: dict[str, tuple[SpoolPaths, str]] = {}
            for path, label in self._spool_folders(spool, beside):
                if os.path.isdir(path):
                    there.setdefault(os.path.realpath(path), (SpoolPaths(path), label))
            self._spools[key] = list(there.values())
        return self._spools[key]

    def _spool_folders(self, spool: str, beside: str) -> Iterator[tuple[str, str]]:
        if beside:
            yield beside, ""
        if self.roots.scratch:
            for path in _below(Scratch(self.roots.scratch), spool):
                yield path, ""
        names = {os.path.basename(path) for path in _below(Scratch("/"), spool)}
        for path in self.roots.spools:
            # A spool that a setting puts elsewhere keeps no name that could be compared.
            if os.path.basename(path) in names or not _is_ours(path, self.roots.scratch):
                yield path, ""
        for archive in self.roots.archives:
            label = f"archive {os.path.basename(os.path.abspath(archive))}"
            for path in _below(Scratch(archive), spool):
                yield path, label
            for folder, folders, _ in os.walk(archive):
                for name in sorted(names & set(folders)):
                    yield os.path.join(folder, name), label
            yield archive, label


def is_usable(recorded: str) -> bool:
    """Whether a path in a record can be one: relative, and a name that the system takes."""
    if not recorded or os.path.isabs(recorded) or "\0" in recorded:
        return False
    try:
        os.fsencode(recorded)
    except UnicodeEncodeError:
        return False
    return True


def _below(tree: Scratch, spool: str) -> list[str]:
    if spool in ("outer", "inner", "gpu"):
        return [tree.outer if spool == "outer" else tree.inner]
    parts = spool.split("/")
    if spool and not os.path.isabs(spool) and ".." not in parts:
        return [os.path.join(tree.root, spool)]
    return [tree.outer, tree.inner]


def _is_ours(path: str, scratch: str) -> bool:
    if not scratch:
        return False
    tree = Scratch(scratch)
    return os.path.realpath(path) in map(os.path.realpath, (tree.outer, tree.inner))
