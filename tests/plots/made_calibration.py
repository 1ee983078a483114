"""Calibrations made by hand, for what shows them. The bytes are those of no real run.

Not here: any test. Invariant: owners add up to their phase's peak, as the records promise.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fleetcraft.calibration.records import (
    Calibration,
    Check,
    Choice,
    Environment,
    Failure,
    Flops,
    OwnerBytes,
    PhaseRecord,
    Prediction,
    Trial,
    Verdict,
)
from fleetcraft.calibration.sweep.store import write_calibration
from fleetcraft.layout import Scratch, trial_folder

MIB = 1 << 20
PHASES = (
    "load", "denoise", "decode", "score", "backward1", "step1", "backward2", "step2", "probe",
    "save", "write",
)  # fmt: skip
_FIXED = {"model": 24, "decoder": 1}
_GROWING: Mapping[str, Mapping[str, int]] = {
    "denoise": {"autograd": 0, "latents": 2, "unowned:denoise": 9},
    "decode": {"pixels": 30, "unowned:decode": 12},
    "score": {"pixels": 30, "unowned:score": 3},
    "backward1": {"autograd": 88, "model.grad": 6, "pixels": 4},
    "step1": {"model.grad": 6},
    "backward2": {"autograd": 88, "model.grad": 6, "pixels": 4},
    "step2": {"model.grad": 6},
    "probe": {"probe.kv": 10, "unowned:probe": 8},
    "save": {},
    "write": {"pixels": 30},
}
_STATE_FROM = PHASES.index("step1")


def made_phase(name: str, batch: int, /, *, timed: bool = True, **changes: Any) -> PhaseRecord:
    """One phase whose bytes grow with the batch as a toy's do."""
    sizes = dict(_FIXED)
    if PHASES.index(name) >= _STATE_FROM:
        sizes["optimizer"] = 48
    for owner, mib in _GROWING.get(name, {}).items():
        if mib:
            sizes[owner] = mib * batch
    owners = tuple(
        OwnerBytes(
            name=owner,
            bytes=mib * MIB,
            live_end_bytes=0 if owner.startswith(("autograd", "unowned")) else mib * MIB,
            born_in="load" if owner in _FIXED else name,
            alive_after=owner == "probe.kv",
        )
        for owner, mib in sorted(sizes.items(), key=lambda item: -item[1])
    )
    fields: dict[str, Any] = {
        "name": name,
        "walls_s": tuple(0.02 * batch * (1 + 0.03 * k) for k in range(3)) if timed else (),
        "peak_bytes": sum(owner.bytes for owner in owners),
        "live_end_bytes": sum(owner.live_end_bytes for owner in owners),
        "autograd_bytes": 0,
        "owners": owners,
        "rss_peak_bytes": (600 + 130 * batch) * MIB,
    }
    return PhaseRecord(**{**fields, **changes})


def made_trial(batch: int, *, rate: float = 3.2, **changes: Any) -> Trial:
    """A trial that went well, with ``rate`` samples per second."""
    phases = tuple(made_phase(name, batch) for name in PHASES)
    wall_s = batch / rate
    fields: dict[str, Any] = {
        "family": "toy",
        "identity": f"sha256:{'a1' * 32}",
        "batch": batch,
        "verdict": Verdict.OK,
        "phase": "backward2",
        "owner": "autograd",
        "phases": phases,
        "cycle_walls_s": (0.98 * wall_s, wall_s, 1.03 * wall_s),
        "samples_per_s": rate,
        "checks": (Check(name="noise", ok=True, phase="denoise", measured=0.0),),
        "tracking_overhead_fraction": 0.084 if batch == 1 else None,
        "start_live_bytes": 0,
        "environment": made_environment(),
        "wall_s": 4.0,
        "journal": f"batch-{batch:03d}/journal.jsonl",
        "journal_sha256": f"sha256:{batch:064x}",
    }
    return Trial(**{**fields, **changes})


def made_environment(**changes: Any) -> Environment:
    """A CPU with a stack."""
    fields: dict[str, Any] = {
        "device": "cpu Made Up",
        "torch": "2.13.0",
        "sdpa": "flash",
        "python": "3.12.3",
        "host": "n000",
        "cpus": 2,
    }
    return Environment(**{**fields, **changes})


