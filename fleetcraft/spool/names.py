"""Task names and the globs that match them.

Invariant: whatever passes `check_name` is one safe file name, also with the longest suffix that the
layout can add.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable, Sequence

from fleetcraft.errors import BadNameError, UsageError

NAME_MAX_BYTES = 180
_PATTERN_MAX = 4 * NAME_MAX_BYTES
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PATTERN = re.compile(r"[A-Za-z0-9_.\-*?\[\]!]+")
_GLOB_CHARACTERS = frozenset("*?[")


def check_name(name: str) -> str:
    """Returns the name when it can be a task's name.

    Raises:
        BadNameError: Empty, too long, a leading dash or dot, or a character outside the set.
    """
    if not name:
        raise BadNameError(name, "it is empty")
    if len(name.encode("utf-8", "surrogateescape")) > NAME_MAX_BYTES:
        raise BadNameError(name, f"it is longer than {NAME_MAX_BYTES} bytes")
    if _NAME.fullmatch(name) is None:
        bad = next((c for c in name if not _NAME.fullmatch("a" + c)), name[0])
        raise BadNameError(name, f"it holds or starts with {bad!r}")
    return name


def is_glob(text: str) -> bool:
    """Whether a dependency names a pattern rather than one task."""
    return not _GLOB_CHARACTERS.isdisjoint(text)


def check_dependency(text: str) -> str:
    """Returns the text when it is a task name or a glob over task names.

    Raises:
        UsageError: It is neither.
    """
    if not is_glob(text):
        return check_name(text)
    if len(text) > _PATTERN_MAX:  # many `[` take the square of their number to be read
        raise UsageError(
            f"bad dependency: {text[:40]!r}... is longer than {_PATTERN_MAX} characters",
            hint="a shorter pattern, or several with --after",
            text=text[:_PATTERN_MAX],
        )
    if _PATTERN.fullmatch(text) is None:
        raise UsageError(
            f"bad dependency {text!r}: a pattern may hold name characters and * ? [ ]",
            hint="quote the pattern so that the shell does not expand it, and repeat --after",
            text=text,
        )
    return text


def matches(pattern: str, names: Iterable[str], *, but: str) -> list[str]:
    """The names that a glob matches, without the task that asks (it cannot wait for itself)."""
    match = re.compile(fnmatch.translate(pattern)).match
    return [name for name in names if match(name) and name != but]


def first_in_order(
    batches: Iterable[Sequence[str]], limit: int, *, after: str = ""
) -> tuple[list[str], int]:
    """The first names in name order, sorted, and how many names there are.

    Holds little more than twice as many as it returns, however many there are.

    Args:
        batches: The names, in any order.
        limit: At most so many are returned.
        after: Names up to this one are left out and not counted.
    """
    kept: list[str] = []
    total = 0
    bound = ""
    for batch in batches:
        some = [name for name in batch if name > after] if after else batch
        total += len(some)
        kept += [name for name in some if name < bound] if bound else some
        if len(kept) > 2 * limit:
            kept.sort()
            del kept[limit:]
            bound = kept[-1] if kept else "\0"
    kept.sort()
    return kept[:limit], total


def near(name: str, names: Iterable[str], *, limit: int = 3) -> list[str]:
    """Names close to a mistyped one, nearest first."""
    import difflib  # only on the error path: difflib costs more to import than the rest together

    some = list(itertools.islice(names, 20_000))
    return difflib.get_close_matches(name, some, n=limit, cutoff=0.75)
