"""A window of telemetry as text and as JSON.

Invariant: no utilization is printed without how much work there was, and each number has its unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from fleetcraft.telemetry.windows.bare_hosts import BareHost, Level, why
from fleetcraft.telemetry.windows.family_mfu import FamilyMfu
from fleetcraft.telemetry.windows.figures import Figures
from fleetcraft.telemetry.windows.levels import FleetSummary, HostSummary, Summary, value_of
from fleetcraft.telemetry.windows.summary import Read
from fleetcraft.telemetry.windows.work import Depths, Work
from fleetcraft.units import format_seconds
from fleetcraft.view.text import Paint, joined, left_out, one_line, plural, printable, table

_NONE = "-"
_LEAST_KWH = 0.01  # below, people read watt hours
_LEAST_HOUR_S = 360.0
_TOLD_BY = {"expected": "sidecars", "inventory": "inventories", "mixed": "both"}


def summary_shape(read: Read, *, place: str) -> dict[str, Any]:
    """The JSON value of ``telemetry summary``."""
    return {
        "schema": "fleetcraft.telemetry_summary/1",
        "place": place,
        **value_of(read.summary),
        "hosts_without_gpu": msgspec.to_builtins(read.bare.hosts),
        "refused": [{"path": path, "reason": reason} for path, reason in read.refused],
        "notes": read.notes,
    }


def render_summary(read: Read, *, limit: int, paint: Paint, width: int | None = None) -> str:
    """The text of ``telemetry summary``.

    Args:
        read: The window.
        limit: Hosts and families shown at most.
        paint: Colours.
        width: Where lines are cut; None never cuts.
    """
    summary = read.summary
    return joined(
        [
            _head(summary, paint),
            table(
                _fleet(summary) if summary.fleet.hosts else _queue(summary.queue),
                indent="",
                width=width,
            ),
            _hosts(summary.hosts, limit, paint, width),
            _bare_hosts(read.bare.hosts, limit, paint, width),
            _mfu(summary, limit, paint, width),
            "\n".join(paint("warn", line) for line in _warnings(read)),
        ]
    )


def _head(summary: Summary, paint: Paint) -> str:
    zone = f", {summary.zone} time" if summary.zone else ""
    span = f"{summary.start} to {summary.end}{zone} ({format_seconds(summary.window_s)})"
    return f"{span}\n{paint('strong', printable(summary.sentence))}"


def _fleet(summary: Summary) -> list[list[str]]:
    fleet, figures = summary.fleet, summary.fleet.figures
    held = figures.time_weighted
    rows = [
        ["coverage", _coverage(fleet)],
        [
            "utilization",
            f"mean {_pct(figures.mean_util_pct)}, max {_pct(figures.max_util_pct)}; "
            f"active {_share(figures.active_fraction)} of samples (at 5 % or more); "
            f"memory {_share(figures.mean_memory_fraction)}",
        ],
        [
            "by time",
            f"mean {_pct(held.mean_util_pct)}; active {_share(held.active_fraction)}; "
            f"memory {_share(held.mean_memory_fraction)}; over {_gpu_time(held.covered_s)}, "
            f"{_gpu_time(held.uncovered_s)} without a sample",
        ],
    ]
    if figures.double_logged_rows:
        once = figures.dedup
        rows.append(
            [
                "each once",
                f"mean {_pct(once.mean_util_pct)}; active {_share(once.active_fraction)}; "
                f"memory {_share(once.mean_memory_fraction)}; {figures.double_logged_rows} rows "
                "less than 1 s after another left out",
            ]
        )
    rows += [["energy", _energy(figures)], ["states", _states(figures)]]
    return [*rows, *_queue(summary.queue)]


def _coverage(fleet: FleetSummary) -> str:
    figures = fleet.figures
    seen = f"{figures.dedup.samples} of {figures.expected_samples:.6g} samples"
    if figures.double_logged_rows:
        seen += f" in {figures.samples} rows"
    reporting = f"{plural(fleet.gpus_reporting, 'GPU')} reporting"
    if fleet.gpus_allocated is not None:
        sources = ", ".join(_TOLD_BY.get(word, word) for word in fleet.allocated_sources)
        reporting += f" of {fleet.gpus_allocated} allocated (told by {sources})"
    return f"{_share(figures.coverage_fraction)}: {seen}; {reporting} on " + plural(
        fleet.hosts_reporting, "host"
    )


def _energy(figures: Figures) -> str:
    if figures.energy_kwh is None:
        return "not known"
    power = "" if figures.mean_power_w is None else f"; {figures.mean_power_w:.0f} W mean a GPU"
    kwh = figures.energy_kwh
    energy = f"{kwh:.3f} kWh" if kwh >= _LEAST_KWH else f"{1000 * kwh:.2f} Wh"
    return (
        f"{energy} over {_gpu_time(3600 * figures.covered_hours)} "
        f"({figures.energy_method}, gaps left out){power}"
    )


def _states(figures: Figures) -> str:
    total = sum(figures.state_gpu_s.values())
    shares = [
        f"{state.replace('_', ' ')} {100 * seconds / total:.1f} %"
        for state, seconds in figures.state_gpu_s.items()
        if total > 0 and seconds > 0
    ]
    return f"{', '.join(shares) or _NONE} of GPU time"


def _queue(work: Work) -> list[list[str]]:
    if not work.known:
        return [["queue", "not known: no journals"]]
    ended = ", ".join(f"{number} {outcome}" for outcome, number in work.ended.items())
    rows = [
        [
            "tasks",
            f"{work.started} started; {ended or 'none'} ended; {work.running_at_end} running at "
            f"the end; {plural(work.workers, 'worker')}",
        ]
    ]
    return rows + [[f"{spool} spool", _depths(depths)] for spool, depths in work.spools.items()]


def _depths(depths: Depths) -> str:
    parts = []
    for state in ("waiting", "pending", "running"):
        first, last = depths.first[state], depths.last[state]
        change = str(last) if first == last else f"{first} to {last}"
        mean = f" (mean {depths.mean[state]:.1f})" if depths.mean.get(state) else ""
        most = depths.most.get(state, 0)
        if most > max(first, last):
            mean = f" (mean {depths.mean[state]:.1f}, at most {most})"
        parts.append(f"{state} {change}{mean}")
    return ", ".join(parts)


def _hosts(hosts: Sequence[HostSummary], limit: int, paint: Paint, width: int | None) -> str:
    if not hosts:
        return ""
    order = sorted(hosts, key=lambda host: (_worth_a_look(host), host.host))
    rows = [["host", "GPUs", "coverage", "mean", "active", "memory", "power", "at the end"]]
    rows += [_host(host) for host in order[:limit]]
    lines = table(rows, width=width)
    more = left_out(len(hosts) - limit if len(hosts) > limit else 0, "more hosts")
    return "\n".join([paint("strong", "hosts, least active first"), lines, *more])


def _worth_a_look(host: HostSummary) -> float:
    active = host.figures.active_fraction
    return -1.0 if active is None else active


def _host(host: HostSummary) -> list[str]:
    figures = host.figures
    gpus = str(host.gpus_reporting)
    if host.gpus_allocated is not None:
        gpus += f"/{host.gpus_allocated}"
    states = ", ".join(
        f"{number} {state.replace('_', ' ')}" for state, number in host.states.items() if number
    )
    power = figures.mean_power_w
    return [
        one_line(host.host),
        gpus,
        _share(figures.coverage_fraction),
        _pct(figures.mean_util_pct),
        _share(figures.active_fraction),
        _share(figures.mean_memory_fraction),
        _NONE if power is None else f"{power:.0f} W",
        states or _NONE,
    ]


def _bare_hosts(hosts: Sequence[BareHost], limit: int, paint: Paint, width: int | None) -> str:
    if not hosts:
        return ""
    rows = [["host", "coverage", "memory, mean", "max", "of", "load, mean", "max", "why"]]
    for host in hosts[:limit]:
        total = host.memory_total_mib
        seen = f"{_share(host.coverage_fraction)}: {host.samples} of {host.expected_samples:.6g}"
        rows.append(
            [
                one_line(host.host),
                seen,
                *_levels(host.memory_used_mib, _mib),
                _NONE if total is None else _mib(total),
                *_levels(host.load, lambda load: f"{load:.2f}"),
                one_line(why(host.statuses)),
            ]
        )
    more = left_out(max(0, len(hosts) - limit), "more hosts")
    return "\n".join([paint("strong", "hosts without a GPU"), table(rows, width=width), *more])


def _levels(level: Level | None, words: Callable[[float], str]) -> list[str]:
    return [_NONE, _NONE] if level is None else [words(level.mean), words(level.max)]


def _mib(amount: float) -> str:
    return f"{amount / 1024:.1f} GiB"


def _mfu(summary: Summary, limit: int, paint: Paint, width: int | None) -> str:
    families = summary.mfu.families
    if not families:
        return ""
    rows = [_family(family) for family in families[:limit]]
    more = left_out(max(0, len(families) - limit), "more families")
    return "\n".join([paint("strong", "estimated MFU by family"), table(rows, width=width), *more])


def _family(family: FamilyMfu) -> list[str]:
    value = _NONE if family.mfu is None else f"{100 * family.mfu:.1f} %"
    time = "" if family.gpu_s is None else _gpu_time(family.gpu_s)
    without = family.gpu_s_without_reports
    bare = f"; {_gpu_time(without)} without reports" if without else ""
    devices = ", ".join(device.name or "unnamed" for device in family.devices)
    about = family.reason or devices
    return [
        one_line(family.family or "(no family)"),
        value,
        f"{family.flop:.3g} FLOP",
        time + bare,
        one_line(about),
    ]


def _warnings(read: Read) -> Iterable[str]:
    summary = read.summary
    statuses = {word: n for word, n in summary.fleet.figures.statuses.items() if word != "ok"}
    if statuses:
        words = ", ".join(f"{n} {one_line(word)}" for word, n in statuses.items())
        yield f"status: {words} of {summary.fleet.figures.samples} rows"
    if summary.rejected:
        words = ", ".join(f"{n} {one_line(word)}" for word, n in summary.rejected.items())
        yield f"rejected lines, in the files as a whole: {words}"
    if summary.fleet.figures.counter_resets:
        yield f"energy counters fell {summary.fleet.figures.counter_resets} times"
    lost = summary.mfu.unmatched_calls
    if lost:
        yield f"{lost} reported forward calls are of no known task; they count for no family"
    for path, reason in read.refused[:5]:
        yield f"not read: {printable(path)}: {printable(reason)}"
    yield from (line.strip() for line in left_out(max(0, len(read.refused) - 5), "more files"))
    for problem in summary.queue.problems:
        yield f"queue: {printable(problem)}"
    if summary.queue.damaged_lines:
        yield f"queue: {summary.queue.damaged_lines} damaged journal lines"
    for note in read.notes:
        yield f"note: {printable(note)}"


def _pct(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1f} %"


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.1f} %"


def _gpu_time(seconds: float) -> str:
    return f"{seconds / 3600:.2f} GPU h" if seconds >= _LEAST_HOUR_S else f"{seconds:.1f} GPU s"
