"""What is said beside a choice: warnings, and FLOPs with the utilization that they mean.

Functions of trials that have run. Invariant: a remark changes no verdict and no choice, and every
number in it has the bound that it passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleetcraft.calibration.family import Family
from fleetcraft.calibration.records import Choice, Flops, Trial
from fleetcraft.calibration.sweep.timing import fleet_note
from fleetcraft.calibration.utilization import with_mfu

MOST_OVERHEAD_FRACTION = 0.15
"""Tracking that costs more CPU time than this is warned of."""
MOST_FLOPS_DISAGREEMENT = 0.10
"""Counted FLOPs that differ from the analytic ones by more are warned of."""


def whole_flops(counted: Flops | None, family: Family, chosen: Trial | None) -> Flops:
    """FLOPs of one sample, with the utilization of the chosen batch, or why it has none.

    Args:
        counted: What a trial counted; None when none did.
        family: For the analytic number, when nothing was counted.
        chosen: The trial of the chosen batch.
    """
    found = counted or Flops(
        analytic_flop=None if family.flops is None else family.flops.flop,
        detail="they were not counted",
    )
    if chosen is None:
        return found
    return with_mfu(found, chosen.environment.device, chosen.samples_per_s)


def remarks(trials: Sequence[Trial], choice: Choice, flops: Flops) -> Iterator[str]:
    """Warnings, one sentence each."""
    off = flops.disagreement_fraction
    if off is not None and abs(off) > MOST_FLOPS_DISAGREEMENT:
        yield (
            f"counted FLOPs are {off:+.0%} off the analytic ones, more than "
            f"{MOST_FLOPS_DISAGREEMENT:.0%}: one of the two does not describe this model"
        )
    for trial in trials:
        yield from _of_trial(trial)
    if any(trial.cycle_walls_s for trial in trials) and (note := fleet_note()):
        yield note
    is_tight = choice.reason in ("headroom", "host_bound") and choice.next_batch is None
    if choice.batch is not None and is_tight:
        yield choice.detail


def _of_trial(trial: Trial) -> Iterator[str]:
    over = trial.tracking_overhead_fraction
    if over is not None and over > MOST_OVERHEAD_FRACTION:
        yield (
            f"tracking took {over:.0%} more CPU time at batch {trial.batch}, more than "
            f"{MOST_OVERHEAD_FRACTION:.0%}; times were taken without it"
        )
    for check in trial.checks:
        if check.ok is None:
            said = check.detail or "no reason was given"
            yield f"check {check.name} was not done at batch {trial.batch}: {said}"
