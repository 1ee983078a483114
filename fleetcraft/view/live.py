"""Progress of a local run: a live bar on a terminal, a line now and then elsewhere.

rich is loaded only by the live bar. Invariant: progress goes to stderr and never decides anything.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Protocol

from fleetcraft.view.run import Tally, event_line
from fleetcraft.view.text import Paint, harmless

_STEP_FRACTION = 0.05


class Progress(Protocol):
    """Shows a tally as it grows."""

    def show(self, event: Mapping[str, object], tally: Tally) -> None:
        """Takes one event that the tally has counted already."""

    def close(self) -> None:
        """Ends the display."""


def progress_for(stream_is_terminal: bool) -> Progress:
    """The display that fits stderr."""
    return LiveProgress() if stream_is_terminal else LineProgress()


class LineProgress:
    """A line for each failure, and one for every twentieth of the work."""

    def __init__(self) -> None:
        self._paint = Paint.for_stream(sys.stderr)
        self._shown = 0

    def show(self, event: Mapping[str, object], tally: Tally) -> None:
        """Takes one event."""
        if _is_news(event) and (line := event_line(event, self._paint)):
            _write(line)
        step = max(1, int(tally.total * _STEP_FRACTION))
        if event["event"] == "end" and tally.settled >= self._shown + step:
            self._shown = tally.settled
            _write(tally.line())

    def close(self) -> None:
        """Nothing is open."""


class LiveProgress:
    """A bar that is drawn again by rich, below the lines of failures."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._paint = Paint.for_stream(sys.stderr)
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def show(self, event: Mapping[str, object], tally: Tally) -> None:
        """Takes one event."""
        from rich.text import Text

        if _is_news(event) and (line := event_line(event, self._paint)):
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        parts = [f"{len(tally.running)} running"]
        if tally.failed:
            parts.append(f"{tally.failed} failed")
        if tally.again:
            parts.append(f"{tally.again} put back")
        self._bar.update(
            self._task, total=tally.total, completed=tally.settled, description=", ".join(parts)
        )

    def close(self) -> None:
        """Takes the bar away; the summary follows."""
        self._bar.stop()


def _is_news(event: Mapping[str, object]) -> bool:
    if event["event"] == "end":
        return event["outcome"] != "completed"
    return event["event"] in ("note", "refused")


def _write(line: str) -> None:
    sys.stderr.write(harmless(line) + "\n")
    sys.stderr.flush()
