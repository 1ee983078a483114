"""The panels of a fleet's figure: one function each, over one shared time axis.

What is drawn comes ready in bins; how panels become a page is `fleet`'s. Invariant: what has no
value is not drawn, and no legend lies on data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fleetcraft.gpu.states import GpuState
from fleetcraft.plots.style import HAIRLINE, INK, PALETTE, PAPER, drawable, lighter
from fleetcraft.plots.time_scale import TimeScale
from fleetcraft.telemetry.figures.time_axis import Floats
from fleetcraft.telemetry.figures.timeline import Bands, Row
from fleetcraft.telemetry.figures.traces import STATES

BLUE, ORANGE, GREEN, PINK, SKY, RED = PALETTE
_DEEP_BLUE = "#00466e"
SMALL_PT = 7.5
NAME_CHARS = 26
_FEW = 4
"""Up to so many GPUs are drawn as lines of their own; bands say nothing of so few."""
_LABEL_IN = 0.125  # a row label of 7 pt, with room
_GPU_COLORS = (BLUE, RED, GREEN, PINK)
STATE_STYLE: Mapping[GpuState, tuple[str, str, str]] = {
    GpuState.WORKING: ("working", BLUE, ""),
    GpuState.RESIDENT_IDLE: ("resident idle", ORANGE, ""),
    GpuState.FREE_IDLE: ("free idle", lighter(ORANGE, 0.65), ""),
    GpuState.UNKNOWN: ("unknown", "#d9dce1", "...."),
    GpuState.SILENT: ("silent", "#9aa1ab", "////"),
    GpuState.LOST: ("lost", RED, ""),
}
"""Words, colour and hatching of each state, from the bottom of the stack up."""
_QUEUE_STYLE = {"running": (BLUE, "-"), "pending": (RED, "-"), "waiting": (PINK, (0, (4, 1.5)))}


def heat_colors() -> Colormap:
    """Dark for idle to bright for busy, by lightness also without colour; open is paper."""
    colors = ["#0b1f4b", "#274b7a", "#4d7f93", "#8fb17c", "#d9c84f", "#fde725"]
    return LinearSegmentedColormap.from_list("busy", colors).with_extremes(bad=PAPER)


def draw_heat(axes: Axes, scale: TimeScale, rows: Sequence[Row], height_in: float) -> AxesImage:
    """One line a row, in the order given; what has no sample stays paper."""
    values = np.ma.masked_invalid(np.array([row.util_pct for row in rows]))
    image = None
    for left, right, bins in scale.spans():
        image = axes.imshow(
            values[:, bins],
            extent=(left, right, len(rows), 0.0),
            aspect="auto",
            interpolation="nearest",  # also in the SVG: many viewers smooth what is scaled there
            cmap=heat_colors(),
            vmin=0.0,
            vmax=100.0,
        )
    assert image is not None
    axes.set_ylim(len(rows), 0.0)
    every = max(1, int(np.ceil(_LABEL_IN * len(rows) / height_in)))
    labels = [label_of(row) for row in rows]
    axes.set_yticks(
        [place + 0.5 for place in range(0, len(rows), every)],
        labels[::every],
        fontsize=7.0,
    )
    axes.tick_params(axis="y", length=0.0, pad=3.0)
    axes.grid(False)
    if height_in / len(rows) > 0.06:
        axes.hlines(range(1, len(rows)), 0.0, scale.end, color=PAPER, linewidth=0.8)
    for spine in axes.spines.values():
        spine.set(visible=True, color=HAIRLINE)
    return image


def label_of(row: Row) -> str:
    """What stands before a row."""
    return row_label(f"{row.host} {row.gpu}" if row.gpu else row.host)


def row_label(label: str) -> str:
    """A name, shortened in its middle where it is long."""
    return drawable(label, NAME_CHARS)


def draw_bands(
    axes: Axes,
    scale: TimeScale,
    bands: Bands,
    *,
    percent: bool = False,
    mean: bool = True,
    of: str = "GPUs",
) -> None:
    """The spread over GPUs, or a line each where there are few."""
    factor = 100.0 if percent else 1.0
    if len(bands.series) <= _FEW:
        for name, series, color in zip(bands.names, bands.series, _GPU_COLORS, strict=False):
            _line(axes, scale, factor * series, color=color, width=1.2, label=row_label(name))
        return
    low, lower, middle, upper, high = factor * bands.quantiles
    _between(axes, scale, low, high, color=lighter(BLUE, 0.78), label=f"10 to 90 % of {of}")
    _between(axes, scale, lower, upper, color=lighter(BLUE, 0.52), label=f"25 to 75 % of {of}")
    _line(axes, scale, middle, color=_DEEP_BLUE, width=1.2, label=f"median {of.removesuffix('s')}")
    if mean:
        _line(axes, scale, factor * bands.mean, color=RED, width=1.0, label="mean of samples")


def draw_active(axes: Axes, scale: TimeScale, active_fraction: Floats) -> None:
    """Share of samples at work, in percent."""
    _line(
        axes, scale, 100.0 * active_fraction, color=INK, width=1.0, label="active fraction",
        style=(0, (1.2, 1.2)),
    )  # fmt: skip


def draw_line(axes: Axes, scale: TimeScale, values: Floats, label: str, color: str = BLUE) -> None:
    """One quantity."""
    _line(axes, scale, values, color=color, width=1.3, label=label)


def draw_states(axes: Axes, scale: TimeScale, states: Floats) -> None:
    """GPUs in each state, stacked; states that never occur are left out."""
    below = np.zeros(states.shape[1])
    for state, (words, color, hatch) in STATE_STYLE.items():
        own = states[STATES.index(state)]
        if not np.nansum(own):
            continue
        _between(axes, scale, below, below + own, color=color, label=words, hatch=hatch)
        below = below + own
    _line(axes, scale, states.sum(axis=0), color=INK, width=0.8, label="")


def draw_depth(axes: Axes, scale: TimeScale, depth: Mapping[str, Floats]) -> None:
    """Tasks of one spool in the states that still cost something."""
    for state, (color, style) in _QUEUE_STYLE.items():
        _line(axes, scale, depth[state], color=color, width=1.2, label=state, style=style)


def draw_workers(axes: Axes, scale: TimeScale, workers: Mapping[str, Floats]) -> None:
    """Workers present, a line a spool."""
    looks = ((BLUE, "-"), (RED, (0, (4, 1.5))))
    for (spool, present), (color, style) in zip(workers.items(), looks, strict=False):
        _line(axes, scale, present, color=color, width=1.2, label=f"{spool} spool", style=style)


def percent(axes: Axes) -> None:
    """An axis from 0 to 100, with lines at both ends seen whole."""
    axes.set_ylim(-2.0, 102.0)
    axes.set_yticks([0, 25, 50, 75, 100])


def limit(axes: Axes, top: float, *, counts: bool = False) -> None:
    """Starts an axes at zero, with few round ticks.

    Args:
        axes: Which.
        top: The largest value; anything not positive gives 1.
        counts: Whether only whole numbers mean something.
    """
    top = 1.08 * top if top > 0 else 1.0
    axes.set_ylim(-0.03 * top, top)  # so that a line at zero is seen whole
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=counts))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def differ_much(depth: Mapping[str, Floats]) -> bool:
    """Whether counts differ so much that a linear axis would hide the small ones."""
    tops = [float(np.nanmax(values)) for values in depth.values() if np.nansum(values) > 0]
    return bool(tops) and max(tops) > 60 * min(tops)


def scale_counts(axes: Axes, depth: Mapping[str, Floats]) -> None:
    """Scales a count axis: from zero, and logarithmic above one where counts differ much."""
    top = max(float(np.nanmax(values)) for values in depth.values())
    if not differ_much(depth):
        limit(axes, top, counts=True)
        return
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.6)
    axes.set_ylim(-0.15, 2.0 * top)
    powers = [10**n for n in range(1 + int(np.log10(2.0 * top)))]
    axes.set_yticks([0, *powers], [f"{value:,}" for value in (0, *powers)])
    axes.set_yticks([], minor=True)


def _line(
    axes: Axes, scale: TimeScale, values: Floats, *, color: str, width: float, label: str,
    style: Any = "-",
) -> None:  # fmt: skip
    x, y = scale.steps(values)
    axes.plot(
        x, y, color=color, linewidth=width, linestyle=style, label=label or "_",
        solid_capstyle="butt", solid_joinstyle="miter", zorder=2.2,
    )  # fmt: skip


def _between(
    axes: Axes,
    scale: TimeScale,
    low: Floats,
    high: Floats,
    *,
    color: str,
    label: str,
    hatch: str = "",
) -> None:
    x, bottom = scale.steps(low)
    _, top = scale.steps(high)
    axes.fill_between(
        x, bottom, top, facecolor=color, edgecolor=PAPER if hatch else "none", linewidth=0.0,
        hatch=hatch or None, label=label, zorder=2.0,
    )  # fmt: skip
