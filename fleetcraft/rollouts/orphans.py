"""Pieces of groups that nobody will complete, once they leave no room for a whole batch.

They would wait for ever: no batch is made, so no version comes that would make them too old. Not
here: pieces that leave room enough, which wait for the next holder of their stream. Invariant:
nothing is lost; a piece goes to quarantine, and ``rollouts requeue`` puts it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from fleetcraft.identity import new_launch_token
from fleetcraft.layout.rollouts import Place, parse_half
from fleetcraft.locks import Held, Judge
from fleetcraft.rollouts.admission import lease_is_over, reservations
from fleetcraft.rollouts.publishing import published
from fleetcraft.rollouts.quarantine import Refused, refuse
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Member, Refusal
from fleetcraft.rollouts.transaction.judging import load_record


def put_aside(
    queue: RolloutQueue, held: Held, pieces: Sequence[Member], *, judge: Judge, at_version: int
) -> tuple[Refused, ...]:
    """Puts pieces aside, oldest first, until a whole batch fits beside those that are left.

    Only pieces of groups to which nobody will add: each stream of it has gone past them, or its
    lease is over. A holder of which nothing is known keeps its pieces.

    Args:
        queue: The queue.
        held: The trainer's lock.
        pieces: Pending records of groups that are not whole, oldest first.
        judge: Says whether the holder of a stream lives.
        at_version: The policy's version now.

    Raises:
        LockLostError: Another trainer owns the queue.
        OSError: The file system does not tell.
    """
    too_many = len(pieces) + queue.settings.batch - queue.settings.high_water
    if too_many <= 0:
        return ()
    held.check()
    token, refused = new_launch_token(), list[Refused]()
    for group in _groups(pieces, _never_completed(queue, judge)):
        if len(refused) >= too_many:
            break
        refused += _refuse(queue, group, token, at_version)
    return tuple(refused)


def _groups(pieces: Sequence[Member], never: Callable[[Member], bool]) -> list[list[Member]]:
    found: dict[str, list[Member]] = {}
    for member in pieces:
        found.setdefault(member.group, []).append(member)
    return [group for group in found.values() if all(map(never, group))]


def _never_completed(queue: RolloutQueue, judge: Judge) -> Callable[[Member], bool]:
    """Tells of a piece whether its stream will add nothing to its group."""
    coming: set[tuple[str, int]] = {_unit(name.place) for name in reservations(queue)}
    halves = map(parse_half, queue.listing(queue.paths.tmp))
    coming |= {_unit(half.name.place) for half in halves if half is not None}

    @cache
    def newest(stream: str) -> int:
        return max(published(queue, stream), default=-1)

    @cache
    def over(stream: str) -> bool:
        return lease_is_over(queue, stream, judge)

    def never(member: Member) -> bool:
        stream, sequence = member.identity.stream, member.identity.sequence
        passed = (stream, sequence) not in coming and sequence < newest(stream)
        return passed or over(stream)

    return never


def _unit(place: Place) -> tuple[str, int]:
    return place[0], place[1]


def _refuse(queue: RolloutQueue, group: list[Member], token: str, at_version: int) -> list[Refused]:
    size = queue.settings.group
    why = (
        f"its group {group[0].group!r} has {len(group)} of {size} records, nobody adds to it, "
        "and pieces left no room for a batch"
    )
    refused = []
    for member in group:
        path = f"{queue.paths.pending}/{member.name}"
        try:
            record = load_record(queue, path).record
        except FileNotFoundError:
            continue
        found = refuse(
            queue,
            path,
            member.name,
            Refusal.INCOMPLETE_GROUP,
            why,
            token=token,
            by="the trainer",
            record=record,
            at_version=at_version,
        )
        refused += [found] if found is not None else []
    return refused
