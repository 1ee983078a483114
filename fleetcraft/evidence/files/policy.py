"""What may stand in a manifest: rules on names and kinds of entries; kinds that were declared.

Not here: hashing, what a file says of itself, and who made it. Invariant: whatever the rules do not
allow is named with its path and kind, and the rules themselves are part of the manifest, so whoever
verifies applies the same.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.evidence.records import Kind
from fleetcraft.files import FileSystem

_MOST_NAMED = 20


class Problem(StrEnum):
    """Why something in a folder cannot stand in a manifest."""

    SYMLINK = "symlink"
    SPECIAL_FILE = "special_file"
    CASE_COLLISION = "case_collision"
    BAD_NAME = "bad_name"
    ABSOLUTE = "absolute"
    OUTSIDE = "outside"
    UNREADABLE = "unreadable"


_WORDS = {
    Problem.SYMLINK: "symbolic links",
    Problem.SPECIAL_FILE: "special files",
    Problem.CASE_COLLISION: "names that differ only in case or in how accents are spelled",
    Problem.BAD_NAME: "names with a control character, a line break, or bytes that are no UTF-8",
    Problem.ABSOLUTE: "absolute paths",
    Problem.OUTSIDE: "no plain relative paths ('..', '.', an empty part or a backslash)",
    Problem.UNREADABLE: "cannot be read",
}


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules that a folder was frozen by.

    Attributes:
        links: ``refused``: a symbolic link can lead anywhere, also tomorrow.
        special_files: ``refused``: pipes, sockets and devices have no content.
        hard_links: ``as files``: each name counts, with its size.
        empty_folders: ``ignored``: only files are evidence.
        case_collisions: ``refused``: two names that a file system without case takes for one.
        names: ``utf-8 without control characters``.
        left_out: Relative paths that were not looked at, such as the manifest's own.
    """

    links: str = "refused"
    special_files: str = "refused"
    hard_links: str = "as files"
    empty_folders: str = "ignored"
    case_collisions: str = "refused"
    names: str = "utf-8 without control characters"
    left_out: tuple[str, ...] = ()


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One regular file as a walk saw it; its path is relative, and equal facts mean unchanged."""

    path: str
    size_bytes: int
    mtime_ns: int
    inode: int


Refused = tuple[str, Problem, str]
"""A relative path, why it cannot be listed, and what the system said."""


class Walked(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in a folder: files in order of their paths, and what the rules refuse."""

    files: tuple[Listed, ...]
    refused: tuple[Refused, ...]


# ------------------------------------------------------------------------------------ the walk


def walk(fs: FileSystem, folder: str, left_out: Sequence[str] = ()) -> Walked:
    """Lists a folder with everything below it, following no link.

    Args:
        fs: The seam.
        folder: Where to begin; itself no link.
        left_out: Relative paths that are passed over.

    Raises:
        DataError: The folder itself is not there or cannot be listed.
    """
    files: list[Listed] = []
    refused: list[Refused] = []
    passed = frozenset(left_out)
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            names = sorted(fs.listdir(f"{folder}/{prefix}" if prefix else folder))
        except OSError as error:
            if not prefix:
                raise not_there(folder, error) from error
            refused.append((prefix.rstrip("/"), Problem.UNREADABLE, error.strerror or ""))
            continue
        names = [name for name in names if prefix + name not in passed]
        refused += [(prefix + name, Problem.CASE_COLLISION, "") for name in _collisions(names)]
        for name in names:
            below = _look(fs, folder, prefix + name, files, refused)
            if below:
                waiting.append(f"{prefix}{name}/")
    files.sort(key=lambda each: each.path)
    return Walked(files=tuple(files), refused=tuple(sorted(refused)))


