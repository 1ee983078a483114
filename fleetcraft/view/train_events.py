"""The events of a supervised run as lines for people.

Invariant: one event is one line, except for a diagnosis and a report, whose lines are indented
beneath it; what comes from files is printable.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fleetcraft.units import format_seconds
from fleetcraft.view.text import Paint, one_line, table

if TYPE_CHECKING:
    from fleetcraft.training.supervision.entry import DryRun

_COLOURS = {
    "HEALTHY": "good", "DONE": "good", "VERIFYING": "quiet", "WARMUP": "quiet",
    "SUSPECT": "warn", "DIAGNOSING": "warn", "STOPPING": "warn", "BACKOFF": "warn",
    "EXHAUSTED": "bad", "BLOCKED": "bad", "LOCK_LOST": "bad", "ABORTED": "warn",
}  # fmt: skip
_SHOWN_EVIDENCE = 3
_LEAST_WIDTH = 30


def render_event(event: Mapping[str, Any], paint: Paint, width: int | None = None) -> str:
    """One event, with the time of day at its beginning.

    Args:
        event: As the journal has it.
        paint: Colours.
        width: Where lines are wrapped; None never wraps.
    """
    kind = str(event.get("event", ""))
    words = _WORDS.get(kind, _plain)(event, paint)
    time = str(event.get("at", ""))[11:19]
    epoch = event.get("epoch")
    head = f"{time}  {'epoch ' + str(epoch) if epoch is not None else 'no epoch':<9}  "
    first, *rest = words
    space = " " * len(head)
    lines = _wrapped(first, space, width)
    lines[0] = paint("quiet", head) + lines[0].removeprefix(space)
    for line in rest:
        lines += _wrapped(one_line(line), f"{space}  ", width)
    return "\n".join(lines)


def _wrapped(text: str, indent: str, width: int | None) -> list[str]:
    if width is None or len(indent) + len(text) <= width:
        return [indent + text]
    return textwrap.wrap(
        text,
        max(width, len(indent) + _LEAST_WIDTH),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    ) or [indent]


def _plain(event: Mapping[str, Any], paint: Paint) -> list[str]:
    why = event.get("why")
    words = str(event.get("event", "")).replace("_", " ")
    return [one_line(f"{words}: {why}" if why else words)]


def _state(event: Mapping[str, Any], paint: Paint) -> list[str]:
    state = str(event.get("state", ""))
    why = event.get("why")
    text = paint(_COLOURS.get(state, "strong"), one_line(state))
    return [text + (one_line(f": {why}") if why else "")]


def _launched(event: Mapping[str, Any], paint: Paint) -> list[str]:
    command = " ".join(str(word) for word in event.get("command") or ())
    nodes = event.get("nodes")
    where = f" on {nodes} nodes" if isinstance(nodes, int) and nodes > 1 else ""
    return [
        one_line(f"{event.get('event')}{where}, {rung_words(event.get('rung'))}: {command}", 400)
    ]


def _diagnosis(event: Mapping[str, Any], paint: Paint) -> list[str]:
    found = event.get("diagnosis")
    if not isinstance(found, Mapping):
        return _plain(event, paint)
    ranks = found.get("ranks") or ()
    who = f", rank {', '.join(map(str, ranks))}" if ranks else ""
    lines = [paint("strong", one_line(f"diagnosis: {found.get('class')}{who}"))]
    for evidence in list(found.get("evidence") or ())[:_SHOWN_EVIDENCE]:
        lines.append(
            f"{str(evidence.get('source')).replace('_', ' ')}: {evidence.get('text', '')}"[:300]
        )
    lines += [f"advice: {advice}" for advice in found.get("advice") or ()]
    return lines


def _stopped(event: Mapping[str, Any], paint: Paint) -> list[str]:
    found = event.get("stopped")
    if not isinstance(found, Mapping):
        return _plain(event, paint)
    took = found.get("seconds")
    words = f"stopped: {found.get('result')}"
    if isinstance(took, int | float):
        words += f" in {took:.1f} s"
    if found.get("left"):
        words += f", {len(found['left'])} left"
    return [one_line(words + (f": {found['why']}" if found.get("why") else ""))]


def _outcome(event: Mapping[str, Any], paint: Paint) -> list[str]:
    found = event.get("diagnosis")
    crash = found.get("class") if isinstance(found, Mapping) else None
    how = "ended in order" if crash in (None, "NONE") else f"is closed as {crash}"
    return [one_line(f"attempt {event.get('attempt')} {how}")]


def _rung(event: Mapping[str, Any], paint: Paint) -> list[str]:
    pause = event.get("pause_s")
    soon = f", in {format_seconds(pause)}" if isinstance(pause, int | float) and pause >= 1 else ""
    return [one_line(f"next: {rung_words(event.get('rung'))}{soon}")]


def _verified(event: Mapping[str, Any], paint: Paint) -> list[str]:
    lines = [str(line) for line in event.get("report") or ()]
    return ["verified", *lines]


def _ended(event: Mapping[str, Any], paint: Paint) -> list[str]:
    lines = [one_line(f"the supervisor leaves with exit code {event.get('exit_code')}")]
    if event.get("next_step"):
        lines.append(f"next step: {event['next_step']}")
    return lines


def _dead(event: Mapping[str, Any], paint: Paint) -> list[str]:
    return [one_line(f"dead: {', '.join(_names(event))}; {event.get('why', '')}")]


def _names(event: Mapping[str, Any]) -> Iterator[str]:
    for rank in event.get("ranks") or ():
        name = rank.get("name")
        yield f"rank {rank.get('rank')}" + (f" ({name})" if name else "")


_WORDS = {
    "state": _state,
    "launched": _launched,
    "adopted": _launched,
    "diagnosis": _diagnosis,
    "stopped": _stopped,
    "outcome": _outcome,
    "rung": _rung,
    "verified": _verified,
    "ended": _ended,
    "dead_rank": _dead,
}


def rung_words(rung: object) -> str:
    """``first launch``, ``unchanged``, ``micro_batch 16 -> 12``."""
    if not isinstance(rung, Mapping):
        return "as declared"
    kind = str(rung.get("kind", ""))
    change = f"{rung.get('knob')} {rung.get('before')} -> {rung.get('after')}"
    words = {
        "first": "first launch",
        "unchanged": "unchanged",
        "expandable_segments": "with expandable segments",
        "knob": change,
        "combined": f"{change} and expandable segments",
    }.get(kind, kind)
    return words + (" (confounded)" if rung.get("confounded") else "")


def render_dry_run(found: DryRun) -> str:
    """What a supervisor would do, and with what."""
    decision = found.decision
    rows = [
        ["folder", one_line(found.folder)],
        ["command", one_line(shlex.join(found.command))],
        ["directory", one_line(found.directory) or "where the supervisor runs"],
        ["nodes", str(found.nodes)],
        ["tries", rung_words(msgspec.to_builtins(decision.rung)) if decision.rung else "nothing"],
        *([f"knob {knob.name}", str(knob.value)] for knob in decision.knobs),
        *([one_line(name), one_line(text)] for name, text in sorted(decision.environment.items())),
    ]
    return "\n".join([f"{one_line(found.run)}: {_would(found)}", table(rows)])


def _would(found: DryRun) -> str:
    decision = found.decision
    if found.unrecorded is not None:
        return f"attempt {found.unrecorded} may live: it would be looked for, then adopted or ended"
    if found.end:
        return f"nothing would be launched: {one_line(found.end_why)}"
    if found.abort is not False:
        return "nothing would be launched: ABORT stands, or cannot be read"
    if decision.refusal:
        return f"nothing would be launched: {one_line(decision.refusal)}"
    if decision.spend.allowed is not True:
        return f"nothing would be launched: {one_line(decision.spend.why)}"
    return f"epoch {found.epoch} would be launched"
