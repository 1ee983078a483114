"""The computing of a window's summary: GPUs, hosts, fleet, work, MFU.

Reads nothing: `summary` hands it what it read, `verify` what was frozen. Invariant: a summary is a
function of `Evidence` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from fleetcraft.gpu.states import GpuState, count_states
from fleetcraft.gpu.status import Status
from fleetcraft.telemetry.intervals import DEFAULT_INTERVAL_S
from fleetcraft.telemetry.queue import Presence, Queue
from fleetcraft.telemetry.windows.family_mfu import Reported, mfu_of
from fleetcraft.telemetry.windows.figures import figures_of
from fleetcraft.telemetry.windows.levels import (
    FleetSummary,
    GpuSummary,
    HostSummary,
    Summary,
    sentence,
)
from fleetcraft.telemetry.windows.series import HostRows, SourceFacts, newest_of
from fleetcraft.telemetry.windows.span import (
    Series,
    Sums,
    Window,
    iso,
    measure,
    state_at,
)
from fleetcraft.telemetry.windows.work import Allocation, allocation_of, work_of


@dataclass(kw_only=True)
class Evidence:
    """What a summary is computed from.

    Attributes:
        hosts: One at a time, so that only one need be in memory.
        queue: None when nobody says where the spools are.
        reported: Forward calls of the window, by claim.
        rejected_reports: Lines of reports that could not be used.
        passed_over: Files that were not read because they lie far from the window.
        refused: Files that could not be read, with the reason; complete once the hosts are read.
    """

    window: Window
    hosts: Iterable[HostRows]
    queue: Queue | None = None
    reported: Sequence[Reported] = ()
    rejected_reports: int = 0
    passed_over: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


def sum_up(evidence: Evidence) -> Summary:
    """The summary of what was read; reads nothing itself."""
    window = evidence.window
    start_s, end_s = window.bounds_s(zoned=True)
    workers = _by_host(evidence.queue.workers if evidence.queue else ())
    total = Sums()
    hosts: list[HostSummary] = []
    gpus: list[GpuSummary] = []
    sources: list[SourceFacts] = []
    for rows in evidence.hosts:
        summary, of_host, sums = _host(rows, workers.pop(rows.host, []), window)
        sources += rows.sources
        if summary is not None:
            hosts.append(summary)
            gpus += of_host
            total.add(sums)
    for host in sorted(workers):  # workers are there, and no telemetry file at all
        summary, _, sums = _host(HostRows(host=host), workers[host], window)
        if summary is not None:
            hosts.append(summary)
            total.add(sums)
    hosts.sort(key=lambda host: host.host)
    fleet = _fleet(hosts, gpus, total)
    work = work_of(evidence.queue, start_s, end_s)
    queue = evidence.queue or Queue()
    span = (start_s, end_s)
    zone = _zone(sources)
    zoned = zone != "file-local"
    first_s, last_s = window.bounds_s(zoned=zoned)
    return Summary(
        start=iso(first_s, zoned=zoned),
        end=iso(last_s, zoned=zoned),
        window_s=window.seconds,
        zone=zone,
        sentence=sentence(fleet, work),
        fleet=fleet,
        hosts=tuple(hosts),
        gpus=tuple(gpus),
        queue=work,
        mfu=mfu_of(
            evidence.reported,
            queue.runs,
            queue.workers,
            sources,
            span,
            rejected_lines=evidence.rejected_reports,
        ),
        files=len(sources),
        files_passed_over=evidence.passed_over,
        files_refused=len(evidence.refused),
        rows=_added(facts.kinds for facts in sources),
        rejected=_added(facts.rejected for facts in sources),
        newest=newest_of(sources),
    )


def _by_host(workers: Iterable[Presence]) -> dict[str, list[Presence]]:
    found: dict[str, list[Presence]] = {}
    for worker in workers:
        found.setdefault(worker.host, []).append(worker)
    return found


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for word, number in each.items():
            total[word] = total.get(word, 0) + number
    return dict(sorted(total.items()))


def _zone(sources: Iterable[SourceFacts]) -> str:
    zones = {facts.zoned for facts in sources if facts.rows_in_window} or {
        facts.zoned for facts in sources if facts.zoned is not None
    }
    if len(zones) == 2:
        return "mixed"
    return "" if not zones else "UTC" if zones == {True} else "file-local"


def _host(
    rows: HostRows, workers: Sequence[Presence], window: Window
) -> tuple[HostSummary | None, list[GpuSummary], Sums]:
    """None for a host that has neither rows nor an allocation in the window."""
    start_s, end_s = window.bounds_s(zoned=True)
    sums = Sums()
    gpus = []
    names = {gpu.uuid: gpu.name for facts in rows.sources for gpu in facts.gpus}
    whole_gpus = {series.gpu_uuid for series in rows.series if not series.mig_uuid}
    reporting = 0
    for series in rows.series:
        own = measure(series, *window.bounds_s(zoned=series.zoned))
        sums.add(_of_slice(own) if series.mig_uuid and series.gpu_uuid in whole_gpus else own)
        gpus.append(_gpu(series, own, names, window))
        reporting += not series.mig_uuid and _reports(own)
    gpus = _with_state_of_slices(gpus) + _unseen(rows, gpus)
    allocation = allocation_of(workers, rows.sources, start_s, end_s)
    whole = [gpu for gpu in gpus if not gpu.is_slice]
    if not gpus and allocation.most is None:
        return None, [], sums
    _count_unseen(sums, rows.series, allocation, _more_slices(gpus))
    summary = HostSummary(
        host=rows.host,
        jobs=_jobs(rows, workers),
        gpus=len(whole),
        slices=len(gpus) - len(whole),
        gpus_reporting=reporting,
        gpus_allocated=allocation.most,
        gpus_allocated_at_end=allocation.at_end,
        allocated_source=allocation.source,
        states=_states(gpus, allocation),
        figures=figures_of(sums),
    )
    return summary, gpus, sums


def _of_slice(sums: Sums) -> Sums:
    """What a slice adds to its host: rows, and no time, which is its GPU's."""
    return replace(sums, held_s=0.0, span_s=0.0, state_s={})


