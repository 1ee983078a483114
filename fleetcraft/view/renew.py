"""What ``renew`` shows of a control pass: JSON with stable fields, and one table for people.

Records in, text out. Invariant: what a pass could not see is null in JSON and named in the table.
"""

from __future__ import annotations

from typing import Any

from fleetcraft.fleet.renewal.decision import Decision, LaneReport, PassReport
from fleetcraft.fleet.renewal.submission import Settled
from fleetcraft.fleet.renewal.supply import Supply
from fleetcraft.slurm.accounting import Balance
from fleetcraft.view.text import Paint, one_line, plural, table

_COLOURS = {
    Decision.SUBMITTED: "good",
    Decision.WOULD_SUBMIT: "good",
    Decision.UNKNOWN: "bad",
    Decision.REFUSED: "bad",
    Decision.INTENT_OPEN: "warn",
    Decision.BALANCE: "warn",
    Decision.NO_PROGRESS: "warn",
    Decision.MARKER: "warn",
}


def renew_shape(report: PassReport, *, generation: int | None) -> dict[str, Any]:
    """One pass as JSON.

    Args:
        report: The pass.
        generation: Of the lock under which it decided; None when it only said what it would do.
    """
    demand = report.demand
    return {
        "schema": "fleetcraft.renew/1",
        "dry_run": generation is None,
        "generation": generation,
        "submitted": [lane.job_id for lane in report.lanes if lane.decision is Decision.SUBMITTED],
        "lanes": [_lane_shape(lane) for lane in report.lanes],
        "settled": [_settled_shape(found) for found in report.settled],
        "pending": demand.pending if demand else None,
        "unread": demand.unread if demand else None,
        "unfit": demand.unfit if demand else None,
        "queue_age_s": _rounded(report.queue_age_s),
        "demand_age_s": _rounded(report.demand_age_s),
        "trouble": report.trouble.value or None,
    }


def _lane_shape(report: LaneReport) -> dict[str, Any]:
    shape, need = report.lane, report.need
    return {
        "lane": str(shape),
        "nodes": shape.nodes,
        "time_s": shape.time_s,
        "decision": report.decision.value.replace(" ", "_"),
        "reason": report.reason,
        "job_id": report.job_id or None,
        "demand": {
            "tasks": need.tasks,
            "nodes": round(need.nodes, 3),
            "taken_by_supply": need.taken,
            "open_nodes": round(need.open_nodes, 3),
        }
        if need
        else None,
        "supply": [_supply_shape(job) for job in report.supply] if need else None,
        "seen": report.seen,
        "window": report.window,
        "cost_h": _rounded(report.cost_h),
        "balance": _balance_shape(report.balance),
        "sbatch": list(report.sbatch),
    }


def _supply_shape(job: Supply) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "lane": job.lane or None,
        "state": job.state,
        "nodes": job.nodes,
        "time_left_s": job.left_s,
    }


def _settled_shape(found: Settled) -> dict[str, Any]:
    return {
        "lane": found.lane,
        "window": found.window,
        "nonce": found.nonce,
        "how": found.how.value if found.how else None,
        "job_id": found.job_id or None,
        "reason": found.reason,
    }


def _balance_shape(balance: Balance | None) -> dict[str, Any]:
    if balance is None:
        return {"status": "not_checked", "reason": "no headroom is set, or it was not needed"}
    return {
        "status": balance.status.value,
        "reason": balance.reason,
        "tres": balance.tres,
        "left_h": _rounded(balance.left_h),
        "running_h": _rounded(balance.running_h),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def render_renew(report: PassReport, *, paint: Paint, width: int | None) -> str:
    """One pass as a table and what it rests on."""
    rows = [(str(lane.lane), _word(lane), one_line(lane.reason)) for lane in report.lanes]
    lines = [table(rows, indent="", width=width)]
    for lane in report.lanes:
        if colour := _COLOURS.get(lane.decision):
            word = _word(lane)
            lines[0] = lines[0].replace(f"  {word}", f"  {paint(colour, word)}", 1)
    for found in report.settled:
        what = found.how.value if found.how else "open"
        lines.append(f"submission {found.nonce} of {found.lane}: {what}; {one_line(found.reason)}")
    lines.append(_seen_line(report))
    for lane in report.lanes:
        if lane.decision is Decision.WOULD_SUBMIT:
            lines.append(f"{lane.lane}: {one_line(_as_shell(lane.sbatch))}")
    return "\n".join(line for line in lines if line)


def _word(report: LaneReport) -> str:
    return f"{report.decision.value} {report.job_id}".rstrip()


def _as_shell(words: tuple[str, ...]) -> str:
    import shlex

    return shlex.join(words)


def _seen_line(report: PassReport) -> str:
    demand = report.demand
    if demand is None:
        return ""
    said = [f"{plural(demand.pending, 'task')} pending"]
    if demand.unfit:
        said.append(f"{demand.unfit} of them for no new fleet")
    if demand.unread:
        said.append(f"{demand.unread} not read yet and not counted")
    supply = {job.job_id: job for lane in report.lanes for job in lane.supply}
    said.append(f"{plural(len(supply), 'fleet')} in the queue")
    age_s = report.queue_age_s or 0.0
    return f"{', '.join(said)}; squeue answered {age_s:.0f} s before this was decided"
