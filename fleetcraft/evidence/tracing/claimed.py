"""The task behind a number: its record, the history line of the attempt, and that attempt's log.

Reads records wherever they lie, and starts and moves none. Invariant: an attempt that has not ended
is unknown, and a log is never more than found, since nobody recorded its bytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from fleetcraft.errors import FleetError
from fleetcraft.evidence.records import Kind, Level
from fleetcraft.evidence.tracing.nodes import Node, Standing
from fleetcraft.evidence.tracing.rooms import Rooms
from fleetcraft.files import FileSystem
from fleetcraft.identity import Owner
from fleetcraft.layout import LANES, SpoolPaths, State, parse_claim
from fleetcraft.spool.names import check_name
from fleetcraft.spool.record import HistoryLine, Record, closing_lines, parse

_LOOKS = 3  # a record that moves from a folder not yet looked at into one already seen is missed


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one task, as a record elsewhere names it.

    Attributes:
        task: Its name.
        spool: As in `fleetcraft.evidence.records.Producer`, or ``outer``, ``inner``.
        attempt: Its number; 0 where it is not known.
        token: Of the claim, which is never used again; empty where it is not known.
        identity: The identity hash of the task's record; empty where it is not known.
        outcome: How the attempt ended, as the other record says; empty where it says nothing.
        beside: The folder of the spool, where it is known.
    """

    task: str
    spool: str = ""
    attempt: int = 0
    token: str = ""
    identity: str = ""
    outcome: str = ""
    beside: str = ""


def token_of(owner: str) -> str:
    """The claim's token of an owner; empty where the text is no owner."""
    found = Owner.parse(owner)
    return found.token if found else ""


def find_record(
    rooms: Rooms, claimed: Claimed, fs: FileSystem
) -> tuple[Record, SpoolPaths, str] | None:
    """The record of a task, the spool in which it lies, and the label of that place.

    A record that holds the claim is preferred to one of the same name in another spool.

    Raises:
        FleetError: What was found is no record.
        OSError: It cannot be read.
    """
    check_name(claimed.task)
    first: tuple[Record, SpoolPaths, str] | None = None
    for paths, label in rooms.spools(claimed.spool, beside=claimed.beside):
        record = _read_in(paths, claimed.task, fs)
        if record is None:
            continue
        if _fits(record, claimed):
            return record, paths, label
        first = first or (record, paths, label)
    return first


def _fits(record: Record, claimed: Claimed) -> bool:
    if claimed.identity and record.identity != claimed.identity:
        return False
    return not claimed.token or record.closing_line(claimed.token) is not None


def _read_in(paths: SpoolPaths, name: str, fs: FileSystem) -> Record | None:
    for _ in range(_LOOKS):
        for path in _record_paths(paths, name, fs):
            with suppress(FileNotFoundError, NotADirectoryError):
                return parse(fs.read(path))
    return None


def _record_paths(paths: SpoolPaths, name: str, fs: FileSystem) -> Iterator[str]:
    yield paths.finished_record(name, State.DONE)
    yield paths.finished_record(name, State.FAILED)
    names: list[str] = []
    with suppress(OSError):  # an archive need not have the folder
        names = fs.listdir(paths.running)
    for file in names:
        claim = parse_claim(file)
        if claim is not None and claim[0] == name:
            yield paths.claim(name, claim[1])
    for lane in LANES:
        yield paths.pending_record(name, lane)
    yield paths.waiting_record(name)


def makers_of(rooms: Rooms, fs: FileSystem) -> dict[str, list[Claimed]]:
    """The tasks whose history names an output with these bytes, by the sha256 of the bytes.

    Reads the record of every finished task, so it is asked for once and only where nothing else
    says who made a file. What cannot be read names nothing.
    """
    found: dict[str, list[Claimed]] = {}
    for paths, _ in rooms.spools(""):
        for folder in (paths.done, paths.failed):
            names: list[str] = []
            with suppress(OSError):  # an archive need not have the folder
                names = fs.listdir(folder)
            for name in sorted(names):
                with suppress(FleetError, OSError):
                    for sha256, claimed in _outputs(fs.read(f"{folder}/{name}"), paths.root):
                        found.setdefault(sha256, []).append(claimed)
    return found


