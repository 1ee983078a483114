"""The trainer's side for user code: the lock, the recovery, and one batch after another.

Not here: what a trainer computes, and how a batch is taken (`transaction`). Invariant: between two
batches nothing is claimed, and a trainer that leaves, by whatever error, puts its batch back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType

import msgspec

from fleetcraft.errors import FleetError
from fleetcraft.identity import NO_JOB, JobRun
from fleetcraft.locks import GenerationLock, Held, Judge, lives_here
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.orphans import put_aside
from fleetcraft.rollouts.queue import RolloutQueue, cannot
from fleetcraft.rollouts.records import Commit, Record
from fleetcraft.rollouts.recovery import Recovered, recover
from fleetcraft.rollouts.transaction.batch import Transaction, Watch
from fleetcraft.rollouts.transaction.records import TransactionState
from fleetcraft.rollouts.transaction.refusing import TransactionError
from fleetcraft.rollouts.transaction.selection import NotEnough

POLL_S = 1.0
ABORT_EXIT_CODE = 3
"""What a trainer exits with after an ABORT. Source: ROLLOUTS.md; the supervisor takes it for
protocol while the marker is there, and for a failure otherwise."""
_DONE = (TransactionState.COMMITTED, TransactionState.ROLLED_BACK)


class Batch:
    """One batch as the trainer's loop has it. Made by `RolloutTrainer.batches`.

    Attributes:
        version: The version that it makes.
        parent: The version of the policy that it moves.
        records: Exactly the batch, group after group.
        groups: The same by group.
    """

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.version = transaction.version
        self.parent = transaction.version - 1
        self.records: tuple[Record, ...] = transaction.records
        self.groups = transaction.groups()

    @property
    def state(self) -> TransactionState:
        """How far it came."""
        return self.transaction.state

    def computed(self) -> None:
        """To be called before the first update; see `Transaction.computed`."""
        self.transaction.computed()

    def commit(
        self,
        checkpoint: str,
        checkpoint_sha256: str,
        *,
        scalars: Mapping[str, float] | None = None,
        gpu_s: float | None = None,
    ) -> Commit:
        """Makes the version, once its checkpoint is written and not yet named as current.

        May be called again after an OSError or a CommitUnknownError.

        Args:
            checkpoint: Where the checkpoint lies, as the trainer names it.
            checkpoint_sha256: Of its manifest.
            scalars: The trainer's own numbers, such as the loss.
            gpu_s: GPU-seconds of the trainer; measured where the number of GPUs is known.

        Raises:
            LockLostError: Another trainer owns the queue; nothing was committed.
            CommitConflictError: Another commit has the version.
            CommitUnknownError: Not known.
            OSError: Nothing was committed.
        """
        if self.state is TransactionState.GROUPED:
            self.transaction.computed()
        if self.state is TransactionState.COMPUTED:
            self.transaction.prepared(checkpoint, checkpoint_sha256)
        return self.transaction.commit(scalars, gpu_s)

    def undo(self, why: str, *, gpu_s: float | None = None) -> None:
        """Puts the records back; the next batch may be of the same ones."""
        self.transaction.undo(why, gpu_s=gpu_s)


class RolloutTrainer:
    """The one trainer of a queue, as a context manager.

    ::

        with RolloutTrainer(queue, gpus=8) as trainer:
            for batch in trainer.batches():
                batch.computed()
                ...
                batch.commit(checkpoint, manifest_sha256, scalars={"loss": loss})
        sys.exit(trainer.exit_code)

    Entering takes the trainer's lock (there is no standby: a second trainer is refused with exit
    code 75) and ends what an earlier trainer left.

    Args:
        queue: The queue.
        gpus: GPUs that it holds while it works on a batch; None leaves its cost to the caller.
        by_age: Consent to follow a silent trainer of which nothing else is known.
        judge: Says whether a silent trainer, or a producer with reserved room, lives.
        run: The Slurm job that this process is part of.
        watch: Told of each state of each batch.
        clock: Monotonic, in seconds.
        sleep: Waits by that clock.

    Attributes:
        recovered: What was found and ended on entry. ``recovered.prepared`` are checkpoints to
            quarantine; those of a trainer that was followed later are added.
        waiting: Why there is no batch now; None while there is one.
        aborted: Whether the loop ended because an ABORT marker is there.
    """

    def __init__(
        self,
        queue: RolloutQueue,
        *,
        gpus: float | None = None,
        by_age: bool = False,
        judge: Judge = lives_here,
        run: JobRun = NO_JOB,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.queue = queue
        self.recovered = Recovered()
        self.waiting: NotEnough | None = None
        self.aborted = False
        self._gpus = gpus
        self._by_age = by_age
        self._judge = judge
        self._run = run
        self._watch = watch
        self._clock = clock
        self._sleep = sleep
        self._held: Held | None = None
        self._ledger: Ledger | None = None
        self._batch: Batch | None = None
        self._seen: frozenset[str] | None = None

    # -- coming and leaving

    def __enter__(self) -> RolloutTrainer:
        self._held = self._lock().acquire(by_age=self._by_age)
        try:
            self._ledger = Ledger.load(self.queue)
            self._recover(self._held, self._ledger)
        except BaseException:
            self._held.release()
            raise
        self._held.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._held is not None
        try:
            self._put_back(f"the trainer left: {kind.__name__}" if kind else "the trainer left")
        except (OSError, FleetError):
            if kind is None:
                raise
        finally:
            self._held.__exit__()

    def _lock(self) -> GenerationLock:
        return trainer_lock(
            self.queue, judge=self._judge, run=self._run, clock=self._clock, sleep=self._sleep
        )

    @property
    def ledger(self) -> Ledger:
        """What was trained on; there once the trainer is entered."""
        assert self._ledger is not None, "use it inside `with`"
        return self._ledger

    @property
    def held(self) -> Held:
        """The trainer's lock; there once the trainer is entered."""
        assert self._held is not None, "use it inside `with`"
        return self._held

    @property
    def exit_code(self) -> int:
        """0, or 3 after an ABORT."""
        return ABORT_EXIT_CODE if self.aborted else 0

    # -- the loop

    def batches(
        self, *, limit: int | None = None, patience_s: float | None = None, poll_s: float = POLL_S
    ) -> Iterator[Batch]:
        """The batches, each once the one before is committed or undone.

        Ends after an ABORT, which is looked for between batches and while it waits, never inside
        one: a step that was begun is finished.

        Args:
            limit: End after so many were committed.
            patience_s: End after waiting so long for one; None waits for ever, 0 never waits.
            poll_s: Seconds between looks while it waits.

        Raises:
            TransactionError: The loop went on without commit or undo; the batch was put back.
            LockLostError: Another trainer owns the queue.
            LedgerUnknownError: It cannot be told what was committed.
            SpoolError: The queue cannot be read or written.
        """
        first = self.ledger.version
        while limit is None or self.ledger.version - first < limit:
            batch = self._next(patience_s, poll_s)
            if batch is None:
                return
            self._batch = batch
            yield batch
            self._require_done(batch)
            self._batch = None

    def _require_done(self, batch: Batch) -> None:
        if batch.state in _DONE:
            return
        state = batch.state
        self._put_back("the trainer went on without it")
        raise TransactionError(batch.transaction.name, state, "left behind")

    def _next(self, patience_s: float | None, poll_s: float) -> Batch | None:
        began = self._clock()
        while not self._is_aborted():
            found = self._look()
            if isinstance(found, Batch):
                self.waiting = None
                return found
            self.waiting = found
            if found.refused or found.transaction:
                continue  # others may make a batch without those
            waited_s = self._clock() - began
            if patience_s is not None and waited_s >= patience_s:
                return None
            self._sleep(poll_s if patience_s is None else min(poll_s, patience_s - waited_s))
        return None

    def _look(self) -> Batch | NotEnough:
        try:
            waits = frozenset(self.queue.listing(self.queue.paths.pending))
            if self.waiting is not None and waits == self._seen:
                return self.waiting  # the same records make no batch a second time
            self._recover_leftovers()
            found = Transaction.open(
                self.queue,
                self.ledger,
                self.held,
                gpus=self._gpus,
                clock=self._clock,
                **({} if self._watch is None else {"watch": self._watch}),
            )
            if isinstance(found, NotEnough):
                found = self._make_room(found)
        except OSError as error:
            raise cannot(f"take a batch from {self.queue.paths.folder}", error) from error
        again = isinstance(found, Transaction) or found.transaction or found.refused
        self._seen = None if again else waits
        return Batch(found) if isinstance(found, Transaction) else found

    def _make_room(self, found: NotEnough) -> NotEnough:
        aside = put_aside(
            self.queue,
            self.held,
            found.pieces,
            judge=self._judge,
            at_version=self.ledger.version,
        )
        return msgspec.structs.replace(found, refused=(*found.refused, *aside))

    def _is_aborted(self) -> bool:
        try:
            self.aborted = self.queue.fs.exists(self.queue.paths.abort_marker)
        except OSError:  # unknown is no ABORT
            self.aborted = False
        return self.aborted

    # -- ends

    def _recover(self, held: Held, ledger: Ledger) -> None:
        try:
            self.recovered = recover(self.queue, ledger, held, judge=self._judge)
        except OSError as error:
            raise cannot(f"recover {self.queue.paths.folder}", error) from error

    def _recover_leftovers(self) -> None:
        # A trainer that was paused may still claim a last time; and an undo may have failed.
        if self.queue.listing(self.queue.paths.claimed):
            found = recover(self.queue, self.ledger, self.held, judge=self._judge)
            prepared = (*self.recovered.prepared, *found.prepared)
            self.recovered = msgspec.structs.replace(self.recovered, prepared=prepared)

    def _put_back(self, why: str) -> None:
        batch, self._batch = self._batch, None
        if batch is not None and batch.state not in _DONE:
            batch.undo(why)


def trainer_lock(
    queue: RolloutQueue,
    *,
    judge: Judge = lives_here,
    run: JobRun = NO_JOB,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> GenerationLock:
    """The lock of whoever moves records out of pending: a trainer, or a repair."""
    return GenerationLock(
        queue.paths.trainer_lock,
        purpose=f"the trainer's lock of run {queue.settings.run}",
        interval_s=queue.settings.lock_interval_s,
        judge=judge,
        run=run,
        fs=queue.fs,
        clock=clock,
        sleep=sleep,
    )
