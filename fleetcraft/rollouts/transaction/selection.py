"""Which records a transaction means to consume: whole groups, oldest first, exactly the batch.

What is too old, was trained on already, or cannot be read never enters an intent; it goes to
quarantine from where it waits. Invariant: pending is listed before the ledger is read again, so no
record seems to come from a version that is not committed yet.
"""

from __future__ import annotations

import msgspec

from fleetcraft.layout.rollouts import RolloutName
from fleetcraft.rollouts.lag import is_too_old, lag_of
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.quarantine import Refused, refuse
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Identity, Member, Refusal
from fleetcraft.rollouts.transaction.judging import Verdict, load_record
from fleetcraft.rollouts.transaction.settling import put_where_committed


class NotEnough(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no batch now.

    Attributes:
        why: A sentence.
        valid: Records that wait in whole groups.
        incomplete: Records that wait for others of their group.
        pieces: Those, oldest first.
        refused: What went to quarantine on the way; a new try may succeed at once if there is any.
        transaction: The one that was undone; empty where none was opened.
    """

    why: str
    valid: int = 0
    incomplete: int = 0
    pieces: tuple[Member, ...] = ()
    refused: tuple[Refused, ...] = ()
    transaction: str = ""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What a transaction is opened over.

    Attributes:
        members: Exactly the batch, group after group.
        refused: What went to quarantine on the way.
    """

    members: tuple[Member, ...]
    refused: tuple[Refused, ...] = ()


def oldest_first(name: RolloutName) -> tuple[int, int, str, int]:
    """The order in which records are consumed: by version, then turn and turn about of streams."""
    return name.version, name.sequence, name.stream, name.sample


def select(queue: RolloutQueue, ledger: Ledger, *, token: str) -> Selection | NotEnough:
    """Chooses the records of the next batch.

    The caller owns the trainer's lock and has looked at that just now.

    Args:
        queue: The queue.
        ledger: Read again here.
        token: Never used before; part of the names of what is refused.

    Raises:
        LedgerUnknownError: It cannot be told what was committed.
        OSError: A folder or record cannot be read.
    """
    names = sorted(queue.names(queue.paths.pending), key=oldest_first)
    ledger.refresh()
    if len(names) < queue.settings.batch:
        return NotEnough(
            why=f"{len(names)} records wait, a batch has {queue.settings.batch}", valid=len(names)
        )
    return _Selecting(queue, ledger, token).run(names)


class _Selecting:
    def __init__(self, queue: RolloutQueue, ledger: Ledger, token: str) -> None:
        self._queue = queue
        self._ledger = ledger
        self._token = token
        self._refused: list[Refused] = []

    def run(self, names: list[RolloutName]) -> Selection | NotEnough:
        group, batch = self._queue.settings.group, self._queue.settings.batch
        members: list[Member] = []
        for name in names:
            member = self._look(name)
            if member is not None:
                members.append(member)
            if group == 1 and len(members) == batch:
                break  # every record is a group of its own: the rest need not be read
        whole = whole_groups(members, group)
        if len(whole) >= batch:
            return Selection(members=tuple(whole[:batch]), refused=tuple(self._refused))
        taken = {member.name for member in whole}
        pieces = tuple(member for member in members if member.name not in taken)
        incomplete = len(pieces)
        waiting = f", and {incomplete} wait for others of their group" if incomplete else ""
        return NotEnough(
            why=f"{len(whole)} records wait in whole groups{waiting}; a batch has {batch}",
            valid=len(whole),
            incomplete=incomplete,
            pieces=pieces,
            refused=tuple(self._refused),
        )

    def _look(self, name: RolloutName) -> Member | None:
        path = f"{self._queue.paths.pending}/{name}"
        try:
            found = load_record(self._queue, path)
        except FileNotFoundError:
            return None
        verdict = self._sift(name, found)
        if verdict is None:
            return None
        record = verdict.record
        if verdict.refusal is None and record is not None:
            return Member(
                identity=record.identity,
                digest=record.digest,
                name=str(name),
                group=record.group,
            )
        refused = refuse(
            self._queue,
            path,
            str(name),
            verdict.refusal or Refusal.UNREADABLE,
            verdict.why,
            token=self._token,
            by=f"the choice of version {self._ledger.version + 1}",
            record=record,
            at_version=self._ledger.version,
        )
        if refused is not None:
            self._refused.append(refused)
        return None

    def _sift(self, name: RolloutName, verdict: Verdict) -> Verdict | None:
        """What can be said before the claim; the whole audit comes after it."""
        version, file = self._ledger.version, str(name)
        record = verdict.record
        if record is not None and self._ledger.contains(record.identity):
            if put_where_committed(
                self._queue, self._ledger, record, f"{self._queue.paths.pending}/{file}"
            ):
                return None
            why = f"{record.identity} was trained on already"
            return Verdict(file, record, Refusal.DUPLICATE_OF_CONSUMED, why)
        max_lag = self._queue.settings.max_lag
        if is_too_old(name.version, version, max_lag):
            lag = lag_of(name.version, version)
            why = f"{lag} versions behind, at most {max_lag} are allowed"
            return Verdict(file, record, Refusal.LAG, why)
        return verdict


def whole_groups(members: list[Member], size: int) -> list[Member]:
    """The members of whole groups, groups in the order of their oldest member.

    More members than a group has, such as of two streams that gave two groups one name, are cut
    into whole groups by identity; what is left over waits.

    Args:
        members: Oldest first.
        size: Records of a group.
    """
    if size == 1:
        return list(members)
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.group, []).append(member)
    whole: list[Member] = []
    for found in groups.values():
        ordered = sorted(found, key=_by_identity)
        whole += ordered[: len(ordered) - len(ordered) % size]
    return whole


def _by_identity(member: Member) -> Identity:
    return member.identity
