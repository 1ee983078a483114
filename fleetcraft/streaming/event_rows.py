"""Turns the journal of a run into rows: states, launches, crashes, rungs.

Invariant: of an event's facts only numbers and words of closed sets are taken, by name. Sentences,
commands, paths and lines of logs, which the journal holds too, stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fleetcraft.clock import parse_timestamp
from fleetcraft.streaming.rows import Row, word
from fleetcraft.training.records import EVENT_SCHEMA

_WORDS = {"state": "event/state", "from": "event/from"}
_NUMBERS = {"exit_code": "event/exit_code", "attempt": "event/attempt"}
_INNER: dict[str, dict[str, str]] = {
    "diagnosis": {"class": "event/class"},
    "rung": {"kind": "event/rung", "knob": "event/knob", "before": "event/knob_before",
             "after": "event/knob_after"},
}  # fmt: skip
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def event_row(raw: bytes) -> tuple[float, Row] | None:
    """One line of the journal as its time and row; None when it is no event."""
    try:
        event = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    kind = word(event.get("event"))
    if event.get("schema") != EVENT_SCHEMA or kind is None:
        return None
    row: Row = {"event": kind}
    row.update(_facts(event))
    if type(event.get("epoch")) is int:
        row["train/epoch"] = event["epoch"]
    at = parse_timestamp(event.get("at") or "")
    if at is None or at.tzinfo is None:
        return 0.0, row
    at_s = row["_timestamp"] = at.timestamp()
    return at_s, row


def _facts(event: Mapping[str, Any]) -> Iterator[tuple[str, float | str]]:
    yield from _taken(event, _WORDS | _NUMBERS)
    for name, keys in _INNER.items():
        inner = event.get(name)
        if isinstance(inner, Mapping):
            yield from _taken(inner, keys)


def _taken(facts: Mapping[str, Any], keys: Mapping[str, str]) -> Iterator[tuple[str, float | str]]:
    for name, key in keys.items():
        value = facts.get(name)
        if type(value) in (int, float):
            yield key, value  # type: ignore[misc]
        elif (told := word(value)) is not None:
            yield key, told
