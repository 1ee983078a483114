"""The one look of all figures: fonts, colours, layout, and how a figure becomes a file.

What a figure shows is decided elsewhere. Invariant: figures are drawn by Agg without pyplot, so
there is no global state, no display and no window, and importing this changes nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fleetcraft.files import replace_atomically
from fleetcraft.identity import new_launch_token

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
    "text.parse_math": False,  # names of hosts and clips may have dollar signs
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "fleetcraft",  # else every run would name its parts anew
}
_NOT_STYLE = frozenset({"backend", "backend_fallback", "interactive", "toolbar", "timezone"})
_FAMILY = str(_SETTINGS["font.family"])
# Without these, a file would carry the time it was made and who made it.
_BARE = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}


@contextmanager
def house_style() -> Iterator[None]:
    """Applies the style to everything drawn inside, and to nothing else.

    What a matplotlibrc says is set aside meanwhile: the same input gives the same figure anywhere.
    """
    usual = {name: value for name, value in rcParamsDefault.items() if name not in _NOT_STYLE}
    with rc_context({**usual, **_SETTINGS}):
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


def lighter(color: str, share: float) -> str:
    """A colour mixed with so much paper, 0 to 1; opaque, unlike one with alpha."""
    red, green, blue = (part + (1.0 - part) * share for part in to_rgb(color))
    return str(to_hex((red, green, blue)))


@lru_cache(maxsize=1)
def _glyphs() -> frozenset[int]:
    return frozenset(FT2Font(findfont(FontProperties(family=_FAMILY))).get_charmap())


def drawable(text: str, width: int | None = None) -> str:
    """Text as the font can draw it: other characters, controls among them, are spelled out.

    Args:
        text: A name from a file.
        width: Cut in the middle to so many characters, so that head and number stay.
    """
    spelled = "".join(
        c if c.isprintable() and ord(c) in _glyphs() else c.encode("unicode_escape").decode()
        for c in text
    )
    if width is None or len(spelled) <= width:
        return spelled
    tail = (width - 1) // 2
    return f"{spelled[: width - 1 - tail]}…{spelled[len(spelled) - tail :]}"


def save(figure: Figure, out_path: str | Path) -> None:
    """Writes a figure as PNG under its final name, whole or not at all.

    Args:
        figure: What to write.
        out_path: Where to; its folder must exist.
    """
    _write(figure, Path(out_path), format="png")


def save_both(figure: Figure, folder: str | Path, name: str) -> tuple[str, str]:
    """Writes a figure as PNG and as SVG, each whole under its name.

    Both have no date and no version in them: the same figure gives the same bytes.

    Args:
        figure: What to write.
        folder: Where to; it must exist.
        name: File name without its ending.

    Returns:
        The paths of the two.
    """
    paths = tuple(Path(folder) / f"{name}.{kind}" for kind in _BARE)
    for path, (kind, metadata) in zip(paths, _BARE.items(), strict=True):
        _write(figure, path, format=kind, metadata=metadata)
    return str(paths[0]), str(paths[1])


def _write(figure: Figure, path: Path, **options: Any) -> None:
    # A name that nobody guesses, and never through a link that somebody else put there.
    temporary = path.with_name(f".{path.name}.{new_launch_token()}.part")
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(fd, "w+b") as file:
            figure.savefig(file, **options)
        replace_atomically(str(temporary), str(path))
    finally:
        temporary.unlink(missing_ok=True)
