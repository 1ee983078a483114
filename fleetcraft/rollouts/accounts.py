"""What was spent on nothing: transactions that committed nothing, and records that were refused.

Read only; what a commit cost stands in the commit. Invariant: a cost that nobody measured is
counted as unmeasured, never as zero.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from fleetcraft.layout.rollouts import Paper, parse_paper
from fleetcraft.rollouts.quarantine import Refused, list_refused, read_reason
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import NO_RECORD, Refusal
from fleetcraft.rollouts.transaction.records import RolledBack


class RolledBackCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's time in transactions that committed nothing.

    Attributes:
        transactions: How many there were.
        gpu_s: GPU-seconds of those that were measured.
        unmeasured: Transactions of which that is not known.
        unreadable: Records of them that cannot be understood.
    """

    transactions: int = 0
    gpu_s: float = 0.0
    unmeasured: int = 0
    unreadable: int = 0


class RefusedCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What generating the refused records cost.

    Attributes:
        refused: Each, as its name says it.
        by_reason: How many for which reason.
        gpu_s: GPU-seconds of those that say it.
        unmeasured: Records of which that is not known.
        unexplained: Records without a reason beside them that can be understood.
        discarded: Buckets of those that were too far behind, one each.
    """

    refused: tuple[Refused, ...] = ()
    by_reason: dict[Refusal, int] = {}
    gpu_s: float = 0.0
    unmeasured: int = 0
    unexplained: int = 0
    discarded: tuple[str, ...] = ()


def rolled_back(queue: RolloutQueue) -> list[RolledBack]:
    """The record of every transaction that committed nothing, those that can be understood.

    Raises:
        OSError: One of them, or the folder, cannot be read.
    """
    return _read_rolled_back(queue)[0]


def rolled_back_costs(queue: RolloutQueue) -> RolledBackCosts:
    """Sums them up.

    Raises:
        OSError: One of them, or the folder, cannot be read.
    """
    found, unreadable = _read_rolled_back(queue)
    measured = [each.gpu_s for each in found if each.gpu_s is not None]
    return RolledBackCosts(
        transactions=len(found) + unreadable,
        gpu_s=sum(measured, 0.0),
        unmeasured=len(found) + unreadable - len(measured),
        unreadable=unreadable,
    )


def _read_rolled_back(queue: RolloutQueue) -> tuple[list[RolledBack], int]:
    found, unreadable = [], 0
    for file in sorted(queue.listing(queue.paths.transactions)):
        parsed = parse_paper(file)
        if parsed is None or parsed[1] is not Paper.ROLLED_BACK:
            continue
        data = queue.fs.read(f"{queue.paths.transactions}/{file}")
        try:
            found.append(msgspec.json.decode(data, type=RolledBack))
        except NO_RECORD:
            unreadable += 1
    return found, unreadable


def refused_costs(queue: RolloutQueue) -> RefusedCosts:
    """Sums up the quarantine.

    Raises:
        OSError: A reason, or the folder, cannot be read.
    """
    refused = list_refused(queue)
    gpu_s, unmeasured, unexplained = 0.0, 0, 0
    discarded = []
    for each in refused:
        reason = read_reason(queue, each)
        unexplained += reason is None
        if reason is None or reason.gpu_s is None:
            unmeasured += 1
        else:
            gpu_s += reason.gpu_s
        if each.refusal is Refusal.LAG:
            discarded.append(reason.bucket if reason and reason.bucket else "not told")
    return RefusedCosts(
        refused=tuple(refused),
        by_reason=dict(Counter(each.refusal for each in refused)),
        gpu_s=gpu_s,
        unmeasured=unmeasured,
        unexplained=unexplained,
        discarded=tuple(discarded),
    )
