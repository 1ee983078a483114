"""A calibration from its first trial to its record: preflight, trials, choice, soak.

What is tried next and what is chosen are pure functions beside this; a trial is run by `trial.run`.
Invariant: the run's folder has ``calibration.json`` only when all of it was done, and each trial's
record as soon as that trial has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import msgspec
import psutil

from fleetcraft.calibration.family import Family, semantics_name
from fleetcraft.calibration.records import (
    MIB,
    Calibration,
    Choice,
    Failure,
    Flops,
    Trial,
    Verdict,
)
from fleetcraft.calibration.sweep import remarks, store, timing
from fleetcraft.calibration.sweep.asked import Asked, resolve
from fleetcraft.calibration.sweep.choose import End, Limits, choose
from fleetcraft.calibration.sweep.plan import next_step
from fleetcraft.calibration.sweep.preflight import Preflight, budget_between, predict
from fleetcraft.calibration.trial.merging import highest_peak, with_higher_peaks
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.calibration.trial.reading import Journal, read_journal
from fleetcraft.clock import timestamp
from fleetcraft.layout import Scratch, trial_folder

OnEvent = Callable[[dict[str, Any]], None]


class RunTrial(Protocol):
    """Runs one trial and judges it, as `fleetcraft.calibration.trial.run.run_trial` does."""

    def __call__(
        self, order: Order, family: Family, *, expected_s: float | None, on_event: OnEvent
    ) -> Trial:
        """Returns how it ended; a trial that fails is no error."""


class RunOrder(Protocol):
    """Runs an order in a process of its own, and judges nothing."""

    def __call__(self, order: Order, family: Family, *, on_event: OnEvent) -> Journal:
        """Returns what its journal says."""


class Runners(NamedTuple):
    """What runs processes; tests hand in their own."""

    trial: RunTrial
    order: RunOrder


def calibrate(
    name: str,
    *,
    scratch: Scratch,
    batches: Sequence[int] | None = None,
    device: str = "auto",
    device_budget_bytes: int | None = None,
    host_budget_bytes: int | None = None,
    fault: str = "",
    timed_cycles: int = 3,
    soak_cycles: int = 4,
    seed: int = 0,
    threads: int | None = None,
    sdpa: str = "",
    patience_s: float | None = None,
    on_event: OnEvent | None = None,
    runners: Runners | None = None,
) -> Calibration:
    """Tries a family at several batches, chooses one, soaks it, and writes the record of it all.

    Args:
        name: As `fleetcraft.calibration.family.find_family` takes it.
        scratch: Where the run's folder is made.
        batches: What to try; None for 1, 2, 4, ... while there is room and it brings something.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        device_budget_bytes: Emulated limit of tracked bytes.
        host_budget_bytes: Limit of host memory of each trial.
        fault: A fault that the family is asked to have; empty for none.
        timed_cycles: Timed cycles of each trial; with 0 nothing is timed and no turn is taken.
        soak_cycles: Cycles of the chosen batch in one process; 0 for no soak.
        seed: Of the noise.
        threads: Threads of torch; None leaves them.
        sdpa: Attention backend to pin; empty pins none.
        patience_s: Silence of the first trial that counts as a stall; None as the family says.
        on_event: Told what happens, one dict with ``event`` each.
        runners: What runs processes; None for the real ones.

    Returns:
        The record, which also lies in its ``folder``. Failed trials are no error.

    Raises:
        UsageError: An argument is off; so for a family, fault, device or batch that is none.
        ConfigError: There is no scratch tree, or the family's file cannot be imported.
        TryAgainLaterError: Another calibration is timing on this machine and does not end.
        FleetError: A fault cannot be set.
    """
    asked = resolve(
        name,
        batches=batches,
        device=device,
        device_budget_bytes=device_budget_bytes,
        host_budget_bytes=host_budget_bytes,
        fault=fault,
        timed_cycles=timed_cycles,
        soak_cycles=soak_cycles,
        seed=seed,
        threads=threads,
        sdpa=sdpa,
        patience_s=patience_s,
    )
    store.require_scratch(scratch)  # before another calibration is waited for
    tell = on_event or (lambda event: None)
    turn = timing.machine_turn(lambda: tell({"event": "turn_wait"}))
    with turn if timed_cycles else nullcontext():
        folder = store.new_run_folder(scratch, asked.family.key)
        return _Run(asked, folder, tell, runners or _real_runners()).whole()


def _real_runners() -> Runners:
    from fleetcraft.calibration.trial.run import run_order, run_trial

    def order(order: Order, family: Family, *, on_event: OnEvent) -> Journal:
        return run_order(order, family, on_event=on_event).journal

    return Runners(trial=run_trial, order=order)


class _Run:
    """One calibration under way."""

    def __init__(self, asked: Asked, folder: str, tell: OnEvent, runners: Runners) -> None:
        self._asked = asked
        self._folder = folder
        self._tell = tell
        self._runners = runners
        self._family = asked.family
        self._budget_bytes = asked.device_budget_bytes
        self._available_bytes = psutil.virtual_memory().available
        self._preflight = Preflight()
        self._trials: dict[int, Trial] = {}
        self._longest_silence_s: tuple[int, float] | None = None
        self._soaked: set[int] = set()
        self._warnings: list[str] = []
        self._end = End()

    def whole(self) -> Calibration:
        """Everything, in order."""
        started_at = timestamp()
        asked, family = self._asked, self._family
        self._tell({
            "event": "run_begin", "family": family.key, "device": asked.device,
            "folder": self._folder, "batches": asked.wanted, "fault": asked.fault,
        })  # fmt: skip
        self._predict()
        self._sweep()
        choice = self._settle()
        flops = self._flops(choice)
        for text in remarks.remarks(self._sorted(), choice, flops):
            self._warn(text)
        found = Calibration(
            family=family.key,
            identity=family.identity_hash,
            identity_fields=family.identity_fields,
            kind=family.kind,
            device=asked.device,
            semantics=semantics_name(family.semantics),
            trials=self._sorted(),
            predictions=self._preflight.predictions,
            choice=choice,
            flops=flops,
            device_budget_bytes=self._budget_bytes,
            host_budget_bytes=asked.host_budget_bytes,
            fault=asked.fault,
            warnings=tuple(self._warnings),
            folder=self._folder,
            started_at=started_at,
            ended_at=timestamp(),
        )
        store.write_calibration(self._folder, found)
        self._tell({"event": "run_end", "choice": msgspec.to_builtins(choice)})
        return found

    # -- preflight

    def _predict(self) -> None:
        order = self._asked.preflight_order(trial_folder(self._folder, "preflight"))
        self._tell({"event": "preflight_begin", "batches": order.preflight_batches})
        run = self._runners.order
        self._preflight = predict(
            order, self._family, lambda o, f: run(o, f, on_event=self._passing_on("preflight", 0))
        )
        self._tell({
            "event": "preflight_end", "problem": self._preflight.problem,
            "predictions": msgspec.to_builtins(self._preflight.predictions),
        })  # fmt: skip
        if self._preflight.problem:
            self._warn(f"no whole preflight: {self._preflight.problem}")
        if self._asked.between is not None:
            self._budget_bytes = budget_between(
                self._preflight, order.preflight_batches[0], self._asked.between
            )

    # -- trials

    def _sweep(self) -> None:
        while True:
            step = next_step(
                self._sorted(),
                wanted=self._asked.wanted,
                predictions=self._preflight.peaks,
                limits=self._limits(),
            )
            if step.batch is None:
                self._end = step.end or End()
                self._tell({"event": "sweep_end", **msgspec.to_builtins(self._end)})
                return
            if step.skip is None:
                self._keep(self._try(step.batch))
            else:
                self._keep(self._skipped(step.batch, step.skip, step.detail))

    def _limits(self) -> Limits:
        """What a trial may use, as far as it is known by now: only a trial sees a real device."""
        environments = [t.environment for t in self._trials.values()]
        host = [e.host_limit_bytes for e in environments if e.host_limit_bytes is not None]
        asked = [self._asked.host_budget_bytes] if self._asked.host_budget_bytes else []
        # A budget above what the machine has gives no room that is not there.
        host_bytes = min([self._available_bytes, *host, *asked])
        if self._budget_bytes is not None:
            return Limits(device_bytes=self._budget_bytes, host_bytes=host_bytes, emulated=True)
        if self._asked.device == "cpu":
            # The device's memory is the host's. A limit of the trial's own stays out of this: it
            # is better shown by the trial that meets it than predicted.
            return Limits(device_bytes=self._available_bytes, host_bytes=host_bytes, emulated=True)
        sizes = [e.device_mem_mib for e in environments if e.device_mem_mib is not None]
        return Limits(device_bytes=int(sizes[-1] * MIB) if sizes else None, host_bytes=host_bytes)

    def _try(self, batch: int) -> Trial:
        asked = self._asked
        passes = [Pass.CHECKS, Pass.MEMORY]
        if asked.timed_cycles:
            passes.append(Pass.TIME)
        if not self._trials:
            # The cost of tracking is that of the chosen batch, so it goes with its soak if it can.
            passes += [Pass.FLOPS] if asked.soak_cycles else [Pass.OVERHEAD, Pass.FLOPS]
        expected_s = self._expected_s(batch)
        self._tell({"event": "trial_begin", "batch": batch, "expected_s": expected_s})
        before = timing.why_shared(asked.device) if asked.timed_cycles else ""
        trial = self._runners.trial(
            self._order(batch, tuple(passes), f"batch-{batch:03d}"),
            self._family,
            expected_s=expected_s,
            on_event=self._passing_on("trial", batch),
        )
        # One that failed ended early: its silences say nothing of a whole cycle's.
        silence_s = timing.longest_silence_s(trial) if trial.verdict is Verdict.OK else None
        if silence_s is not None:
            self._longest_silence_s = batch, silence_s
        after = timing.why_shared(asked.device) if trial.cycle_walls_s else ""
        why = before or timing.who_came(trial) or after
        if trial.cycle_walls_s and why:
            self._warn(f"batch {batch} is not timed: {why}")
            trial = timing.without_times(trial, why)
        predicted = self._preflight.peaks.get(batch)
        return msgspec.structs.replace(trial, predicted_peak_bytes=predicted)

    def _order(self, batch: int, passes: tuple[Pass, ...], place: str) -> Order:
        order = self._asked.order(batch, passes, trial_folder(self._folder, place))
        return msgspec.structs.replace(order, device_budget_bytes=self._budget_bytes)

    def _expected_s(self, batch: int) -> float | None:
        """The longest silence to expect: that of the last whole trial, for so many more samples."""
        if self._longest_silence_s is None:
            return None
        last, longest_s = self._longest_silence_s
        return longest_s * batch / last

    def _skipped(self, batch: int, why: Failure, detail: str) -> Trial:
        return Trial(
            family=self._family.key,
            identity=self._family.identity_hash,
            batch=batch,
            verdict=Verdict.SKIPPED,
            failure=why,
            detail=detail,
            predicted_peak_bytes=self._preflight.peaks.get(batch),
        )

    def _keep(self, trial: Trial) -> None:
        self._trials[trial.batch] = trial
        store.write_trial(self._folder, trial)
        self._tell({
            "event": "trial_end", "batch": trial.batch, "verdict": trial.verdict.value,
            "class": trial.failure.value if trial.failure else None, "phase": trial.phase,
            "owner": trial.owner, "detail": trial.detail, "peak_bytes": trial.peak_bytes,
            "samples_per_s": trial.samples_per_s, "wall_s": trial.wall_s,
        })  # fmt: skip

    def _sorted(self) -> tuple[Trial, ...]:
        return tuple(self._trials[batch] for batch in sorted(self._trials))

    # -- choice and soak

    def _settle(self) -> Choice:
        """Chooses, and soaks what was chosen, until that holds or nothing is left to choose."""
        while True:
            choice = choose(
                self._sorted(),
                semantics=semantics_name(self._family.semantics),
                limits=self._limits(),
                end=self._end,
            )
            batch = choice.batch
            if batch is None or not self._asked.soak_cycles or batch in self._soaked:
                return choice
            self._soaked.add(batch)
            self._keep(self._soak(self._trials[batch]))

    def _soak(self, trial: Trial) -> Trial:
        """Runs several cycles of a batch in one process: does the third sample still fit?"""
        batch = trial.batch
        self._tell({"event": "soak_begin", "batch": batch, "cycles": self._asked.soak_cycles})
        soaked = self._runners.trial(
            self._order(batch, (Pass.SOAK, Pass.OVERHEAD), f"soak-{batch:03d}"),
            self._family,
            expected_s=self._expected_s(batch),
            on_event=self._passing_on("soak", batch),
        )
        self._tell({
            "event": "soak_end", "batch": batch, "verdict": soaked.verdict.value,
            "soak_live_bytes": soaked.soak_live_bytes, "detail": soaked.detail,
        })  # fmt: skip
        phases = with_higher_peaks(trial.phases, soaked.phases)
        highest = highest_peak(phases)
        merged = msgspec.structs.replace(
            trial,
            phase=highest.name if highest else trial.phase,
            owner=highest.owners[0].name if highest and highest.owners else trial.owner,
            soak_live_bytes=soaked.soak_live_bytes,
            phases=phases,
            evidence={
                **trial.evidence,
                "soak_journal": soaked.journal,
                "soak_journal_sha256": soaked.journal_sha256,
            },
            tracking_overhead_fraction=soaked.tracking_overhead_fraction
            if soaked.tracking_overhead_fraction is not None
            else trial.tracking_overhead_fraction,
        )
        if soaked.verdict is Verdict.OK:
            return merged
        return msgspec.structs.replace(
            merged,
            verdict=Verdict.FAILED,
            failure=soaked.failure or Failure.ERROR,
            phase=soaked.phase,
            owner=soaked.owner,
            detail=f"one cycle ran, several in one process did not: {soaked.detail}",
            evidence={**merged.evidence, "soak": soaked.evidence},
        )

    # -- what is said beside it

    def _flops(self, choice: Choice) -> Flops:
        first = next(iter(self._trials.values()))  # the first that was tried counted them
        found = read_journal(first.journal).flops if first.journal else None
        return remarks.whole_flops(found, self._family, self._trials.get(choice.batch or 0))

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)
            self._tell({"event": "warning", "text": text})

    def _passing_on(self, part: str, batch: int) -> OnEvent:
        """Hands on what a trial's own journal tells, with where it belongs."""
        return lambda event: self._tell({**event, "part": part, "batch": batch or None})
