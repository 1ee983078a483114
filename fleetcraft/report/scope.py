"""What a report is about: a span of time and some jobs, or everything.

Invariant: an attempt whose record names no time is in no span, and one without a job is of no job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC

from fleetcraft.clock import parse_timestamp
from fleetcraft.spool.record import HistoryLine


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The span, in seconds since 1970, without its first instant and with its last; and the jobs.

    Attributes:
        since_s: None for as far back as there is.
        until_s: None for no end.
        jobs: Ids; empty for all.
    """

    since_s: float | None = None
    until_s: float | None = None
    jobs: frozenset[str] = frozenset()

    def holds(self, line: HistoryLine) -> bool:
        """Whether an ended attempt is part of it."""
        if self.jobs and line.job not in self.jobs:
            return False
        if self.since_s is None and self.until_s is None:
            return True
        end_s = seconds_of(line.ended_at)
        return end_s is not None and self.contains(end_s)

    def contains(self, at_s: float) -> bool:
        """Whether a moment lies in the span."""
        low = -math.inf if self.since_s is None else self.since_s
        high = math.inf if self.until_s is None else self.until_s
        return low < at_s <= high


def seconds_of(text: str | None) -> float | None:
    """A timestamp as seconds since 1970, UTC where it names no zone; None if it is none."""
    at = parse_timestamp(text) if text else None
    if at is None:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
