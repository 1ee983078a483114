"""What each batch would take of the device, predicted on fake tensors before any is tried.

One process of its own runs the cycle on fake tensors at the two smallest batches; larger ones
follow, and what is done with the answer is `plan`'s.
Invariant: a preflight that fails costs its predictions and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from fleetcraft.calibration.family import Family
from fleetcraft.calibration.records import Prediction
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.calibration.trial.reading import Journal, Predicted
from fleetcraft.errors import FleetError

FAKED = 2
"""Batches that run on fake tensors; further ones follow. Source: the peak of each phase is linear
in the batch, seen over batches 1 to 8; which phase has the highest may change with it."""


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """What was predicted.

    Attributes:
        found: One prediction for each batch that was asked for, as far as it came.
        problem: Why some or all are missing; empty when none is.
    """

    found: tuple[Predicted, ...] = ()
    problem: str = ""

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """What was predicted, without the peaks of single phases."""
        return tuple(
            Prediction(
                batch=one.batch,
                peak_bytes=one.peak_bytes,
                phase=one.phase,
                wall_s=one.wall_s,
                detail=one.detail,
            )
            for one in self.found
        )

    @property
    def peaks(self) -> Mapping[int, int]:
        """Peak bytes by batch, of those that have one."""
        return {one.batch: one.peak_bytes for one in self.found if one.peak_bytes is not None}


def predict(order: Order, family: Family, run: Callable[[Order, Family], Journal]) -> Preflight:
    """Runs the preflight of an order.

    Args:
        order: Its passes are `Pass.PREFLIGHT` alone.
        family: What it is about.
        run: Runs an order in a process of its own and returns its journal; it is asked for the
            two smallest batches alone.

    Returns:
        What came of it; a family that cannot run on fake tensors is not run.
    """
    assert order.passes == (Pass.PREFLIGHT,)
    asked = sorted(order.preflight_batches)
    order = msgspec.structs.replace(order, preflight_batches=tuple(asked[:FAKED]))
    if not family.preflight:
        return Preflight(problem="the family says that its cycle cannot run on fake tensors")
    try:
        journal = run(order, family)
    except (FleetError, OSError) as error:
        return Preflight(problem=f"it could not be run: {error}")
    found = (*journal.predictions, *_by_lines(journal.predictions, asked[FAKED:]))
    known = {one.batch for one in found if one.peak_bytes is not None}
    missing = [batch for batch in asked if batch not in known]
    return Preflight(found=found, problem=_problem(journal, missing))


def _by_lines(faked: tuple[Predicted, ...], batches: list[int]) -> list[Predicted]:
    """Further batches, each phase on the line through its peaks at the faked ones."""
    known = [one for one in faked if one.peak_bytes is not None and one.phases]
    if len(known) != FAKED:
        return []
    first, last = known
    return [_by_line(first, last, batch) for batch in batches]


def _by_line(first: Predicted, last: Predicted, batch: int) -> Predicted:
    peaks = {}
    for phase, high in last.phases.items():
        slope = max(0.0, (high - first.phases.get(phase, high)) / (last.batch - first.batch))
        peaks[phase] = round(high + slope * (batch - last.batch))
    phase = max(peaks, key=lambda name: peaks[name])
    said = f"by the lines through batches {first.batch} and {last.batch}"
    return Predicted(batch=batch, peak_bytes=peaks[phase], phase=phase, phases=peaks, detail=said)


def _problem(journal: Journal, missing: list[int]) -> str:
    if not missing:
        return ""
    batches = ", ".join(map(str, missing))
    said = next((p.detail for p in journal.predictions if p.batch in missing and p.detail), "")
    if journal.failed is not None:
        said = f"{journal.failed.kind}: {journal.failed.message}".strip(": ")
    if not said:
        where = journal.open_phase or journal.last_pass
        said = "its process ended without a word" + (f" in {where}" if where else "")
    return f"no peak for batch {batches}: {said}"


def budget_between(preflight: Preflight, batch: int, phases: tuple[str, str]) -> int:
    """A device budget half-way between the predicted peaks of two phases, in bytes.

    Args:
        preflight: What was predicted.
        batch: At which batch.
        phases: The one that is to fit, and the one that is not.

    Raises:
        FleetError: The preflight did not predict them, or they do not differ.
    """
    lower, upper = phases
    found = next((one.phases for one in preflight.found if one.batch == batch), {})
    missing = [name for name in (lower, upper) if name not in found]
    if missing:
        why = f" ({preflight.problem})" if preflight.problem else ""
        raise FleetError(
            f"the fault needs a device budget between the peaks of {lower} and {upper}, and the "
            f"preflight did not predict {' and '.join(missing)}{why}; nothing was tried",
            hint="give the budget by hand: --device-budget-mib",
        )
    if found[lower] >= found[upper]:
        raise FleetError(
            f"the fault needs {upper} to peak above {lower}, but the preflight predicts "
            f"{found[upper]} and {found[lower]} bytes; nothing was tried",
            hint="give the budget by hand: --device-budget-mib",
        )
    return (found[lower] + found[upper]) // 2
