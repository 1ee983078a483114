"""The ways in which one file operation is disturbed, and to which operations each applies.

Not here: how that is done (`preload.c`, whose numbers these are). Invariant: a fault that does not
apply to an operation is not tried there, and is not counted.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import IntEnum


class How(IntEnum):
    """What `preload.c` does at the k-th operation; the numbers are its own."""

    COUNT_ONLY = 0
    KILL_BEFORE = 1
    KILL_AFTER = 2
    TORN_KILL = 3
    TORN_FULL = 4
    FAIL = 5
    LIE = 6
    FROM_CHANGE = 7
    FROM_ALL = 8


@dataclass(frozen=True)
class Operation:
    """One file operation of an act, as it was counted.

    Attributes:
        name: libc's function.
        kind: Letters: ``c`` changes something, ``l`` may be reported as failed although it was
            done, ``n`` makes or takes away a name, ``x`` makes a file that must not exist, ``s``
            writes more than one byte, ``z`` closes, ``f`` forces to disk.
        path: What it is about; of two names the new one.
    """

    name: str
    kind: str
    path: str


@dataclass(frozen=True)
class Fault:
    """One column of the matrix, or a part of one.

    Attributes:
        name: As it is asked for on a command line.
        column: Under which it is printed.
        how: What happens.
        code: The error that is reported; 0 where the process is killed.
    """

    name: str
    column: str
    how: How
    code: int = 0

    def applies(self, operation: Operation) -> bool:
        """Whether this can happen to such an operation."""
        kind = operation.kind
        match self.how:
            case How.TORN_KILL | How.TORN_FULL:
                return "s" in kind
            case How.FROM_CHANGE:
                return "c" in kind
            case How.FROM_ALL:
                return "z" not in kind
            case How.LIE:
                return "l" in kind and self._could_be_said(operation)
        return True

    def _could_be_said(self, operation: Operation) -> bool:
        """ENOENT and EEXIST are what a repeated request finds after the first one was done."""
        if self.code == errno.ENOENT:
            return operation.name.startswith(("rename", "unlink", "rmdir", "remove", "link"))
        if self.code == errno.EEXIST:
            naming = ("rename", "link", "symlink", "mkdir")
            return "x" in operation.kind or operation.name.startswith(naming)
        return True


def _failing(name: str) -> Fault:
    return Fault(name, name, How.FAIL, getattr(errno, name))


def _lying(name: str) -> Fault:
    return Fault(f"done-but-{name}", "done, said failed", How.LIE, getattr(errno, name))


FAULTS: tuple[Fault, ...] = (
    Fault("kill-before", "kill before", How.KILL_BEFORE),
    Fault("kill-after", "kill after", How.KILL_AFTER),
    Fault("torn-kill", "torn", How.TORN_KILL),
    Fault("torn-full", "torn", How.TORN_FULL, errno.ENOSPC),
    _failing("EIO"),
    _failing("ENOSPC"),
    _failing("EACCES"),
    _failing("ESTALE"),
    _failing("EDQUOT"),
    _lying("EIO"),
    _lying("ENOENT"),
    _lying("EEXIST"),
    Fault("full-from", "from there on", How.FROM_CHANGE, errno.ENOSPC),
    Fault("gone-from", "from there on", How.FROM_ALL, errno.ESTALE),
)
COLUMNS = tuple(dict.fromkeys(fault.column for fault in FAULTS))


def named(words: list[str]) -> tuple[Fault, ...]:
    """The faults of which a word is the name, the column, or a part of one; all if none is given.

    Raises:
        ValueError: A word means none.
    """
    if not words:
        return FAULTS
    for word in words:
        if not any(_means(word, fault) for fault in FAULTS):
            known = ", ".join(fault.name for fault in FAULTS)
            raise ValueError(f"no fault is called {word!r}; there are {known}")
    exact = {fault.name for fault in FAULTS}
    return tuple(
        fault
        for fault in FAULTS
        if any(fault.name == word if word in exact else _means(word, fault) for word in words)
    )


def _means(word: str, fault: Fault) -> bool:
    return word in fault.name or word in fault.column
