"""Simulated families: trials with the throughput, memory and noise that a test asks for."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from fleetcraft.calibration.records import (
    MIB,
    Check,
    Failure,
    OwnerBytes,
    PhaseRecord,
    Trial,
    Verdict,
)
from fleetcraft.calibration.sweep.choose import Limits

ROOMY = Limits(device_bytes=int(1000 * MIB), host_bytes=int(4000 * MIB), emulated=True)
PROVEN = (Check(name="parity", ok=True),)


def trial(
    batch: int,
    *,
    peak_mib: float | None = 100,
    host_mib: float | None = 200,
    walls: tuple[float, ...] = (1.0, 1.0, 1.0),
    **other: Any,
) -> Trial:
    peak = None if peak_mib is None else int(peak_mib * MIB)
    phase = PhaseRecord(
        name="decode",
        walls_s=walls,
        peak_bytes=peak,
        owners=() if peak is None else (OwnerBytes(name="pixels", bytes=peak),),
        rss_peak_bytes=None if host_mib is None else int(host_mib * MIB),
    )
    values: dict[str, Any] = {
        "family": "sim",
        "identity": "sha256:0",
        "verdict": Verdict.OK,
        "checks": PROVEN,
        "phases": (phase,),
        "cycle_walls_s": walls,
        "samples_per_s": None,
    }
    return Trial(batch=batch, **{**values, **other})


def failed(batch: int, failure: Failure = Failure.CAPACITY, **other: Any) -> Trial:
    return trial(batch, verdict=Verdict.FAILED, failure=failure, phase="backward2", **other)


def skipped(batch: int, failure: Failure = Failure.PREDICTED, **other: Any) -> Trial:
    return trial(batch, verdict=Verdict.SKIPPED, failure=failure, phases=(), walls=(), **other)


def simulated(
    rate: Callable[[int], float],
    batches: tuple[int, ...],
    *,
    noise: float,
    seed: int,
    cycles: int = 3,
) -> list[Trial]:
    """Trials whose cycles take what a rate in samples per second says, with relative noise."""
    draw = random.Random(seed)
    return [
        trial(
            batch,
            peak_mib=20 + 10 * batch,
            walls=tuple(
                batch / rate(batch) * max(0.1, draw.gauss(1.0, noise)) for _ in range(cycles)
            ),
        )
        for batch in batches
    ]
