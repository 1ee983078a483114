"""What was recorded of a file, and how what is there stands to it.

Reads nothing. Invariant: fewer bytes than were recorded, or others, are never the same file; more
are only where the file may have been appended to.
"""

from __future__ import annotations

from typing import NamedTuple

from fleetcraft.evidence.records import Kind, Level
from fleetcraft.evidence.tracing.nodes import Standing

APPENDED = frozenset({Kind.TELEMETRY, Kind.RESULTS, Kind.JOURNAL, Kind.LOG, Kind.TASK})
"""Kinds that are always appended to."""
GROWING = APPENDED | {Kind.TABLE, Kind.OTHER}
"""Kinds of which, as a source, a prefix is enough."""


class Expected(NamedTuple):
    """What was recorded of a file; nothing where ``sha256`` is empty."""

    size_bytes: int | None = None
    sha256: str = ""

    def counted(self, size_bytes: int) -> int:
        """How many of a file's bytes were recorded."""
        return size_bytes if self.size_bytes is None else min(size_bytes, self.size_bytes)

    def compare(self, size_bytes: int, sha256: str, *, grows: bool) -> tuple[Standing, Level, str]:
        """How a file that was found stands to this, at which level, and why in words.

        Args:
            size_bytes: Of the whole file.
            sha256: Of as many bytes as were recorded.
            grows: Whether it may hold more by now.
        """
        if not self.sha256:
            return Standing.UNRECORDED, Level.SIZED, "nothing recorded its bytes"
        recorded = size_bytes if self.size_bytes is None else self.size_bytes
        if size_bytes < recorded:
            return Standing.CHANGED, Level.HASHED, f"{size_bytes} bytes, recorded {recorded}"
        if sha256 != self.sha256:
            return Standing.CHANGED, Level.HASHED, "other bytes than recorded"
        more = size_bytes - recorded
        if not more:
            return Standing.VERIFIED, Level.HASHED, ""
        if grows:
            return Standing.VERIFIED, Level.HASHED, f"grown by {more} bytes since"
        return Standing.CHANGED, Level.HASHED, f"{more} bytes more than recorded"
