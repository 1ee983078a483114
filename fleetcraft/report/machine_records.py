"""What a report says of GPUs: hosts, states and queue over one time axis, and their figures.

Computes nothing. Invariant: a bin without a sample is None, and no figure lacks what it is of.
"""

from __future__ import annotations

import msgspec


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """An unbroken piece of the time axis: where it begins, its first bin, and how many it has."""

    start_s: float
    first_bin: int
    bins: int


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """One host.

    Attributes:
        gpus: GPUs seen; ``allocated`` is what was ours at most, None when nothing tells.
        mean_util_pct: By time.
        active_fraction: Share of time with a utilization of 5 percent or more.
        memory_fraction: Mean share of GPU memory used, by time.
        power_w: Mean of one GPU.
        coverage_fraction: Samples there are over samples there should be.
        strip: Mean utilization in each bin, in percent; None where there is no sample.
    """

    host: str
    gpus: int
    allocated: int | None
    mean_util_pct: float | None
    active_fraction: float | None
    memory_fraction: float | None
    power_w: float | None
    coverage_fraction: float | None
    strip: tuple[int | None, ...] = ()


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """What GPUs did, with how much work there was.

    Attributes:
        folder: Where telemetry was read.
        start: Of the span, as text.
        end: Likewise; ``zone`` is ``UTC``, ``file-local`` or ``mixed``.
        sentence: The state at the end of the span, with the queue.
        hosts_seen: Hosts with a sample; ``gpus_seen`` likewise.
        gpus_allocated: At the same time, at most; None when nothing tells.
        mean_util_pct: By time; ``active_fraction`` and ``memory_fraction`` likewise.
        active_of_samples: Share of samples at 5 percent or more, as other tools count it.
        coverage_fraction: Samples there are over samples there should be.
        covered_gpu_h: GPU hours for which samples stand.
        energy_kwh: Over ``energy_gpu_h`` GPU hours alone, gaps left out.
        energy_method: ``counter``, ``trapezoid`` or both.
        state_gpu_h: GPU hours by state, over time in which GPUs are known to have been there.
        bin_s: Seconds a bin of the time axis.
        stretches: Its pieces; time between them had no data and is left out.
        states: State to mean number of GPUs in each bin; None where it is not known.
        queue: Spool to state to tasks in each bin.
        drained_h: Hours in which GPUs were there and no task waited anywhere; None when unknown.
        drained_gpus: Mean number of GPUs there then.
        hosts: By name.
        mfu: Family to estimated MFU and its devices.
        rejected: Lines that are no rows, by kind.
        notes: What a reader should know.
    """

    folder: str
    start: str
    end: str
    zone: str
    sentence: str
    hosts_seen: int
    gpus_seen: int
    gpus_allocated: int | None
    mean_util_pct: float | None
    active_fraction: float | None
    active_of_samples: float | None
    memory_fraction: float | None
    coverage_fraction: float | None
    covered_gpu_h: float
    mean_power_w: float | None
    energy_kwh: float | None
    energy_gpu_h: float
    energy_method: str
    state_gpu_h: dict[str, float]
    bin_s: float = 0.0
    stretches: tuple[Stretch, ...] = ()
    states: dict[str, tuple[float | None, ...]] = {}
    queue: dict[str, dict[str, tuple[float | None, ...]]] = {}
    drained_h: float | None = None
    drained_gpus: float | None = None
    hosts: tuple[HostRow, ...] = ()
    hosts_left_out: int = 0
    mfu: tuple[tuple[str, float | None, str], ...] = ()
    rejected: dict[str, int] = {}
    notes: tuple[str, ...] = ()