def _outputs(data: bytes, spool: str) -> Iterator[tuple[str, Claimed]]:
    if b'"sha256"' not in data:
        return
    record = parse(data)
    for line in closing_lines(record):
        for output in line.outputs:
            if output.sha256:
                yield (
                    output.sha256,
                    Claimed(
                        task=record.spec.name,
                        attempt=line.attempt,
                        token=line.claim,
                        identity=record.identity,
                        beside=spool,
                    ),
                )


def node_of(rooms: Rooms, claimed: Claimed, fs: FileSystem) -> Node:
    """The task as a node, with the log of its attempt below it."""
    node = Node(
        name=claimed.task,
        kind=Kind.TASK,
        verdict=Standing.MISSING,
        detail=f"no record of this task in {claimed.spool or 'any spool'}",
        expected_sha256=claimed.identity,
    )
    try:
        found = find_record(rooms, claimed, fs)
    except (FleetError, OSError) as error:
        why = error.message if isinstance(error, FleetError) else error.strerror or str(error)
        return replace(node, verdict=Standing.UNKNOWN, detail=f"its record: {why}")
    if found is None:
        return node
    record, paths, place = found
    line = _line_of(record, claimed)
    verdict, level, detail = _judge(record, line, claimed)
    attempt = line.attempt if line is not None else claimed.attempt
    children = (_log(rooms, claimed, (paths, place), attempt, fs),) if attempt else ()
    return replace(
        node,
        verdict=verdict,
        level=level,
        detail=detail,
        place=place,
        found_sha256=record.identity if claimed.identity else "",
        children=children,
    )


def _line_of(record: Record, claimed: Claimed) -> HistoryLine | None:
    lines = closing_lines(record)
    if claimed.token:
        return next((line for line in lines if line.claim == claimed.token), None)
    if claimed.attempt:
        return next((line for line in lines if line.attempt == claimed.attempt), None)
    return next((line for line in reversed(lines) if line.attempt), None)


def _judge(
    record: Record, line: HistoryLine | None, claimed: Claimed
) -> tuple[Standing, Level, str]:
    if claimed.identity and record.identity != claimed.identity:
        return Standing.CHANGED, Level.HASHED, "its record is not the one that ran"
    level = Level.HASHED if claimed.identity else Level.LISTED
    if line is None:
        which = f"attempt {claimed.attempt}" if claimed.attempt else "this claim"
        if claimed.attempt and claimed.attempt < record.next_attempt:
            return Standing.MISSING, level, f"its history has no {which} of this claim"
        return Standing.UNKNOWN, level, f"{which} has not ended"
    said = f"attempt {line.attempt}: {_ended(line)}"
    if claimed.outcome and claimed.outcome != line.outcome.value:
        return Standing.CHANGED, level, f"{said}; recorded as {claimed.outcome}"
    if claimed.attempt and line.attempt != claimed.attempt:
        return Standing.CHANGED, level, f"{said}; recorded as attempt {claimed.attempt}"
    return Standing.VERIFIED, level, said


def _ended(line: HistoryLine) -> str:
    words = line.outcome.value.replace("_", " ")
    if line.exit_code:
        words += f", exit code {line.exit_code}"
    where = f" on {line.host}" if line.host else ""
    job = f", job {line.job}" if line.job else ""
    return f"{words}{where}{job}"


def _log(
    rooms: Rooms, claimed: Claimed, found: tuple[SpoolPaths, str], attempt: int, fs: FileSystem
) -> Node:
    # Where a record was archived without its log, the log may still be in the scratch tree.
    places = [found, *rooms.spools(claimed.spool, beside=claimed.beside)]
    node = Node(
        name=os.path.basename(found[0].log(claimed.task, attempt)),
        kind=Kind.LOG,
        verdict=Standing.MISSING,
        detail="no such log",
    )
    for where, label in places:
        try:
            facts = fs.lstat(where.log(claimed.task, attempt))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return replace(node, verdict=Standing.UNKNOWN, detail=error.strerror or str(error))
        if not stat.S_ISREG(facts.st_mode):
            return replace(node, verdict=Standing.UNKNOWN, detail="it is no regular file")
        return replace(
            node,
            verdict=Standing.VERIFIED,
            level=Level.LISTED,
            detail="found; its bytes were never recorded",
            place=label,
            found_bytes=facts.st_size,
        )
    return node
