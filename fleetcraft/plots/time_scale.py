"""A time axis on paper: real time to places, ticks with dates, and marks where time is cut out.

Which time is shown is decided by `fleetcraft.telemetry.figures.time_axis`. Invariant: a second is
equally wide everywhere on one axis, and nothing is drawn across a cut or a bin without data.
"""

from __future__ import annotations

import math
from datetime import datetime

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fleetcraft.plots.style import HAIRLINE, INK, QUIET
from fleetcraft.telemetry.figures.time_axis import Floats, TimeAxis
from fleetcraft.telemetry.reading.times import date_of

CUT_FILL = "#e9ebee"
_CUT_WIDTH_IN = 0.15
_LABEL_PT = 7.5
_LABEL_IN = 0.078  # one character of a label, with room between labels
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200,
    86400, 172800, 432000, 864000, 2592000, 7776000, 31104000,
)  # fmt: skip
_DAY_S = 86400.0
_LAST_S = 253_402_300_800.0  # the end of the year 9999
_DATE_CHARS = 6


class TimeScale:
    """Where each moment lies on an axis of a certain width.

    Args:
        axis: What is shown.
        width_in: How wide it is drawn, inches.
    """

    def __init__(self, axis: TimeAxis, width_in: float) -> None:
        self.axis = axis
        self.width_in = width_in
        shown_s = axis.bins * axis.bin_s
        cuts = len(axis.spans) - 1
        self._cut = shown_s * _CUT_WIDTH_IN / max(1.0, width_in - cuts * _CUT_WIDTH_IN)
        self._lefts = [
            span.first_bin * axis.bin_s + number * self._cut
            for number, span in enumerate(axis.spans)
        ]
        self.end = shown_s + cuts * self._cut

    def place(self, t_s: float) -> float | None:
        """Where a moment lies; None if it is not shown."""
        for span, left in zip(self.axis.spans, self._lefts, strict=True):
            if span.start_s <= t_s <= self.axis.end_of(span):
                return left + t_s - span.start_s
        return None

    def spans(self) -> list[tuple[float, float, slice]]:
        """Left and right end of each span, and its bins."""
        return [
            (
                left,
                left + span.bins * self.axis.bin_s,
                slice(span.first_bin, span.first_bin + span.bins),
            )
            for span, left in zip(self.axis.spans, self._lefts, strict=True)
        ]

    def cuts(self) -> list[tuple[float, float, float]]:
        """Left and right end of each mark, and the seconds that it stands for."""
        rights = self._lefts[1:]
        return [
            (right - self._cut, right, cut_s)
            for right, cut_s in zip(rights, self.axis.cuts_s, strict=True)
        ]

    def steps(self, values: Floats) -> tuple[Floats, Floats]:
        """A value a bin as a line with level steps; NaN parts it at gaps and cuts.

        Args:
            values: [bins], NaN where open.
        """
        places: list[NDArray[np.float64]] = []
        heights: list[NDArray[np.float64]] = []
        for left, right, bins in self.spans():
            edges = np.linspace(left, right, bins.stop - bins.start + 1)
            places += [np.repeat(edges, 2)[1:-1], np.array([right])]
            heights += [np.repeat(values[bins], 2), np.array([np.nan])]
        return np.concatenate(places), np.concatenate(heights)

    # -- ticks

    def tick_step_s(self) -> float:
        """The first round step whose labels have room beside each other."""
        second_in = self.width_in / self.end
        for step_s in _STEPS_S:
            if step_s * second_in >= _LABEL_IN * max(_DATE_CHARS, len(_label(0.0, step_s))):
                return float(step_s)
        return float(_STEPS_S[-1])

    def ticks(self) -> list[tuple[float, str]]:
        """Places and labels; the first of each day has its date, the first of all its year."""
        step_s = self.tick_step_s()
        room = _LABEL_IN * _DATE_CHARS * self.end / self.width_in
        chosen: list[tuple[float, float]] = []
        for span, left in zip(self.axis.spans, self._lefts, strict=True):
            own = self._of_span(span.start_s, self.axis.end_of(span), left, step_s)
            # A date is wider than a time: a span's first label needs room before it.
            while own and chosen and own[0][0] - chosen[-1][0] < room:
                if len(own) == 1 and chosen[-1][0] > self._lefts[0] + room:
                    chosen.pop()  # the only label of a short span is worth more than one of many
                else:
                    own.pop(0)
            chosen += own
        return self._labelled(chosen, step_s)

    def _of_span(
        self, start_s: float, end_s: float, left: float, step_s: float
    ) -> list[tuple[float, float]]:
        first_s = math.ceil(start_s / step_s) * step_s
        # A clock can be so wrong that the axis ends where no calendar goes.
        times = np.arange(first_s, min(end_s, _LAST_S), step_s)
        if not len(times):
            times = np.array([start_s])
        return [(left + t_s - start_s, float(t_s)) for t_s in times]

    def _labelled(
        self, chosen: list[tuple[float, float]], step_s: float
    ) -> list[tuple[float, str]]:
        ticks, day, year = [], -1.0, 0
        for place, t_s in chosen:
            text = _label(t_s, step_s)
            if math.floor(t_s / _DAY_S) != day:
                at = _date(t_s)
                date = f"{at.day} {_MONTHS[at.month - 1]}"
                date += f"\n{at.year}" if at.year != year else ""
                text = f"{text}\n{date}" if step_s < _DAY_S else date
                day, year = math.floor(t_s / _DAY_S), at.year
            ticks.append((place, text))
        return ticks

    # -- drawing

    def dress(self, axes: Axes, *, labels: bool, lengths: bool = False, grid: bool = True) -> None:
        """Gives an axes this time axis.

        Args:
            axes: What to dress; its vertical limits must be set.
            labels: Whether times are written below it.
            lengths: Whether the marks say how long they stand for.
            grid: Whether ticks go on as lines through the panel.
        """
        axes.set_xlim(0.0, self.end)
        ticks = self.ticks()
        axes.set_xticks([place for place, _ in ticks])
        axes.set_xticklabels([text for _, text in ticks] if labels else [], fontsize=_LABEL_PT)
        axes.tick_params(axis="x", length=3.0, color=QUIET)
        if grid:
            axes.grid(axis="x", linewidth=0.6, color=HAIRLINE)
        for left, right, cut_s in self.cuts():
            axes.axvspan(left, right, facecolor=CUT_FILL, edgecolor="none", zorder=2.5)
            for side in (left, right):
                axes.axvline(side, color=QUIET, linewidth=0.5, zorder=2.6)
            if lengths:
                axes.text(
                    (left + right) / 2, 0.5, span_words(cut_s), rotation=90, fontsize=7.0,
                    transform=axes.get_xaxis_transform(), ha="center", va="center", color=INK,
                    zorder=3.0,
                )  # fmt: skip
        axes.spines["bottom"].set_color(HAIRLINE)


def span_words(seconds: float) -> str:
    """A length of time: ``9 d 2 h``, ``5 h 12 min``, ``3 min 20 s``."""
    whole = round(seconds)
    if whole >= 60 and whole % 60 == 0 and whole < 3600:
        return f"{whole // 60} min"
    for big, small, size, part in (("d", "h", 86400, 3600), ("h", "min", 3600, 60)):
        if whole >= size:
            return f"{whole // size} {big} {whole % size // part} {small}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def moment_words(t_s: float) -> str:
    """A moment to the second, without its zone."""
    return _date(t_s).strftime("%Y-%m-%d %H:%M:%S")


def _date(t_s: float) -> datetime:
    return date_of(t_s)


def _label(t_s: float, step_s: float) -> str:
    if step_s >= _DAY_S:
        at = _date(t_s)
        return f"{at.day} {_MONTHS[at.month - 1]}"
    return _date(t_s).strftime("%H:%M" if step_s >= 60 else "%H:%M:%S")
