"""Lines of a worker's journal, one at a time, with what of them is of use over time.

Invariant: a line costs bounded memory, and nothing but a regular file of this user that no one
else can write is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import UTC

import msgspec

from fleetcraft.clock import parse_timestamp

_LINE_BYTES = 1 << 20
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Event(msgspec.Struct):
    """One line; fields that it lacks keep their defaults, others are passed over."""

    event: str = ""
    at: str = ""
    task: str = ""
    claim: str = ""
    slot: int | None = None
    family: str | None = None
    outcome: str = ""
    wall_s: float | None = None
    slots: int | None = None
    gpus: int | None = None
    host: str | None = None
    job: str | None = None
    slot_gpus: list[str] | None = None
    waiting: int | None = None
    pending: int | None = None
    running: int | None = None
    done: int | None = None
    failed: int | None = None


decode_event = msgspec.json.Decoder(Event).decode
"""Raises one of `NO_EVENT` for a line that is no event."""
NO_EVENT = (msgspec.DecodeError, RecursionError)
"""The second is what a line of thousands of brackets raises."""


def event_lines(path: str, uid: int) -> Iterator[bytes]:
    """The lines of a journal, each at most 1 MiB; a longer one comes in pieces.

    Raises:
        OSError: Not there, no regular file, or somebody else owns or can write it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(0, "not a regular file", path)
        if facts.st_uid != uid or facts.st_mode & _WRITABLE_BY_OTHERS:
            raise OSError(0, "somebody else owns it or can write it", path)
        while line := file.readline(_LINE_BYTES):
            if not line.isspace():
                yield line


def seconds(text: str) -> float | None:
    """A timestamp as seconds since 1970, UTC where it names no zone; None if it is none."""
    at = parse_timestamp(text)
    if at is None:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
