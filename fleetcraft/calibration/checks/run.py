"""All semantic checks of a family at one batch.

Each call of a family's own code gets a context as at the start of a cycle. Invariant: a check that
breaks is not a check that passed: what the family's code raised stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fleetcraft.calibration.checks.batching import (
    Draw,
    decision_difference,
    noise_difference,
    output_difference,
)
from fleetcraft.calibration.checks.masks import poison_parity
from fleetcraft.calibration.family import (
    Checkable,
    DecisionCheck,
    Independent,
    MaskCheck,
    NoiseCheck,
)
from fleetcraft.calibration.records import Check, Failure
from fleetcraft.errors import FleetError

if TYPE_CHECKING:
    from fleetcraft.calibration.family import Family
    from fleetcraft.calibration.trial.context import Context

_NAMES: dict[type[Checkable], tuple[str, Failure]] = {
    NoiseCheck: ("noise", Failure.NOISE_SHARED),
    MaskCheck: ("mask", Failure.MASK_DROPPED),
    DecisionCheck: ("decisions", Failure.DECISION_SHARED),
}
_PARITY_PHASE = "denoise"


def run_checks(family: Family, ctx: Context) -> list[Check]:
    """Runs what the family declares, cheapest and most telling first.

    Shared noise or a shared decision also breaks the parity of outputs, so that comes last.

    Args:
        family: Its ``checks``, and the parity of its semantics.
        ctx: A context with the trial's batch and device.

    Returns:
        One result for each.
    """
    found = [_run(check, ctx) for check in family.checks]
    if isinstance(family.semantics, Independent) and family.semantics.parity is not None:
        found.append(_parity(family.semantics, ctx))
    return found


def _run(check: Checkable, ctx: Context) -> Check:
    name, failure = _NAMES[type(check)]

    def judged() -> tuple[bool, str, float | None]:
        if isinstance(check, MaskCheck):
            poisoned = poison_parity(
                lambda query, key, value, keep: check.attend(ctx, query, key, value, keep),
                device=ctx.device,
                heads=check.heads,
                width=check.width,
                queries=check.queries,
                keys=check.keys,
            )
            return poisoned.ok, poisoned.sentence(), poisoned.change
        if isinstance(check, NoiseCheck):
            sample, said = noise_difference(_fresh(check.draw, ctx), ctx.samples)
        else:
            sample, said = decision_difference(_fresh(check.decide, ctx), ctx.samples)
        return sample is None, said, None

    return _guarded(name, failure, check.phase, judged)


def _parity(semantics: Independent, ctx: Context) -> Check:
    parity = semantics.parity
    assert parity is not None

    def judged() -> tuple[bool, str, float | None]:
        sample, worst, said = output_difference(
            _fresh(parity, ctx), ctx.samples, semantics.tolerance
        )
        return sample is None, said, worst

    return _guarded("parity", Failure.SEMANTICS_CHANGED, _PARITY_PHASE, judged)


def _fresh(compute: Callable[[Context, Sequence[int]], Any], ctx: Context) -> Draw:
    def draw(samples: Sequence[int]) -> Any:
        # Each may load a whole model: the silence that is allowed is that of one, not of all.
        ctx.progress(samples[0], note=f"a check computes {len(samples)} samples")
        return compute(ctx.variant(batch=len(samples)), samples)

    return draw


def _guarded(
    name: str, failure: Failure, phase: str, judged: Callable[[], tuple[bool, str, float | None]]
) -> Check:
    try:
        ok, said, measured = judged()
    except FleetError as error:
        return Check(name=name, ok=None, phase=phase, detail=error.message)
    except Exception as error:  # a user's own code: whatever it raises is the answer here
        said = f"{type(error).__name__}: {error}"[:300]
        return Check(name=name, ok=None, phase=phase, detail=f"it could not be run: {said}")
    return Check(
        name=name,
        ok=ok,
        failure=None if ok else failure,
        phase=phase,
        detail=said,
        measured=measured,
    )
