"""Which batch a family is to run with: throughput beyond noise, under headroom, semantics proven.

Arithmetic over trials that have run; what is tried next is `plan`'s. Invariant: a larger batch has
to show that it is better; what was not measured, not timed or not proven never speaks for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from fleetcraft.calibration.records import (
    MIB,
    Choice,
    Failure,
    PhaseRecord,
    Trial,
    Verdict,
    median,
)

DEVICE_FILL_FRACTION = 0.85
"""A batch may fill this share of the device, no more. Source: the design's upper end of 70 to 85
percent; what is below 70 percent and saturated is no fault."""
HEADROOM_FRACTION = 0.10
"""What must stay free of device and host alike."""
LEAST_GAIN_FRACTION = 0.05
"""Throughput must rise by more than this for a larger batch to be worth its memory."""
LEAST_GAIN_ERRORS = 2.0
"""And by more than so many standard errors."""
LEAST_CYCLES = 3
"""Timed cycles from which a standard error means anything."""
_MEDIAN_ERROR = math.sqrt(math.pi / 2)
_SEMANTIC_CHECKS = ("parity", "noise", "decisions")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial may use; None where nobody knows, which is never "enough".

    Attributes:
        device_bytes: The device's memory, or the emulated budget, or host memory where that is
            what the device has.
        host_bytes: Of the trial's cgroup, or what was available when the run began.
        emulated: Whether ``device_bytes`` is a limit of tracked bytes, not of an allocator.
    """

    device_bytes: int | None = None
    host_bytes: int | None = None
    emulated: bool = False


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Why a sweep went no further, where no trial of a larger batch tells it.

    Attributes:
        reason: As in `fleetcraft.calibration.records.Choice`.
        detail: One sentence with the numbers.
        batch: The batch that was not tried; None where the list or the automatic sweep ended.
    """

    reason: str = "largest_tried"
    detail: str = ""
    batch: int | None = None


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of a larger batch over a smaller one, less 1, and its standard error."""

    fraction: float
    error_fraction: float

    @property
    def is_beyond_noise(self) -> bool:
        """Whether it is worth having, and not an accident of the timed cycles."""
        return (
            self.fraction > LEAST_GAIN_FRACTION
            and self.fraction > LEAST_GAIN_ERRORS * self.error_fraction
        )


def gain(smaller: Trial, larger: Trial) -> Gain | None:
    """How much more throughput the larger batch has.

    Throughput is batch over the median wall time of the timed cycles, so the gain is
    ``(b2 / m2) / (b1 / m1) - 1``. The standard error of a median of n draws is
    ``sqrt(pi / 2) * s / sqrt(n)`` with the sample standard deviation s (n - 1 in its divisor), for
    draws that are nearly normal; for three of them that is a little more than the exact value. The
    relative errors of both medians add in quadrature to the relative error of the ratio.

    Returns:
        None when either has fewer than `LEAST_CYCLES` timed cycles.

    Source: Kenney and Keeping, "Mathematics of Statistics" (1962), on the error of the median;
    JCGM 100:2008 (GUM), 5.1.2, on the propagation of uncertainty.
    """
    before, after = _Walls.of(smaller), _Walls.of(larger)
    if before is None or after is None:
        return None
    ratio = (larger.batch / after.median_s) / (smaller.batch / before.median_s)
    relative = math.hypot(before.relative_error, after.relative_error)
    return Gain(fraction=ratio - 1, error_fraction=ratio * relative)


class _Walls(NamedTuple):
    median_s: float
    relative_error: float

    @classmethod
    def of(cls, trial: Trial) -> _Walls | None:
        walls = trial.cycle_walls_s
        middle = median(walls)
        if len(walls) < LEAST_CYCLES or middle is None or middle <= 0:
            return None
        mean = math.fsum(walls) / len(walls)
        variance = math.fsum((wall - mean) ** 2 for wall in walls) / (len(walls) - 1)
        return cls(middle, _MEDIAN_ERROR * math.sqrt(variance / len(walls)) / middle)


