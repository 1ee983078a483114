"""The whole spool at a glance, as text and as JSON.

Invariant: what is not known says so: a worker that cannot be looked at from here is unknown,
neither alive nor gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.spool.leases import Lease
from fleetcraft.spool.views import AttemptView, StatusView
from fleetcraft.view.text import Paint, how_it_ended, joined, left_out, one_line, table

_COLOURS = {"running": "strong", "done": "good", "failed": "bad"}
_LIVENESS = {True: "alive", False: "gone", None: "unknown"}
_LIVENESS_COLOURS = {"alive": "good", "gone": "bad", "unknown": "warn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a task is in ``failed``; ``last`` is None when its record could not be read."""

    name: str
    last: AttemptView | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A claim: since when, by the clock of the file system, and on which host if that is known."""

    name: str
    owner: str
    host: str
    slot: str
    claimed_at: str | None


def status_shape(
    view: StatusView, running: Sequence[Running], failures: Sequence[Failure], *, limit: int
) -> dict[str, Any]:
    """The JSON value of ``status``; every list says how much it leaves out."""
    return {
        "schema": "fleetcraft.status/1",
        "spool": view.root,
        "counts": view.counts,
        "lanes": view.lanes,
        "markers": view.markers,
        "workers": [_worker(lease, lives) for lease, lives in view.workers[:limit]],
        "workers_left_out": max(0, len(view.workers) - limit),
        "running": [
            {
                "name": item.name,
                "owner": item.owner,
                "host": item.host or None,
                "slot": item.slot,
                "claimed_at": item.claimed_at,
            }
            for item in running
        ],
        "running_left_out": view.running_left_out,
        "failed": [_failure(item) for item in failures],
        "failed_left_out": view.failed_left_out,
        "failed_not_dated": view.failed_not_dated,
        "blocked": [
            {"name": b.task, "blocker": b.blocker, "blocker_state": b.blocker_state}
            for b in view.blocked
        ],
        "blocked_left_out": view.blocked_left_out,
        "cycles": view.cycles,
    }


def _worker(lease: Lease, lives: bool | None) -> dict[str, Any]:
    return {
        "name": lease.name,
        "host": lease.host,
        "job": lease.job,
        "rank": lease.rank,
        "slots": lease.slots,
        "pid": lease.pid,
        "started_at": lease.started_at,
        "state": _LIVENESS[lives],
    }


def _failure(item: Failure) -> dict[str, Any]:
    last = item.last
    return {
        "name": item.name,
        "outcome": last.outcome if last else None,
        "attempt": last.attempt if last else None,
        "exit_code": last.exit_code if last else None,
        "signal": last.signal if last else None,
        "reason": item.reason,
        "ended_at": last.ended_at if last else None,
        "log": (last.log or None) if last else None,
    }


def render_status(
    view: StatusView,
    running: Sequence[Running],
    failures: Sequence[Failure],
    *,
    limit: int,
    paint: Paint,
    width: int | None,
) -> str:
    """The text of ``status``; sections without content are left away."""
    return joined(
        [
            _head(view, paint),
            _markers(view, paint),
            _workers(view, limit, paint, width),
            _running(view, running, paint, width),
            _failed(view, failures, paint, width),
            _blocked(view, paint, width),
            _cycles(view, paint),
        ]
    )


def _head(view: StatusView, paint: Paint) -> str:
    counts = "   ".join(
        f"{state} {paint(_COLOURS.get(state, 'strong'), str(count)) if count else 0}"
        for state, count in view.counts.items()
    )
    lanes = ", ".join(f"{n} {lane}" for lane, n in view.lanes.items() if n and lane != "plain")
    return f"{view.root}\n{counts}" + (f"   (of pending: {lanes})" if lanes else "")


def _section(title: str, lines: Sequence[str], paint: Paint) -> str:
    body = [line for line in lines if line]
    return "\n".join([paint("strong", title), *body]) if body else ""


def _markers(view: StatusView, paint: Paint) -> str:
    lines = [
        f"  {paint('warn', name)} {one_line(said)}; fleetcraft resume removes it"
        for name, said in view.markers.items()
    ]
    return _section("markers", lines, paint)


def _workers(view: StatusView, limit: int, paint: Paint, width: int | None) -> str:
    rows = [
        [lease.host, f"rank {lease.rank}", f"{lease.slots} slots", f"pid {lease.pid}", state]
        for lease, lives in view.workers[:limit]
        if (state := _LIVENESS[lives])
    ]
    lines = table(rows, width=width).splitlines()
    lines = [_paint_last(line, paint) for line in lines]
    return _section("workers", lines + left_out(len(view.workers[limit:])), paint)


def _paint_last(line: str, paint: Paint) -> str:
    head, space, last = line.rpartition(" ")
    return head + space + paint(_LIVENESS_COLOURS.get(last, "strong"), last)


def _running(view: StatusView, running: Sequence[Running], paint: Paint, width: int | None) -> str:
    rows = [
        [item.name, item.host or "unknown host", f"slot {item.slot}", f"since {item.claimed_at}"]
        for item in running
    ]
    return _section("running", [table(rows, width=width), *left_out(view.running_left_out)], paint)


def _failed(view: StatusView, failures: Sequence[Failure], paint: Paint, width: int | None) -> str:
    rows = [[item.name, *_why(item)] for item in failures]
    lines = [table(rows, width=width), *left_out(view.failed_left_out)]
    if view.failed_not_dated:
        lines.append(
            f"  of these, {view.failed_not_dated} may be newer: so many were not looked at"
        )
    if rows:
        lines.append("  fleetcraft logs NAME shows why, fleetcraft retry NAME puts it back")
    return _section("failed, newest first", lines, paint)


def _why(item: Failure) -> list[str]:
    last = item.last
    if last is None:
        return ["", item.reason or "its record cannot be read"]
    ended = how_it_ended(last.outcome, last.exit_code, last.signal)
    return [f"attempt {last.attempt}" if last.attempt else "never ran", _with(ended, item.reason)]


def _with(ended: str, reason: str) -> str:
    return f"{ended}: {reason}" if reason else ended


def _blocked(view: StatusView, paint: Paint, width: int | None) -> str:
    rows = []
    for item in view.blocked:
        state = "no such file" if item.blocker_state == "file" else item.blocker_state
        if item.blocker_state == "missing":
            state = "nobody enqueued it"
        rows.append([item.task, f"waits for {item.blocker} ({state})"])
    return _section("waiting", [table(rows, width=width), *left_out(view.blocked_left_out)], paint)


def _cycles(view: StatusView, paint: Paint) -> str:
    lines = [f"  {' -> '.join([*cycle, cycle[0]])}" for cycle in view.cycles]
    if lines:
        lines.append("  these wait for one another and will never start: cancel one of each")
    return _section(paint("bad", "cycles"), lines, paint)