def _look(
    fs: FileSystem, folder: str, path: str, files: list[Listed], refused: list[Refused]
) -> bool:
    """Notes one entry; whether it is a folder to go into."""
    problem = name_problem(path)
    if problem is not None:
        refused.append((path, problem, ""))
        return False
    try:
        facts = fs.lstat(f"{folder}/{path}")
    except OSError as error:
        refused.append((path, Problem.UNREADABLE, error.strerror or ""))
        return False
    if stat.S_ISDIR(facts.st_mode):
        return True
    if stat.S_ISREG(facts.st_mode):
        files.append(
            Listed(
                path=path,
                size_bytes=facts.st_size,
                mtime_ns=facts.st_mtime_ns,
                inode=facts.st_ino,
            )
        )
    else:
        link = stat.S_ISLNK(facts.st_mode)
        refused.append((path, Problem.SYMLINK if link else Problem.SPECIAL_FILE, ""))
    return False


def not_there(folder: str, error: OSError) -> DataError:
    """A folder of files that cannot be listed at all."""
    return DataError(
        f"cannot list {folder}: {error.strerror}; nothing was checked",
        hint="name the folder that holds the files",
        path=folder,
    )


def _by_problem(refused: Sequence[Refused]) -> Iterator[str]:
    for problem in Problem:
        paths = [
            f"{path!r}{f' ({said})' if said else ''}"
            for path, found, said in refused
            if found is problem
        ]
        if paths:
            yield f"{_WORDS[problem]}: {', '.join(paths)}"


def name_problem(path: str) -> Problem | None:
    """Why a path cannot stand in a manifest; None if it can."""
    if path.startswith("/"):
        return Problem.ABSOLUTE
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path:
        return Problem.OUTSIDE
    if any(_is_bad(character) for character in path):
        return Problem.BAD_NAME
    return None


def _is_bad(character: str) -> bool:
    # Cc are control characters, Cs halves of pairs (bytes that are no UTF-8), Zl and Zp line ends.
    if character.isascii():
        return character < " " or character == "\x7f"
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def folded(name: str) -> str:
    """A name as the least discerning file system sees it: without case, accents in one spelling."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _collisions(names: Sequence[str]) -> Iterator[str]:
    first: dict[str, str] = {}
    told: set[str] = set()
    for name in names:
        other = first.setdefault(folded(name), name)
        if other != name:
            if other not in told:
                told.add(other)
                yield other
            yield name


def collisions_of_paths(paths: Iterable[str]) -> list[str]:
    """The paths of a manifest that collide with another one, in whichever of their parts."""
    folders: dict[str, set[str]] = {}
    whose: dict[str, str] = {}
    for path in paths:
        parent = ""
        for part in path.split("/"):
            whose.setdefault(f"{parent}{part}", path)
            folders.setdefault(parent, set()).add(part)
            parent = f"{parent}{part}/"
    return sorted(
        whose[f"{parent}{name}"]
        for parent, names in folders.items()
        for name in _collisions(sorted(names))
    )


def refuse(folder: str, refused: Sequence[Refused], not_done: str) -> None:
    """Raises if anything was refused, naming each.

    Raises:
        DataError: With ``problems``, a list of path and problem.
    """
    if not refused:
        return
    named = "; ".join(_by_problem(refused[:_MOST_NAMED]))
    more = f"; and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
    raise DataError(
        f"cannot freeze {folder}: {named}{more}; {not_done}",
        hint="put a file where the link is, rename, or freeze a folder that holds only the files",
        path=folder,
        problems=[{"path": path, "problem": problem.value} for path, problem, _ in refused[:1000]],
        left_out=max(0, len(refused) - 1000),
    )


# -------------------------------------------------------------------------------------- kinds


def kind_by_glob(path: str, globs: Sequence[tuple[str, Kind]]) -> Kind | None:
    """The kind that was declared: the first glob that matches; ``*`` matches ``/`` too.

    A glob without a slash is matched against the file's own name.
    """
    for glob, kind in globs:
        if fnmatchcase(path if "/" in glob else os.path.basename(path), glob):
            return kind
    return None
