"""Putting records back by hand: from quarantine, or out of the transactions of a dead trainer.

Not here: what a trainer does by itself on entry (`recovery`). Invariant: what is put back passes
the same judgement as a record of a batch, and into room that was reserved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec

from fleetcraft.errors import UsageError
from fleetcraft.identity import new_launch_token
from fleetcraft.layout.rollouts import ReservationName, parse_rollout
from fleetcraft.rollouts.admission import look
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.quarantine import Refused, list_refused, parse_refused
from fleetcraft.rollouts.queue import RolloutQueue, cannot
from fleetcraft.rollouts.records import Record, Refusal
from fleetcraft.rollouts.recovery import Recovered, foresee, recover
from fleetcraft.rollouts.trainer import trainer_lock
from fleetcraft.rollouts.transaction.judging import Judge, Verdict
from fleetcraft.rollouts.transaction.moves import Move, discard, move

_NOBODY = 0
"""The generation of a reservation that no lease made: every lease's is higher, so what a killed
requeue left is released by the stream's next holder."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A record that stays in quarantine, and why."""

    name: str
    why: str


class Requeued(msgspec.Struct, frozen=True, kw_only=True):
    """What was put back.

    Attributes:
        requeued: From quarantine, as they were called there.
        refused: What stays there, and why.
        recovered: What became of dead transactions; None when those were not asked for.
        dry_run: Whether nothing was moved.
    """

    requeued: tuple[Refused, ...] = ()
    refused: tuple[Left, ...] = ()
    recovered: Recovered | None = None
    dry_run: bool = False


def requeue_dead(queue: RolloutQueue, *, by_age: bool = False, dry_run: bool = False) -> Requeued:
    """Ends what a dead trainer left, as the next trainer would on entry.

    Args:
        queue: The queue.
        by_age: Consent to follow a silent trainer of which nothing else is known.
        dry_run: Say which transactions are open, a living trainer's among them; move nothing.

    Raises:
        LockHeldError: A trainer owns the queue; it ends its own transactions.
        LedgerUnknownError: It cannot be told what was committed.
        SpoolError: The queue cannot be read.
    """
    try:
        if dry_run:
            return Requeued(recovered=foresee(queue), dry_run=True)
        with trainer_lock(queue).acquire(by_age=by_age) as held:
            return Requeued(recovered=recover(queue, Ledger.load(queue), held))
    except OSError as error:
        raise cannot(f"recover {queue.paths.folder}", error) from error


def requeue(
    queue: RolloutQueue,
    names: Iterable[str] = (),
    *,
    reasons: Iterable[Refusal] = (),
    dry_run: bool = False,
) -> Requeued:
    """Puts records from quarantine back to pending, those that are training data now.

    Such as records whose group was incomplete, whose file was missing for a while, or that a
    person set aside. Works beside producers and a trainer.

    Args:
        queue: The queue.
        names: As `rollouts audit` and the folder show them.
        reasons: All that were refused for one of these.
        dry_run: Judge, and move nothing.

    Raises:
        UsageError: A name is not in quarantine.
        LedgerUnknownError: It cannot be told what was committed.
        SpoolError: The queue cannot be read or written.
    """
    try:
        chosen = _choose(queue, tuple(names), frozenset(reasons))
        return _Requeuing(queue, dry_run=dry_run).run(chosen)
    except OSError as error:
        raise cannot(f"requeue in {queue.paths.folder}", error) from error


def _choose(
    queue: RolloutQueue, names: tuple[str, ...], reasons: frozenset[Refusal]
) -> list[Refused]:
    there = list_refused(queue)
    unknown = [name for name in names if parse_refused(name) not in there]
    if unknown:
        raise UsageError(
            f"not in quarantine: {', '.join(unknown[:3])}; nothing was moved",
            hint=f"ls {queue.paths.quarantine}",
            names=unknown,
        )
    return [each for each in there if each.name in names or each.refusal in reasons]


class _Requeuing:
    def __init__(self, queue: RolloutQueue, *, dry_run: bool) -> None:
        self._queue = queue
        self._dry_run = dry_run
        self._judge = Judge(queue, Ledger.load(queue))
        self._waits = {str(name) for name in queue.names(queue.paths.pending)}

    def run(self, chosen: list[Refused]) -> Requeued:
        requeued, left = [], []
        for refused in chosen:
            why = self._try(refused)
            if why:
                left.append(Left(name=refused.name, why=why))
            else:
                requeued.append(refused)
        return Requeued(requeued=tuple(requeued), refused=tuple(left), dry_run=self._dry_run)

    def _try(self, refused: Refused) -> str:
        """Puts one back; says why not, or nothing."""
        path = self._queue.paths.refused(refused.name)
        try:
            verdict = self._judge.judge_at(path, file=refused.file)
        except FileNotFoundError:
            return "it went away meanwhile"
        if verdict.refusal is not None or verdict.record is None:
            return verdict.why
        if why := self._is_not_the_published(verdict.record):
            return why
        if refused.file in self._waits:
            return "a record of this name waits already"
        return "" if self._dry_run else self._put_back(refused, path, verdict)

    def _is_not_the_published(self, record: Record) -> str:
        path = self._queue.paths.ident_file(record.stream, record.sequence, record.sample)
        try:
            bound = self._queue.fs.read(path)
        except FileNotFoundError:
            return "its identity was never bound, so another record may take it"
        same = f'"digest":"{record.digest}"'.encode() in bound
        return "" if same else "its identity is bound to another record"

    def _put_back(self, refused: Refused, path: str, verdict: Verdict) -> str:
        name = parse_rollout(refused.file)
        if name is None:
            return "its name is none of a record"
        room = ReservationName(name.stream, name.sequence, name.sample, _NOBODY)
        reservation = self._queue.paths.reservation(room)
        with contextlib.suppress(FileExistsError):
            self._queue.fs.create(reservation, b"")
        try:
            # Reserved first and counted after, as producers do it.
            found, high = look(self._queue), self._queue.settings.high_water
            if found is None or found.taken > high:
                return f"there is no room: at most {high} may wait or be reserved"
            moved = move(self._queue.fs, path, f"{self._queue.paths.pending}/{refused.file}")
            if moved is not Move.DONE:
                return "it went away meanwhile" if moved is Move.GONE else "its name is taken"
        finally:
            discard(self._queue.fs, reservation)
        self._keep_reason(refused)
        return ""

    def _keep_reason(self, refused: Refused) -> None:
        # Its name no longer belongs to a record, so it counts for nothing and can be read.
        paths, new = self._queue.paths, refused.requeued_reason_name(new_launch_token())
        with contextlib.suppress(OSError):
            move(self._queue.fs, paths.refused(refused.reason_name), paths.refused(new))
