"""What a calibration found: one record a trial, one a run, as they lie on disk and are printed.

Plain values only, no torch; how they are measured, judged and chosen is elsewhere. Invariant: what
was not measured is None, never 0; a verdict that is not ``ok`` has a class with its evidence, or
says whose failure left nothing to try.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

MIB = float(1 << 20)


class Verdict(StrEnum):
    """How a trial ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class Failure(StrEnum):
    """Why a trial failed, or was not tried. First match wins; see `classify`."""

    HOST_OOM = "host_oom"
    PROCESS_EXHAUSTION = "process_exhaustion"
    FRAGMENTATION = "device_oom.fragmentation"
    NEIGHBOUR = "device_oom.neighbour"
    CAPACITY = "device_oom.capacity"
    PREDICTED = "device_oom.predicted"
    HOST_ALLOC = "host_alloc"
    KILLED_UNKNOWN = "killed_unknown"
    PARTIAL = "partial"
    STALLED = "stalled"
    OWNER_OUTLIVED = "owner_outlived"
    AUTOGRAD_RETAINED = "autograd_retained"
    MASK_DROPPED = "mask_dropped"
    NOISE_SHARED = "noise_shared"
    DECISION_SHARED = "decision_shared"
    SEMANTICS_CHANGED = "semantics_changed"
    OUTPUT_EMPTY = "output_empty"
    SOAK_RISING = "soak_rising"
    SMALLER_FAILED = "smaller_failed"
    ERROR = "error"

    @property
    def is_memory(self) -> bool:
        """Whether a smaller batch may cure it."""
        return self.value.startswith(("device_oom", "host_"))


class OwnerBytes(msgspec.Struct, frozen=True, kw_only=True):
    """One owner's share of a phase's tracked peak.

    Attributes:
        name: A registered root (``model``, ``probe.kv``), ``NAME.grad`` and ``autograd``, or the
            scope of birth of what nobody claimed (``unowned:decode``).
        bytes: At the peak.
        live_end_bytes: What of it lives at the end of the phase.
        born_in: The phase in which most of it was made.
        alive_after: Whether any of it lives after its phase of birth.
    """

    name: str
    bytes: int
    live_end_bytes: int = 0
    born_in: str = ""
    alive_after: bool = False


class PhaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a trial.

    Attributes:
        name: As the family calls it.
        walls_s: One wall time for each timed cycle, tracking off; empty when it was not timed.
        peak_bytes: Tracked peak on the device; the bytes of ``owners`` add up to exactly this.
        live_end_bytes: Tracked bytes that live at its end.
        autograd_bytes: Of those, what autograd holds for a backward pass.
        owners: Of the peak, largest first.
        allocated_peak_bytes: The allocator's own peak (CUDA).
        reserved_peak_bytes: What the allocator had taken from the device (CUDA).
        residual_bytes: Allocator's peak less the tracked one: workspaces, rounding, other threads.
        rss_peak_bytes: Highest resident size of the process during the phase.
        cgroup_peak_bytes: Highest use of the trial's own memory cgroup.
        held_bytes: Registered owners that had to be gone at its end, and are not: name to bytes.
    """

    name: str
    walls_s: tuple[float, ...] = ()
    peak_bytes: int | None = None
    live_end_bytes: int | None = None
    autograd_bytes: int | None = None
    owners: tuple[OwnerBytes, ...] = ()
    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    residual_bytes: int | None = None
    rss_peak_bytes: int | None = None
    cgroup_peak_bytes: int | None = None
    held_bytes: dict[str, int] = {}

    @property
    def wall_s(self) -> float | None:
        """The median of the timed cycles."""
        return median(self.walls_s)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One semantic check of a family at one batch.

    Attributes:
        name: ``noise``, ``mask``, ``decisions`` or ``parity``.
        ok: None when it could not be run; ``detail`` says why.
        failure: What it means when it is not.
        phase: Where the family does what is checked.
        detail: One sentence with the numbers.
        measured: Largest difference found, in the units of what was compared.
    """

    name: str
    ok: bool | None
    failure: Failure | None = None
    phase: str = ""
    detail: str = ""
    measured: float | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where a trial ran, as far as it is known. The frozen table binds to device and stack."""

    device: str = ""
    device_mem_mib: float | None = None
    power_limit_w: float | None = None
    driver: str = ""
    torch: str = ""
    sdpa: str = ""
    alloc: str = ""
    python: str = ""
    host: str = ""
    cpus: int | None = None
    host_limit_bytes: int | None = None
    job: str = ""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One batch tried in one process of its own.

    Attributes:
        family: The family's key.
        identity: Its identity hash.
        batch: What was tried.
        verdict: How it ended.
        failure: Why it failed or was skipped; in JSON ``class``.
        phase: Where it failed; the phase with the highest tracked peak when it did not.
        owner: Who is to blame, where one is; the largest owner of the peak when nobody is.
        detail: One sentence for people, with the numbers.
        evidence: What the class was decided from.
        phases: In the order in which they first ran.
        missing_phases: Required phases that did not run; such a record is only a smoke test.
        cycle_walls_s: Wall time of each timed cycle without its load phase.
        samples_per_s: Batch over the median of those.
        soak_live_bytes: Tracked bytes that live after each soak cycle.
        checks: The semantic checks.
        participants: Status of each: ``NAME -> alive | done | dead (how)``.
        tracking_overhead_fraction: CPU time with tracking over without, less 1.
        predicted_peak_bytes: What the preflight said.
        start_live_bytes: Tracked bytes that lived before the first cycle.
        environment: Where it ran.
        journal: Path of its journal.
        journal_sha256: Of its bytes.
        started_at: UTC.
        wall_s: From the start of the process to its end.
    """

    family: str
    identity: str
    batch: int
    verdict: Verdict
    failure: Failure | None = msgspec.field(name="class", default=None)
    phase: str = ""
    owner: str = ""
    detail: str = ""
    evidence: dict[str, Any] = {}
    phases: tuple[PhaseRecord, ...] = ()
    missing_phases: tuple[str, ...] = ()
    cycle_walls_s: tuple[float, ...] = ()
    samples_per_s: float | None = None
    soak_live_bytes: tuple[int, ...] = ()
    checks: tuple[Check, ...] = ()
    participants: dict[str, str] = {}
    tracking_overhead_fraction: float | None = None
    predicted_peak_bytes: int | None = None
    start_live_bytes: int | None = None
    environment: Environment = Environment()
    journal: str = ""
    journal_sha256: str = ""
    started_at: str = ""
    wall_s: float | None = None
    schema: str = "fleetcraft.trial/1"

    @property
    def smoke(self) -> bool:
        """Whether a required phase is missing, so that this can never be frozen."""
        return bool(self.missing_phases)

    @property
    def peak_bytes(self) -> int | None:
        """The highest tracked peak of any phase."""
        return max((p.peak_bytes for p in self.phases if p.peak_bytes is not None), default=None)

    @property
    def host_peak_bytes(self) -> int | None:
        """The highest use of its own cgroup, else of its resident size and its children's."""
        cgroup = [p.cgroup_peak_bytes for p in self.phases if p.cgroup_peak_bytes is not None]
        resident = [p.rss_peak_bytes for p in self.phases if p.rss_peak_bytes is not None]
        of_all = self.evidence.get("with_children_rss_peak_bytes")
        if isinstance(of_all, int):
            resident.append(of_all)
        return max(cgroup or resident, default=None)

    def phase_named(self, name: str) -> PhaseRecord | None:
        """One phase; None when it did not run."""
        return next((phase for phase in self.phases if phase.name == name), None)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which batch a family is to run with, and why not a larger one.

    Attributes:
        batch: The batch; None when no trial is good enough to choose one.
        timed_batch: The batch of timed tasks; always 1.
        reason: ``compute_saturated``, ``within_noise``, ``semantics_shared``,
            ``semantics_unknown``, ``headroom``, ``host_bound``, ``next_failed``,
            ``largest_tried``, ``soak_rising``, ``smoke``, ``not_timed``, ``first_failed``.
        detail: One sentence with the numbers.
        next_batch: The next larger one that was looked at; None when there is none.
        next_verdict: How its trial ended.
        next_class: Why it failed or was skipped.
        throughput_gain: Samples per second there over those here, less 1; None when not timed.
    """

    batch: int | None
    timed_batch: int = 1
    reason: str = ""
    detail: str = ""
    next_batch: int | None = None
    next_verdict: Verdict | None = None
    next_class: Failure | None = None
    throughput_gain: float | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What the preflight says of one batch; ``peak_bytes`` is None with a reason in ``detail``."""

    batch: int
    peak_bytes: int | None = None
    phase: str = ""
    wall_s: float | None = None
    detail: str = ""


class Flops(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of one sample's cycle, analytic and counted side by side; None where unknown.

    ``disagreement_fraction`` is counted over analytic, less 1; above 0.1 either way it is warned.
    """

    analytic_flop: float | None = None
    counted_flop: float | None = None
    disagreement_fraction: float | None = None
    mfu: float | None = None
    peak_name: str = ""
    detail: str = ""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """One run of ``calibrate run``: every trial of one family, and the choice."""

    family: str
    identity: str
    identity_fields: dict[str, Any]
    kind: str
    device: str
    semantics: str
    trials: tuple[Trial, ...]
    predictions: tuple[Prediction, ...] = ()
    choice: Choice
    flops: Flops = Flops()
    device_budget_bytes: int | None = None
    host_budget_bytes: int | None = None
    fault: str = ""
    warnings: tuple[str, ...] = ()
    folder: str = ""
    started_at: str = ""
    ended_at: str = ""
    schema: str = "fleetcraft.calibration/1"

    @property
    def ok(self) -> bool:
        """Whether every trial was ok or skipped."""
        return all(trial.verdict is not Verdict.FAILED for trial in self.trials)


def median(values: tuple[float, ...]) -> float | None:
    """The median; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