def device_need_bytes(trial: Trial, limits: Limits) -> int | None:
    """What a trial took of the device, in the bytes that its limit counts; None when not measured.

    An emulated budget counts tracked bytes. A real device is filled by what the allocator reserved,
    with its cached and rounded parts.
    """
    if limits.emulated:
        return trial.peak_bytes
    return max((need for p in trial.phases if (need := _need(p)) is not None), default=None)


def _need(phase: PhaseRecord) -> int | None:
    for found in (phase.reserved_peak_bytes, phase.allocated_peak_bytes, phase.peak_bytes):
        if found is not None:
            return found
    return None


def choose(
    trials: Sequence[Trial], *, semantics: str, limits: Limits, end: End | None = None
) -> Choice:
    """The batch to run with, and the reason why it is not the next larger one.

    The smallest batch that ran well is taken first; what is above a failed one does not count.
    Each larger one takes its place if it fits, if batching is shown to leave samples as they are,
    and if its throughput beats by more than noise both what is held so far and the next smaller
    batch that ran.

    Args:
        trials: Of one family; in any order.
        semantics: As `fleetcraft.calibration.family.semantics_name` says it.
        limits: What a trial may use.
        end: Why the sweep went no further.

    Returns:
        A choice; its batch is None when no trial ran well, or when batch one is all that may be
        used and was not tried.
    """
    ordered = sorted(trials, key=lambda trial: trial.batch)
    well = _below_failures(ordered)
    if not well:
        return _nothing_ran(ordered)
    if any(trial.smoke for trial in well):
        return _smoke(well)
    held = well[0]
    for smaller, larger in pairwise(well):
        if _refusal(held, smaller, larger, semantics=semantics, limits=limits) is None:
            held = larger
    unproven = _meaning(held, semantics) if held.batch > 1 else None
    if unproven is not None:
        return Choice(
            batch=None,
            reason=unproven.reason,
            detail=f"{unproven.detail}; only batch one may be used, and it was not tried",
        )
    return _explain(held, ordered, semantics=semantics, limits=limits, end=end or End())


def _below_failures(ordered: Sequence[Trial]) -> list[Trial]:
    failed = [trial.batch for trial in ordered if trial.verdict is Verdict.FAILED]
    least = min(failed, default=math.inf)
    return [t for t in ordered if t.verdict is Verdict.OK and t.batch < least]


class _Refusal(NamedTuple):
    reason: str
    detail: str


def _refusal(
    held: Trial, smaller: Trial, larger: Trial, *, semantics: str, limits: Limits
) -> _Refusal | None:
    """Why a larger batch that ran well does not take the place of what is held; None: it does."""
    return (
        _meaning(larger, semantics)
        or _room(larger, limits)
        or _slower(smaller, larger)
        or (_slower(held, larger) if held.batch != smaller.batch else None)
    )


_SEMANTICS = {
    "shared": "samples of a batch share decisions",
    "unknown": "what batching does to a sample is unknown",
    "claimed_independent": "that samples are independent is claimed without a parity test",
}


def _meaning(larger: Trial, semantics: str) -> _Refusal | None:
    if semantics != "independent":
        why = _SEMANTICS.get(semantics, f"its semantics are {semantics!r}")
        reason = "semantics_shared" if semantics == "shared" else "semantics_unknown"
        return _Refusal(reason, f"{why}, so batch one is kept")
    ran = {check.name: check for check in larger.checks}
    unproven = [
        name
        for name in _SEMANTIC_CHECKS
        if (name in ran or name == "parity") and (name not in ran or ran[name].ok is not True)
    ]
    if not unproven:
        return None
    name = unproven[0]
    said = ran[name].detail if name in ran else ""
    return _Refusal(
        "semantics_unknown",
        f"at batch {larger.batch} the check {name!r} proved nothing"
        + (f": {said}" if said else ""),
    )


def _room(trial: Trial, limits: Limits) -> _Refusal | None:
    need, host_need = device_need_bytes(trial, limits), trial.host_peak_bytes
    over = _over(need, limits.device_bytes, DEVICE_FILL_FRACTION, "the device")
    if over:
        return _Refusal("headroom", f"batch {trial.batch} {over}")
    over = _over(host_need, limits.host_bytes, 1 - HEADROOM_FRACTION, "host memory")
    return _Refusal("host_bound", f"batch {trial.batch} {over}") if over else None


