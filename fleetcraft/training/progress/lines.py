"""One line of a progress file, decoded: what it says, and why it says nothing.

Lines come from scripts in any language, so each value is looked at for itself. Invariant: a value
that is damaged takes nothing else of its line with it, and is counted by its kind.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from fleetcraft.identity import HostId, ProcessId
from fleetcraft.training.records import ProcessRecord

MAX_NAMES = 64
MAX_NAME_LENGTH = 64
_LARGEST = 2.0**62
_NOT_FINITE = frozenset({"nan", "inf", "-inf", "infinity", "-infinity"})
_decode = msgspec.json.Decoder().decode


class ProgressLine(msgspec.Struct, kw_only=True):
    """What one line says; what it does not say is None.

    Attributes:
        hello: Whether a process introduces itself.
        process: Who that is; None when it did not tell it whole.
        name: What the rank is called.
        world_size: Ranks, as the process was told.
        step: Completed optimizer steps.
        tokens: Processed since the line before.
        loss: May be NaN.
        queues: Depth, and capacity if told, by name.
        metrics: The user's own.
        device_memory_bytes: As told.
        phase: The phase that begins; empty for the step loop.
        wrong: Why a part of it, or all, was not taken, by kind; empty when all was.
    """

    hello: bool = False
    process: ProcessRecord | None = None
    name: str | None = None
    world_size: int | None = None
    step: int | None = None
    tokens: float | None = None
    loss: float | None = None
    queues: dict[str, tuple[int, int | None]] | None = None
    metrics: dict[str, float] | None = None
    device_memory_bytes: int | None = None
    phase: str | None = None
    wrong: str = ""


class _Usual(msgspec.Struct):
    """A report as most lines are: of the right types, with nothing to convert."""

    # No constraints: msgspec 0.23 crashes on a bounded int in a union with a tuple.
    step: int
    tokens: float | None = None
    loss: float | None = None
    queues: dict[str, int | tuple[int, int | None]] | None = None
    metrics: dict[str, float] | None = None
    device_memory_bytes: int | None = None
    name: str | None = None
    hello: None = None
    phase: None = None
    world_size: None = None


_decode_usual = msgspec.json.Decoder(_Usual).decode


class _Wrong(Exception):
    pass


def parse_line(data: bytes) -> ProgressLine:
    """Decodes one line without its newline; never raises.

    Args:
        data: The line. Python's bare ``NaN`` and ``Infinity`` are read too, though no JSON.
    """
    try:
        return _usual(_decode_usual(data))
    except (msgspec.DecodeError, RecursionError, ValueError, _Wrong):
        return _unusual(data)


def _usual(told: _Usual) -> ProgressLine:
    """The types are right; ranges and lengths are not known yet.

    Raises:
        _Wrong: Something is out of range.
    """
    queues: dict[str, tuple[int, int | None]] | None = None
    if told.queues is not None:
        queues = {
            name: one if isinstance(one, tuple) else (one, None)
            for name, one in told.queues.items()
        }
        for depth, capacity in queues.values():
            if not (0 <= depth < _LARGEST and 0 <= (capacity or 0) < _LARGEST):
                raise _Wrong
    for named in (queues, told.metrics):
        if named and (len(named) > MAX_NAMES or max(map(len, named)) > MAX_NAME_LENGTH):
            raise _Wrong
    if not (
        0 <= told.step < _LARGEST
        and 0 <= (told.tokens or 0) < _LARGEST
        and 0 <= (told.device_memory_bytes or 0) < _LARGEST
        and len(told.name or "") <= MAX_NAME_LENGTH
    ):
        raise _Wrong
    return ProgressLine(
        step=told.step,
        tokens=told.tokens,
        loss=told.loss,
        queues=queues,
        metrics=told.metrics,
        device_memory_bytes=told.device_memory_bytes,
        name=told.name,
    )


def _unusual(data: bytes) -> ProgressLine:
    """The same, value for value; it takes some ten times as long."""
    try:
        value = _decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError):
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return ProgressLine(wrong="no JSON")
    if not isinstance(value, dict):
        return ProgressLine(wrong="no JSON object")
    line = ProgressLine(wrong="" if value.keys() & _READERS.keys() else "says nothing known")
    for key, told in value.items():
        if told is not None and (reader := _READERS.get(key)):
            try:
                setattr(line, key, reader(told))
            except _Wrong as wrong:
                line.wrong = line.wrong or f"{key}: {wrong}"
    if line.hello:
        line.process = _process(value)
    return line


def _whole(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value) if abs(value) < _LARGEST else -1
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise _Wrong("no whole number from 0")
    return value


def _amount(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _LARGEST:
        raise _Wrong("no amount")
    return float(value)


def _number(value: Any) -> float:
    if isinstance(value, str) and value.strip().lower() in _NOT_FINITE:
        return float(value)
    if type(value) not in (int, float):
        raise _Wrong("no number")
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong("no text")
    return value[:MAX_NAME_LENGTH]


def _named(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong("no names with values")
    if len(value) > MAX_NAMES:
        raise _Wrong(f"more than {MAX_NAMES}")
    return {name[:MAX_NAME_LENGTH]: one for name, one in value.items()}


def _queues(value: Any) -> dict[str, tuple[int, int | None]]:
    return {name: _depth(one) for name, one in _named(value).items()}


def _depth(value: Any) -> tuple[int, int | None]:
    if not isinstance(value, list):
        return _whole(value), None
    if len(value) != 2:
        raise _Wrong("a queue is a depth, or depth and capacity")
    return _whole(value[0]), None if value[1] is None else _whole(value[1])


def _metrics(value: Any) -> dict[str, float]:
    return {name: _number(one) for name, one in _named(value).items()}


_READERS: dict[str, Any] = {
    "hello": bool,
    "name": _text,
    "world_size": _whole,
    "step": _whole,
    "tokens": _amount,
    "loss": _number,
    "queues": _queues,
    "metrics": _metrics,
    "device_memory_bytes": _whole,
    "phase": _text,
}


def _process(value: dict[str, Any]) -> ProcessRecord | None:
    texts = [value.get(key) for key in ("host", "boot_id", "pid_namespace")]
    numbers = [value.get(key) for key in ("pid", "start_ticks")]
    nonce = value.get("nonce", "")
    if not all(isinstance(one, str) for one in (*texts, nonce)):
        return None
    if not all(type(one) is int and 0 < one < _LARGEST for one in numbers):
        return None
    return ProcessRecord(
        place=HostId(*map(str, texts)),
        process=ProcessId(*(int(one or 0) for one in numbers)),
        nonce=str(nonce),
    )
