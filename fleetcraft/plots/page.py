"""A page of panels under one another, placed in inches, with a head, legends and a foot.

Knows nothing of what is drawn. Invariant: the place of everything follows from sizes in inches
alone, so that the same input gives the same page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fleetcraft.plots.style import HAIRLINE, INK, QUIET, drawable, new_figure

WIDTH_IN = 11.6
_RIGHT_IN = 1.75
_EDGE_IN = 0.16
_TITLE_IN = 0.29
_HEAD_LINE_IN = 0.185
_FOOT_LINE_IN = 0.165
_AXIS_IN = 0.54
_PANEL_TITLE_IN = 0.25
_BELOW_IN = 0.12
_TITLE_CHARS = 106
_HEAD_CHARS = 165
_FOOT_CHARS = 185


@dataclass(frozen=True, kw_only=True)
class Text:
    """What stands above and below the panels.

    Attributes:
        title: The headline.
        head: Lines under it.
        foot: Lines under the panels.
    """

    title: str
    head: Sequence[str]
    foot: Sequence[str]


class Page:
    """A figure with one column of panels.

    Args:
        heights_in: Height of each panel.
        text: What stands around them.
        left_in: Room for row labels.
    """

    def __init__(self, heights_in: Sequence[float], text: Text, *, left_in: float = 0.75) -> None:
        self._title = _wrapped([text.title], _TITLE_CHARS)
        self._head = _wrapped(text.head, _HEAD_CHARS)
        self._foot = _wrapped(text.foot, _FOOT_CHARS)
        self.left_in = left_in
        self.panel_in = WIDTH_IN - left_in - _RIGHT_IN
        top_in = (
            _EDGE_IN + _TITLE_IN * len(self._title) + _HEAD_LINE_IN * len(self._head) + _BELOW_IN
        )
        panels_in = sum(height + _PANEL_TITLE_IN + _BELOW_IN for height in heights_in)
        foot_in = _AXIS_IN + _FOOT_LINE_IN * len(self._foot) + _EDGE_IN
        self.height_in = top_in + panels_in + foot_in
        self.figure: Figure = new_figure(WIDTH_IN, self.height_in)
        self.figure.set_layout_engine("none")
        self._at_in = top_in
        self._write()

    def panel(self, height_in: float, title: str) -> Axes:
        """The next panel from the top, with its title."""
        self._at_in += _PANEL_TITLE_IN
        axes = self._axes(self.left_in, self._at_in, self.panel_in, height_in)
        axes.set_title(title, fontsize=8.5, fontweight="bold", pad=4.0)
        axes.grid(axis="y", linewidth=0.6, color=HAIRLINE)
        axes.tick_params(axis="y", length=0.0, labelsize=7.5)
        self._at_in += height_in + _BELOW_IN
        return axes

    def beside(self, axes: Axes, width_in: float, height_in: float) -> Axes:
        """A small axes at the right of a panel, as for a colour bar."""
        box = axes.get_position()
        top_in = self.height_in * (1.0 - box.y1)
        return self._axes(
            self.left_in + self.panel_in + 0.12,
            top_in,
            width_in,
            min(height_in, self.height_in * box.height),
        )

    def legend(self, axes: Axes, *, reverse: bool = False) -> None:
        """The legend of a panel, at its right."""
        handles, labels = axes.get_legend_handles_labels()
        if reverse:
            handles, labels = handles[::-1], labels[::-1]
        if handles:
            axes.legend(
                handles, labels, loc="upper left",
                bbox_to_anchor=(1.0 + 0.08 / self.panel_in, 1.06),
                frameon=False, fontsize=7.5, borderaxespad=0.0, handlelength=1.5, labelspacing=0.32,
            )  # fmt: skip

    def _axes(self, left_in: float, top_in: float, width_in: float, height_in: float) -> Axes:
        return self.figure.add_axes(
            (
                left_in / WIDTH_IN,
                1.0 - (top_in + height_in) / self.height_in,
                width_in / WIDTH_IN,
                height_in / self.height_in,
            )
        )

    def _write(self) -> None:
        at_in = _EDGE_IN
        for line in self._title:
            self._line(line, at_in, 12.5, INK, "bold")
            at_in += _TITLE_IN
        for line in self._head:
            self._line(line, at_in, 8.5, INK, "normal")
            at_in += _HEAD_LINE_IN
        at_in = self.height_in - _EDGE_IN - _FOOT_LINE_IN * len(self._foot)
        for line in self._foot:
            self._line(line, at_in, 7.5, QUIET, "normal")
            at_in += _FOOT_LINE_IN

    def _line(self, text: str, top_in: float, size_pt: float, color: str, weight: str) -> None:
        self.figure.text(
            _EDGE_IN / WIDTH_IN, 1.0 - top_in / self.height_in, text, fontsize=size_pt,
            color=color, fontweight=weight, va="top", ha="left",
        )  # fmt: skip


def _wrapped(lines: Sequence[str], chars: int) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(drawable(line), chars) or [""]]
