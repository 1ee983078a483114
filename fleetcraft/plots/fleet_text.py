"""What the figure of a fleet says in words: its finding, its counts, and what is not in it.

Invariant: every number is one of the records that it is handed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fleetcraft.gpu.states import GpuState
from fleetcraft.plots.page import Text
from fleetcraft.plots.panels import STATE_STYLE
from fleetcraft.plots.time_scale import moment_words, span_words
from fleetcraft.telemetry.figures.timeline import Timeline
from fleetcraft.telemetry.figures.traces import Energy, Facts, Traces
from fleetcraft.telemetry.queue import Queue
from fleetcraft.telemetry.windows.bare_hosts import why
from fleetcraft.view.text import plural as plain_plural

_WORTH_SAYING = 0.1
_MOST_WORKED = 0.75
_PROBLEMS = 3


def fleet_text(
    found: Traces,
    queue: Queue,
    timeline: Timeline,
    facts: Facts,
    *,
    left_out: Mapping[str, str],
    title: str = "",
) -> Text:
    """Everything around the panels.

    Args:
        found: What was read.
        queue: What the journals say.
        timeline: The same in bins.
        facts: What all samples amount to.
        left_out: Panel to the reason why it is not there.
        title: Headline; the finding if empty, which otherwise stands below it.
    """
    main = finding(found, timeline, facts)
    head = [_counts(found), _span(found, timeline), *_measured(found, timeline, facts)]
    return Text(
        title=title or main,
        head=[main, *head] if title else head,
        foot=_foot(found, queue, timeline, left_out),
    )


def finding(found: Traces, timeline: Timeline, facts: Facts) -> str:
    """The main finding in a sentence."""
    drained = timeline.drained
    if drained and drained.hours > 0 and drained.working < _MOST_WORKED * drained.gpus:
        return (
            f"Both spools drained for {span_words(3600 * drained.hours)}: "
            f"{drained.gpus:.0f} GPUs allocated, {drained.working:.0f} at work meanwhile"
        )
    if not found.samples:
        return _without_gpus(found)
    hosts = len({trace.host for trace in found.traces})
    who = f"{plural(found.gpus, 'GPU')} on {plural(hosts, 'host')}"
    if facts.active_fraction is None or facts.mean_util_pct is None:
        return f"{who}: utilization was never read"
    words = (
        f"{who}: at work in {100 * facts.active_fraction:.1f} % of samples, "
        f"mean utilization {facts.mean_util_pct:.1f} %"
    )
    idle = {s: timeline.shares.get(s, 0.0) for s in (GpuState.RESIDENT_IDLE, GpuState.FREE_IDLE)}
    state = max(idle, key=lambda s: idle[s])
    if idle[state] < _WORTH_SAYING:
        return words
    return f"{words}; {STATE_STYLE[state][0]} {100 * idle[state]:.0f} % of GPU time"


def _without_gpus(found: Traces) -> str:
    if not found.bare:
        return "No sample of a GPU"
    reasons = why(sorted({status for host in found.bare for status in host.statuses}))
    words = f"No GPU was seen on {plural(len(found.bare), 'host')}"
    if reasons:
        words += f" ({reasons})"
    memory, load = (
        np.concatenate([getattr(host, name) for host in found.bare])
        for name in ("memory_fraction", "load")
    )
    means = []
    if np.isfinite(memory).any():
        means.append(f"memory {100 * np.nanmean(memory):.1f} % used")
    if np.isfinite(load).any():
        means.append(f"load {np.nanmean(load):.2f}")
    return f"{words}; {', '.join(means)} on average" if means else words


def _counts(found: Traces) -> str:
    files = plural(found.files, "file")
    if found.header_only:
        files += f" ({found.header_only:,} without a row)"
    rejected = sum(found.rejected.values())
    words = (
        f"{plural(len(found.hosts), 'host')}, {plural(found.gpus, 'GPU')}, "
        f"{plural(found.samples, 'sample')} in {files}; "
        f"{plural(rejected, 'line') if rejected else 'no line'} rejected"
    )
    if rejected:
        kinds = (f"{n:,} {kind.replace('_', ' ')}" for kind, n in sorted(found.rejected.items()))
        words += f" ({', '.join(kinds)})"
    if found.unread:
        words += f"; {plural(len(found.unread), 'file')} not read"
    return words


def _span(found: Traces, timeline: Timeline) -> str:
    axis = timeline.axis
    long = span_words(axis.end_s - axis.start_s)
    return f"{moment_words(axis.start_s)} to {moment_words(axis.end_s)} ({long}), {zone(found)}"


def zone(found: Traces) -> str:
    """Which clock the axis shows."""
    if found.zoned and found.zoneless:
        files = plural(found.zoneless, "file")
        return f"UTC, and file-local time of {files} without a zone, drawn as if it were UTC"
    return "file-local time, zone not recorded" if found.zoneless else "UTC"


def _measured(found: Traces, timeline: Timeline, facts: Facts) -> list[str]:
    if not found.samples:
        return []
    words = []
    if facts.energy:
        words.append(
            f"{amount(facts.energy.kwh)} kWh in {amount(facts.energy.covered_hours)} covered GPU "
            f"hours ({_method(facts.energy)})"
        )
    if facts.gaps:
        longest = span_words(facts.biggest_gap_s)
        words.append(
            f"{plural(facts.gaps, 'gap')} left open, the longest {longest}"
            if facts.gaps > 1
            else f"one gap of {longest} left open"
        )
    else:
        words.append("no gaps")
    parts = [
        f"{STATE_STYLE[state][0]} {100 * share:.1f} %"
        for state, share in timeline.shares.items()
        if share > 0
    ]
    return ["; ".join(words), *([f"GPU time: {', '.join(parts)}"] if parts else [])]


def _method(energy: Energy) -> str:
    """How energy was measured, in words."""
    share = energy.by_counter_fraction
    if share in (0.0, 1.0):
        return "the driver's counter" if share else "trapezoid of power, gaps left out"
    return f"the driver's counter in {100 * share:.0f} % of them, else trapezoid of power"


def _foot(
    found: Traces, queue: Queue, timeline: Timeline, left_out: Mapping[str, str]
) -> list[str]:
    axis = timeline.axis
    first = (
        f"Means of bins of {span_words(axis.bin_s)}. Nothing is drawn where there is no sample; "
        "a gap shorter than a bin does not show."
    )
    if axis.cuts_s:
        first += (
            f" {plural(len(axis.cuts_s), 'stretch', 'stretches')} without any data, "
            f"{span_words(sum(axis.cuts_s))} in all, cut out at the grey marks, which say how long "
            "each is."
        )
    lines = [first]
    by_reason: dict[str, list[str]] = {}
    for panel, reason in left_out.items():
        by_reason.setdefault(reason, []).append(panel.replace("_", " "))
    if by_reason:
        parts = [f"{' and '.join(names)} ({reason})" for reason, names in by_reason.items()]
        lines.append(f"Left out: {'; '.join(parts)}.")
    problems = [f"{name}: {reason}" for name, reason in found.unread] + queue.problems
    if queue.damaged_lines:
        problems.append(plural(queue.damaged_lines, "damaged journal line"))
    if problems:
        more = len(problems) - _PROBLEMS
        rest = f"; and {more:,} more" if more > 0 else ""
        lines.append(f"Not all was read: {'; '.join(problems[:_PROBLEMS])}{rest}.")
    return lines


def amount(value: float) -> str:
    """A quantity with one decimal, or three digits where it is small."""
    return f"{value:,.1f}" if value >= 10.0 else f"{value:.3g}"


def plural(count: int, noun: str, many: str = "") -> str:
    """``1 task``, ``2,000 tasks``."""
    return f"{count:,} {plain_plural(count, noun, many).partition(' ')[2]}"
