"""FLOPs of a family: counted by running its forwards on meta tensors, beside the analytic number.

Counting computes nothing and needs no memory. Invariant: only forwards are counted; the counter's
figure for a backward includes recomputed scores and is never used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from fleetcraft.calibration.records import Flops

if TYPE_CHECKING:
    from fleetcraft.calibration.family import Family

DISAGREEMENT = 0.1


def _cpu_attention_flop(
    query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def count_flops(run: Callable[[], Any]) -> float:
    """FLOPs of everything that runs inside, a multiply-add counted as two.

    The counter of torch gives attention on a CPU 0; its op is registered here.
    Source: seen with torch 2.13, a third of a video transformer's forward was missing.

    Args:
        run: What to count; on meta tensors it costs nothing.
    """
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter = FlopCounterMode(display=False, custom_mapping={op: _cpu_attention_flop})
    with torch.no_grad(), counter:
        run()
    return float(counter.get_total_flops())


def side_by_side(family: Family, ctx: Any) -> Flops:
    """Both numbers for one sample's cycle.

    Args:
        family: Its ``flops`` is the analytic side, its ``count_flops`` the counted one.
        ctx: A context on the meta device, or on whatever device is there.

    Returns:
        What could be had; what could not is None, with the reason in ``detail``.
    """
    analytic = family.flops.flop if family.flops is not None else None
    if family.count_flops is None:
        said = "the family declares no forwards to count"
        return Flops(analytic_flop=analytic, detail=said)
    runs = family.count_flops
    try:
        counted = count_flops(lambda: runs(ctx))
    except Exception as error:  # whatever a user's own code raises is the answer here
        said = f"forwards could not be counted: {type(error).__name__}: {error}"
        return Flops(analytic_flop=analytic, detail=said[:300])
    if family.flops is not None and family.flops.forwards:
        counted *= 1 + 2 * family.flops.backwards / family.flops.forwards
    if not analytic:
        return Flops(counted_flop=counted, detail="the family declares no FLOPs")
    disagreement = counted / analytic - 1
    said = ""
    if abs(disagreement) > DISAGREEMENT:
        said = (
            f"counted {counted:.4g} FLOP a sample against {analytic:.4g} as declared "
            f"({disagreement:+.1%}): check the family's DiT(...)"
        )
    return Flops(
        analytic_flop=analytic,
        counted_flop=counted,
        disagreement_fraction=disagreement,
        detail=said,
    )
