"""The figure of a calibration: the peak of each phase by owner, a panel for each batch.

Layers and colours are `calibration_owners`', words `calibration_text`'s. Invariant: every axis
starts at zero, a phase that did not run or was not measured has no bar, and the words say which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fleetcraft.calibration.records import Calibration, PhaseRecord, Trial, Verdict
from fleetcraft.errors import DataError
from fleetcraft.plots.calibration_owners import Layer, Layers
from fleetcraft.plots.calibration_text import (
    Unit,
    calibration_text,
    height_of,
    panel_title,
    top_of,
)
from fleetcraft.plots.page import Page
from fleetcraft.plots.style import (
    INK,
    PALETTE,
    PAPER,
    QUIET,
    drawable,
    house_style,
    lighter,
    save_both,
)
from fleetcraft.units import format_bytes

NAME = "peaks"
MAX_PANELS = 12
_RED = PALETTE[5]
_BAR = 0.68
_BARS_IN = 1.6
_WORDS_IN = 0.26
_HEADROOM = 1.24
"""Room above the highest bar for its number and for the mark of a failure."""
_NEAR_LIMIT = 1.5
"""A limit up to so many times the highest bar is drawn; beyond, it would flatten the bars."""
_SHARED_UP_TO = 6.0
"""Peaks that differ by more than this have a scale of their own in each panel."""
_WIDE_UP_TO = 14
"""Phases up to which the highest number has room for a word before it."""
_CHAR_IN = 0.068
_SLANTED_BELOW_IN = 0.5


@dataclass(frozen=True, kw_only=True)
class Made:
    """What was written.

    Attributes:
        files: The PNG and the SVG.
        batches: Those that have a panel, from the top.
        title: The headline.
    """

    files: tuple[str, ...]
    batches: tuple[int, ...]
    title: str


def plot_calibration(
    run: Calibration, folder: str | Path, *, name: str = NAME, title: str = ""
) -> Made:
    """Draws ``peaks.png`` and ``peaks.svg``.

    Args:
        run: The record; the first 12 batches have a panel.
        folder: Where the files go; it must exist.
        name: File name without its ending.
        title: Headline; the choice and its reason if empty.

    Raises:
        DataError: No trial has a phase whose peak was measured.
    """
    if not any(phase.peak_bytes is not None for trial in run.trials for phase in trial.phases):
        raise DataError(
            f"nothing to draw of {run.family}: no phase of any trial has a measured peak",
            hint="the journals in the trials' folders say how far they came",
            family=run.family,
        )
    with house_style():
        return _Figure(run).draw(folder, name, title)


class _Figure:
    def __init__(self, run: Calibration) -> None:
        self._run = run
        self._trials = sorted(run.trials, key=lambda trial: trial.batch)[:MAX_PANELS]
        self._layers = Layers(self._trials)
        self._phases = _phase_names(self._trials)
        self._top = max(top_of(trial) for trial in self._trials)
        # One that failed early is low for want of phases, which is no reason to stretch it.
        well = [top for t in self._trials if t.verdict is Verdict.OK and (top := top_of(t))]
        self._shared = self._top <= _SHARED_UP_TO * min(well, default=self._top)
        self._limit, self._limit_words = _limit(run)

    def draw(self, folder: str | Path, name: str, title: str) -> Made:
        drawn = [trial for trial in self._trials if self._near_limit(trial)]
        text = calibration_text(
            self._run,
            limit=self._limit_words,
            beyond=not drawn,
            shared=self._shared,
            left_out=len(self._run.trials) - len(self._trials),
            title=title,
        )
        heights = [_BARS_IN if top_of(trial) else _WORDS_IN for trial in self._trials]
        page = Page(heights, text)
        last = max(place for place, trial in enumerate(self._trials) if top_of(trial))
        for place, (trial, height_in) in enumerate(zip(self._trials, heights, strict=True)):
            chosen = trial.batch == self._run.choice.batch
            axes = page.panel(
                height_in, drawable(panel_title(trial, self._unit(trial), chosen=chosen))
            )
            if trial.verdict is not Verdict.OK:
                color = _RED if trial.verdict is Verdict.FAILED else QUIET
                axes.set_title(axes.get_title(loc="left"), color=color, fontsize=8.5, pad=4.0,
                               fontweight="bold")  # fmt: skip
            if not top_of(trial):
                _only_words(axes, trial)
                continue
            self._panel(axes, trial)
            self._name_phases(axes, page.panel_in, is_last=place == last)
            if place == 0 or not any(top_of(t) for t in self._trials[:place]):
                self._legend(page, axes)
        files = save_both(page.figure, folder, name)
        return Made(files=files, batches=tuple(t.batch for t in self._trials), title=text.title)

    # -- one panel

    def _panel(self, axes: Axes, trial: Trial) -> None:
        places = {name: place for place, name in enumerate(self._phases)}
        measured = [phase for phase in trial.phases if phase.peak_bytes is not None]
        self._bars(axes, [(places[phase.name], phase) for phase in measured], self._unit(trial))
        unit = self._unit(trial)
        top: float = self._scale_top(trial)
        if self._near_limit(trial):
            assert self._limit is not None
            axes.axhline(self._limit / unit.size, color=INK, linewidth=1.0,
                         linestyle=(0, (5, 2)), zorder=2.6)  # fmt: skip
            top = max(top, self._limit)
        axes.set_ylim(0.0, _HEADROOM * top / unit.size)
        axes.set_xlim(-0.5, len(self._phases) - 0.5)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.set_ylabel(unit.name, fontsize=7.5, labelpad=3.0)
        self._numbers(axes, measured, places, unit)
        self._not_measured(axes, trial, places)
        if trial.verdict is Verdict.FAILED and trial.phase in places:
            self._failure(axes, trial, places[trial.phase])

    def _bars(self, axes: Axes, bars: Sequence[tuple[int, PhaseRecord]], unit: Unit) -> None:
        at = np.array([place for place, _ in bars], float)
        below = np.zeros(len(bars))
        heights = np.array([self._layers.bytes_of(phase) for _, phase in bars], float).T
        for layer, own in zip(self._layers.layers, heights, strict=True):
            has = own > 0
            axes.bar(
                at[has], own[has] / unit.size, _BAR, bottom=below[has] / unit.size,
                **_fill(layer), zorder=2.0,
            )  # fmt: skip
            below += own
        ends = [(place, phase.live_end_bytes) for place, phase in bars]
        living = [(place, count) for place, count in ends if count]
        axes.hlines(
            [count / unit.size for _, count in living],
            [place - 0.5 * _BAR - 0.05 for place, _ in living],
            [place + 0.5 * _BAR + 0.05 for place, _ in living],
            color=INK, linewidth=1.4, zorder=2.5,
        )  # fmt: skip

    def _numbers(
        self, axes: Axes, measured: Sequence[PhaseRecord], places: dict[str, int], unit: Unit
    ) -> None:
        """The height of each bar above it; of the highest in bold."""
        highest = max(measured, key=height_of)
        word = "peak " if len(places) <= _WIDE_UP_TO else ""
        for phase in measured:
            is_peak = phase is highest
            axes.annotate(
                f"{word if is_peak else ''}{unit.number(height_of(phase))}",
                (places[phase.name], height_of(phase) / unit.size),
                xytext=(0, 2), textcoords="offset points", ha="center", va="bottom",
                fontsize=7.5, color=INK if is_peak else QUIET,
                fontweight="bold" if is_peak else "normal", zorder=3.0,
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.8, "alpha": 0.75},
            )  # fmt: skip

    def _not_measured(self, axes: Axes, trial: Trial, places: dict[str, int]) -> None:
        ran = {phase.name: phase for phase in trial.phases}
        for name, place in places.items():
            if name in ran and ran[name].peak_bytes is not None:
                continue
            if trial.verdict is Verdict.FAILED and name == trial.phase:
                continue
            words = "not measured" if name in ran else "not run"
            axes.text(place, 0.0, f"{words}", fontsize=7.0, color=QUIET, ha="center", va="bottom",
                      rotation=90 if len(places) > 14 else 0)  # fmt: skip

    def _failure(self, axes: Axes, trial: Trial, place: int) -> None:
        axes.axvspan(place - 0.5, place + 0.5, color=lighter(_RED, 0.84), linewidth=0.0, zorder=1.0)
        word = trial.failure.value if trial.failure else "failed"
        # At an edge the words grow inwards, so that none of them lies on the legend.
        side = "left" if place < 1 else "right" if place > len(self._phases) - 2 else "center"
        shift = {"left": -0.47, "right": 0.47, "center": 0.0}[side]
        axes.text(
            place + shift, 0.985, drawable(word), transform=axes.get_xaxis_transform(),
            fontsize=7.5, color=_RED, fontweight="bold", ha=side, va="top", zorder=3.2,
        )  # fmt: skip

    def _name_phases(self, axes: Axes, panel_in: float, *, is_last: bool) -> None:
        column_in = panel_in / len(self._phases)
        slanted = column_in < _SLANTED_BELOW_IN
        chars = max(5, 14 if slanted else int(column_in / _CHAR_IN))
        labels = [drawable(name, chars) for name in self._phases]
        shown = is_last or not slanted
        axes.set_xticks(
            range(len(labels)), labels if shown else [""] * len(labels), fontsize=7.5, color=INK,
            rotation=32 if slanted else 0, ha="right" if slanted else "center",
            rotation_mode="anchor",
        )  # fmt: skip
        if not slanted:
            for label in axes.get_xticklabels():
                label.set_rotation_mode("default")
        axes.tick_params(axis="x", length=0.0, pad=2.5)

    def _legend(self, page: Page, axes: Axes) -> None:
        for layer in self._layers.layers:
            axes.fill_between([], [], [], label=layer.label, **_fill(layer))
        axes.plot([], [], color=INK, linewidth=1.4, label="lives at the end")
        if any(self._near_limit(trial) for trial in self._trials):
            axes.plot([], [], color=INK, linewidth=1.0, linestyle=(0, (5, 2)),
                      label=self._limit_words)  # fmt: skip
        page.legend(axes, reverse=True)

    def _scale_top(self, trial: Trial) -> int:
        """The highest bar of its scale, in bytes."""
        return self._top if self._shared else top_of(trial)

    def _unit(self, trial: Trial) -> Unit:
        return Unit.for_bytes(self._scale_top(trial))

    def _near_limit(self, trial: Trial) -> bool:
        if self._limit is None or not top_of(trial):
            return False
        return self._limit <= _NEAR_LIMIT * self._scale_top(trial)


def _fill(layer: Layer) -> dict[str, Any]:
    return {
        "facecolor": layer.color,
        "edgecolor": PAPER if not layer.hatch else "#9aa1ab",
        "linewidth": 0.4 if not layer.hatch else 0.0,
        "hatch": layer.hatch or None,
    }


def _only_words(axes: Axes, trial: Trial) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    words = trial.detail or "no phase was measured"
    axes.text(0.0, 0.9, drawable(words, 150), transform=axes.transAxes, fontsize=8.0, color=QUIET,
              va="top")  # fmt: skip


def _phase_names(trials: Sequence[Trial]) -> list[str]:
    """Every phase once: in the order of the trial that came furthest, then what only others had."""
    by_length = sorted(trials, key=lambda trial: -len(trial.phases))
    names = [phase.name for trial in by_length for phase in trial.phases]
    names += [trial.phase for trial in trials if trial.verdict is Verdict.FAILED and trial.phase]
    names += [name for trial in by_length for name in trial.missing_phases]
    return list(dict.fromkeys(names))


def _limit(run: Calibration) -> tuple[float | None, str]:
    """The device's limit in bytes, and what to call it; none for a CPU without a budget."""
    if run.device_budget_bytes is not None:
        return run.device_budget_bytes, f"budget {format_bytes(run.device_budget_bytes)}"
    memory = [t.environment.device_mem_mib for t in run.trials if t.environment.device_mem_mib]
    if run.device.startswith("cuda") and memory:
        limit = memory[0] * (1 << 20)
        return limit, f"device {format_bytes(int(limit))}"
    return None, ""
