"""How training runs stand, as text and as JSON.

Many runs are one line each; one run is a block with its ranks and queues. Invariant: a number that
was not measured is a dash, and an estimate before the plateau says that it is provisional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fleetcraft.training.records import STATUS_SCHEMA, Knob, QueueDepth, RankState, State
from fleetcraft.training.supervision.overview import RunLook
from fleetcraft.training.supervision.status_file import Status
from fleetcraft.units import format_bytes, format_seconds
from fleetcraft.view.text import Paint, left_out, one_line, plural, printable, table
from fleetcraft.view.train_events import rung_words

_COLOURS = {
    State.HEALTHY: "good", State.DONE: "good", State.SUSPECT: "warn", State.DIAGNOSING: "warn",
    State.STOPPING: "warn", State.BACKOFF: "warn", State.EXHAUSTED: "bad", State.BLOCKED: "bad",
    State.LOCK_LOST: "bad", State.ABORTED: "warn",
}  # fmt: skip
_NONE = "-"
_OVER = frozenset({State.DONE, State.EXHAUSTED, State.ABORTED, State.BLOCKED, State.IDLE})


def status_shape(looks: Sequence[RunLook], *, limit: int) -> dict[str, Any]:
    """The JSON value of ``train status``."""
    return {
        "schema": STATUS_SCHEMA,
        "runs": [msgspec.to_builtins(look) for look in looks[:limit]],
        "left_out": max(0, len(looks) - limit),
    }


def render_status(
    looks: Sequence[RunLook], *, limit: int, paint: Paint, width: int | None = None
) -> str:
    """One run as a block, several as a table.

    Args:
        looks: The runs.
        limit: Rows at most, of runs and of ranks.
        paint: Colours.
        width: Where lines are cut; None never cuts.
    """
    if not looks:
        return "no runs"
    if len(looks) == 1:
        return "\n".join(_block(looks[0], limit, paint, width))
    rows = [["run", "state", "step", "loss", "tokens/s", "ETA", "rung", "supervisor"]]
    rows += [_row(look) for look in looks[:limit]]
    lines = [table(rows, width=width), *left_out(max(0, len(looks) - limit), "more runs")]
    return "\n".join(lines)


def _row(look: RunLook) -> list[str]:
    status = look.status
    if status is None:
        return [look.run, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _supervisor(look)]
    return [
        look.run,
        str(status.state),
        _step(status),
        _number(status.loss),
        _number(status.tokens_per_s),
        eta_words(status),
        rung_words(msgspec.to_builtins(status.rung)),
        _supervisor(look),
    ]


def _block(look: RunLook, limit: int, paint: Paint, width: int | None) -> list[str]:
    head = paint("strong", printable(look.run))
    if look.status is None:
        words = one_line(look.trouble) if look.trouble else "no supervisor has written a status yet"
        return [f"{head}: {words}", f"  supervisor  {_supervisor(look)}"]
    status = look.status
    state = paint(_COLOURS.get(status.state, "strong"), str(status.state))
    since = "" if status.state in _OVER else f" for {format_seconds(status.since_s)}"
    why = one_line(f", {status.why}", width and max(20, width - len(look.run) - 30))
    lines = [f"{head}: {state}{since}" + (why if status.why else "")]
    lines.append(table(_facts(look, status), width=width))
    if status.ranks:
        lines += ["", *_ranks(status, limit, paint, width)]
    if status.comparison:
        lines += ["", *(f"  {one_line(line)}" for line in status.comparison)]
    return lines


def _facts(look: RunLook, status: Status) -> list[list[str]]:
    over = status.state in _OVER
    rows = [
        ["supervisor", _supervisor(look)],
        ["epoch", _epoch(status)],
        ["step", _step(status) + ("" if over else _quiet(status))],
        ["loss", _number(status.loss)],
        ["throughput", _throughput(status)],
        *([] if over else [["expected", one_line(status.expected) or _NONE]]),
        ["queues", _queues(status)],
        ["ETA", eta_words(status)],
        ["checkpoint", _checkpoint(status)],
    ]
    rows += [[one_line(name), _number(value)] for name, value in sorted(status.metrics.items())]
    if status.standing is not None and not over:
        rows.append(
            ["progress", one_line(f"{status.standing}: {status.standing_why}".rstrip(": "))]
        )
    if status.diagnosis is not None:
        rows.append(["last crash", _crash(status)])
    if look.abort is not False:
        words = "ABORT stands" if look.abort else "whether ABORT stands cannot be read"
        rows.append(["abort", words])
    if trouble := "; ".join(part for part in (status.trouble, look.trouble) if part):
        rows.append(["trouble", one_line(trouble)])
    rows.append(["written", status.at or _NONE])
    return rows


def _supervisor(look: RunLook) -> str:
    if look.supervised:
        return one_line(look.supervisor)
    if look.supervised is None:
        return f"not known{': ' + one_line(look.supervisor) if look.supervisor else ''}"
    over = look.status is not None and look.status.state in _OVER
    return "none" if over or not look.supervisor else f"gone: {one_line(look.supervisor)}"


def _epoch(status: Status) -> str:
    if status.epoch is None:
        return _NONE
    words = [str(status.epoch), rung_words(msgspec.to_builtins(status.rung))]
    words += [_knob(knob) for knob in status.knobs]
    if status.restarts:
        words.append(plural(status.restarts, "restart"))
    return one_line(", ".join(words))


def _knob(knob: Knob) -> str:
    return f"{knob.name}={knob.value}"


def _step(status: Status) -> str:
    if status.step is None:
        return _NONE
    return str(status.step) if status.end_step is None else f"{status.step} of {status.end_step}"


def _quiet(status: Status) -> str:
    return "" if status.quiet_s is None else f", last {format_seconds(status.quiet_s)} ago"


def _checkpoint(status: Status) -> str:
    return _NONE if status.checkpoint_step is None else f"step {status.checkpoint_step}"


def _number(value: float | None) -> str:
    if value is None:
        return _NONE
    if abs(value) >= 1e4:
        return f"{value:,.0f}"
    return f"{value:,.4g}" if abs(value) >= 1e-3 else f"{value:.3f}"


def _throughput(status: Status) -> str:
    if status.tokens_per_s is None and status.steps_per_s is None:
        return _NONE
    words = []
    if status.tokens_per_s is not None:
        words.append(f"{_number(status.tokens_per_s)} tokens/s")
    if status.steps_per_s is not None:
        words.append(f"{_number(status.steps_per_s)} steps/s")
    if status.tokens_slope is not None:
        sign = "-" if status.tokens_slope < 0 else "+"
        words.append(f"{sign}{_number(abs(status.tokens_slope))} tokens/s a minute")
    if status.throughput_words:
        words.append(status.throughput_words)
    if status.provisional:
        words.append("provisional")
    return one_line(", ".join(words))


def _queues(status: Status) -> str:
    if not status.queues:
        return _NONE
    words = ", ".join(_queue(queue) for queue in status.queues)
    return one_line(words + (f"; {status.queues_verdict}" if status.queues_verdict else ""))


def _queue(queue: QueueDepth) -> str:
    depth = f"{queue.depth}" if queue.capacity is None else f"{queue.depth} of {queue.capacity}"
    return f"{queue.name} {depth}" + (f" ({queue.standing})" if queue.standing else "")


def eta_words(status: Status) -> str:
    """``3 h 07 min to 3 h 40 min``, with a word while it is provisional; a dash for none."""
    if status.eta_s is None or status.state in _OVER:
        return _NONE
    least_s, most_s = status.eta_s
    words = f"{format_seconds(least_s)} to {format_seconds(most_s)}"
    return words + (" (provisional)" if status.provisional else "")


def _crash(status: Status) -> str:
    assert status.diagnosis is not None
    found = status.diagnosis
    text = str(found.crash)
    if found.ranks:
        text += f", rank {', '.join(map(str, found.ranks))}"
    return one_line(text + (f"; {found.advice[0]}" if found.advice else ""))


def _ranks(status: Status, limit: int, paint: Paint, width: int | None) -> list[str]:
    rows = [["rank", "name", "alive", "step", "idle", "memory", "device", "last line"]]
    # The dead first: that is what one looks for in a long list.
    order = sorted(status.ranks, key=lambda rank: (rank.alive is not False, rank.rank))
    over = status.state in _OVER
    rows += [_rank(rank, dead=rank.rank in status.dead, over=over) for rank in order[:limit]]
    text = table(rows, width=width)
    if not over and status.dead:
        text = "\n".join(
            paint("bad", line) if " dead " in line else line for line in text.split("\n")
        )
    return [text, *left_out(max(0, len(order) - limit), "more ranks")]


def _rank(rank: RankState, *, dead: bool, over: bool) -> list[str]:
    gone = "ended" if over or not dead else "dead"
    alive = {True: "yes", False: gone, None: "?"}[rank.alive]
    return [
        str(rank.rank),
        one_line(rank.name) or _NONE,
        alive,
        _NONE if rank.step is None else str(rank.step),
        _NONE if rank.idle_s is None else format_seconds(rank.idle_s),
        format_bytes(rank.rss_bytes) or _NONE,
        format_bytes(rank.device_memory_bytes) or _NONE,
        one_line(rank.last_line),
    ]
