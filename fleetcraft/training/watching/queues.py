"""What the depths of a run's queues say: who waits for whom.

Pure numbers. Invariant: a queue without a capacity is never called empty or full, and one whose
depth stays the same is frozen only while steps are due and none comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fleetcraft.training.records import QueueDepth, QueueStanding, RankProgress

STARVED_FRACTION = 0.1
SATURATED_FRACTION = 0.9
"""Of capacity. Source: TRAINING.md, Queues: "near 0" and "near capacity"; a tenth is our choice."""


class QueueWatch:
    """Remembers since when each queue's depth is what it is."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, float]] = {}

    def look(
        self,
        ranks: Mapping[int, RankProgress],
        now_s: float,
        *,
        frozen_after_s: float | None,
        order: Sequence[str] = (),
    ) -> tuple[QueueDepth, ...]:
        """The standing of each queue.

        Args:
            ranks: What they reported; a queue that several know is taken from the newest report.
            now_s: The clock of the reports.
            frozen_after_s: A depth that has not changed for so long is frozen; None while steps
                come as they should.
            order: Their names from the first stage to the last; others come first, as told.
        """
        told = _newest(ranks.values())
        depths = []
        for name in sorted(told, key=lambda one: order.index(one) if one in order else -1):
            depth, capacity = told[name]
            since_s = self._unchanged_since(name, depth, now_s)
            frozen = frozen_after_s is not None and now_s - since_s >= frozen_after_s
            standing = QueueStanding.FROZEN if frozen else _standing(depth, capacity)
            depths.append(QueueDepth(name=name, depth=depth, capacity=capacity, standing=standing))
        self._since = {name: self._since[name] for name in told}
        return tuple(depths)

    def _unchanged_since(self, name: str, depth: int, now_s: float) -> float:
        before = self._since.get(name)
        if before is None or before[0] != depth:
            self._since[name] = (depth, now_s)
            return now_s
        return before[1]


def judge_queues(
    queues: Sequence[QueueDepth], order: Sequence[str] = ()
) -> tuple[QueueStanding | None, str]:
    """What all queues together say of the step loop.

    The last one feeds the step loop, so it decides: a full queue before a half full one is no
    fault, since the stages between hold their pace.

    Args:
        queues: With their standings.
        order: Their names from the first stage to the last, as declared. Without it only what all
            of them have in common is said.

    Returns:
        The standing, None when it is not known, and why.
    """
    known = [queue for queue in queues if queue.standing is not None]
    if not known:
        return None, "no queue with a capacity was told" if queues else ""
    if all(queue.standing is QueueStanding.FROZEN for queue in known):
        return QueueStanding.FROZEN, f"no depth changes: {_listed(known)}"
    last = next((queue for name in reversed(order) for queue in known if queue.name == name), None)
    if last is None:
        standings = {queue.standing for queue in known}
        one = standings.pop() if len(standings) == 1 else QueueStanding.BALANCED
        return one, _listed(known)
    return last.standing, f"{_word(last)}: {_listed(known)}{_held_up(known, last, order)}"


def _held_up(known: Sequence[QueueDepth], last: QueueDepth, order: Sequence[str]) -> str:
    """Where a starved step loop is held up: behind the last queue that is full."""
    if last.standing is not QueueStanding.STARVED:
        return ""
    full = [queue for queue in known if queue.standing is QueueStanding.SATURATED]
    if not full:
        return "; its first stage does not keep pace"
    before = max(full, key=lambda queue: order.index(queue.name) if queue.name in order else -1)
    return f"; what takes from {before.name} does not keep pace"


def _word(last: QueueDepth) -> str:
    match last.standing:
        case QueueStanding.STARVED:
            return f"the step loop waits for {last.name}"
        case QueueStanding.SATURATED:
            return f"{last.name} waits for the step loop"
        case QueueStanding.FROZEN:
            return f"{last.name} does not change"
    return f"{last.name} is neither near empty nor near full"


def _listed(queues: Iterable[QueueDepth]) -> str:
    return ", ".join(
        f"{queue.name} {queue.depth}" + (f" of {queue.capacity}" if queue.capacity else "")
        for queue in queues
    )


def _standing(depth: int, capacity: int | None) -> QueueStanding | None:
    if not capacity:
        return None
    if depth <= STARVED_FRACTION * capacity:
        return QueueStanding.STARVED
    if depth >= SATURATED_FRACTION * capacity:
        return QueueStanding.SATURATED
    return QueueStanding.BALANCED


def _newest(ranks: Iterable[RankProgress]) -> dict[str, tuple[int, int | None]]:
    told: dict[str, tuple[int, int | None]] = {}
    for rank in sorted(ranks, key=lambda one: one.changed_s or float("-inf")):
        told |= rank.queues
    return told