def _count_unseen(sums: Sums, series: Sequence[Series], allocation: Allocation, more: int) -> None:
    """Expects samples of allocated GPUs that have no row at all; their time is silent."""
    seen = [one for one in series if not one.mig_uuid]
    unseen_s = allocation.gpu_s_beyond(len(seen) + more)
    if unseen_s > 0:
        interval_s = max((one.interval_s for one in seen), default=DEFAULT_INTERVAL_S)
        sums.expected += unseen_s / interval_s
        sums.span_s += unseen_s
        silent = GpuState.SILENT.value
        sums.state_s[silent] = sums.state_s.get(silent, 0.0) + unseen_s


def _more_slices(gpus: Sequence[GpuSummary]) -> int:
    """How many more slices there are than GPUs that are cut.

    Slurm and the visible devices count each slice that a job has as a GPU of it.
    """
    slices = [gpu for gpu in gpus if gpu.is_slice]
    cut = {(gpu.host, gpu.gpu_uuid) for gpu in slices}
    return len(slices) - sum(not g.is_slice and (g.host, g.gpu_uuid) in cut for g in gpus)


def _jobs(rows: HostRows, workers: Iterable[Presence]) -> tuple[str, ...]:
    jobs = {facts.job for facts in rows.sources if facts.rows_in_window or facts.logging}
    return tuple(sorted({*jobs, *(worker.job for worker in workers)} - {""}))


def _reports(sums: Sums) -> bool:
    return bool(sums.util_rows or sums.mem_rows or sums.statuses.get(Status.MIG.value))


