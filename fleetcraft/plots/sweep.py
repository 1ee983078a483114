"""The figure of a sweep: what the clips look like, and what was measured on each.

The caller measures and reads files; this only draws. Invariant: a value that is absent is drawn as
nothing, never as zero, and what does not fit is counted in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from numpy.typing import NDArray

from fleetcraft.errors import DataError
from fleetcraft.plots.style import (
    HAIRLINE,
    INK,
    PALETTE,
    QUIET,
    bare,
    house_style,
    new_figure,
    save,
)

MAX_PICTURES = 24
MAX_ROWS = 40
_PICTURES_ACROSS = (6, 8)
_PANELS_ACROSS = 3
_WIDTH_IN = 10.5
_HEAD_IN = 0.7


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One clip of a sweep.

    Attributes:
        name: What the clip is called.
        group: What it is coloured by, as in "16 steps"; empty for none.
        metrics: Measured values by the label of their panel; an absent metric is left out.
        frame: uint8 RGB [H, W, 3] to show; None if there is none.
    """

    name: str
    group: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    frame: NDArray[np.uint8] | None = None


def plot_sweep(rows: Sequence[SweepRow], out_path: str | Path, *, title: str = "Sweep") -> None:
    """Draws a contact sheet of all clips above one small panel per metric.

    Args:
        rows: One per clip, in the order they are shown; groups take colours as they appear.
        out_path: The PNG to write; its folder must exist.
        title: Headline.

    Raises:
        DataError: If there is no row.
    """
    if not rows:
        raise DataError(f"cannot draw {out_path}: the sweep has no clips", path=str(out_path))
    pictures = [row for row in rows if row.frame is not None][:MAX_PICTURES]
    shown = rows[:MAX_ROWS]
    labels = list(dict.fromkeys(label for row in shown for label in row.metrics))
    colors = _group_colors(rows)
    heights_in = [_HEAD_IN, *_heights_in(pictures, len(labels), len(shown))]
    with house_style():
        figure = new_figure(_WIDTH_IN, sum(heights_in))
        # A part that has nothing to show keeps a hair's height: zero is no ratio.
        grid = figure.add_gridspec(3, 1, height_ratios=[max(h, 0.01) for h in heights_in])
        head, sheet, panels = (figure.add_subfigure(grid[part]) for part in range(3))
        _draw_head(head, title, _counts(len(rows), len(pictures), len(shown)), colors)
        if pictures:
            _draw_sheet(sheet, pictures, colors)
        if labels:
            _draw_panels(panels, shown, labels, colors)
        save(figure, out_path)


def _group_colors(rows: Sequence[SweepRow]) -> dict[str, str]:
    groups = list(dict.fromkeys(row.group for row in rows))
    return {group: PALETTE[index % len(PALETTE)] for index, group in enumerate(groups)}


def _heights_in(pictures: Sequence[SweepRow], metrics: int, rows: int) -> tuple[float, float]:
    """Heights in inches of the contact sheet and of the panels, 0 where there is nothing."""
    frames = [row.frame for row in pictures if row.frame is not None]
    sheet_in = 0.0
    if frames:
        aspect = max(frame.shape[0] / frame.shape[1] for frame in frames)
        across = _across(pictures)
        sheet_in = _lines(len(frames), across) * (aspect * _WIDTH_IN / across + 0.3)
    return sheet_in, _lines(metrics, _PANELS_ACROSS) * (0.75 + 0.17 * rows)


def _lines(count: int, across: int) -> int:
    return -(-count // across)


def _across(pictures: Sequence[SweepRow]) -> int:
    """Columns of the contact sheet: a whole group in a row where groups are equal in size."""
    usual, most = _PICTURES_ACROSS
    sizes = set(Counter(row.group for row in pictures).values())
    size = sizes.pop()
    if sizes or size > most:
        return usual
    return size if size >= usual // 2 else size * (usual // size)


def _counts(rows: int, pictures: int, shown: int) -> str:
    notes = [f"{rows} clips"]
    if rows > pictures:
        notes.append(f"{rows - pictures} without a picture here")
    if rows > shown:
        notes.append(f"{rows - shown} not in the panels")
    return ", ".join(notes)


def _draw_head(head: SubFigure, title: str, counts: str, colors: Mapping[str, str]) -> None:
    head.text(0.008, 0.62, title, fontsize=15, fontweight="bold", va="center", color=INK)
    head.text(0.008, 0.14, counts, fontsize=9, va="center", color=QUIET)
    axes = head.add_subplot()
    bare(axes)
    for group, color in colors.items():
        if group:
            axes.scatter([], [], color=color, s=36, label=group)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center right", ncols=6, frameon=False, handletextpad=0.2)


def _draw_sheet(sheet: SubFigure, pictures: Sequence[SweepRow], colors: Mapping[str, str]) -> None:
    across = _across(pictures)
    grid = sheet.subplots(_lines(len(pictures), across), across, squeeze=False)
    for axes in grid.flat:
        bare(axes)
    for axes, row in zip(grid.flat, pictures, strict=False):
        axes.imshow(row.frame, interpolation="lanczos")
        axes.set_title(row.name, fontsize=8, pad=3)
        bar = axes.spines["top"]
        bar.set(visible=True, color=colors[row.group], linewidth=3.5, capstyle="butt")


def _draw_panels(
    panels: SubFigure,
    rows: Sequence[SweepRow],
    labels: Sequence[str],
    colors: Mapping[str, str],
) -> None:
    lines = _lines(len(labels), _PANELS_ACROSS)
    grid = panels.subplots(lines, _PANELS_ACROSS, squeeze=False, sharey=True)
    for axes in grid.flat[len(labels) :]:
        axes.set_visible(False)
    for axes, label in zip(grid.flat, labels, strict=False):
        _draw_metric(axes, rows, label, colors)


def _draw_metric(
    axes: Axes, rows: Sequence[SweepRow], label: str, colors: Mapping[str, str]
) -> None:
    measured = [(place, row) for place, row in enumerate(rows) if label in row.metrics]
    places = [place for place, _ in measured]
    values = [row.metrics[label] for _, row in measured]
    dots = [colors[row.group] for _, row in measured]
    axes.hlines(places, 0, values, color=HAIRLINE, linewidth=2)
    axes.scatter(values, places, color=dots, s=26, zorder=3)
    axes.set_title(label)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(left=min(0.0, *values) if values else 0.0)
    axes.margins(x=0.08)
    axes.grid(axis="x", linewidth=0.6)
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