def failed_trial(
    batch: int, phase: str = "backward2", failure: Failure = Failure.CAPACITY, **changes: Any
) -> Trial:
    """A trial that ended inside a phase."""
    ran = PHASES[: PHASES.index(phase)]
    fields: dict[str, Any] = {
        "verdict": Verdict.FAILED,
        "failure": failure,
        "phase": phase,
        "owner": "autograd",
        "detail": "the request of 12.5 MiB did not fit: 240.0 MiB of 250.0 MiB were in use",
        "phases": tuple(made_phase(name, batch, timed=False) for name in ran),
        "missing_phases": PHASES[PHASES.index(phase) :],
        "cycle_walls_s": (),
        "samples_per_s": None,
    }
    return made_trial(batch, **{**fields, **changes})


def skipped_trial(batch: int, **changes: Any) -> Trial:
    """A trial that the preflight spared."""
    fields: dict[str, Any] = {
        "verdict": Verdict.SKIPPED,
        "failure": Failure.PREDICTED,
        "phase": "backward2",
        "detail": "the preflight predicts 865.0 MiB in backward2, the budget is 250.0 MiB",
        "phases": (),
        "cycle_walls_s": (),
        "samples_per_s": None,
        "predicted_peak_bytes": (73 + 98 * batch) * MIB,
        "checks": (),
        "start_live_bytes": None,
        "wall_s": None,
    }
    return made_trial(batch, **{**fields, **changes})


def made_calibration(*trials: Trial, **changes: Any) -> Calibration:
    """A run of a toy with these trials: batch 1, 2 and 4 by default."""
    trials = trials or (made_trial(1), made_trial(2, rate=4.0), made_trial(4, rate=4.1))
    fields: dict[str, Any] = {
        "family": "toy",
        "identity": f"sha256:{'a1' * 32}",
        "identity_fields": {"key": "toy", "kind": "train"},
        "kind": "train",
        "device": "cpu",
        "semantics": "independent",
        "trials": trials,
        "predictions": tuple(
            Prediction(batch=t.batch, peak_bytes=(73 + 98 * t.batch) * MIB, phase="backward2")
            for t in trials
        ),
        "choice": Choice(
            batch=2,
            reason="compute_saturated",
            detail="batch 4 gains 2.5 %, less than 5 %",
            next_batch=4,
            next_verdict=Verdict.OK,
            throughput_gain=0.025,
        ),
        "flops": Flops(
            analytic_flop=31.034e9, counted_flop=28.433e9, disagreement_fraction=-0.0838
        ),
        "folder": "/nowhere/calibration/toy/20260717T060000Z",
        "started_at": "2026-07-17T06:00:00Z",
        "ended_at": "2026-07-17T06:00:21Z",
    }
    return Calibration(**{**fields, **changes})


def budget_run() -> Calibration:
    """One that ended at a budget: batch 2 failed in the second backward, 8 was not tried."""
    trials = (
        made_trial(1),
        failed_trial(2),
        skipped_trial(8),
    )
    choice = Choice(
        batch=1,
        reason="next_failed",
        detail="batch 2 failed in backward2",
        next_batch=2,
        next_verdict=Verdict.FAILED,
        next_class=Failure.CAPACITY,
    )
    return made_calibration(*trials, choice=choice, device_budget_bytes=250 * MIB)


def soaked(trial: Trial, cycles: int = 4) -> Trial:
    """The same after so many cycles in a row that did not grow."""
    return msgspec.structs.replace(trial, soak_live_bytes=(25 * MIB,) * cycles)


def freezable(**changes: Any) -> Calibration:
    """A run that may be frozen at batch 2."""
    return made_calibration(
        made_trial(1), soaked(made_trial(2, rate=4.0)), made_trial(4, rate=4.1), **changes
    )


def store_run(root: Path, run: Calibration, name: str = "20260717T060000.000Z-aaaaaaaa") -> str:
    """Lays a run down in a scratch tree as the sweep does; returns its folder."""
    scratch = Scratch(str(root))
    for folder in (scratch.calibration, scratch.family_folder(run.family)):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    place = scratch.calibration_run(run.family, name)
    trials = []
    for trial in run.trials:
        folder = trial_folder(place, f"batch-{trial.batch:03d}")
        os.makedirs(folder)
        text = f'{{"event": "end", "batch": {trial.batch}, "of": "{name}"}}\n'.encode()
        journal = Path(folder, "journal.jsonl")
        journal.write_bytes(text)
        digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
        trials.append(msgspec.structs.replace(trial, journal=str(journal), journal_sha256=digest))
    write_calibration(place, msgspec.structs.replace(run, folder=place, trials=tuple(trials)))
    return place
