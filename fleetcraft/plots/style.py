"""The one look of all figures: fonts, colours, layout, and how a figure becomes a file.

What a figure shows is decided elsewhere. Invariant: figures are drawn by Agg without pyplot, so
there is no global state, no display and no window, and importing this changes nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fleetcraft.files import replace_atomically

DPI = 160
INK = "#20242b"
QUIET = "#7b8491"
PAPER = "#ffffff"
HAIRLINE = "#e3e6ea"

# Colours that colour-blind people can tell apart; black and yellow are left out, as they look like
# text and like paper. Source: Okabe and Ito, "Color universal design" (2008).
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")

_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.edgecolor": HAIRLINE,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": HAIRLINE,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Applies the style to everything drawn inside, and to nothing else."""
    with rc_context(_SETTINGS):
        yield


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure with constrained layout.

    Args:
        width_in: Width in inches.
        height_in: Height in inches.
    """
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, hspace=0.04)
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def bare(axes: Axes) -> None:
    """Takes ticks and frame from an axes that shows a picture."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def save(figure: Figure, out_path: str | Path) -> None:
    """Writes a figure as PNG under its final name, whole or not at all.

    Args:
        figure: What to write.
        out_path: Where to; its folder must exist.
    """
    path = Path(out_path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        figure.savefig(temporary, format="png")
        replace_atomically(str(temporary), str(path))
    finally:
        temporary.unlink(missing_ok=True)
