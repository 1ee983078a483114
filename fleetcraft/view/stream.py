"""What a call of ``stream`` has sent, for people and as JSON.

Invariant: nothing is shown as sent that W&B has not confirmed; it is told as waiting.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from fleetcraft.streaming.service import Told
from fleetcraft.streaming.stream import Account, Target
from fleetcraft.view.text import Paint, left_out, one_line, plural, table

SCHEMA = "fleetcraft.stream/1"


def stream_shape(told: Told, target: Target) -> dict[str, Any]:
    """What was done, as one JSON value."""
    return {
        "schema": SCHEMA,
        "service": "wandb",
        "project": target.project,
        "entity": target.entity,
        "offline": target.offline,
        "streams": [msgspec.to_builtins(one) for one in told.streams],
        "elsewhere": list(told.elsewhere),
        "trouble": told.trouble,
        "upload": upload_command(told, target),
    }


def render_stream(
    told: Told, target: Target, *, paint: Paint, limit: int, width: int | None = None
) -> str:
    """A line for each stream, then what is to be done.

    Args:
        told: What was done.
        target: Where to.
        paint: Colours.
        limit: Streams at most.
        width: Where lines are cut; None never cuts.
    """
    shown = told.streams[:limit]
    rows = [
        (
            f"{one.kind} {one_line(one.stream)}",
            f"{one.sent} sent",
            f"{one.rows} in all",
            _words(one, paint),
        )
        for one in shown
    ]
    lines = [table(rows, width=width)] if rows else ["nothing to send: no run is there yet"]
    lines += left_out(len(told.streams) - len(shown))
    lines += [f"  {one_line(name)}: sent by somebody else" for name in told.elsewhere[:limit]]
    lines += left_out(len(told.elsewhere[limit:]))
    if told.trouble:
        lines.append(paint("warn", one_line(told.trouble)))
    if command := upload_command(told, target):
        lines.append(f"upload, where there is a network: {command}")
    return "\n".join(lines)


def _words(one: Account, paint: Paint) -> str:
    words = [paint("warn", f"{one.waiting} waiting")] if one.waiting else []
    words += [paint("good", "over")] if one.over else []
    skipped = [f"{count} {one_line(kind)}" for kind, count in one.skipped.items()]
    words += [f"not sent: {', '.join(skipped)}"] if skipped else []
    return "; ".join([*words, f"W&B run {one.id}"])


def told_shortly(told: Told) -> str:
    """One line about all streams, for a terminal."""
    rows = sum(one.sent for one in told.streams)
    return f"{plural(len(told.streams), 'stream')}, {plural(rows, 'row')} sent"


def upload_command(told: Told, target: Target) -> str:
    """The command that uploads offline files; empty where none is needed."""
    folders = sorted({one.folder for one in told.streams if one.rows})
    if not target.offline or not folders:
        return ""
    shown = " ".join(f"{shlex.quote(folder)}/wandb" for folder in folders[:_MOST_FOLDERS])
    more = " ..." if len(folders) > _MOST_FOLDERS else ""
    return f"wandb sync {shown}{more}"


_MOST_FOLDERS = 5
