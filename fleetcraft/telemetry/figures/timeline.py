"""A fleet over time in bins: what the figures draw, as arrays.

Nothing here draws or reads a file. Invariant: what no sample or journal tells of a bin is NaN
there; a GPU that workers hold and nobody writes about is silent, never idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fleetcraft.gpu.states import SILENT_INTERVALS, GpuState
from fleetcraft.telemetry.figures.binning import Binned, bin_means, quantiles
from fleetcraft.telemetry.figures.host_traces import HostTrace
from fleetcraft.telemetry.figures.time_axis import (
    MAX_BINS,
    Bools,
    Floats,
    Ints,
    TimeAxis,
    choose_axis,
    merge,
    stretches,
)
from fleetcraft.telemetry.figures.traces import STATES, Traces
from fleetcraft.telemetry.queue import SPOOLS, Presence, Queue

DEPTH_GAP_S = 95.0
"""A queue depth holds so long. Source: workers write one every 30 s at the latest; three may be
missed, as for GPUs."""
MAX_GPU_ROWS = 40
_SILENT = STATES.index(GpuState.SILENT)
_UNKNOWN = STATES.index(GpuState.UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the heat map: a host, or one of its GPUs.

    Attributes:
        host: The node.
        gpu: What tells the GPU from others of its host; empty where the row is the host.
        util_pct: Means in each bin [bins], NaN where there is no sample.
        samples: How many stand behind the row.
    """

    host: str
    gpu: str
    util_pct: Floats
    samples: int


