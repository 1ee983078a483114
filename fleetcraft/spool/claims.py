"""Claiming a task and closing a claim: the two moves between which a task may run.

A claim is one rename to a name that belongs to one owner for ever. It is closed by the first
history line with exactly its token, whoever wrote it, and that line says where the record goes.
Invariant: nobody renames a record out of ``running/`` before the line that sends it there can be
read back (except a completed task on a disk so full that no line can be written).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from fleetcraft.errors import DataError, UnsafeSpoolError
from fleetcraft.identity import Owner
from fleetcraft.layout import Lane, State
from fleetcraft.spool.record import (
    HISTORY_PREFIX,
    HistoryLine,
    Outcome,
    Record,
    parse,
    parse_history,
    write_history,
)
from fleetcraft.spool.tree import SpoolTree

_APPEND_TRIES = 3
_APPEND_PAUSE_S = 0.2
_STATES = {"done": State.DONE, "failed": State.FAILED}


class Claim(msgspec.Struct, frozen=True):
    """A task that this owner holds.

    ``record`` is as last read; ``problem`` says why it cannot be run, for a record that cannot be
    parsed or whose header says something else than its file name.
    """

    name: str
    owner: Owner
    path: str
    record: Record
    problem: str = ""
    hint: str = ""
    raw: bytes | None = None


class Known(msgspec.Struct, frozen=True):
    """A record as read before the claim: its bytes and what they say."""

    raw: bytes
    record: Record


class Closed(msgspec.Struct, frozen=True):
    """How a claim was closed.

    Attributes:
        line: The line that counts: the first with the claim's token.
        mine: Whether that is the line this call wanted to write.
        moved: Whether this call's rename carried it out.
    """

    line: HistoryLine
    mine: bool
    moved: bool


class SpoolWriteError(DataError):
    """No history line could be written; the claim stays in ``running/`` for recovery."""


def claim(
    tree: SpoolTree, name: str, source: str, owner: Owner, known: Known | None = None
) -> Claim | None:
    """Claims a pending or waiting task by rename, and reads it.

    Args:
        tree: The spool.
        name: The task.
        source: The record's path as listed.
        owner: Never used before.
        known: The record as read before the claim. It is then not read here: the caller must
            `read_again` before it runs anything.

    Returns:
        The claim, or None when somebody else was faster.

    Raises:
        UnsafeSpoolError: Somebody else could have written the record. It was put back.
        OSError: The rename did not happen, or what was claimed is no readable file and was put
            back.
    """
    target = tree.paths.claim(name, owner)
    # After ENOENT the own target is looked at: on NFS a retransmitted rename reports failure
    # although it happened. The target's name is unique, so what is there is ours.
    if not tree.move(source, target) and not tree.fs.exists(target):
        return None
    if known is not None:
        return Claim(name, owner, target, known.record, raw=known.raw)
    try:
        return read_again(tree, Claim(name, owner, target, _shell_of(name, b"")))
    except (UnsafeSpoolError, OSError):
        tree.move(target, source)
        raise


def read_again(tree: SpoolTree, held: Claim) -> Claim | None:
    """Reads a claimed record, which also shows that the claim is still there.

    Returns:
        The claim with the record as it is now, or None when the claim is gone.

    Raises:
        UnsafeSpoolError: Somebody else could have written the record. It stays claimed.
    """
    try:
        data = tree.read_bytes(held.path)
    except FileNotFoundError:
        return None
    if data == held.raw:
        return held  # as it was before the claim, so it need not be parsed again
    return _parsed_claim(held.name, held.owner, held.path, data)


def _parsed_claim(name: str, owner: Owner, target: str, data: bytes) -> Claim:
    try:
        record = parse(data)
    except DataError as error:
        return Claim(name, owner, target, _shell_of(name, data), error.message, error.hint)
    if record.spec.name != name:
        problem = f"its header says {record.spec.name!r}, its file name {name!r}"
        return Claim(name, owner, target, record, problem)
    return Claim(name, owner, target, record)


def _shell_of(name: str, data: bytes) -> Record:
    """What can be said of a record that cannot be parsed: its name, and its history if any."""
    from fleetcraft.spool.directives import TaskSpec

    cut = data.find(b"\n" + HISTORY_PREFIX)
    offset = len(data) if cut < 0 else cut + 1
    history, damaged = parse_history(data[offset:])
    spec = TaskSpec(name=name, command="")
    return Record(
        id="", spec=spec, head=b"", history=history, history_offset=offset, damaged=damaged
    )


def close_own(
    tree: SpoolTree,
    held: Claim,
    line: HistoryLine,
    *,
    before_move: Callable[[HistoryLine], None] = lambda line: None,
) -> Closed | None:
    """Ends a claim by its owner: append the line, read it back, carry it out.

    Args:
        tree: The spool.
        held: The claim.
        line: How it ended.
        before_move: Called once the line counts, before the record leaves ``running``.

    Returns:
        None when the claim is gone (the task was recovered from this owner); else how it was
        closed. When ``mine`` is false somebody else closed it first, and nothing was renamed.

    Raises:
        SpoolWriteError: No line could be written. A completed task has been moved to ``done``
            all the same; anything else stays in ``running/``.
        IntegrityError: Another file is at the destination; both are kept.
    """
    text = write_history(line)
    try:
        fd = tree.fs.open_append(held.path)
    except FileNotFoundError:
        return None
    try:
        back = _append_patiently(tree, fd, text, held.record.history_offset)
        if back is not None and line.to != "done":
            # Before the task becomes claimable or final its history must survive a power loss;
            # a completed one that is forgotten merely runs again.
            tree.fs.datasync(fd)
    finally:
        tree.fs.close(fd)
    if back is None:
        return _commit_without_line(tree, held, line, before_move)
    if back != text:
        first = first_line_of(back, held.owner.token)
        # Compared as written: what is no UTF-8 in a line is escaped there.
        if first is None or first != first_line_of(text, held.owner.token):
            return Closed(first or line, mine=False, moved=False)
    before_move(line)
    return Closed(line, mine=True, moved=_carry_out(tree, held.name, held.path, held.record, line))


def _append_patiently(tree: SpoolTree, fd: int, text: bytes, offset: int) -> bytes | None:
    """Appends and reads back the history; None when the disk did not take it, tried thrice."""
    for attempt in range(_APPEND_TRIES):
        try:
            prefix = b"" if tree.fs.ends_with_newline(fd) else b"\n"
            tree.fs.append(fd, prefix + text)
        except OSError:
            # A failure that was reported after the bytes were written counts as written.
            back = tree.fs.read_from(fd, offset)
            if text in back:
                return back
            if attempt + 1 < _APPEND_TRIES:
                time.sleep(_APPEND_PAUSE_S)
            continue
        return tree.fs.read_from(fd, offset)
    return None


def _commit_without_line(
    tree: SpoolTree, held: Claim, line: HistoryLine, before_move: Callable[[HistoryLine], None]
) -> Closed:
    if line.outcome is Outcome.COMPLETED and not _closed_already(tree, held):
        before_move(line)
        _carry_out(tree, held.name, held.path, held.record, line)
        raise SpoolWriteError(
            f"task {held.name!r} completed and was moved to done, but its history line could not "
            "be written",
            hint="free space or quota on the spool",
            committed=True,
        )
    raise SpoolWriteError(
        f"the history of {held.name!r} could not be written; its claim stays in running/",
        hint="free space or quota on the spool, then fleetcraft recover",
        committed=False,
    )


def _closed_already(tree: SpoolTree, held: Claim) -> bool:
    try:
        return tree.read(held.path).closing_line(held.owner.token) is not None
    except (OSError, DataError):
        return True


def first_line_of(history: bytes, token: str) -> HistoryLine | None:
    """The line that closed a claim, from the raw history."""
    return next((line for line in parse_history(history)[0] if line.claim == token), None)


def close_for(
    tree: SpoolTree, name: str, owner: Owner, make_line: Callable[[Record], HistoryLine]
) -> Closed | None:
    """Ends a claim whose owner is gone: like the owner, and carrying out whatever closed it first.

    Two recoverers, or a recoverer and a late owner, are safe: the claim's name is unique, and all
    follow the first line.

    Args:
        tree: The spool.
        name: The task.
        owner: Whose claim it is.
        make_line: Called with the record only when the claim is not closed yet.

    Returns:
        None when the claim is gone.

    Raises:
        OSError: The spool cannot be read or written; the claim is as it was.
        IntegrityError: Another file is at the destination; both are kept.
    """
    path = tree.paths.claim(name, owner)
    try:
        fd = tree.fs.open_append(path)
    except FileNotFoundError:
        return None
    try:
        held = _parsed_claim(name, owner, path, tree.fs.read_from(fd, 0))
        line = held.record.closing_line(owner.token)
        mine = None
        if line is None:
            text = write_history(make_line(held.record))
            mine = first_line_of(text, owner.token)
            prefix = b"" if tree.fs.ends_with_newline(fd) else b"\n"
            tree.fs.append(fd, prefix + text)
            line = first_line_of(tree.fs.read_from(fd, held.record.history_offset), owner.token)
            if line is None:  # torn by what another process wrote at the same moment
                raise DataError(f"the line that closes {path} cannot be read back; it stays")
        if line.to != "done":
            tree.fs.datasync(fd)
    finally:
        tree.fs.close(fd)
    return Closed(line, mine=line == mine, moved=_carry_out(tree, name, path, held.record, line))


def _carry_out(tree: SpoolTree, name: str, path: str, record: Record, line: HistoryLine) -> bool:
    return tree.move(path, destination_path(tree, name, record.spec.lane, line))


def destination_path(tree: SpoolTree, name: str, lane: Lane, line: HistoryLine) -> str:
    """The path that a closing line sends the record to."""
    if line.to == "pending":
        return tree.paths.pending_record(name, lane)
    return tree.paths.finished_record(name, _STATES[line.to])


def put_back(tree: SpoolTree, held: Claim) -> bool:
    """Returns a claim that never became an attempt to its lane, without a history line."""
    return tree.move(held.path, tree.paths.pending_record(held.name, held.record.spec.lane))