def _over(need: int | None, limit: int | None, most_fraction: float, what: str) -> str:
    if need is None or limit is None:
        missing = "its peak" if need is None else "the size"
        return f"cannot be judged: {missing} of {what} is not known"
    if need <= most_fraction * limit:
        return ""
    return (
        f"takes {need / MIB:.1f} of {limit / MIB:.1f} MiB of {what}, more than {most_fraction:.0%}"
    )


def _slower(smaller: Trial, larger: Trial) -> _Refusal | None:
    found = gain(smaller, larger)
    if found is None:
        fewest = min(len(smaller.cycle_walls_s), len(larger.cycle_walls_s))
        return _Refusal(
            "not_timed",
            f"batches {smaller.batch} and {larger.batch} cannot be compared: {fewest} timed "
            f"cycles, {LEAST_CYCLES} are needed",
        )
    if found.is_beyond_noise:
        return None
    # A gain that noise hides is not shown, and not shown to be absent either.
    reason = "within_noise" if found.fraction > LEAST_GAIN_FRACTION else "compute_saturated"
    return _Refusal(
        reason,
        f"batch {larger.batch} has {found.fraction:+.1%} throughput over batch {smaller.batch} "
        f"(standard error {found.error_fraction:.1%}); more than {LEAST_GAIN_FRACTION:.0%} and "
        f"{LEAST_GAIN_ERRORS:g} standard errors are needed",
    )


# ---------------------------------------------------------------------------- telling why


def _explain(
    held: Trial, ordered: Sequence[Trial], *, semantics: str, limits: Limits, end: End
) -> Choice:
    above = next((trial for trial in ordered if trial.batch > held.batch), None)
    if above is None:
        reason, detail = _largest(held, limits, end)
        return Choice(batch=held.batch, reason=reason, detail=detail, next_batch=end.batch)
    if above.verdict is not Verdict.OK:
        reason, detail = _not_run(above)
    else:
        refused = _refusal(held, held, above, semantics=semantics, limits=limits)
        assert refused is not None  # else it would be held, or a larger one
        reason, detail = refused
    found = gain(held, above) if above.verdict is Verdict.OK else None
    return Choice(
        batch=held.batch,
        reason=reason,
        detail=detail,
        next_batch=above.batch,
        next_verdict=above.verdict,
        next_class=above.failure,
        throughput_gain=None if found is None else found.fraction,
    )


def _largest(held: Trial, limits: Limits, end: End) -> _Refusal:
    tight = _room(held, limits)
    if tight is not None:
        return _Refusal(tight.reason, f"{tight.detail}; nothing smaller ran")
    said = f": {end.detail}" if end.detail else ""
    return _Refusal(end.reason, f"no batch above {held.batch} was tried{said}")


def _not_run(above: Trial) -> _Refusal:
    where = f" in {above.phase}" if above.phase else ""
    why = f" ({above.failure.value}{where})" if above.failure is not None else ""
    if above.failure is Failure.PREDICTED:
        return _Refusal("headroom", above.detail or f"batch {above.batch} is predicted not to fit")
    if above.failure is Failure.SOAK_RISING:
        said = f": {above.detail}" if above.detail else ""
        return _Refusal("soak_rising", f"batch {above.batch} did not hold over its cycles{said}")
    how = "failed" if above.verdict is Verdict.FAILED else "was not tried"
    return _Refusal("next_failed", f"batch {above.batch} {how}{why}")


def _nothing_ran(ordered: Sequence[Trial]) -> Choice:
    if not ordered:
        return Choice(batch=None, reason="first_failed", detail="no batch was tried")
    first = ordered[0]
    return Choice(
        batch=None,
        reason="first_failed",
        detail=f"{_not_run(first).detail}, and nothing else ran well",
        next_batch=first.batch,
        next_verdict=first.verdict,
        next_class=first.failure,
    )


def _smoke(well: Sequence[Trial]) -> Choice:
    trial = next(trial for trial in well if trial.smoke)
    missing = ", ".join(trial.missing_phases)
    return Choice(
        batch=well[0].batch,
        reason="smoke",
        detail=f"at batch {trial.batch} required phases did not run: {missing}; this is only a "
        "smoke test and cannot be frozen",
    )
