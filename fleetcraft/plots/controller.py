"""The figure of a controller's log: its GPUs, their use, what waited, and its rolling summaries.

A log has a clock of its own and so an axis of its own. Invariant: a reading is a point, lines
join only readings that are neighbours in time, and a summary is as wide as its window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from fleetcraft.errors import DataError
from fleetcraft.plots.fleet_text import plural
from fleetcraft.plots.page import Page, Text
from fleetcraft.plots.panels import BLUE, GREEN, ORANGE, RED, limit, percent
from fleetcraft.plots.style import INK, house_style, save_both
from fleetcraft.plots.time_scale import TimeScale, moment_words, span_words
from fleetcraft.telemetry.figures.controller_log import ControllerLog, Summary
from fleetcraft.telemetry.figures.time_axis import Floats, TimeAxis, choose_axis, stretches

NAME = "controller"
_GAP_STEPS = 2.5
"""Readings further apart than so many usual steps are not joined."""
_USUAL_STEP_S = 600.0


class _Panel(NamedTuple):
    name: str
    title: str
    height_in: float
    draw: Callable[[Axes], None]


class Made(NamedTuple):
    """The files written, and the panels from the top."""

    files: tuple[str, ...]
    panels: tuple[str, ...]


def plot_controller(log: ControllerLog, folder: str | Path, *, title: str = "") -> Made:
    """Draws ``controller.png`` and ``controller.svg``.

    Args:
        log: What was read.
        folder: Where the files go; it must exist.
        title: Headline; the main finding if empty.

    Raises:
        DataError: The log has neither a reading nor a summary.
    """
    times = np.array([p.t_s for p in log.points] + [s.t_s for s in log.summaries])
    if not len(times):
        raise DataError(
            f"nothing to draw: {plural(log.lines, 'line')} of the controller log, none of them a "
            "reading or a summary",
            rejected=log.rejected,
        )
    times.sort()
    gap_s = _gap_s(np.array([point.t_s for point in log.points]))
    axis = choose_axis(stretches(times, np.full(len(times), gap_s)), interval_s=1.0)
    assert axis is not None
    with house_style():
        return _Controller(log, axis, gap_s).draw(folder, title)


def _gap_s(t_s: Floats) -> float:
    steps = np.diff(t_s)
    return _GAP_STEPS * (float(np.median(steps)) if len(steps) else _USUAL_STEP_S)


class _Controller:
    def __init__(self, log: ControllerLog, axis: TimeAxis, gap_s: float) -> None:
        self._log = log
        self._axis = axis
        self._gap_s = gap_s
        self._scale: TimeScale | None = None

    @property
    def scale(self) -> TimeScale:
        assert self._scale is not None
        return self._scale

    def draw(self, folder: str | Path, title: str) -> Made:
        chosen = self._panels()
        main = self._finding()
        text = Text(
            title=title or main,
            head=[*([main] if title else []), *self._head()],
            foot=self._foot(),
        )
        page = Page([panel.height_in for panel in chosen], text)
        self._scale = TimeScale(self._axis, page.panel_in)
        for number, panel in enumerate(chosen):
            axes = page.panel(panel.height_in, panel.title)
            panel.draw(axes)
            self.scale.dress(axes, labels=number == len(chosen) - 1, lengths=number == 0)
            page.legend(axes)
        files = save_both(page.figure, folder, NAME)
        return Made(files, tuple(panel.name for panel in chosen))

    # -- panels

    def _panels(self) -> list[_Panel]:
        points, summaries = self._log.points, self._log.summaries
        found = []
        if points:
            found.append(_Panel("gpus", "GPUs", 1.7, self._gpus))
        found.append(_Panel("utilization", "Utilization, %", 1.5, self._utilization))
        if any(summary.mean_memory_fraction is not None for summary in summaries):
            found.append(_Panel("memory", "Memory used, % of the GPUs'", 1.0, self._memory))
        if any(point.pending is not None for point in points):
            found.append(_Panel("pending", "Pending tasks", 1.0, self._pending))
        if any(summary.hosts is not None for summary in summaries):
            found.append(_Panel("hosts", "Hosts behind each summary", 0.8, self._hosts))
        return found

    def _gpus(self, axes: Axes) -> None:
        points = self._log.points
        self._readings(axes, [point.total for point in points], INK, "in all")
        self._readings(axes, [point.working for point in points], BLUE, "working")
        self._readings(axes, [point.free_idle for point in points], ORANGE, "free idle")
        limit(axes, float(max(point.total for point in points)), counts=True)

    def _utilization(self, axes: Axes) -> None:
        self._readings(
            axes, [point.utilization_pct for point in self._log.points], BLUE, "working of all"
        )
        self._windows(
            axes, _scaled(self._log.summaries, "mean_util_pct", 1.0), RED, "mean (summary)"
        )
        self._windows(
            axes, _scaled(self._log.summaries, "active_fraction", 100.0), GREEN, "active (summary)"
        )
        percent(axes)

    def _memory(self, axes: Axes) -> None:
        values = _scaled(self._log.summaries, "mean_memory_fraction", 100.0)
        self._windows(axes, values, RED, "mean (summary)")
        percent(axes)

    def _pending(self, axes: Axes) -> None:
        values = [point.pending for point in self._log.points]
        self._readings(axes, values, RED, "pending")
        limit(axes, float(max(value for value in values if value is not None)), counts=True)

    def _hosts(self, axes: Axes) -> None:
        values = [None if s.hosts is None else float(s.hosts) for s in self._log.summaries]
        self._windows(axes, values, INK, "hosts")
        limit(axes, max(value for value in values if value is not None), counts=True)

    def _readings(self, axes: Axes, values: Sequence[float | None], color: str, label: str) -> None:
        """Readings as points, joined where they are neighbours in time."""
        places: list[float] = []
        heights: list[float] = []
        before_s = None
        for point, value in zip(self._log.points, values, strict=True):
            place = self.scale.place(point.t_s)
            if place is None or value is None:
                continue
            if before_s is not None and point.t_s - before_s >= self._gap_s:
                places.append(place)
                heights.append(np.nan)
            places.append(place)
            heights.append(float(value))
            before_s = point.t_s
        axes.plot(
            places, heights, color=color, linewidth=1.1, marker="o", markersize=2.0,
            markeredgewidth=0.0, label=label,
            zorder=2.7,  # above the marks of cuts, beside which a single reading may lie

        )  # fmt: skip

    def _windows(self, axes: Axes, values: Sequence[float | None], color: str, label: str) -> None:
        """Summaries as bars as wide as their window, with a point at its end."""
        ends: list[float] = []
        heights: list[float] = []
        widths: list[float] = []
        for summary, value in zip(self._log.summaries, values, strict=True):
            place = self.scale.place(summary.t_s)
            if place is not None and value is not None:
                ends.append(place)
                heights.append(value)
                widths.append(summary.window_s)
        if not ends:
            return
        axes.hlines(
            heights, np.array(ends) - np.array(widths), ends, color=color, linewidth=1.6, zorder=2.7
        )
        axes.scatter(ends, heights, color=color, s=5.0, linewidths=0.0, label=label, zorder=2.8)

    # -- texts

    def _finding(self) -> str:
        points = [point for point in self._log.points if point.total]
        if not points:
            return f"{plural(len(self._log.summaries), 'rolling summary', 'rolling summaries')}"
        working = sum(point.working for point in points)
        total = sum(point.total for point in points)
        words = (
            f"{working / len(points):.1f} of {total / len(points):.1f} GPUs at work "
            f"({100 * working / total:.0f} %) on average over {plural(len(points), 'reading')}"
        )
        idle = [point.free_idle for point in points if point.free_idle is not None]
        return f"{words}, {sum(idle) / len(idle):.1f} free idle" if idle else words

    def _head(self) -> list[str]:
        log, axis = self._log, self._axis
        rejected = sum(log.rejected.values())
        outside = f", {log.outside:,} outside this span" if log.outside else ""
        counts = (
            f"{plural(log.lines, 'line')}: {plural(len(log.points), 'reading')}, "
            f"{plural(len(log.summaries), 'rolling summary', 'rolling summaries')}, "
            f"{rejected or 'none'} rejected{outside}"
        )
        if rejected:
            kinds = (f"{n:,} {kind.replace('_', ' ')}" for kind, n in log.rejected.items())
            counts += f" ({', '.join(kinds)})"
        wrong = plural(log.inconsistent, "percentage") if log.inconsistent else "no percentage"
        counts += (
            f"; {wrong} other than the floor of working over all; "
            f"{plural(log.steps_back, 'step')} back in time"
        )
        zone = "UTC" if log.zoned else "local time of the log, zone not recorded"
        long = span_words(axis.end_s - axis.start_s)
        return [
            counts,
            f"{moment_words(axis.start_s)} to {moment_words(axis.end_s)} ({long}), {zone}",
        ]

    def _foot(self) -> list[str]:
        line = (
            f"Readings {span_words(self._gap_s)} or more apart are not joined; a summary is as "
            "wide as its window."
        )
        if self._axis.cuts_s:
            line += (
                f" {plural(len(self._axis.cuts_s), 'stretch', 'stretches')} without any line, "
                f"{span_words(sum(self._axis.cuts_s))} in all, cut out at the grey marks."
            )
        return [line]


def _scaled(summaries: Sequence[Summary], name: str, factor: float) -> list[float | None]:
    values = (getattr(summary, name) for summary in summaries)
    return [None if value is None else factor * value for value in values]
