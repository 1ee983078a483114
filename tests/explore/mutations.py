"""Rules of the protocol, broken one at a time, to show that the exploration would notice.

Each is a context manager that replaces a piece of the real code by one that lacks one rule. Not
here: which scenario exposes it.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import msgspec

from fleetcraft.identity import Owner
from fleetcraft.layout import SpoolPaths, State
from fleetcraft.spool import claims, control, enqueue, leases, recovery
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.record import HistoryLine, Record
from fleetcraft.spool.tree import SpoolTree
from tests.explore import actors, model_fs
from tests.explore.model_fs import Result, World

Mutation = contextlib.AbstractContextManager[Any]


def finish_without_reading_back() -> Mutation:
    """The owner takes its own line for the one that counts."""

    def append(tree: SpoolTree, fd: int, text: bytes, offset: int) -> bytes:
        tree.fs.append(fd, text)
        return text

    return mock.patch.object(claims, "_append_patiently", append)


def last_line_counts() -> Mutation:
    """A claim is closed by its last line instead of its first."""

    def last_line_of(history: bytes, token: str) -> HistoryLine | None:
        lines = [line for line in claims.parse_history(history)[0] if line.claim == token]
        return lines[-1] if lines else None

    return mock.patch.object(claims, "first_line_of", last_line_of)


def retry_before_removing_the_marker() -> Mutation:
    """The task is claimable while the request to cancel it still stands."""

    def retry(tree: SpoolTree, name: str) -> State:
        source = tree.find(name).path
        tree.move(source, tree.paths.pending_record(name, tree.read(source).spec.lane))
        with contextlib.suppress(FileNotFoundError):
            tree.fs.unlink(tree.paths.cancel_marker(name))
        return State.PENDING

    return mock.patch.object(control, "retry", retry)


def recover_without_a_line() -> Mutation:
    """Recovery renames and writes nothing."""

    def close_for(tree: SpoolTree, name: str, owner: Owner, make_line: Any) -> claims.Closed | None:
        path = tree.paths.claim(name, owner)
        try:
            record = tree.read(path)
        except FileNotFoundError:
            return None
        line = record.closing_line(owner.token) or make_line(record)
        moved = tree.move(path, claims.destination_path(tree, name, record.spec.lane, line))
        return claims.Closed(line, mine=True, moved=moved)

    return mock.patch.object(recovery, "close_for", close_for)


def append_creates() -> Mutation:
    """The record is opened with O_CREAT, so a late owner makes a file of its own."""
    opened = model_fs._STEPS["open_append"]

    def create(world: World, actor: int, fresh: int, path: str) -> tuple[World, Result]:
        if path not in world.names:
            world, _ = model_fs.apply(world, actor, fresh, ("create", (path, b"")))
        return opened(world, actor, fresh, path)

    return mock.patch.dict(model_fs._STEPS, {"open_append": create})


def one_claim_name_for_all() -> Mutation:
    """The name of a claim does not belong to one claim."""

    def claim(self: SpoolPaths, name: str, owner: Owner) -> str:
        return f"{self.running}/{name}.sh.{owner.job}.0.0.same-1"

    return mock.patch.object(SpoolPaths, "claim", claim)


def publish_before_naming() -> Mutation:
    """A task is visible before its name is taken."""

    def publish(tree: SpoolTree, spec: TaskSpec, *, if_absent: bool = False) -> enqueue.Published:
        draft = enqueue._draft(tree, spec)
        tree.fs.create(draft.temporary, draft.data)
        home = tree.home(draft.record)
        tree.move(draft.temporary, home)
        tree.fs.link(home, tree.paths.name(spec.name))
        return enqueue.Published.ENQUEUED

    return mock.patch.object(actors, "enqueue", publish)


def publish_from_names() -> Mutation:
    """Whoever finds a name whose task it does not see links it into place."""

    def complete(tree: SpoolTree, name: str) -> bool:
        if tree.locate(name) is not None:
            return False
        record = tree.read(tree.paths.name(name))
        tree.fs.link(tree.paths.name(name), tree.home(record))
        return True

    return mock.patch.object(enqueue, "complete_publication", complete)


def publish_what_was_begun_at_once() -> Mutation:
    """A batch enqueued again shows what its first try named before it names the rest."""
    return mock.patch.object(enqueue, "_was_cut_short", return_value=False)


def every_lost_claim_was_an_attempt() -> Mutation:
    """A claim that was lost before its log was made counts as an attempt."""
    lost = recovery._lost

    def numbered(tree: SpoolTree, record: Record, *rest: Any) -> HistoryLine:
        line = lost(tree, record, *rest)
        return msgspec.structs.replace(line, attempt=record.next_attempt)

    return mock.patch.object(recovery, "_lost", numbered)


def withdraw_the_lease_of_an_open_claim() -> Mutation:
    """A canceller takes its lease away although its claim may still be there."""

    def leave(self: Any, *_: object) -> None:
        if self._lease is not None:
            leases.withdraw(self._tree, self._lease)

    return mock.patch.object(control.Canceller, "__exit__", leave)


def run_without_a_last_look() -> Mutation:
    """A task that is completed, but not yet moved, is put back like a lost one."""

    def close_for(tree: SpoolTree, name: str, owner: Owner, make_line: Any) -> claims.Closed | None:
        path = tree.paths.claim(name, owner)
        try:
            fd = tree.fs.open_append(path)
            record = tree.read(path)
        except FileNotFoundError:
            return None
        line = make_line(record)
        tree.fs.append(fd, claims.write_history(line))
        tree.fs.close(fd)
        moved = tree.move(path, claims.destination_path(tree, name, record.spec.lane, line))
        return claims.Closed(line, mine=True, moved=moved)

    return mock.patch.object(recovery, "close_for", close_for)
