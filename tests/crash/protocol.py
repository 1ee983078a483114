"""What a protocol of the toolkit is to the crash matrix: a start, an act that is cut, and a proof.

Here: the words that those who describe a protocol and the engine that disturbs it share. Not here:
how an act is disturbed (`engine`), and which protocols there are (`protocols/`). Invariant: the
proof is made by another process than the act, from what lies on the disk and from what was
promised outside of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fleetcraft.errors import FleetError


@dataclass(frozen=True)
class Place:
    """Where one trial takes place.

    Attributes:
        root: The tree. Every file operation on it is counted and may be disturbed.
        notes: A file beside it, never disturbed: what a process was promised before it died.
    """

    root: Path
    notes: Path

    def say(self, *words: str) -> None:
        """Notes a promise at once, so that it survives the process that was given it."""
        with open(self.notes, "a", encoding="utf-8") as file:
            file.write(" ".join(words) + "\n")

    def said(self) -> list[list[str]]:
        """Every promise so far, in words."""
        if not self.notes.exists():
            return []
        return [line.split() for line in self.notes.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True)
class Protocol:
    """One row of the crash matrix.

    Attributes:
        name: ``part: what it does``, as in ``spool: claim``.
        prepare: Makes the start, undisturbed, in a process of its own that has ended before the
            act begins: what it held is held by nobody alive.
        act: Is disturbed, in a process of its own. What it was promised it notes with
            `Place.say`, after the promise and not before.
        prove: One recovery pass as a person or the next process would make it, then every
            invariant; in a process of its own, undisturbed. Raises AssertionError with a sentence
            when one does not hold.
        fewest: How many file operations the act has at least, a guard against an engine that no
            longer reaches the code.
        expected: What the act may raise: an error that names the trouble, and no other.
        mutations: Functions that break one rule of the protocol in the process that calls them,
            by name: the matrix must then show trouble, or it proves nothing.
    """

    name: str
    prepare: Callable[[Place], None]
    act: Callable[[Place], None]
    prove: Callable[[Place], None]
    fewest: int
    expected: tuple[type[BaseException], ...] = (OSError, FleetError)
    mutations: tuple[tuple[str, Callable[[], None]], ...] = ()
