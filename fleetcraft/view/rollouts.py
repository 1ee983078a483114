"""A trajectory queue for people and as JSON: its level, its workers, its trainer, the advice.

Records in, text out. Invariant: what is not known is ``unknown`` in text and null in JSON, never
zero and never "no".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fleetcraft.units import format_seconds
from fleetcraft.view.text import Paint, joined, left_out, one_line, plural, table

if TYPE_CHECKING:
    from fleetcraft.rollouts.abort import AbortRequest
    from fleetcraft.rollouts.replenish import Advice, Outstanding, Workers
    from fleetcraft.rollouts.status import QueueStatus, Rates, StreamStatus

STATUS_SCHEMA = "fleetcraft.rollouts_status/1"
ABORT_SCHEMA = "fleetcraft.rollouts_abort/1"
REPLENISH_SCHEMA = "fleetcraft.rollouts_replenish/1"
_WIDTH = 400
_ALIVE = {True: "alive", False: "gone", None: "unknown"}
_FRESH = {True: "fresh", False: "not fresh", None: "unknown"}
_PAINT = {True: "good", False: "bad", None: "warn"}


def status_shape(status: QueueStatus, advice: Advice) -> dict[str, Any]:
    """The queue as one JSON value."""
    return {
        "schema": STATUS_SCHEMA,
        "folder": status.folder,
        "run": status.settings.run,
        "settings": msgspec.to_builtins(status.settings),
        "version": status.counts.version,
        "pending": status.counts.pending,
        "reserved": status.counts.reserved,
        "waiting": status.waiting,
        "ready": status.ready,
        "claimed": status.counts.claimed,
        "coming_back": status.coming_back,
        "committed": status.counts.consumed,
        "quarantined": status.counts.quarantined,
        "refused": status.refused,
        "half_published": status.half_published,
        "lags": {str(lag): count for lag, count in status.lags.items()},
        "abort": None if status.abort is None else msgspec.to_builtins(status.abort),
        "trainer": msgspec.to_builtins(status.trainer),
        "streams": [_stream_shape(stream, status) for stream in status.streams],
        "rates": msgspec.to_builtins(status.rates),
        "watched_s": round(status.watched_s, 3),
        "advice": msgspec.to_builtins(advice),
    }


def _stream_shape(stream: StreamStatus, status: QueueStatus) -> dict[str, Any]:
    sight = stream.sight
    beat = sight.beat if sight else None
    return {
        "stream": stream.stream,
        "lease": msgspec.to_builtins(stream.lease),
        "state": beat.state.value if beat else None,
        "fresh": sight.fresh if sight else None,
        "quiet_s": round(sight.quiet_s, 3) if sight else None,
        "produces": stream.produces(status.settings.run, ""),
        "counter": beat.counter if beat else None,
        "shape": beat.shape if beat else None,
        "slot": msgspec.to_builtins(beat.slot) if beat else None,
        "version": beat.version if beat else None,
        "identities": stream.identities,
        "sequence": stream.sequence,
        "reserved": stream.reserved,
        "stale_reserved": stream.stale_reserved,
    }


def render_status(
    status: QueueStatus, advice: Advice, *, limit: int, paint: Paint, width: int | None = None
) -> str:
    """The queue as text: level, trainer, streams, refusals, advice."""
    return joined(
        [
            _head(status, paint),
            _streams(status, limit=limit, paint=paint, width=width),
            _refused(status.refused),
            f"advice: {advice_line(advice)}",
        ]
    )


def _head(status: QueueStatus, paint: Paint) -> str:
    counts, settings = status.counts, status.settings
    waiting = "unknown" if status.waiting is None else str(status.waiting)
    rows = [
        (
            "waiting",
            f"{waiting} of {settings.high_water} ({counts.pending} pending, "
            f"{counts.reserved} reserved; refill below {settings.low_water} pending)",
        ),
        ("claimed", f"{counts.claimed} in transactions"),
        (
            "committed",
            f"{counts.consumed} in {plural(counts.version, 'version')} of {settings.batch}",
        ),
        ("lag", _lags(status)),
        ("rates", _rates(status.rates)),
        ("trainer", _trainer(status, paint)),
    ]
    if status.half_published:
        rows.append(("half published", f"{plural(status.half_published, 'file')} in tmp"))
    title = one_line(f"run {settings.run}, version {counts.version}: {status.folder}", _WIDTH)
    return "\n".join([title, *_abort(status.abort, paint), table(rows)])


def _abort(request: AbortRequest | None, paint: Paint) -> list[str]:
    if request is None:
        return []
    who = f" (by {request.requester}, {request.at})" if request.requester else ""
    return [paint("bad", one_line(f"ABORT stands: {request.reason}{who}", _WIDTH))]


def _lags(status: QueueStatus) -> str:
    if not status.lags:
        return "nothing pending"
    spans = ", ".join(f"{count} at {lag}" for lag, count in list(status.lags.items())[:12])
    return f"{spans} (at most {status.settings.max_lag})"


def _rates(rates: Rates) -> str:
    consumed, produced = rates.consumed_per_h, rates.produced_per_worker_h
    parts = [
        "consumption unknown" if consumed is None else f"{consumed:.0f} consumed an hour",
        "production unknown" if produced is None else f"{produced:.0f} produced an hour and worker",
    ]
    return ", ".join(parts)


def _trainer(status: QueueStatus, paint: Paint) -> str:
    trainer = status.trainer
    words = paint(_PAINT[trainer.alive], _ALIVE[trainer.alive])
    who = f": {trainer.who}" if trainer.who else ""
    return words + one_line(f"{who} ({trainer.why})", _WIDTH)


def _streams(status: QueueStatus, *, limit: int, paint: Paint, width: int | None) -> str:
    if not status.streams:
        return "no stream was ever held"
    head = ("stream", "worker", "beats", "records", "next", "reserved", "lease")
    rows = [head, *(_stream_row(stream) for stream in status.streams[:limit])]
    lines = [table(rows, width=width)]
    lines += left_out(len(status.streams) - limit if len(status.streams) > limit else 0)
    if any(stream.sight and stream.sight.fresh is None for stream in status.streams):
        seconds = format_seconds(status.watched_s)
        lines.append(
            paint("quiet", f"  beats were watched for {seconds}: --for DURATION tells more")
        )
    return "\n".join(lines)


def _stream_row(stream: StreamStatus) -> tuple[str, ...]:
    sight = stream.sight
    state, fresh = "", "never"
    if sight is not None:
        state = sight.beat.state.value if sight.beat else "unreadable"
        fresh = _FRESH[sight.fresh]
    reserved = str(stream.reserved)
    if stream.stale_reserved:
        reserved += f" ({stream.stale_reserved} of earlier holders)"
    lease = f"{_ALIVE[stream.lease.alive]}, {stream.lease.why}"
    return (
        one_line(stream.stream, 64),
        state,
        fresh,
        str(stream.identities),
        str(0 if stream.sequence is None else stream.sequence + 1),
        reserved,
        one_line(lease, _WIDTH),
    )


def _refused(refused: Mapping[str, int]) -> str:
    if not refused:
        return ""
    return "quarantine\n" + table([(reason, str(count)) for reason, count in refused.items()])


def advice_line(advice: Advice) -> str:
    """The advice in one line."""
    words = "one node more" if advice.nodes else "no node"
    if not advice.settled:
        words = "nothing, for now"
    return one_line(f"{words}: {advice.why}", _WIDTH)


def abort_shape(
    folder: str, action: str, request: AbortRequest | None, path: str
) -> dict[str, Any]:
    """What became of a request for ABORT: ``asked``, ``stood_already``, ``cleared``, ``none``."""
    return {
        "schema": ABORT_SCHEMA,
        "folder": folder,
        "action": action,
        "request": None if request is None else msgspec.to_builtins(request),
        "path": path or None,
    }


def render_abort(action: str, request: AbortRequest | None, path: str) -> str:
    """The same in a line."""
    if request is None:
        return "ABORT does not stand"
    words = {
        "asked": "ABORT stands now",
        "stood_already": "ABORT stood already",
        "cleared": "ABORT is cleared",
    }[action]
    who = f", asked by {request.requester} at {request.at}" if request.requester else ""
    line = one_line(f"{words}: {request.reason}{who}", _WIDTH)
    return line if action != "cleared" else f"{line}\n  kept as {one_line(path, _WIDTH)}"


def replenish_shape(
    status: QueueStatus,
    advice: Advice,
    *,
    action: str,
    task: str,
    workers: Workers,
    outstanding: Outstanding,
    rates: Rates,
) -> dict[str, Any]:
    """One pass: ``enqueued``, ``would_enqueue``, ``other_pass``, ``not_needed``, ``unknown``."""
    return {
        "schema": REPLENISH_SCHEMA,
        "folder": status.folder,
        "run": status.settings.run,
        "action": action,
        "task": task or None,
        "advice": msgspec.to_builtins(advice),
        "waiting": status.waiting,
        "ready": status.ready,
        "workers": msgspec.to_builtins(workers),
        "outstanding": msgspec.to_builtins(outstanding),
        "rates": msgspec.to_builtins(rates),
        "trainer": msgspec.to_builtins(status.trainer),
        "watched_s": round(status.watched_s, 3),
    }


def render_replenish(action: str, task: str, advice: Advice) -> str:
    """The same in a line or two."""
    words = {
        "enqueued": f"enqueued: {task}",
        "would_enqueue": f"would be enqueued: {task}",
        "other_pass": f"another pass has enqueued {task}",
        "not_needed": "nothing was enqueued",
        "unknown": "nothing was enqueued",
    }[action]
    return f"{one_line(words, _WIDTH)}\n  {advice_line(advice)}"