@dataclass(frozen=True, kw_only=True)
class Bands:
    """One quantity over the fleet.

    Attributes:
        series: Means of each GPU in each bin, [GPUs, bins].
        names: What each of them is called, as host and GPU.
        quantiles: Over the GPUs that have a value, [quantiles, bins].
        mean: Over all samples, [bins].
        total: Sum over the GPUs that have a value, [bins].
        gpus: How many have a value, [bins].
    """

    series: Floats
    names: tuple[str, ...]
    quantiles: Floats
    mean: Floats
    total: Floats
    gpus: Ints

    @property
    def has_data(self) -> bool:
        """Whether there is any value."""
        return bool(len(self.series)) and bool(np.isfinite(self.mean).any())


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Everything that a figure of a fleet shows, [bins] unless said otherwise.

    Attributes:
        axis: The bins.
        rows: Of the heat map.
        per_gpu: Whether its rows are GPUs.
        util: Utilization in percent.
        memory: Fraction of memory that is used.
        power: Watts, without slices.
        host_memory: Fraction of the memory of hosts that is used, a series each, where no GPU was
            seen.
        host_load: Their load.
        active_fraction: Share of samples at or above 5 percent.
        states: Mean number of GPUs in each state of `STATES`, [states, bins]; NaN where no GPU
            reports and none is known to be allocated.
        allocation_known: Whether workers say how many GPUs there are.
        depths: Spool to state to mean number of tasks; NaN where no worker wrote one. What ran is
            counted by starts and ends, where journals tell any.
        workers: Spool to workers present.
        shares: Each state's share of all GPU time that is known.
        drained: What the GPUs did while no task waited anywhere; None if that is not known.
    """

    axis: TimeAxis
    rows: tuple[Row, ...]
    per_gpu: bool
    util: Bands
    memory: Bands
    power: Bands
    host_memory: Bands
    host_load: Bands
    active_fraction: Floats
    states: Floats
    allocation_known: bool
    depths: Mapping[str, Mapping[str, Floats]] = field(default_factory=dict)
    workers: Mapping[str, Floats] = field(default_factory=dict)
    shares: Mapping[GpuState, float] = field(default_factory=dict)
    drained: Drained | None = None


@dataclass(frozen=True, kw_only=True)
class Drained:
    """The time in which neither spool had a pending or waiting task while GPUs were there.

    Attributes:
        hours: How long.
        gpus: Mean number of GPUs allocated then.
        working: Mean number of GPUs at work then.
    """

    hours: float
    gpus: float
    working: float


def build_timeline(
    found: Traces, queue: Queue | None = None, *, max_bins: int = MAX_BINS
) -> Timeline | None:
    """Bins everything over one axis.

    Args:
        found: The traces.
        queue: What the journals say; None or empty without a spool.
        max_bins: See `choose_axis`.

    Returns:
        None if there is neither a sample, nor a reading of a host, nor a queue depth.
    """
    queue = queue or Queue()
    axis = choose_axis(
        _covered(found, queue),
        interval_s=found.interval_s,
        since_s=found.since_s,
        until_s=found.until_s,
        max_bins=max_bins,
    )
    if axis is None:
        return None
    bins = [Binned(trace, axis) for trace in found.traces]
    per_gpu = len(found.traces) <= MAX_GPU_ROWS and len(found.traces) > len(found.hosts)
    states, known = _states(bins, queue.workers, axis, found.interval_s)
    depths = _depths(queue, axis)
    return Timeline(
        axis=axis,
        rows=tuple(_rows(bins, found.hosts, per_gpu, axis)),
        per_gpu=per_gpu,
        util=_bands(bins, "util_pct"),
        memory=_bands(bins, "memory_fraction"),
        power=_bands([b for b in bins if not b.trace.is_slice], "power_w"),
        host_memory=_host_bands(found.bare, "memory_fraction", axis),
        host_load=_host_bands(found.bare, "load", axis),
        active_fraction=_active_fraction(bins, axis),
        states=states,
        allocation_known=known,
        depths=depths,
        workers=_workers(queue.workers, axis),
        shares=_shares(states),
        drained=_drained(depths, states, axis) if known else None,
    )


def _covered(found: Traces, queue: Queue) -> list[tuple[float, float]]:
    covered: list[tuple[float, float]] = []
    for trace in found.traces:
        covered += stretches(trace.t_s, trace.gap_s.astype(np.float64))
    for host in found.bare:
        covered += stretches(host.t_s, host.gap_s)
    for spool in SPOOLS:
        t_s = np.array([depth.t_s for depth in queue.depths if depth.spool == spool])
        covered += stretches(t_s, np.full(len(t_s), DEPTH_GAP_S))
    return merge([*covered, *_silent_time(found, queue, merge(covered))])


def _silent_time(
    found: Traces, queue: Queue, covered: Sequence[tuple[float, float]]
) -> Iterable[tuple[float, float]]:
    """Time in which somebody should have written: it is shown, and makes no axis longer."""
    if not covered:
        return []
    first_s, last_s = covered[0][0], covered[-1][1]
    held = [
        (max(first_s, worker.start_s), min(last_s, _last_seen_s(worker, last_s)))
        for worker in queue.workers
        if worker.gpus
    ]
    unseen = [span for trace in found.traces for span in trace.unseen]
    return [(start, end) for start, end in held + unseen if start < end]


def _rows(
    bins: Sequence[Binned], hosts: Sequence[str], per_gpu: bool, axis: TimeAxis
) -> Iterable[Row]:
    by_host: dict[str, list[Binned]] = {host: [] for host in hosts}
    for binned in bins:
        by_host.setdefault(binned.trace.host, []).append(binned)
    for host, own in by_host.items():
        if per_gpu and own:
            for binned in own:
                yield _row(host, binned.trace.gpu, [binned], axis)
        else:
            yield _row(host, "", own, axis)


def _row(host: str, gpu: str, own: Sequence[Binned], axis: TimeAxis) -> Row:
    mean = _mean([binned.means("util_pct") for binned in own], axis.bins)
    return Row(
        host=host, gpu=gpu, util_pct=mean, samples=sum(len(binned.trace.t_s) for binned in own)
    )


def _mean(parts: Sequence[tuple[Floats, Ints]], bins: int) -> Floats:
    """Means of several series, weighted by their samples."""
    sums, counts = np.zeros(bins), np.zeros(bins)
    for means, samples in parts:
        sums += np.where(samples > 0, means, 0.0) * samples
        counts += samples
    return sums / np.where(counts > 0, counts, np.nan)


def _bands(bins: Sequence[Binned], quantity: str) -> Bands:
    parts = [(binned.trace.name, *binned.means(quantity)) for binned in bins]
    return _bands_of(parts, bins[0].axis.bins if bins else 0)


def _host_bands(hosts: Sequence[HostTrace], quantity: str, axis: TimeAxis) -> Bands:
    parts = [
        (one.host, *bin_means(axis, one.t_s, getattr(one, quantity), one.gap_s)) for one in hosts
    ]
    return _bands_of(parts, axis.bins)


def _bands_of(parts: Sequence[tuple[str, Floats, Ints]], size: int) -> Bands:
    parts = [part for part in parts if part[2].any()]
    series = np.array([means for _, means, _ in parts]).reshape(len(parts), size)
    there = np.isfinite(series)
    gpus = there.sum(axis=0)
    total = np.where(there, series, 0.0).sum(axis=0)
    return Bands(
        series=series,
        names=tuple(name for name, _, _ in parts),
        quantiles=quantiles(series),
        mean=_mean([(means, counts) for _, means, counts in parts], size),
        total=np.where(gpus > 0, total, np.nan),
        gpus=gpus,
    )


def _active_fraction(bins: Sequence[Binned], axis: TimeAxis) -> Floats:
    working, there = np.zeros(axis.bins), np.zeros(axis.bins)
    for binned in bins:
        at_work, seen = binned.active()
        working += at_work
        there += seen
    return working / np.where(there > 0, there, np.nan)


def _states(
    bins: Sequence[Binned], workers: Sequence[Presence], axis: TimeAxis, interval_s: float
) -> tuple[Floats, bool]:
    """GPUs in each state, and whether workers told how many there are."""
    total = np.zeros((len(STATES), axis.bins))
    seen: dict[str, Floats] = {}
    for binned in bins:
        if binned.trace.is_slice:
            continue
        shares = binned.states(interval_s)
        total += shares
        host = binned.trace.host
        seen[host] = seen.get(host, np.zeros(axis.bins)) + shares.sum(axis=0)
    known = False
    for host, allocated in _allocated(workers, axis).items():
        known = True
        missing = np.maximum(0.0, allocated - seen.get(host, 0.0))
        long = _long_runs(missing > 0, SILENT_INTERVALS * interval_s / axis.bin_s)
        total[_SILENT] += missing * long
        total[_UNKNOWN] += missing * ~long
    total[:, total.sum(axis=0) <= 0] = np.nan
    return total, known


def _long_runs(there: Bools, bins: float) -> Bools:
    """Which bins are in a run of more than so many, [bins]."""
    edges = np.flatnonzero(np.diff(there.astype(np.int8), prepend=0, append=0))
    long = np.zeros(len(there), dtype=bool)
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        long[start:end] = end - start > bins
    return long


def _allocated(workers: Sequence[Presence], axis: TimeAxis) -> dict[str, Floats]:
    """GPUs that workers hold, by host; workers of one job share them, those of two do not."""
    by_job: dict[tuple[str, str], Floats] = {}
    for worker in workers:
        if not worker.gpus:
            continue
        held = axis.overlap(worker.start_s, _last_seen_s(worker, axis.last_s)) * worker.gpus
        place = (worker.host, worker.job)
        by_job[place] = np.maximum(by_job.get(place, 0.0), held)
    by_host: dict[str, Floats] = {}
    for (host, _), held in by_job.items():
        by_host[host] = by_host.get(host, np.zeros(axis.bins)) + held
    return by_host


def _last_seen_s(worker: Presence, end_s: float) -> float:
    """Until when a worker was there as far as is known, and at most so long."""
    last_s = worker.last_s
    return end_s if last_s is None else min(end_s, last_s)


def _workers(workers: Sequence[Presence], axis: TimeAxis) -> dict[str, Floats]:
    present: dict[str, Floats] = {}
    for spool in SPOOLS:
        own = [worker for worker in workers if worker.spool == spool]
        if own:
            shares = (axis.overlap(w.start_s, _last_seen_s(w, axis.last_s)) for w in own)
            present[spool] = np.sum(list(shares), axis=0)
    return present


def _depths(queue: Queue, axis: TimeAxis) -> dict[str, dict[str, Floats]]:
    found: dict[str, dict[str, Floats]] = {}
    for spool in SPOOLS:
        own = [depth for depth in queue.depths if depth.spool == spool]
        t_s = np.array([depth.t_s for depth in own])
        gap_s = np.full(len(own), DEPTH_GAP_S)
        if own and (axis.bin_of(t_s) >= 0).any():
            found[spool] = {
                state: bin_means(
                    axis, t_s, np.array([float(getattr(depth, state)) for depth in own]), gap_s
                )[0]
                for state in ("waiting", "pending", "running")
            }
            spans = queue.running_spans(spool, axis.starts_s()[0], axis.last_s)
            if spans:  # exact, where a depth noted now and then is not
                known = np.isfinite(found[spool]["running"])
                found[spool]["running"] = np.where(known, axis.concurrency(spans), np.nan)
    return found


def _shares(states: Floats) -> dict[GpuState, float]:
    known = np.nansum(states)
    if not known:
        return {}
    return {state: float(np.nansum(states[code]) / known) for code, state in enumerate(STATES)}


def _drained(
    depths: Mapping[str, Mapping[str, Floats]], states: Floats, axis: TimeAxis
) -> Drained | None:
    if set(depths) != set(SPOOLS):
        return None
    gpus = states.sum(axis=0)
    queued = sum(depth[state] for depth in depths.values() for state in ("waiting", "pending"))
    empty = (np.asarray(queued) == 0) & (gpus > 0)  # NaN is neither
    if not empty.any():
        return Drained(hours=0.0, gpus=0.0, working=0.0)
    working = states[STATES.index(GpuState.WORKING)]
    return Drained(
        hours=float(empty.sum() * axis.bin_s / 3600.0),
        gpus=float(gpus[empty].mean()),
        working=float(working[empty].mean()),
    )
