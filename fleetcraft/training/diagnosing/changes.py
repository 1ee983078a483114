"""What is different between the last healthy epoch and this one.

Two records in, a list of differences out. Invariant: what one of them does not tell is not called
a difference, except a package, whose absence is one.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fleetcraft.training.records import Epoch, Knob


class ChangeKind(StrEnum):
    """What part of an epoch's record differs."""

    STACK = "stack"
    DATA = "data"
    KNOB = "knob"
    WORLD = "world"
    COMMAND = "command"
    ENVIRONMENT = "environment"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference.

    Attributes:
        kind: Which part of the record.
        name: Which entry of it, such as ``torch`` or ``mean_length``.
        before: In the healthy epoch; empty: it was not there.
        after: Now; empty: it is not there any more.
        percent: By how much a number changed; None when it is no number, or was zero.
        text: In words.
    """

    kind: ChangeKind
    name: str
    before: str
    after: str
    percent: float | None = None
    text: str


def changes(healthy: Epoch, now: Epoch) -> tuple[Change, ...]:
    """Everything that differs, likeliest causes first: stack, data, knobs, size, command.

    Args:
        healthy: The last epoch that was verified.
        now: The epoch in question.
    """
    return (
        *_stack(healthy.stack, now.stack),
        *_data(healthy, now),
        *_knobs(healthy.knobs, now.knobs),
        *_world(healthy, now),
        *_command(healthy, now),
    )


def _stack(before: dict[str, str], after: dict[str, str]) -> list[Change]:
    if not before or not after:
        return []
    found = []
    for name in sorted({*before, *after}, key=lambda one: (one != "torch", one)):
        old, new = before.get(name, ""), after.get(name, "")
        if old == new:
            continue
        words = f"{old} to {new}" if old and new else f"added, {new}" if new else f"removed, {old}"
        found.append(_change(ChangeKind.STACK, name, old, new, text=f"{name}: {words}"))
    return found


def _data(healthy: Epoch, now: Epoch) -> list[Change]:
    found = []
    for name in sorted(healthy.data.keys() & now.data.keys()):
        old, new = healthy.data[name], now.data[name]
        if old == new:
            continue
        percent = _percent(old, new)
        words = f"{name.replace('_', ' ')}: {_number(old)} to {_number(new)}"
        if percent is not None:
            words += f", {'up' if percent > 0 else 'down'} {abs(percent):.0f} percent"
        found.append(
            _change(ChangeKind.DATA, name, _number(old), _number(new), text=words, percent=percent)
        )
    return found


def _knobs(before: tuple[Knob, ...], after: tuple[Knob, ...]) -> list[Change]:
    old = {knob.name: knob.value for knob in before}
    found = []
    for knob in after:
        if knob.name in old and old[knob.name] != knob.value:
            words = f"{knob.name}: {old[knob.name]} to {knob.value}"
            percent = _percent(old[knob.name], knob.value)
            found.append(
                _change(
                    ChangeKind.KNOB, knob.name, str(old[knob.name]), str(knob.value),
                    text=words, percent=percent,
                )
            )  # fmt: skip
    return found


def _world(healthy: Epoch, now: Epoch) -> list[Change]:
    found = []
    if healthy.nodes != now.nodes:
        found.append(_sized("nodes", healthy.nodes, now.nodes))
    if None not in (healthy.world_size, now.world_size) and healthy.world_size != now.world_size:
        found.append(_sized("world size", healthy.world_size, now.world_size))
    return found


def _sized(name: str, old: int | None, new: int | None) -> Change:
    text = f"{name}: {old} to {new}"
    return _change(ChangeKind.WORLD, name.replace(" ", "_"), str(old), str(new), text=text)


def _command(healthy: Epoch, now: Epoch) -> list[Change]:
    found = []
    if healthy.command != now.command:
        old, new = " ".join(healthy.command), " ".join(now.command)
        text = f"the command: {_word_changes(healthy.command, now.command)}"
        found.append(_change(ChangeKind.COMMAND, "command", old, new, text=text))
    if healthy.environment_sha256 != now.environment_sha256:
        old, new = healthy.environment_sha256, now.environment_sha256
        text = "the environment that the supervisor gave (its digest differs)"
        found.append(_change(ChangeKind.ENVIRONMENT, "environment", old, new, text=text))
    for name in sorted(healthy.cache_roots.keys() & now.cache_roots.keys()):
        old, new = healthy.cache_roots[name], now.cache_roots[name]
        if old != new:
            text = f"{name}: {old} to {new}"
            found.append(_change(ChangeKind.ENVIRONMENT, name, old, new, text=text))
    return found


def _word_changes(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    gone = [word for word in before if word not in after]
    new = [word for word in after if word not in before]
    parts = [f"without {' '.join(gone)}"] if gone else []
    parts += [f"with {' '.join(new)}"] if new else []
    return ", ".join(parts) or "the same words in another order"


def _percent(old: object, new: object) -> float | None:
    if not isinstance(old, int | float) or not isinstance(new, int | float) or not old:
        return None
    return 100 * (new - old) / abs(old)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _change(
    kind: ChangeKind, name: str, old: str, new: str, *, text: str, percent: float | None = None
) -> Change:
    return Change(kind=kind, name=name, before=old, after=new, percent=percent, text=text)
