"""What a person asks of a spool: cancel, retry, drain, stop, resume.

Only the holder of a claim writes to a record, so cancelling claims the task like a worker would.
Invariant: a cancel request ends only with a positive sight of the task in ``done`` or ``failed``.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass

from fleetcraft.clock import timestamp
from fleetcraft.errors import SpoolError
from fleetcraft.identity import Owner, this_host
from fleetcraft.layout import State
from fleetcraft.spool import leases
from fleetcraft.spool.claims import claim, close_own
from fleetcraft.spool.enqueue import complete_publication
from fleetcraft.spool.promotion import Promoter
from fleetcraft.spool.record import HistoryLine, Outcome
from fleetcraft.spool.tree import Location, SpoolTree

_LOOKS = 20
_COMMAND_INTERVAL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelResult:
    """What a cancel found or did.

    ``state`` is where the task was last seen; ``requested`` means that a worker holds it and will
    stop it at its next heartbeat; ``cancelled`` that this call moved it to ``failed``.
    """

    name: str
    state: State
    cancelled: bool = False
    requested: bool = False


class Canceller:
    """Cancels tasks under one lease, which is withdrawn at the end.

    Unless a claim of its may still exist: without a lease nobody could say that its owner is gone.
    Use as a context manager; cancelling many tasks costs one lease.
    """

    def __init__(self, tree: SpoolTree) -> None:
        self._tree = tree
        self._lease: leases.Lease | None = None
        self._counter = 0
        self._open_claims = 0

    def __enter__(self) -> Canceller:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lease is not None and not self._open_claims:
            leases.withdraw(self._tree, self._lease)

    def cancel(self, name: str) -> CancelResult:
        """Asks for the end of a task, and ends it here when no worker holds it.

        Raises:
            NoSuchTaskError: No task has this name.
            SpoolError: The task kept moving and was not caught; the request stands.
        """
        tree = self._tree
        tree.find_or_complete(name, complete_publication)
        marker = tree.paths.cancel_marker(name)
        for _ in range(_LOOKS):
            with contextlib.suppress(FileExistsError):
                tree.fs.create(marker, b"")
            location = tree.find_or_complete(name, complete_publication)
            if location.state in (State.DONE, State.FAILED):
                return CancelResult(name=name, state=location.state)
            if location.state is State.RUNNING and tree.fs.exists(marker):
                return CancelResult(name=name, state=location.state, requested=True)
            if location.state is State.RUNNING:
                continue  # a retry took an older request away and this one with it
            if self._end(name, location):
                return CancelResult(name=name, state=State.FAILED, cancelled=True)
        raise SpoolError(
            f"task {name!r} kept moving and was not caught; the request to cancel it stands",
            hint=f"fleetcraft show {name}",
            name=name,
        )

    def _end(self, name: str, location: Location) -> bool:
        owner = self._owner()
        self._open_claims += 1  # until its end is certain, whatever is raised
        held = claim(self._tree, name, location.path, owner)
        if held is None:
            self._open_claims -= 1
            return False
        line = HistoryLine(
            claim=held.owner.token,
            owner=str(held.owner),
            outcome=Outcome.CANCELLED,
            to="failed",
            host=this_host().host,
            ended_at=timestamp(),
            reason="cancelled before it ran",
        )
        closed = close_own(self._tree, held, line)
        if closed is None or closed.mine:
            self._open_claims -= 1
        return closed is not None and closed.mine

    def _owner(self) -> Owner:
        if self._lease is None:
            self._lease = leases.new_lease(rank="c", interval_s=_COMMAND_INTERVAL_S, role="command")
            leases.publish(self._tree, self._lease)
        self._counter += 1
        lease = self._lease
        return Owner(lease.job, lease.rank, "0", f"{lease.launch}-{self._counter}")


def retry(tree: SpoolTree, name: str) -> State:
    """Puts a failed task back, granting one more attempt.

    A task that was cancelled while its dependencies were unmet goes back to waiting for them.

    Returns:
        The state it is in now: pending or waiting.

    Raises:
        NoSuchTaskError: No task has this name.
        SpoolError: The task has not failed.
    """
    location = tree.find(name)
    if location.state is not State.FAILED:
        raise SpoolError(
            f"task {name!r} has not failed: it is {location.state.value}; nothing was changed",
            hint=f"fleetcraft show {name}",
            name=name,
            state=location.state.value,
        )
    record = tree.read(location.path)
    with contextlib.suppress(FileNotFoundError):
        tree.fs.unlink(tree.paths.cancel_marker(name))
    spec = record.spec
    waits = bool(spec.after or spec.after_files)
    target = tree.paths.pending_record(name, spec.lane)
    if waits and not any(line.attempt for line in record.history):
        target = tree.paths.waiting_record(name)
    if not tree.move(location.path, target) and not tree.fs.exists(target):
        raise SpoolError(
            f"task {name!r} was moved by somebody else meanwhile; nothing was changed here",
            hint=f"fleetcraft show {name}",
            name=name,
        )
    return State.WAITING if target == tree.paths.waiting_record(name) else State.PENDING


def promote(tree: SpoolTree) -> list[str]:
    """Moves every waiting task that is ready to its lane; returns their names."""
    return Promoter(tree).sweep()


def write_marker(tree: SpoolTree, marker: str, reason: str) -> None:
    """Writes ``DRAIN`` or ``STOP`` with who wrote it, when and why; an existing one stands."""
    text = json.dumps(
        {"by": f"{_user_name()}@{this_host().host}", "at": timestamp(), "reason": reason},
        sort_keys=True,
    )
    with contextlib.suppress(FileExistsError):
        tree.fs.create(marker, text.encode() + b"\n")


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def read_markers(tree: SpoolTree) -> dict[str, str]:
    """The markers that stand, by name, with what they say."""
    found: dict[str, str] = {}
    for path in (tree.paths.drain_marker, tree.paths.stop_marker):
        try:
            text = tree.fs.read(path).decode("utf-8", "replace").strip()
        except OSError as error:
            # It is there, whoever made it and whatever it is: that is the order, not its text.
            if tree.fs.exists(path):
                found[os.path.basename(path)] = f"which cannot be read ({error.strerror})"
            continue
        found[os.path.basename(path)] = _marker_text(text)
    return found


def _marker_text(text: str) -> str:
    try:
        said = json.loads(text)
        reason = f": {said['reason']}" if said.get("reason") else ""
        return f"written by {said['by']} at {said['at']}{reason}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return f"written by hand{': ' + text[:200] if text else ''}"


def refuse_markers(tree: SpoolTree) -> None:
    """Refuses to start work while ``DRAIN`` or ``STOP`` stands.

    Raises:
        SpoolError: One of them is there; the message names who wrote it.
    """
    for name, said in read_markers(tree).items():
        raise SpoolError(
            f"{tree.paths.root} has a {name} marker, {said}; no worker was started",
            hint="fleetcraft resume removes it",
            marker=name,
        )


def resume(tree: SpoolTree) -> list[str]:
    """Removes ``DRAIN`` and ``STOP``; returns the names of those that were there."""
    removed = []
    for path in (tree.paths.drain_marker, tree.paths.stop_marker):
        with contextlib.suppress(FileNotFoundError):
            tree.fs.unlink(path)
            removed.append(os.path.basename(path))
    return removed
