"""How far apart samples are, and when two of them are one or have a gap between them.

The rules that every reader of rows shares; loads nothing heavy. Invariant: a rule stands here once.
"""

from __future__ import annotations

DEFAULT_INTERVAL_S = 30.0
"""Between samples where nothing says it. Source: the logger's default, and the archives."""
STEPS_THAT_TELL = 3
"""So many steps between rows show an interval; one or two may be gaps."""
SAME_SAMPLE_S = 1.0
"""Rows of one series nearer than this are one sample: two loggers, or GPUs that have no names."""
GAP_BEYOND_S = 5.0
"""A step of an interval and so much more is a gap. Source: 35 s for the archives' 30 s."""


def gap_of(interval_s: float) -> float:
    """From which step on there is a gap, in seconds, where samples are so many seconds apart."""
    return interval_s + GAP_BEYOND_S
