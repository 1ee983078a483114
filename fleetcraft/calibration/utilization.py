"""MFU of a calibrated batch: its FLOPs, its throughput, and the peak of the very part it ran on.

Invariant: a device whose peak is not known has no MFU; there is no default part.
"""

from __future__ import annotations

import msgspec

from fleetcraft.calibration.records import Flops
from fleetcraft.gpu.flops import mfu
from fleetcraft.gpu.peaks import find_peak, same_model


def with_mfu(flops: Flops, device: str, samples_per_s: float | None) -> Flops:
    """Adds the MFU of one device, or says why there is none.

    The analytic number is used where there is one, since that is what others compare with.

    Args:
        flops: Of one sample's cycle.
        device: The driver's name of the part; see `fleetcraft.gpu.peaks`.
        samples_per_s: Throughput of the chosen batch, load left out; None when not timed.
    """
    flop = flops.analytic_flop or flops.counted_flop
    peak = find_peak(device)
    if peak is None:
        parts = same_model(device)
        which = f"; it could be {' or '.join(parts)}" if parts else ""
        return _without(flops, f"no MFU: unknown device {device!r}{which}")
    if not flop or not samples_per_s:
        why = "its FLOPs are not known" if not flop else "its throughput was not timed"
        return _without(flops, f"no MFU: {why}")
    share = mfu(flop * samples_per_s, 1.0, peak.dense_bf16_flop_per_s)
    return msgspec.structs.replace(flops, mfu=share, peak_name=peak.name)


def _without(flops: Flops, why: str) -> Flops:
    said = f"{flops.detail}; {why}" if flops.detail else why
    return msgspec.structs.replace(flops, detail=said)
