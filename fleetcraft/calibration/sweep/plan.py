"""Which batch is tried next: rising until something does not hold, then at most two in between.

A function of the trials so far; what is chosen of them in the end is `choose`'s. Invariant: the
first batch is always tried, and after a failure nothing at or above it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from fleetcraft.calibration.records import MIB, Failure, Trial, Verdict
from fleetcraft.calibration.sweep.choose import (
    DEVICE_FILL_FRACTION,
    LEAST_GAIN_FRACTION,
    End,
    Limits,
    device_need_bytes,
    gain,
)
from fleetcraft.errors import UsageError

LARGEST_AUTOMATIC = 64
"""Where a sweep without a list ends when nothing else ends it."""
MOST_BETWEEN = 2
"""Sizes that are tried below one that did not hold."""
_FLAT_DOUBLINGS = 2


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next: try a batch, record one as skipped, or end.

    Attributes:
        batch: The batch; None when the sweep has ended.
        skip: Why it is recorded without being tried; None to try it.
        detail: One sentence on that.
        end: Why the sweep has ended.
    """

    batch: int | None = None
    skip: Failure | None = None
    detail: str = ""
    end: End | None = None


def wanted_batches(batches: Sequence[int] | None) -> tuple[int, ...] | None:
    """The list of a user, sorted, each once; None when there is none.

    Raises:
        UsageError: It is empty, or has something else than positive whole numbers.
    """
    if batches is None:
        return None
    if not batches or min(batches) < 1:
        raise UsageError(
            f"batches are {list(batches)}, expected whole numbers from 1; nothing was tried",
            hint="for example --batches 1,2,4",
        )
    return tuple(sorted(set(batches)))


