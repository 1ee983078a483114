"""Progress of a calibration: what runs now on a terminal, a line for each trial anywhere.

rich is loaded only for a terminal. Invariant: progress goes to stderr, and an event that is not
known, or lacks a field, is passed over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from fleetcraft.units import format_bytes, format_seconds
from fleetcraft.view.calibration_words import rate_words
from fleetcraft.view.text import Paint, harmless, one_line

Event = Mapping[str, Any]
_COLORS = {"ok": "good", "failed": "bad", "skipped": "warn"}
_WIDTH = 160
_SOAK = "soak: "


class LineProgress:
    """A line for each trial, and for what came before and after them."""

    def __init__(self) -> None:
        self._paint = Paint.for_stream(sys.stderr)
        self.now = Now()

    def __enter__(self) -> LineProgress:
        return self

    def show(self, event: Event) -> None:
        """Takes one event."""
        told = self.now.about(event)
        self.now.take(event)
        if line := event_line(told, self._paint):
            self._write(line)

    def _write(self, line: str) -> None:
        sys.stderr.write(harmless(line) + "\n")
        sys.stderr.flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is open."""


class LiveProgress(LineProgress):
    """The same lines, above one that says what runs now and for how long."""

    def __enter__(self) -> LiveProgress:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._bar.start()
        return self

    def show(self, event: Event) -> None:
        """Takes one event."""
        super().show(event)
        self._bar.update(self._task, description=self.now.words())

    def _write(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text.from_ansi(line), soft_wrap=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Takes the line away; the report follows."""
        self._bar.stop()


def progress_for(stream_is_terminal: bool) -> LineProgress:
    """The display that fits stderr."""
    return LiveProgress() if stream_is_terminal else LineProgress()


class Now:
    """What runs at this moment, from the events so far."""

    def __init__(self) -> None:
        self._what = "starting"
        self._is_soak = False
        self._pass = ""
        self._phase = ""
        self._far = ""
        self._since_s = time.monotonic()

    def take(self, event: Event) -> None:
        """Takes one event."""
        kind = event.get("event")
        if kind == "preflight_begin":
            self._begin("preflight")
        elif kind in ("trial_begin", "soak_begin"):
            self._is_soak = kind == "soak_begin"
            self._begin(f"{_SOAK if self._is_soak else ''}batch {_count(event.get('batch'))}")
        elif kind in ("preflight_end", "trial_end"):
            self._begin("deciding what is next")
        elif kind == "turn_wait":
            self._begin("waiting for another calibration on this machine")
        elif kind == "pass_begin":
            self._pass, self._phase, self._far = _word(event.get("pass")), "", ""
        elif kind == "phase_begin":
            self._phase, self._far = _word(event.get("phase")), ""
            self._since_s = time.monotonic()
        elif kind == "progress":
            done, total = event.get("done"), event.get("total")
            self._far = f"{done} of {total}" if total else ""

    def about(self, event: Event) -> Event:
        """The event as it is told: of a soak without the numbers that its trial has told."""
        if not self._is_soak or event.get("event") != "trial_end":
            return event
        named = ("event", "batch", "verdict", "class", "phase", "owner")
        return {**{name: event.get(name) for name in named}, "is_soak": True}

    def words(self) -> str:
        """``batch 2: memory, backward1, 3 of 50``, with the time of a long phase."""
        told = self._pass if self._pass != self._what else ""
        parts = [part for part in (told, self._phase, self._far) if part]
        long_s = time.monotonic() - self._since_s
        if self._phase and long_s >= 2:
            parts.append(f"for {format_seconds(long_s)}")
        return f"{self._what}: {', '.join(parts)}" if parts else self._what

    def _begin(self, what: str) -> None:
        self._what, self._pass, self._phase, self._far = what, "", "", ""
        self._since_s = time.monotonic()


def event_line(event: Event, paint: Paint) -> str:
    """One event as a line for people; empty for those that only say what runs now."""
    kind = event.get("event")
    if kind == "turn_wait":
        return "another calibration is timing on this machine; waiting for it"
    if kind == "preflight_end":
        return _preflight(event, paint)
    if kind == "warning":
        return f"{paint('warn', 'warning')}: {_word(event.get('text') or event.get('warning'))}"
    return _trial(event, paint) if kind == "trial_end" else ""


def _preflight(event: Event, paint: Paint) -> str:
    if event.get("problem"):
        return f"preflight: {paint('warn', 'no prediction')}: {_word(event['problem'])}"
    found = [
        f"batch {_count(p.get('batch'))} {format_bytes(p['peak_bytes'])}"
        for p in event.get("predictions") or ()
        if p.get("peak_bytes") is not None
    ]
    return f"preflight predicts peaks: {', '.join(found)}" if found else ""


def _trial(event: Event, paint: Paint) -> str:
    verdict = _word(event.get("verdict"))
    words = paint(_COLORS.get(verdict, "quiet"), verdict)
    if event.get("class"):
        where = f" in {_word(event['phase'])}" if event.get("phase") else ""
        who = f" ({_word(event['owner'])})" if event.get("owner") and verdict == "failed" else ""
        words += f": {_word(event['class'])}{where}{who}"
    soak = _SOAK if event.get("is_soak") else ""
    parts = [f"{soak}batch {_count(event.get('batch'))} {words}"]
    if event.get("samples_per_s") is not None:
        parts.append(f"{rate_words(event['samples_per_s'])} samples/s")
    if event.get("peak_bytes") is not None:
        where = f" in {_word(event['phase'])}" if event.get("phase") and verdict == "ok" else ""
        parts.append(f"peak {format_bytes(event['peak_bytes'])}{where}")
    if event.get("wall_s") is not None:
        parts.append(f"took {format_seconds(event['wall_s'])}")
    return ", ".join(parts)


def _count(value: object) -> str:
    return str(value) if isinstance(value, int) else "?"


def _word(value: object) -> str:
    return one_line(str(value), _WIDTH) if value is not None else ""
