"""What the GPUs did: telemetry and journals as figures, states over time, and a strip a host.

Reads telemetry files twice, once for the figures of the span and once for its course; both through
`telemetry`, which says what a sample stands for. Invariant: no utilization without the work there
was beside it, and time without a sample is shown as such.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleetcraft.errors import DataError
from fleetcraft.layout import forwards_folder
from fleetcraft.report.machine_records import HostRow, Machines, Stretch
from fleetcraft.report.records import Unread
from fleetcraft.report.scope import Scope
from fleetcraft.units import counted

if TYPE_CHECKING:
    from fleetcraft.telemetry.figures.time_axis import Floats
    from fleetcraft.telemetry.figures.timeline import Row, Timeline
    from fleetcraft.telemetry.figures.traces import Traces
    from fleetcraft.telemetry.queue import Queue
    from fleetcraft.telemetry.reading.sources import Source
    from fleetcraft.telemetry.windows.levels import HostSummary, Summary
    from fleetcraft.telemetry.windows.series import HostRows
    from fleetcraft.telemetry.windows.span import Window

BINS = 144
HOSTS = 48
_MFU = 20

Progress = Callable[[str, int, int], None]


@dataclass(kw_only=True)
class Look:
    """What was found: the record, or why there is none, and what could not be read."""

    machines: Machines | None = None
    why: str = ""
    unread: list[Unread] = field(default_factory=list)


def gather_machines(
    folder: str, spools: dict[str, str], scope: Scope, *, progress: Progress | None = None
) -> Look:
    """Reads the telemetry of a span.

    Args:
        folder: Where it is.
        spools: ``outer`` and ``inner`` to the folders of spools that are there.
        scope: Which files and samples count.
        progress: Is told how far it is.
    """
    from fleetcraft.telemetry.figures.timeline import build_timeline
    from fleetcraft.telemetry.figures.traces import read_traces
    from fleetcraft.telemetry.reading.sources import find_sources

    look = Look()
    if not os.path.isdir(folder):
        look.why = f"no telemetry was written: there is no folder {folder}"
        return look
    try:
        found = find_sources(folder)
    except DataError as error:
        look.why = error.message
        look.unread.append(Unread(what="telemetry", why=error.message))
        return look
    look.unread += [Unread(what=path, why=reason) for path, reason in found.refused]
    sources = [one for one in found.sources if not scope.jobs or one.job in scope.jobs]
    if not sources:
        look.why = f"no telemetry file in {folder}" + (" is of these jobs" if scope.jobs else "")
        return look
    traces = read_traces(
        sources, since_s=scope.since_s, until_s=scope.until_s, progress=_told(progress, "telemetry")
    )
    look.unread += [Unread(what=name, why=reason) for name, reason in traces.unread]
    if not traces.traces:
        look.why = _nothing(traces)
        return look
    queue = _queue(spools, scope, look)
    timeline = build_timeline(traces, queue, max_bins=BINS)
    assert timeline is not None  # there are samples
    window = _window(traces)
    rows = _hosts(folder, sources, window, progress)
    summary = _sum_up(folder, rows, window, queue if spools else None)
    look.machines = _record(folder, summary, traces, timeline)
    return look


def _told(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(what, done, total)


def _nothing(traces: Traces) -> str:
    words = f"no sample of a GPU in {counted(traces.files, 'telemetry file')}"
    if traces.since_s is not None or traces.until_s is not None:
        words += " lies in this span"
    if traces.bare:
        words += f"; {counted(len(traces.bare), 'host')} without a GPU wrote some"
    return words


def _queue(spools: dict[str, str], scope: Scope, look: Look) -> Queue:
    from fleetcraft.telemetry.queue import Queue, read_queue

    if not spools:
        return Queue()
    queue = read_queue(spools, since_s=scope.since_s, until_s=scope.until_s)
    look.unread += [Unread(what="journals", why=problem) for problem in queue.problems]
    if queue.damaged_lines:
        look.unread.append(Unread(what="journals", why=f"{queue.damaged_lines} damaged lines"))
    if scope.jobs:
        queue.runs = [run for run in queue.runs if run.job in scope.jobs]
        queue.workers = [worker for worker in queue.workers if worker.job in scope.jobs]
    return queue


def _window(traces: Traces) -> Window:
    """From the first sample to the last, whatever journals tell of before and after."""
    from fleetcraft.telemetry.windows.span import Window

    # The window leaves out its first instant, and the first sample lies on it.
    start_s = math.floor(min(float(trace.t_s[0]) for trace in traces.traces)) - 1.0
    end_s = float(math.ceil(max(float(trace.t_s[-1]) for trace in traces.traces)))
    return Window(seconds=end_s - start_s, end_s=end_s, end_local_s=end_s, end_zone="none")


def _sum_up(folder: str, hosts: Iterator[HostRows], window: Window, queue: Queue | None) -> Summary:
    from fleetcraft.telemetry.forwards import read_forwards
    from fleetcraft.telemetry.windows.family_mfu import add_up
    from fleetcraft.telemetry.windows.totals import Evidence, sum_up

    start_s, end_s = window.bounds_s(zoned=True)
    forwards = read_forwards(forwards_folder(folder))
    evidence = Evidence(
        window=window,
        hosts=hosts,
        queue=queue,
        reported=add_up(forwards.calls, start_s, end_s),
        rejected_reports=sum(forwards.rejected.values()),
    )
    return sum_up(evidence)


def _hosts(
    folder: str, sources: Sequence[Source], window: Window, progress: Progress | None
) -> Iterator[HostRows]:
    from fleetcraft.telemetry.windows.series import read_host

    by_host: dict[str, list[Source]] = {}
    for source in sources:
        by_host.setdefault(source.node, []).append(source)
    read = 0
    for done, host in enumerate(sorted(by_host)):
        if progress:
            progress("figures of hosts", done, len(by_host))
        # What cannot be read was told when the traces were read.
        rows = read_host(host, by_host[host], window, folder=folder, first_index=read, refused=[])
        read += len(rows.sources)
        yield rows


# ----------------------------------------------------------------------------------------- record


def _record(folder: str, summary: Summary, traces: Traces, timeline: Timeline) -> Machines:
    fleet, figures = summary.fleet, summary.fleet.figures
    held = figures.time_weighted
    drained = timeline.drained
    hosts = _host_rows(summary, timeline)
    return Machines(
        folder=folder,
        start=summary.start,
        end=summary.end,
        zone=summary.zone,
        sentence=summary.sentence,
        hosts_seen=fleet.hosts_reporting,
        gpus_seen=fleet.gpus_reporting,
        gpus_allocated=fleet.gpus_allocated,
        mean_util_pct=held.mean_util_pct,
        active_fraction=held.active_fraction,
        active_of_samples=figures.active_fraction,
        memory_fraction=held.mean_memory_fraction,
        coverage_fraction=figures.coverage_fraction,
        covered_gpu_h=held.covered_s / 3600,
        mean_power_w=figures.mean_power_w,
        energy_kwh=figures.energy_kwh,
        energy_gpu_h=figures.covered_hours,
        energy_method=figures.energy_method,
        state_gpu_h=_state_gpu_h(timeline),
        bin_s=timeline.axis.bin_s,
        stretches=tuple(
            Stretch(start_s=span.start_s, first_bin=span.first_bin, bins=span.bins)
            for span in timeline.axis.spans
        ),
        states=_states(timeline),
        queue={
            spool: {state: _values(of_state) for state, of_state in depths.items()}
            for spool, depths in timeline.depths.items()
        },
        drained_h=drained.hours if drained else None,
        drained_gpus=drained.gpus if drained and drained.hours else None,
        hosts=tuple(hosts[:HOSTS]),
        hosts_left_out=max(0, len(hosts) - HOSTS),
        mfu=tuple(
            (
                each.family,
                each.mfu,
                each.reason or ", ".join(device.name or "unnamed" for device in each.devices),
            )
            for each in summary.mfu.families[:_MFU]
        ),
        rejected=dict(summary.rejected),
        notes=tuple(_notes(summary, traces)),
    )


def _states(timeline: Timeline) -> dict[str, tuple[float | None, ...]]:
    from fleetcraft.telemetry.figures.traces import STATES

    found = {state.value: _values(timeline.states[code]) for code, state in enumerate(STATES)}
    return {state: values for state, values in found.items() if any(values)}


def _state_gpu_h(timeline: Timeline) -> dict[str, float]:
    """GPU hours by state, over the time for which it is known that GPUs were there."""
    from fleetcraft.telemetry.figures.traces import STATES

    bin_h = timeline.axis.bin_s / 3600
    total = {
        state.value: bin_h * sum(value for value in _values(timeline.states[code]) if value)
        for code, state in enumerate(STATES)
    }
    return {state: hours for state, hours in total.items() if hours > 0}


def _values(values: Floats) -> tuple[float | None, ...]:
    return tuple(round(value, 3) if math.isfinite(value) else None for value in values.tolist())


def _host_rows(summary: Summary, timeline: Timeline) -> list[HostRow]:
    strips = _strips(timeline)
    return [_host_row(host, strips.get(host.host, ())) for host in summary.hosts]


def _strips(timeline: Timeline) -> dict[str, tuple[int | None, ...]]:
    """Mean utilization of each host in each bin, weighted by the samples of its rows."""
    by_host: dict[str, list[Row]] = {}
    for row in timeline.rows:
        by_host.setdefault(row.host, []).append(row)
    return {host: tuple(_means(rows)) for host, rows in by_host.items()}


def _means(rows: Sequence[Row]) -> Iterator[int | None]:
    weights = [row.samples for row in rows]
    for values in zip(*(row.util_pct.tolist() for row in rows), strict=True):
        there = [(v, w) for v, w in zip(values, weights, strict=True) if math.isfinite(v)]
        total = sum(weight for _, weight in there)
        yield round(sum(v * w for v, w in there) / total) if total else None


def _host_row(host: HostSummary, strip: tuple[int | None, ...]) -> HostRow:
    figures = host.figures
    held = figures.time_weighted
    return HostRow(
        host=host.host,
        gpus=host.gpus_reporting,
        allocated=host.gpus_allocated,
        mean_util_pct=held.mean_util_pct,
        active_fraction=held.active_fraction,
        memory_fraction=held.mean_memory_fraction,
        power_w=figures.mean_power_w,
        coverage_fraction=figures.coverage_fraction,
        strip=strip,
    )


def _notes(summary: Summary, traces: Traces) -> Iterator[str]:
    if summary.zone in ("file-local", "mixed"):
        which = "Telemetry files" if summary.zone == "file-local" else "Some telemetry files"
        yield f"{which} name no time zone; their times are shown as they stand in the files."
    figures = summary.fleet.figures
    if figures.double_logged_rows:
        yield (
            f"{counted(figures.double_logged_rows, 'row')} came less than 1 s after another of the "
            "same GPU; means by time count each moment once."
        )
    if figures.counter_resets:
        yield f"Energy counters fell {figures.counter_resets} times; power was integrated there."
    statuses = {word: n for word, n in figures.statuses.items() if word != "ok"}
    if statuses:
        words = ", ".join(f"{n} {word}" for word, n in statuses.items())
        yield f"Rows with another status than ok: {words} of {figures.samples}."
    if summary.mfu.unmatched_calls:
        yield (
            f"{summary.mfu.unmatched_calls} reported forward calls are of no known task and count "
            "for no family."
        )
    if traces.header_only:
        verb = "has" if traces.header_only == 1 else "have"
        yield f"{counted(traces.header_only, 'telemetry file')} {verb} no row."