def _gpu(series: Series, sums: Sums, names: Mapping[str, str], window: Window) -> GpuSummary:
    _, end_s = window.bounds_s(zoned=series.zoned)
    state: GpuState | None = None
    if series.until_s >= end_s:
        newest = int(series.kept_rows()[-1])
        state = state_at(series, newest, age_s=end_s - float(series.t_s[newest]))
    return GpuSummary(
        host=series.host,
        key=series.key,
        gpu_index=series.gpu_index,
        gpu_uuid=series.gpu_uuid,
        mig_uuid=series.mig_uuid,
        name=names.get(series.gpu_uuid, ""),
        is_slice=bool(series.mig_uuid),
        state=state,
        interval_s=series.interval_s,
        interval_from=series.interval_from,
        figures=figures_of(sums),
    )


_BUSIEST = (GpuState.WORKING, GpuState.RESIDENT_IDLE, GpuState.FREE_IDLE)


def _with_state_of_slices(gpus: list[GpuSummary]) -> list[GpuSummary]:
    """Gives a GPU that is cut in slices the state of its busiest one."""
    of_slices: dict[str, set[GpuState | None]] = {}
    for gpu in gpus:
        if gpu.is_slice:
            of_slices.setdefault(gpu.gpu_uuid, set()).add(gpu.state)
    found = []
    for gpu in gpus:
        states = of_slices.get(gpu.gpu_uuid, set())
        busiest = next((state for state in _BUSIEST if state in states), gpu.state)
        sliced = not gpu.is_slice and gpu.state is GpuState.UNKNOWN
        found.append(msgspec.structs.replace(gpu, state=busiest) if sliced else gpu)
    return found


def _unseen(rows: HostRows, gpus: Iterable[GpuSummary]) -> list[GpuSummary]:
    """GPUs that the sidecar of a logger names which ran in the window, and that have no row."""
    seen = {gpu.gpu_uuid for gpu in gpus}
    found = {}
    for facts in rows.sources:
        for gpu in facts.gpus if facts.logging else ():
            if gpu.uuid and gpu.uuid not in seen:
                found[gpu.uuid] = GpuSummary(
                    host=rows.host,
                    key=gpu.uuid,
                    gpu_index="" if gpu.index is None else str(gpu.index),
                    gpu_uuid=gpu.uuid,
                    name=gpu.name,
                    state=GpuState.SILENT if facts.ended_at is None else None,
                )
    return list(found.values())


def _states(gpus: Iterable[GpuSummary], allocation: Allocation) -> dict[str, int]:
    at_end = [gpu for gpu in gpus if gpu.state is not None]
    states = [gpu.state for gpu in at_end if gpu.state is not None and not gpu.is_slice]
    unseen = (allocation.at_end or 0) - len(states) - _more_slices(at_end)
    states += [GpuState.SILENT] * max(0, unseen)
    return {state.value: number for state, number in count_states(states).items()}


def _fleet(hosts: Sequence[HostSummary], gpus: Sequence[GpuSummary], sums: Sums) -> FleetSummary:
    known = [host for host in hosts if host.gpus_allocated is not None]
    allocated = sum(host.gpus_allocated or 0 for host in known)
    reporting = sum(host.gpus_reporting for host in known)
    names = {host.host for host in known}
    reporting += _more_slices([gpu for gpu in gpus if gpu.host in names])
    return FleetSummary(
        hosts=len(hosts),
        hosts_reporting=sum(host.gpus_reporting > 0 for host in hosts),
        gpus=sum(host.gpus for host in hosts),
        slices=sum(host.slices for host in hosts),
        gpus_reporting=sum(host.gpus_reporting for host in hosts),
        gpus_allocated=allocated if known else None,
        gpus_allocated_at_end=sum(h.gpus_allocated_at_end or 0 for h in known) if known else None,
        hosts_of_unknown_allocation=len(hosts) - len(known),
        allocated_sources=tuple(sorted({host.allocated_source for host in known})),
        reporting_fraction=min(1.0, reporting / allocated) if allocated else None,
        states=_added(host.states for host in hosts),
        figures=figures_of(sums),
    )
