"""ABORT: the marker that asks producers and the trainer to finish what they do and leave.

Not here: what they do about it. Invariant: a marker is published once and never changed; clearing
gives it a dated name, so what was asked stays to be read.
"""

from __future__ import annotations

import contextlib
import getpass
import os

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.identity import new_launch_token, this_host
from fleetcraft.locks import put_if_absent
from fleetcraft.rollouts.queue import RolloutQueue, cannot
from fleetcraft.rollouts.records import NO_RECORD, encode
from fleetcraft.rollouts.transaction.moves import Move, move

ABORT_SCHEMA = "fleetcraft.rollout-abort/1"


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Who asked for ABORT, and why.

    Attributes:
        schema: `ABORT_SCHEMA`.
        reason: For people.
        requester: User, host and process.
        nonce: Tells this request from any other.
        at: Wall clock, for people.
    """

    schema: str = ABORT_SCHEMA
    reason: str
    requester: str
    nonce: str
    at: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The request that stands, and whether this call made it."""

    request: AbortRequest
    new: bool


def ask_abort(queue: RolloutQueue, reason: str, *, requester: str = "") -> Asked:
    """Asks producers and the trainer to finish and leave; the first request stands.

    Raises:
        SpoolError: It is not known to stand.
    """
    mine = AbortRequest(
        reason=reason,
        requester=requester or _requester(),
        nonce=new_launch_token(),
        at=timestamp(),
    )
    try:
        new = put_if_absent(queue.fs, queue.paths.abort_marker, encode(mine))
        stands = mine if new else read_abort(queue)
    except OSError as error:
        raise cannot(f"ask for ABORT in {queue.paths.folder}", error) from error
    return Asked(request=stands or mine, new=new)


def abort_stands(queue: RolloutQueue) -> bool:
    """Whether ABORT was asked for and not cleared.

    Raises:
        OSError: That is not known.
    """
    return queue.fs.exists(queue.paths.abort_marker)


def read_abort(queue: RolloutQueue) -> AbortRequest | None:
    """The request that stands; one that cannot be understood stands all the same.

    Raises:
        OSError: Whether one stands is not known.
    """
    try:
        return _read(queue.fs.read(queue.paths.abort_marker))
    except FileNotFoundError:
        return None


def clear_abort(queue: RolloutQueue) -> tuple[AbortRequest, str] | None:
    """Clears ABORT by giving the marker a dated name.

    Returns:
        The request that was cleared and its path now; None when none stood.

    Raises:
        SpoolError: It may still stand.
    """
    date = "".join(char for char in timestamp()[:19] if char.isalnum())
    cleared = queue.paths.cleared_abort(f"{date}Z", new_launch_token())
    try:
        if move(queue.fs, queue.paths.abort_marker, cleared) is Move.GONE:
            return None
        with contextlib.suppress(OSError):
            queue.fs.sync_folder(queue.paths.control)
        return _read(queue.fs.read(cleared)), cleared
    except OSError as error:
        raise cannot(f"clear ABORT in {queue.paths.folder}", error) from error


def _read(data: bytes) -> AbortRequest:
    try:
        return msgspec.json.decode(data, type=AbortRequest)
    except NO_RECORD:
        return AbortRequest(
            reason="the marker cannot be understood, and stands", requester="", nonce="", at=""
        )


def _requester() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no name for this user id
        user = f"user {os.getuid()}"
    return f"{user} on {this_host().host}, process {os.getpid()}"
