"""What the figure of a calibration says in words: its finding, its rates, and how to read it.

Invariant: every number is one of the record, in the unit of its panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleetcraft.calibration.records import Calibration, PhaseRecord, Trial
from fleetcraft.plots.page import Text
from fleetcraft.units import format_bytes
from fleetcraft.view.calibration_words import finding, rate_words, verdict_words
from fleetcraft.view.text import plural

_STEPS = (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30))
_MOST_BATCHES_IN_LINE = 10


@dataclass(frozen=True)
class Unit:
    """The unit of the numbers of a panel.

    Attributes:
        name: ``KiB``, ``MiB`` or ``GiB``.
        size: In bytes.
    """

    name: str
    size: int

    @classmethod
    def for_bytes(cls, largest: float) -> Unit:
        """The unit in which the largest number is at least 1, if any is."""
        fitting = [step for step in _STEPS if largest >= step[1]]
        return cls(*(fitting[-1] if fitting else _STEPS[0]))

    def number(self, count: float) -> str:
        """Three figures, without the unit."""
        value = count / self.size
        if value == 0:
            return "0"
        return (
            f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
        )


def calibration_text(
    run: Calibration,
    *,
    limit: str,
    beyond: bool,
    shared: bool,
    left_out: int,
    title: str,
) -> Text:
    """Everything around the panels.

    Args:
        run: The record.
        limit: The limit in words; empty when there is none.
        beyond: Whether it lies above every panel.
        shared: Whether all panels have the same scale.
        left_out: Batches that have no panel.
        title: Headline; the finding if empty, which otherwise stands below it.
    """
    main = finding(run)
    head = [rates(run.trials), _where(run)]
    if run.choice.detail:
        head.insert(0, run.choice.detail)
    return Text(
        title=title or main,
        head=[*([main] if title else []), *(line for line in head if line)],
        foot=_foot(limit, beyond, shared, left_out),
    )


def rates(trials: Sequence[Trial]) -> str:
    """Samples per second of each timed batch, and the gain over the one before."""
    parts = []
    before = None
    for trial in trials[:_MOST_BATCHES_IN_LINE]:
        rate = trial.samples_per_s
        if rate is None:
            continue
        gain = f" ({100 * (rate / before - 1):+.1f} %)" if before else ""
        parts.append(f"batch {trial.batch}: {rate_words(rate)}{gain}")
        before = rate
    return f"Samples per second, tracking off: {', '.join(parts)}" if parts else ""


def height_of(phase: PhaseRecord) -> int:
    """Of a bar, in bytes: the tracked peak and what the allocator held beyond it."""
    return 0 if phase.peak_bytes is None else phase.peak_bytes + max(0, phase.residual_bytes or 0)


def top_of(trial: Trial) -> int:
    """Of its highest bar; 0 when there is none."""
    return max((height_of(phase) for phase in trial.phases), default=0)


def panel_title(trial: Trial, unit: Unit, *, chosen: bool) -> str:
    """The verdict of one batch with its numbers."""
    words = f"batch {trial.batch}{', chosen' if chosen else ''}: {verdict_words(trial)}"
    parts = [words]
    if top := top_of(trial):
        highest = max(trial.phases, key=height_of)
        parts.append(f"peak {unit.number(top)} {unit.name} in {highest.name}")
    if trial.samples_per_s is not None:
        parts.append(f"{rate_words(trial.samples_per_s)} samples/s")
    if trial.host_peak_bytes is not None:
        parts.append(f"host peak {format_bytes(trial.host_peak_bytes)}")
    return "; ".join(parts)


def _where(run: Calibration) -> str:
    place = next((t.environment for t in run.trials if t.environment.torch), None)
    words = [f"{run.started_at[:19].replace('T', ' ')} UTC"] if run.started_at else []
    if place is None:
        return "; ".join([*words, run.device])
    words.append(place.device or run.device)
    if place.torch:
        words.append(f"torch {place.torch}")
    if place.sdpa:
        words.append(f"attention {place.sdpa}")
    if place.host:
        words.append(f"host {place.host}")
    return "; ".join(words)


def _foot(limit: str, beyond: bool, shared: bool, left_out: int) -> list[str]:
    scale = "All panels have one scale." if shared else "Each panel has a scale of its own."
    first = (
        f"Peak of each phase by owner at that moment; the line across a bar "
        f"is what still lives when the phase ends. {scale}"
    )
    if limit and beyond:
        first += f" The {limit} lies above every panel."
    if left_out:
        first += f" {plural(left_out, 'batch', 'batches')} more have no panel."
    return [first]
