"""One pass that ends every transaction a dead or failed trainer left, and says what it found.

Redo where a commit stands, undo where none does. Not here: how one transaction is ended
(`transaction.settling`). Invariant: after a pass without problems nothing lies among the claims, so
what is not committed waits, or is in quarantine.
"""

from __future__ import annotations

import msgspec

from fleetcraft.errors import SpoolError
from fleetcraft.layout.rollouts import (
    Paper,
    TransactionName,
    parse_paper,
    transaction_of_folder,
)
from fleetcraft.locks import Held, Judge, lives_here
from fleetcraft.rollouts.admission import release_dead
from fleetcraft.rollouts.ledger import Ledger, find_commit
from fleetcraft.rollouts.quarantine import Refused, complete_reasons
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.transaction.records import Places, Prepared
from fleetcraft.rollouts.transaction.settling import Settled, settle

_WHY = "the trainer that ran it did not finish it"


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass did.

    Attributes:
        redone: Transactions whose commit stands and whose records it filed.
        undone: Transactions that it put back.
        returned: Records that went back to pending.
        refused: What went to quarantine.
        prepared: Checkpoints that no commit names: to be quarantined by the caller, and never to
            be started from.
        reasons: Reasons in quarantine that it completed.
        released: Reservations of producers that are positively gone, by stream.
        problems: What it could not end, and why; a later pass tries again.
    """

    redone: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    returned: int = 0
    refused: tuple[Refused, ...] = ()
    prepared: tuple[Prepared, ...] = ()
    reasons: int = 0
    released: dict[str, int] = {}
    problems: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether there was nothing to do."""
        return self == Recovered()


def recover(
    queue: RolloutQueue, ledger: Ledger, held: Held, *, judge: Judge = lives_here
) -> Recovered:
    """Ends every transaction that is open, whoever left it; the owner of the lock has none itself.

    May be killed anywhere: the next pass goes on.

    Args:
        queue: The queue.
        ledger: Read again here.
        held: The trainer's lock.
        judge: Says whether a producer lives that had reserved room.

    Raises:
        LockLostError: Another trainer owns the queue.
        LockUnknownError: It cannot be told who owns it.
        LedgerUnknownError: It cannot be told what was committed; nothing more was moved.
        OSError: A folder cannot be listed.
    """
    held.check()
    ledger.refresh()
    settled, problems = [], []
    for name, folder in _open(queue):
        if name is None:
            problems.append(f"{folder} belongs to no transaction")
            continue
        try:
            settled.append(settle(queue, ledger, held, name, folder, why=_WHY))
        except OSError as error:
            problems.append(f"{name}: {error.strerror or error}: {error.filename or folder}")
    return _summary(settled, problems, *_chores(queue, judge, problems))


def foresee(queue: RolloutQueue) -> Recovered:
    """Which transactions a pass would end, and how, as far as their commits say now.

    Raises:
        LedgerUnknownError: It cannot be told what was committed.
        OSError: A folder cannot be listed.
    """
    redone: list[str] = []
    undone: list[str] = []
    for name, _ in _open(queue):
        if name is not None:
            commit = find_commit(queue, name.version)
            stands = commit is not None and commit.transaction == str(name)
            (redone if stands else undone).append(str(name))
    return Recovered(redone=tuple(redone), undone=tuple(undone))


def _chores(queue: RolloutQueue, judge: Judge, problems: list[str]) -> tuple[int, dict[str, int]]:
    """What is worth doing and endangers nothing when it fails."""
    reasons, released = 0, {}
    try:
        reasons = complete_reasons(queue)
        released = release_dead(queue, judge=judge)
    except OSError as error:
        problems.append(f"reasons in quarantine: {error.strerror or error}")
    except SpoolError as error:
        problems.append(error.message)
    return reasons, released


def _open(queue: RolloutQueue) -> list[tuple[TransactionName | None, str]]:
    """Every claim folder, and every transaction of which only papers are left."""
    folders = [
        (transaction_of_folder(entry), queue.paths.claim_folder(entry))
        for entry in sorted(queue.listing(queue.paths.claimed))
    ]
    have = {name for name, _ in folders}
    papers = {
        found[0]
        for file in queue.listing(queue.paths.transactions)
        if (found := parse_paper(file)) is not None and found[1] is not Paper.ROLLED_BACK
    }
    bare = sorted(papers - have)
    return [*folders, *((name, Places(queue.paths, name).folder) for name in bare)]


def _summary(
    settled: list[Settled], problems: list[str], reasons: int, released: dict[str, int]
) -> Recovered:
    left = [f"{each.transaction}: {text}" for each in settled for text in each.left]
    return Recovered(
        redone=tuple(each.transaction for each in settled if each.committed),
        undone=tuple(each.transaction for each in settled if not each.committed),
        returned=sum(each.returned for each in settled),
        refused=tuple(refused for each in settled for refused in each.refused),
        prepared=tuple(each.prepared for each in settled if each.prepared is not None),
        reasons=reasons,
        released=released,
        problems=(*problems, *left),
    )
