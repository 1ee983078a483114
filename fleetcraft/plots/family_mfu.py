"""The figure of estimated MFU by family: a bar each, with what was assumed.

Numbers come computed. Invariant: a family without a number has no bar, and its reason stands in
its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from fleetcraft.errors import DataError
from fleetcraft.plots.fleet_text import amount, plural
from fleetcraft.plots.page import Page, Text
from fleetcraft.plots.panels import BLUE, row_label
from fleetcraft.plots.style import HAIRLINE, QUIET, drawable, house_style, save_both
from fleetcraft.plots.time_scale import moment_words, span_words
from fleetcraft.telemetry.windows.family_mfu import FamilyMfu, Mfu

NAME = "mfu"
MAX_ROWS = 40
_ROW_IN = 0.44


def plot_family_mfu(
    mfu: Mfu, span_s: tuple[float, float], folder: str | Path, *, title: str = ""
) -> tuple[str, ...]:
    """Draws ``mfu.png`` and ``mfu.svg``.

    Args:
        mfu: What each family reached; the first 40 families are drawn, in order of FLOPs.
        span_s: Start and end of the time that it is about, seconds since 1970.
        folder: Where the files go; it must exist.
        title: Headline; the main finding if empty.

    Returns:
        The paths written.

    Raises:
        DataError: No family reported forward calls.
    """
    if not mfu.families:
        raise DataError(
            "no MFU to draw: no task of a family reported forward calls in this time",
            unmatched_calls=mfu.unmatched_calls,
        )
    rows = sorted(mfu.families, key=lambda row: (-row.flop, row.family))[:MAX_ROWS]
    main = _finding(mfu)
    text = Text(
        title=title or main,
        head=[*([main] if title else []), *_head(mfu, span_s)],
        foot=_foot(mfu, len(rows)),
    )
    with house_style():
        height_in = 0.3 + _ROW_IN * len(rows)
        longest = max(len(row_label(row.family or "(no family)")) for row in rows)
        page = Page([height_in], text, left_in=min(max(0.9, 0.25 + 0.07 * longest), 2.3))
        _draw(page.panel(height_in, "Estimated MFU, % of the dense BF16 peak"), rows)
        return save_both(page.figure, folder, NAME)


def _draw(axes: Axes, rows: Sequence[FamilyMfu]) -> None:
    values = [100.0 * row.mfu for row in rows if row.mfu is not None]
    right = max(100.0 if not values else 0.0, 1.1 * max(values, default=0.0), 10.0)
    for place, row in enumerate(rows):
        below = _words(row)
        if row.mfu is None:
            below = f"no number: {row.reason}"
        else:
            axes.barh(place - 0.12, 100.0 * row.mfu, height=0.42, color=BLUE)
            axes.text(
                100.0 * row.mfu + 0.006 * right, place - 0.12, f"{100.0 * row.mfu:.1f} %",
                fontsize=8.5, fontweight="bold", va="center",
            )  # fmt: skip
        axes.text(
            0.004 * right, place + 0.27, drawable(below), fontsize=7.5, color=QUIET, va="center"
        )
    axes.set_yticks(
        range(len(rows)), [row_label(row.family or "(no family)") for row in rows], fontsize=8.0
    )
    axes.set_ylim(len(rows) - 0.5, -0.55)
    axes.set_xlim(0.0, right)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", linewidth=0.6, color=HAIRLINE)
    axes.tick_params(length=0.0)


def _words(row: FamilyMfu) -> str:
    kind = {True: "training", False: "forward only", None: "kind not known"}[row.training]
    gpus = ", ".join(device.name for device in row.devices)
    hours = "" if row.gpu_s is None else f" in {amount(row.gpu_s / 3600.0)} GPU hours"
    return (
        f"{_flop(row.flop)}{hours} on {gpus}; {kind}; "
        f"{row.runs_reporting:,} of {plural(row.runs, 'run')} reported"
    )


def _flop(flop: float) -> str:
    return f"{flop:.3g} FLOP".replace("e+", "e")


def _finding(mfu: Mfu) -> str:
    known = [row for row in mfu.families if row.mfu is not None]
    families = plural(len(mfu.families), "family", "families")
    if not known:
        return f"{families} reported forward calls; none has an MFU that can be told"
    best = max(known, key=lambda row: (row.mfu or 0.0, row.family))
    worst = min(known, key=lambda row: (row.mfu or 0.0, row.family))
    if len(known) == 1:
        return f"Estimated MFU of {drawable(best.family)}: {100 * (best.mfu or 0):.1f} %"
    return (
        f"Estimated MFU of {len(known)} families: {100 * (worst.mfu or 0):.1f} % "
        f"({drawable(worst.family)}) to {100 * (best.mfu or 0):.1f} % ({drawable(best.family)})"
    )


def _head(mfu: Mfu, span_s: tuple[float, float]) -> list[str]:
    start_s, end_s = span_s
    flop = sum(row.flop for row in mfu.families)
    forwards = sum(row.forwards for row in mfu.families)
    lines = [
        f"{plural(forwards, 'forward call')}, {_flop(flop)}; {moment_words(start_s)} to "
        f"{moment_words(end_s)} ({span_words(end_s - start_s)}), UTC"
    ]
    odd = []
    if mfu.unmatched_calls:
        odd.append(f"{plural(mfu.unmatched_calls, 'report')} of tasks that are in no journal")
    if mfu.rejected_lines:
        odd.append(f"{plural(mfu.rejected_lines, 'line')} rejected")
    return [*lines, *(["; ".join(odd)] if odd else [])]


def _foot(mfu: Mfu, shown: int) -> list[str]:
    lines = [f"Assumed: {'; '.join(mfu.assumptions)}."]
    sources = sorted(
        {
            f"{device.name}: {device.peak_flop_per_s / 1e12:,.5g} TFLOP/s ({device.peak_source})"
            for row in mfu.families
            for device in row.devices
            if device.peak_flop_per_s is not None
        }
    )
    if sources:
        lines.append(f"Peaks: {'; '.join(sources)}.")
    idle_s = sum(row.gpu_s_without_reports for row in mfu.families)
    if idle_s:
        lines.append(f"{amount(idle_s / 3600.0)} GPU hours of runs without reports are in no bar.")
    if len(mfu.families) > shown:
        lines.append(f"{plural(len(mfu.families) - shown, 'family', 'families')} not drawn.")
    return lines
