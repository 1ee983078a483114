"""Findings as sentences: so many are kept, and all are counted.

Invariant: a queue that is broken everywhere costs no more memory than one that is broken often.
"""

from __future__ import annotations

_KEPT = 200


class Sentences:
    """Sentences, of which so many are kept and all are counted."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def say(self, sentence: str) -> None:
        """Adds one."""
        self._count += 1
        if len(self._kept) < _KEPT:
            self._kept.append(sentence)

    def sentences(self) -> tuple[str, ...]:
        """Those that were kept, and how many were not."""
        more = self._count - len(self._kept)
        return (*self._kept, f"and {more} more like these") if more else tuple(self._kept)
