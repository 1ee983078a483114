"""What a follower hands on: rows of numbers and words, and where it was when it had made them.

Not here: how they are made or sent. Invariant: a row holds numbers, and words of closed sets; no
free text, path, command line or variable of anybody's environment ever becomes part of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

Row = dict[str, float | str]
"""Values by key. ``_timestamp`` is the writer's wall clock in seconds since 1970."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. +-]{0,63}")
_UNFIT = re.compile(r"[^A-Za-z0-9_. -]")


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What one look gave.

    Attributes:
        rows: In the order in which they are sent.
        place: Where the follower is now, to be restored by `Follower.restore`; plain values.
        more: Whether another look at once would find more.
    """

    rows: list[Row]
    place: dict[str, Any]
    more: bool = False


class Follower(Protocol):
    """Something that is followed; it only ever reads."""

    def restore(self, place: Mapping[str, Any]) -> None:
        """Goes on from a place that `Taken.place` was; an empty one is the beginning."""

    def take(self) -> Taken:
        """What is new, in a batch of bounded size.

        Raises:
            FleetError: It cannot be read at all.
        """

    def config(self) -> dict[str, Any]:
        """Facts that stay the same, as plain values."""

    def standing(self) -> dict[str, float | str]:
        """How it stands now: numbers and words, each replacing the one before."""

    def is_over(self) -> bool:
        """Whether it has ended for good, so that nothing more will come."""

    def counts(self) -> dict[str, int]:
        """What was read and not sent, by kind."""


def word(value: object) -> str | None:
    """A word of a closed set, as it is; None for any other text, which is then left out."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def key_of(group: str, name: str) -> str:
    """The key of a value that somebody named, such as ``metrics/reward``."""
    return f"{group}/{_UNFIT.sub('_', name) or '_'}"