def preflight_batches(wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    """What the preflight is to predict: the list, or all that a sweep without one may double to."""
    if wanted is not None:
        return wanted
    return tuple(1 << power for power in range(LARGEST_AUTOMATIC.bit_length()))


def next_step(
    trials: Sequence[Trial],
    *,
    wanted: tuple[int, ...] | None,
    predictions: Mapping[int, int],
    limits: Limits,
) -> Step:
    """What to do after these trials.

    Args:
        trials: What was tried and skipped so far.
        wanted: As `wanted_batches` returned it; None for 1, 2, 4, ...
        predictions: Device peaks in bytes that the preflight predicts, by batch.
        limits: What a trial may use.
    """
    sweep = _Sweep(sorted(trials, key=lambda trial: trial.batch), predictions, limits)
    return _next_doubling(sweep) if wanted is None else _next_of(sweep, wanted)


def line_bytes(points: Sequence[tuple[int, int]], batch: int) -> float | None:
    """The line through the last two measured peaks, at a batch; None with fewer than two.

    It never falls: a peak that did not grow is taken to stay. Source: peaks of one cycle are
    linear in the batch where it only adds samples.
    """
    if len(points) < 2:
        return None
    (before, low), (last, high) = points[-2], points[-1]
    slope = max(0.0, (high - low) / (last - before))
    return high + slope * (batch - last)


class _Sweep(NamedTuple):
    trials: list[Trial]
    predictions: Mapping[int, int]
    limits: Limits

    @property
    def well(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.verdict is Verdict.OK]

    @property
    def ceiling(self) -> Trial | None:
        """The smallest batch that failed, or was predicted not to fit."""
        return next((trial for trial in self.trials if trial.verdict is not Verdict.OK), None)

    def device_line(self, batch: int) -> float | None:
        needs = [(trial.batch, device_need_bytes(trial, self.limits)) for trial in self.well]
        return line_bytes([(size, need) for size, need in needs if need is not None], batch)

    def host_line(self, batch: int) -> float | None:
        needs = [(trial.batch, trial.host_peak_bytes) for trial in self.well]
        return line_bytes([(size, need) for size, need in needs if need is not None], batch)

    def hopeless(self, batch: int) -> str:
        """Why a batch is predicted not to fit the device at all; empty when it is not."""
        limit = self.limits.device_bytes
        if limit is None or not self.trials:
            return ""
        for who, found in (
            ("the preflight", self.predictions.get(batch)),
            ("the line through the last two peaks", self.device_line(batch)),
        ):
            if found is not None and found > limit:
                return (
                    f"{who} predicts {found / MIB:.1f} MiB for batch {batch}, the device has "
                    f"{limit / MIB:.1f} MiB"
                )
        return ""

    def too_full(self, batch: int) -> End | None:
        """Why the lines say that a batch would leave too little room; None when they do not."""
        for reason, what, found, limit in (
            ("headroom", "the device", self.device_line(batch), self.limits.device_bytes),
            ("host_bound", "host memory", self.host_line(batch), self.limits.host_bytes),
        ):
            if found is not None and limit is not None and found > DEVICE_FILL_FRACTION * limit:
                return End(
                    reason=reason,
                    detail=f"the line through the last two peaks predicts {found / MIB:.1f} of "
                    f"{limit / MIB:.1f} MiB of {what} for batch {batch}, more than "
                    f"{DEVICE_FILL_FRACTION:.0%}",
                    batch=batch,
                )
        return None


# ------------------------------------------------------------------------- a list of the user


def _next_of(sweep: _Sweep, wanted: tuple[int, ...]) -> Step:
    tried = {trial.batch for trial in sweep.trials}
    batch = next((size for size in wanted if size not in tried), None)
    if batch is None:
        return Step(end=End(detail="the list of batches ends there"))
    failed = next((t for t in sweep.trials if t.verdict is Verdict.FAILED), None)
    if failed is not None:
        return Step(batch=batch, skip=Failure.SMALLER_FAILED, detail=_after(failed))
    hopeless = sweep.hopeless(batch)
    ceiling = sweep.ceiling
    if not hopeless and ceiling is not None:
        hopeless = f"batch {ceiling.batch} is predicted not to fit the device already"
    if hopeless:
        return Step(batch=batch, skip=Failure.PREDICTED, detail=f"{hopeless}; it was not tried")
    return Step(batch=batch)


def _after(failed: Trial) -> str:
    why = f" ({failed.failure.value})" if failed.failure is not None else ""
    where = f" in {failed.phase}" if failed.phase else ""
    return f"batch {failed.batch} failed{where}{why}, so no larger one was tried"


# ------------------------------------------------------------------------------ 1, 2, 4, ...


def _next_doubling(sweep: _Sweep) -> Step:
    if not sweep.trials:
        return Step(batch=1)
    if not sweep.well:
        return Step(end=End(reason="next_failed", detail=_after(sweep.trials[0])))
    if sweep.ceiling is not None:
        return _next_between(sweep, sweep.ceiling.batch, _end_at(sweep.ceiling))
    batch = 1 << sweep.well[-1].batch.bit_length()
    if batch > LARGEST_AUTOMATIC:
        return Step(end=End(detail=f"a sweep without a list ends at {LARGEST_AUTOMATIC}"))
    if _is_flat(sweep.well):
        return Step(end=_flat_end(batch))
    full = sweep.too_full(batch)
    if full is not None:
        return _next_between(sweep, batch, full)
    hopeless = sweep.hopeless(batch)
    if hopeless:
        return Step(batch=batch, skip=Failure.PREDICTED, detail=f"{hopeless}; it was not tried")
    return Step(batch=batch)


def _end_at(ceiling: Trial) -> End:
    reason = "headroom" if ceiling.failure is Failure.PREDICTED else "next_failed"
    return End(reason=reason, detail=ceiling.detail, batch=ceiling.batch)


def _is_flat(well: Sequence[Trial]) -> bool:
    """Whether the last doublings each brought nothing: more of them cost time and tell nothing."""
    pairs = list(pairwise(well))[-_FLAT_DOUBLINGS:]
    gains = [gain(smaller, larger) for smaller, larger in pairs]
    return len(gains) == _FLAT_DOUBLINGS and all(
        g is not None and not g.is_beyond_noise and g.fraction <= LEAST_GAIN_FRACTION for g in gains
    )


def _flat_end(batch: int) -> End:
    return End(
        reason="compute_saturated",
        detail=f"{_FLAT_DOUBLINGS} larger batches in a row brought no throughput",
        batch=batch,
    )


def _next_between(sweep: _Sweep, ceiling: int, end: End) -> Step:
    """A size between the largest that ran well and one that does not hold; else the end."""
    last = sweep.well[-1].batch
    used = sum(1 for trial in sweep.trials if trial.batch & (trial.batch - 1))
    failed = sweep.ceiling
    curable = failed is None or failed.failure is None or failed.failure.is_memory
    room = [b for b in range(last + 1, ceiling) if sweep.too_full(b) is None]
    if used >= MOST_BETWEEN or not curable or not room:
        return Step(end=end)
    # A failure below what the line allows says that the line is wrong: halve the gap then.
    is_line_wrong = failed is not None and failed.verdict is Verdict.FAILED
    return Step(batch=room[(len(room) - 1) // 2 if is_line_wrong else -1])
