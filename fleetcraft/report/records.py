"""What a report holds: plain records, as they are printed with ``--json`` and drawn as a page.

Computes nothing. Invariant: what was not measured or cannot be known is None with a reason beside
it, and every list that was cut says how many entries it leaves out.
"""

from __future__ import annotations

import msgspec

from fleetcraft.report.machine_records import Machines
from fleetcraft.report.task_records import SpoolPart

SCHEMA = "fleetcraft.report/1"
SPOOLS = ("outer spool", "inner spool")
"""What the two spools are called where a part is named."""


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could not be read: what, and why."""

    what: str
    why: str


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something to look at that another command found.

    Attributes:
        source: The command, such as ``caches check``.
        level: ``wrong``, ``advice`` or ``unknown``.
        text: One sentence.
        hint: What to do; empty when nothing is known.
    """

    source: str
    level: str
    text: str
    hint: str = ""


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One frozen row of the batch table.

    Attributes:
        evidence_holds: Whether a calibration record with the hash that the row names is there;
            None when the row names none or it could not be looked for.
    """

    family: str
    batch: int
    timed_batch: int
    device: str
    mem_mib: int | None
    torch: str
    sdpa: str
    reason: str
    peak: str
    next: str
    evidence_holds: bool | None


class CalibrationPart(msgspec.Struct, frozen=True, kw_only=True):
    """The frozen batch table: whether its hash holds, why not, and its rows."""

    path: str
    holds: bool
    hash: str = ""
    problem: str = ""
    rows: tuple[TableRow, ...] = ()
    rows_left_out: int = 0


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One training run as its status file says; None is what that does not say.

    Attributes:
        supervised: Whether a supervisor lives; None when that cannot be told from here.
    """

    run: str
    folder: str
    state: str = ""
    why: str = ""
    step: int | None = None
    end_step: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    eta_s: tuple[float, float] | None = None
    provisional: bool = True
    rung: dict[str, object] = {}
    restarts: int | None = None
    checkpoint_step: int | None = None
    crash: str = ""
    supervised: bool | None = None
    written_at: str = ""
    trouble: str = ""


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory queue; ``trainer`` is True, False or None for alive, gone or unknown."""

    name: str
    folder: str
    run: str
    waiting: int | None
    high_water: int
    pending: int
    claimed: int
    committed: int
    version: int
    quarantined: int
    refused: dict[str, int]
    trainer: bool | None
    abort: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything.

    Attributes:
        title: Of the page.
        root: The scratch tree.
        made_at: When, as ISO 8601 UTC.
        version: Of fleetcraft.
        since: Only attempts that ended after this, and samples from it on; empty for all.
        until: And up to this.
        jobs: Only these jobs; empty for all.
        sentence: How things stand.
        first_at: The earliest start or sample that was found, without a zone where it or the latest
            is a telemetry file's own time; empty without one.
        last_at: The latest.
        machines: None when there is no telemetry in the span.
        no_machines: Why.
        calibration: None when no table was frozen.
        lost: Parts of which nothing could be read, such as ``outer spool``; why is in `unread`.
        unread: What could not be read.
    """

    schema: str = SCHEMA
    title: str
    root: str
    made_at: str
    version: str
    since: str = ""
    until: str = ""
    jobs: tuple[str, ...] = ()
    sentence: str
    first_at: str = ""
    last_at: str = ""
    spools: tuple[SpoolPart, ...] = ()
    machines: Machines | None = None
    no_machines: str = ""
    calibration: CalibrationPart | None = None
    runs: tuple[RunRow, ...] = ()
    runs_left_out: int = 0
    queues: tuple[QueueRow, ...] = ()
    queues_left_out: int = 0
    notices: tuple[Notice, ...] = ()
    lost: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()
    unread_left_out: int = 0
