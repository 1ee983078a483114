"""The record: one executable file that says what to run and what happened.

Text to structure and back; no file is touched here. A record is a header of ``#FLEET`` directives,
a body that bash runs, ``exit``, and one ``#FLEET-RUN`` line of JSON per ended claim.
Invariant: a claim is closed by the first history line with exactly its token; later ones are
ignored, and the bytes before the first history line never change.
"""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import Any, Literal

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.identity import sha256_hex
from fleetcraft.layout import Lane
from fleetcraft.spool.directives import TaskSpec, parse_directives, write_directives

HISTORY_PREFIX = b"#FLEET-RUN "
_HISTORY_MARK = b"\n#FLEET-RUN "
_LAST_LINE = b"\nexit\n"
_DIRECTIVE = "#FLEET "
_SHEBANG = "#!/usr/bin/env bash"
_CD_PREFIX = "cd -- "
_CD_SUFFIX = " || exit 1"
LOST_LIMIT = 5
"""Claims that may be lost before the task fails, so that one that kills nodes does not go round."""
INTERRUPTED_LIMIT = 50
"""Interruptions, and exits with 75, before the task fails: bounded, yet far above a long run."""


class Outcome(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    INTERRUPTED = "interrupted"
    INCOMPLETE = "incomplete"
    LOST = "lost"
    CANCELLED = "cancelled"
    LAUNCH_FAILED = "launch_failed"


_COMPLETED = Outcome.COMPLETED  # asked for once a task; of the class it is a call of Python (3.11)

SPENDING = frozenset(
    {
        Outcome.FAILED,
        Outcome.TIMEOUT,
        Outcome.OUT_OF_MEMORY,
        Outcome.INCOMPLETE,
        Outcome.LAUNCH_FAILED,
    }
)
"""Outcomes that use up a retry."""

Destination = Literal["pending", "done", "failed"]


class OutputFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One declared output as it was when the attempt ended."""

    path: str
    size_bytes: int | None = None
    sha256: str | None = None
    problem: str = ""


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one claim ended; ``to`` says where the record goes and is never recomputed.

    ``claim`` is the owner's token, ``attempt`` is 0 for a claim that never became an attempt.
    Times are wall clock UTC text; quantities that were not measured are absent.
    """

    claim: str
    outcome: Outcome
    to: Destination
    attempt: int = 0
    owner: str = ""
    exit_code: int | None = None
    signal: int | None = None
    started_at: str | None = None
    ended_at: str | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    max_rss_bytes: int | None = None
    host: str = ""
    job: str = ""
    step: str = ""
    gpus: tuple[str, ...] = ()
    log: str = ""
    outputs: tuple[OutputFact, ...] = ()
    reason: str = ""
    closed_by: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(HistoryLine).decode


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One record as read: what to run, and its history in file order.

    ``head`` is everything before the history; ``history_offset`` is where that starts, in bytes;
    ``damaged`` counts history lines that cannot be read, such as the torn end of a write to a full
    disk.
    """

    id: str
    spec: TaskSpec
    head: bytes
    history: tuple[HistoryLine, ...]
    history_offset: int
    damaged: int = 0

    @property
    def identity(self) -> str:
        """The sha256 of the head without its ``id`` line: equal for equal tasks."""
        # Computed when asked: a worker parses each record and never needs it.
        return _identity_of(self.head, self.id)

    def closing_line(self, token: str) -> HistoryLine | None:
        """The line that closed this claim: the first with exactly its token."""
        return next((line for line in self.history if line.claim == token), None)

    @property
    def next_attempt(self) -> int:
        """The number of the next attempt, counted from 1."""
        return max((line.attempt for line in self.history), default=0) + 1


def compose(spec: TaskSpec, record_id: str) -> bytes:
    """Writes a fresh record: header, body, ``exit``."""
    lines = [_SHEBANG, *(_DIRECTIVE + text for text in write_directives(spec, record_id))]
    lines.append(f"{_CD_PREFIX}{shlex.quote(spec.project_dir)}{_CD_SUFFIX}")
    lines.append(spec.command)
    lines.append("exit\n")
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def parse(data: bytes) -> Record:
    """Reads a record.

    Raises:
        DataError: It is no record, or a directive is unknown, repeated or has a bad value.
    """
    head = data[: _end_of_head(data)]
    directives, body = _split_header(head.decode("utf-8", "surrogateescape"))
    project_dir, command = _split_body(body)
    record_id, spec = parse_directives(directives, project_dir=project_dir, command=command)
    history, damaged = parse_history(data[len(head) :])
    return Record(
        id=record_id,
        spec=spec,
        head=head,
        history=history,
        history_offset=len(head),
        damaged=damaged,
    )


def _end_of_head(data: bytes) -> int:
    """Where the history starts: at the first history line, also at the torn stump of one."""
    mark = data.find(_HISTORY_MARK)
    end = len(data) if mark < 0 else mark + 1
    after_exit = data.rfind(_LAST_LINE, 0, end) + len(_LAST_LINE)
    stump = data[after_exit:end].split(b"\n", 1)[0]
    if after_exit >= len(_LAST_LINE) and stump and HISTORY_PREFIX.startswith(stump):
        return after_exit
    return end


def parse_history(data: bytes) -> tuple[tuple[HistoryLine, ...], int]:
    """Reads history lines; returns them and how many lines could not be read."""
    if not data:
        return (), 0
    history: list[HistoryLine] = []
    damaged = 0
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            history.append(_decode(line[len(HISTORY_PREFIX) :]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            damaged += 1
    return tuple(history), damaged


def write_history(line: HistoryLine) -> bytes:
    """Writes one history line with its newline.

    What is no UTF-8 in a reason or a path (a file name may be any bytes) is written as escapes:
    a line that cannot be written would lose the attempt.
    """
    try:
        text = _encode(line)
    except UnicodeEncodeError:
        text = _encode(msgspec.convert(escaped(msgspec.to_builtins(line)), HistoryLine))
    return HISTORY_PREFIX + text + b"\n"


def escaped(value: Any) -> Any:
    """The same with every text as UTF-8 can hold it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    return [escaped(item) for item in value] if isinstance(value, list | tuple) else value


def destination(record: Record, outcome: Outcome) -> Destination:
    """Where a claim that ended with this outcome sends its record.

    Spending outcomes have ``retries`` + 1 places; lost and interrupted ones have their limits.
    Every time a task failed for good by such a count and was retried by hand grants one more.

    Source: the rules of docs/spool-format.md, "Finish".
    """
    if outcome is _COMPLETED:
        return "done"
    if outcome is Outcome.CANCELLED:
        return "failed"
    if outcome in SPENDING:
        used, granted = _count(record, SPENDING)
        return "pending" if used + 1 < record.spec.retries + 1 + granted else "failed"
    limit = LOST_LIMIT if outcome is Outcome.LOST else INTERRUPTED_LIMIT
    used, granted = _count(record, frozenset({outcome}))
    return "pending" if used + 1 < limit + granted else "failed"


def _count(record: Record, outcomes: frozenset[Outcome]) -> tuple[int, int]:
    lines = [line for line in _closing_lines(record) if line.outcome in outcomes]
    return len(lines), sum(line.to == "failed" for line in lines)


def _closing_lines(record: Record) -> list[HistoryLine]:
    # Only the first line of each claim counts: a late owner's second line is not another attempt.
    first: dict[str, HistoryLine] = {}
    for line in record.history:
        first.setdefault(line.claim, line)
    return list(first.values())


def closing_lines(record: Record) -> list[HistoryLine]:
    """The lines that count: the first of each claim, in file order."""
    return _closing_lines(record)


def _split_header(text: str) -> tuple[list[str], str]:
    """The directives without their mark, and the body."""
    if not text.startswith("#!"):
        raise DataError("not a task record: the first line is no '#!' line")
    directives = []
    _, _, rest = text.partition("\n")
    while rest.startswith(_DIRECTIVE):
        line, _, rest = rest.partition("\n")
        directives.append(line[len(_DIRECTIVE) :])
    return directives, rest


def _split_body(body: str) -> tuple[str, str]:
    """Where the task runs, and its command."""
    project_dir = ""
    first, _, rest = body.partition("\n")
    if first.startswith(_CD_PREFIX) and first.endswith(_CD_SUFFIX):
        quoted = first[len(_CD_PREFIX) : -len(_CD_SUFFIX)]
        try:
            project_dir = shlex.split(quoted)[0] if "'" in quoted else quoted
        except ValueError as error:
            raise DataError(f"cannot read the line {first!r}: {error}") from error
        body = rest
    command = body.rstrip("\n")
    if command == "exit":
        return project_dir, ""
    return project_dir, command.removesuffix("\nexit")


def _identity_of(head: bytes, record_id: str) -> str:
    marker = f"\n{_DIRECTIVE}id: {record_id}\n".encode("utf-8", "surrogateescape")
    return sha256_hex(head.replace(marker, b"\n", 1))


def lane_of(record: Record) -> Lane:
    """The lane to which a requeue returns the task."""
    return record.spec.lane
