"""One line of a log that says something about a crash.

A frozen record; finding such lines is `scan`'s. Invariant: a hit is about the line that begins at
its byte, and its step is what was known before that line.
"""

from __future__ import annotations

import msgspec

from fleetcraft.diagnosis.device_oom import DeviceOom
from fleetcraft.training.records import Crash, Evidence, Role, Source

EVIDENCE_CHARACTERS = 500


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One line that bears a signature.

    Attributes:
        crash: What it alone would mean.
        role: Cause, consequence, or clearing up.
        path: The log.
        byte: Where the line begins in it.
        line: Its number, from 1, counted from where reading began.
        text: The line without colours, cut to 500 characters.
        at: The time that the line gives, as written there.
        rank: The rank that it speaks of.
        step: The log's own step counter before the line; None while it had shown none.
        first_step: The first one that the log showed since the hit before; None: it showed none.
        chained: Python raised it while it handled the exception before, or because of it.
        oom: The numbers of a device's out-of-memory error.
    """

    crash: Crash
    role: Role
    path: str
    byte: int
    line: int
    text: str
    at: str = ""
    rank: int | None = None
    step: int | None = None
    first_step: int | None = None
    chained: bool = False
    oom: DeviceOom | None = None


def evidence_of(hit: Hit, step: int | None = None) -> Evidence:
    """A hit as evidence; ``step`` is the reported step, which outweighs the log's own."""
    return Evidence(
        source=Source.LOG,
        crash=hit.crash,
        role=hit.role,
        text=hit.text[:EVIDENCE_CHARACTERS],
        path=hit.path,
        line=hit.line,
        byte=hit.byte,
        at=hit.at,
        rank=hit.rank,
        step=hit.step if step is None else step,
    )
