"""What was drawn, as JSON and in one line a figure.

Records in, text out. Invariant: a number that is not known is null, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fleetcraft.view.text import plural

if TYPE_CHECKING:
    from fleetcraft.telemetry.figures.controller_log import ControllerLog
    from fleetcraft.telemetry.figures.timeline import Timeline
    from fleetcraft.telemetry.figures.traces import Facts, Traces
    from fleetcraft.telemetry.windows.family_mfu import Mfu


def fleet_shape(
    found: Traces, timeline: Timeline, facts: Facts, panels: tuple[str, ...], title: str
) -> dict[str, Any]:
    """The figure of a fleet: its numbers, its panels, its span of time."""
    axis, drained = timeline.axis, timeline.drained
    return {
        "title": title,
        "hosts": len(found.hosts),
        "gpus": found.gpus,
        "samples": found.samples,
        "files_read": found.files,
        "header_only": found.header_only,
        "rejected": dict(sorted(found.rejected.items())),
        "unread": [{"file": name, "reason": reason} for name, reason in found.unread],
        "mean_util_pct": facts.mean_util_pct,
        "active_fraction": facts.active_fraction,
        "energy_kwh": facts.energy.kwh if facts.energy else None,
        "covered_hours": facts.energy.covered_hours if facts.energy else None,
        "energy_by_counter_fraction": facts.energy.by_counter_fraction if facts.energy else None,
        "gaps": {
            "count": facts.gaps,
            "biggest_s": round(facts.biggest_gap_s, 3) if facts.gaps else None,
        },
        "states": {state.value: share for state, share in timeline.shares.items()},
        "drained": None
        if drained is None
        else {"hours": drained.hours, "gpus": drained.gpus, "working": drained.working},
        "span": {
            "start": _time(axis.start_s, found),
            "end": _time(axis.end_s, found),
            "zone": zone_of(found),
            "bin_s": axis.bin_s,
            "bins": axis.bins,
            "cuts_s": list(axis.cuts_s),
        },
        "panels": list(panels),
    }


def zone_of(found: Traces) -> str:
    """``utc``, ``none`` where no file records a zone, or ``mixed``."""
    if found.zoneless:
        return "mixed" if found.zoned else "none"
    return "utc"


def _time(t_s: float, found: Traces) -> str:
    from fleetcraft.telemetry.windows.span import iso

    return iso(t_s, zoned=not found.zoneless)


def fleet_line(found: Traces, panels: tuple[str, ...], left_out: Mapping[str, str]) -> str:
    """The figure of a fleet in a line."""
    rejected = sum(found.rejected.values())
    words = (
        f"fleet: {plural(len(found.hosts), 'host')}, {plural(found.gpus, 'GPU')}, "
        f"{plural(found.samples, 'sample')}, {plural(rejected, 'rejected line')}; "
        f"panels {', '.join(panels)}"
    )
    if left_out:
        words += "; left out " + ", ".join(f"{name} ({why})" for name, why in left_out.items())
    return words


def controller_shape(log: ControllerLog, panels: tuple[str, ...]) -> dict[str, Any]:
    """The figure of a controller's log."""
    return {
        "lines": log.lines,
        "points": len(log.points),
        "summaries": len(log.summaries),
        "outside": log.outside,
        "inconsistent": log.inconsistent,
        "steps_back": log.steps_back,
        "rejected": log.rejected,
        "zone": "utc" if log.zoned else "none",
        "panels": list(panels),
    }


def controller_line(log: ControllerLog) -> str:
    """The figure of a controller's log in a line."""
    return (
        f"controller: {plural(len(log.points), 'reading')}, "
        f"{plural(len(log.summaries), 'summary', 'summaries')}, "
        f"{plural(sum(log.rejected.values()), 'rejected line')}, {log.inconsistent} inconsistent"
    )


def mfu_shape(mfu: Mfu, span_s: tuple[float, float]) -> dict[str, Any]:
    """The figure of estimated MFU."""
    from fleetcraft.telemetry.windows.span import iso

    return {
        "start": iso(span_s[0], zoned=True),
        "end": iso(span_s[1], zoned=True),
        "families": [
            {
                "family": row.family,
                "mfu": row.mfu,
                "reason": row.reason,
                "flop": row.flop,
                "gpu_s": row.gpu_s,
                "runs": row.runs,
                "runs_reporting": row.runs_reporting,
            }
            for row in mfu.families
        ],
        "unmatched_calls": mfu.unmatched_calls,
        "rejected_lines": mfu.rejected_lines,
        "assumptions": list(mfu.assumptions),
    }


def mfu_line(mfu: Mfu) -> str:
    """The figure of estimated MFU in a line."""
    known = sum(row.mfu is not None for row in mfu.families)
    return f"mfu: {plural(len(mfu.families), 'family', 'families')}, {known} with a number"
