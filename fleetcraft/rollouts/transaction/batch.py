"""One batch, from waiting records to a committed policy version, or back.

OPEN to GROUPED are taken by `Transaction.open`; COMPUTED, PREPARED and COMMITTED are the trainer's
steps. Not here: how it ends without a commit (`settling`). Invariant: a commit is one link under a
name that has the version, made after the ledger up to its parent was read.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Mapping

from fleetcraft.clock import timestamp
from fleetcraft.errors import FleetError
from fleetcraft.layout.rollouts import TransactionName
from fleetcraft.locks import Held, LockLostError, put_if_absent
from fleetcraft.rollouts.lag import is_too_old, lag_of
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.quarantine import Refused
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Commit, Intent, Member, Record, encode
from fleetcraft.rollouts.transaction.committing import Published, publish, write_source
from fleetcraft.rollouts.transaction.judging import Judge, Verdict, judge_shapes
from fleetcraft.rollouts.transaction.moves import make_folder, move
from fleetcraft.rollouts.transaction.records import (
    Places,
    Prepared,
    TransactionState,
    new_name,
)
from fleetcraft.rollouts.transaction.refusing import (
    CommitConflictError,
    CommitUnknownError,
    TransactionError,
)
from fleetcraft.rollouts.transaction.selection import NotEnough, select
from fleetcraft.rollouts.transaction.settling import Settled, redo, settle

Watch = Callable[[TransactionState], None]


def _nothing(state: TransactionState) -> None:
    pass


class Transaction:
    """A batch that is claimed and audited. Made by `open`.

    Attributes:
        name: Its name.
        version: The version that its commit makes.
        state: How far it came.
        records: Exactly the batch, group after group.
        refused: What went to quarantine when it was chosen.
        left: What could not be filed after the commit, and why; a recovery pass files it.
    """

    def __init__(
        self,
        queue: RolloutQueue,
        ledger: Ledger,
        held: Held,
        name: TransactionName,
        members: tuple[Member, ...],
        *,
        gpus: float | None,
        clock: Callable[[], float],
        watch: Watch,
    ) -> None:
        self.name = name
        self.version = name.version
        self.state = TransactionState.OPEN
        self.records: tuple[Record, ...] = ()
        self.refused: tuple[Refused, ...] = ()
        self.left: tuple[str, ...] = ()
        self._queue = queue
        self._ledger = ledger
        self._held = held
        self._members = members
        self._places = Places(queue.paths, name)
        self._gpus = gpus
        self._clock = clock
        self._began = clock()
        self._watch = watch
        self._prepared: Prepared | None = None
        self._commit: Commit | None = None

    @classmethod
    def open(
        cls,
        queue: RolloutQueue,
        ledger: Ledger,
        held: Held,
        *,
        gpus: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        watch: Watch = _nothing,
    ) -> Transaction | NotEnough:
        """Takes the next batch: chosen, claimed, audited, in whole groups.

        What fails the audit goes to quarantine and the rest back; a new try may then succeed.
        Nothing else may be open under this lock; `recovery.recover` ends what was left.

        Args:
            queue: The queue.
            ledger: What was trained on; read again here.
            held: The trainer's lock.
            gpus: GPUs that the trainer holds while it works on a batch: what it cost is measured
                with them; None leaves the cost to the caller.
            clock: Monotonic, in seconds.
            watch: Told of each state that is reached.

        Raises:
            LockLostError: Another trainer owns the queue.
            LockUnknownError: It cannot be told who owns it.
            LedgerUnknownError: It cannot be told what was committed.
            OSError: A folder or record cannot be read or moved; what was claimed was put back as
                far as that could be done.
        """
        held.check()
        name = new_name(ledger.version + 1, held.generation)
        chosen = select(queue, ledger, token=name.nonce)
        if isinstance(chosen, NotEnough):
            return chosen
        name = name._replace(version=ledger.version + 1)  # the ledger was read again
        batch = cls(queue, ledger, held, name, chosen.members, gpus=gpus, clock=clock, watch=watch)
        batch.refused = chosen.refused
        return batch._take()

    # -- OPEN to GROUPED

    def _take(self) -> Transaction | NotEnough:
        try:
            self._open()
            self._claim()
            verdicts = self._audit()
        except OSError as error:
            self._undo_after(error)
            raise
        # By what was read: a record that was claimed and cannot be seen then is none to train on.
        missing = len(self._members) - len(verdicts)
        bad = [verdict for verdict in verdicts.values() if verdict.refusal is not None]
        if not missing and not bad:
            self._reach(TransactionState.GROUPED)
            return self
        said = [f"{len(bad)} records were refused"] if bad else []
        said += [f"{missing} went away before they were read"] if missing else []
        why = f"of {len(self._members)} records {' and '.join(said)}"
        settled = self._settle(why, verdicts=verdicts)
        return NotEnough(
            why=f"{why}; the others went back",
            valid=settled.returned,
            refused=(*self.refused, *settled.refused),
            transaction=str(self.name),
        )

    def _open(self) -> None:
        self._held.check()
        # The folder comes before the intent: whoever takes over finds it, and by renaming it away
        # makes every later step of this transaction impossible.
        make_folder(self._queue.fs, self._places.folder)
        intent = Intent(
            transaction=str(self.name),
            version=self.version,
            generation=self.name.generation,
            nonce=self.name.nonce,
            members=self._members,
            at=timestamp(),
        )
        if not put_if_absent(self._queue.fs, self._places.intent, encode(intent)):
            raise FileExistsError(errno.EEXIST, "the intent has another content", str(self.name))
        self._reach(TransactionState.OPEN)

    def _claim(self) -> None:
        """Moves the records; one that is not there any more is missed by the audit."""
        pending, folder = self._queue.paths.pending, self._places.folder
        for member in self._members:
            move(self._queue.fs, f"{pending}/{member.name}", f"{folder}/{member.name}")
        self._reach(TransactionState.CLAIMED)

    def _audit(self) -> dict[str, Verdict]:
        """Judges what was claimed, by its bytes as they lie in the claim folder now."""
        judge = Judge(self._queue, self._ledger)
        verdicts: list[Verdict] = []
        for member in self._members:
            path = f"{self._places.folder}/{member.name}"
            with contextlib.suppress(FileNotFoundError):
                verdicts.append(judge.judge_at(path, expected_digest=member.digest))
        verdicts = judge_shapes(verdicts)
        self.records = tuple(v.record for v in verdicts if v.record is not None)
        self._reach(TransactionState.AUDITED)
        return {verdict.file: verdict for verdict in verdicts}

    def groups(self) -> tuple[tuple[Record, ...], ...]:
        """The records by group, in order; each group is whole."""
        size = self._queue.settings.group
        return tuple(self.records[i : i + size] for i in range(0, len(self.records), size))

    # -- COMPUTED to COMMITTED

    def computed(self) -> None:
        """Says that the policy is about to move, or was moved, in memory.

        To be called before the first update: the lock and the lag of every record are looked at
        once more. A death from here on equals an undo, since memory is gone.

        Raises:
            LockLostError: Another trainer owns the queue.
            CommitConflictError: The version was committed meanwhile, or a record is too old now.
        """
        self._require(TransactionState.GROUPED)
        self._still_ours()
        self._reach(TransactionState.COMPUTED)

    def prepared(self, checkpoint: str, sha256: str) -> None:
        """Says that the checkpoint is written, and not yet named as the current one.

        Args:
            checkpoint: Where it lies, as the trainer names it.
            sha256: Of its manifest.

        Raises:
            LockLostError: Another trainer owns the queue.
            OSError: It could not be written down; may be called again.
        """
        self._require(TransactionState.COMPUTED)
        self._held.check()
        self._prepared = self._prepared or Prepared(
            transaction=str(self.name),
            version=self.version,
            generation=self.name.generation,
            nonce=self.name.nonce,
            checkpoint=checkpoint,
            checkpoint_sha256=sha256,
            gpu_s=self.cost_gpu_s,
            at=timestamp(),
        )
        put_if_absent(self._queue.fs, self._places.prepared, encode(self._prepared))
        self._reach(TransactionState.PREPARED)

    def commit(
        self, scalars: Mapping[str, float] | None = None, gpu_s: float | None = None
    ) -> Commit:
        """Makes the version: one link, after which the records are consumed for good.

        Args:
            scalars: The trainer's own numbers, such as the loss.
            gpu_s: GPU-seconds of the trainer; measured where the number of GPUs is known. What
                the records cost is added.

        Returns:
            The commit. Its records are filed at once; what could not be is in `left`.

        Raises:
            LockLostError: Another trainer owns the queue; nothing was committed.
            CommitConflictError: Another commit has the version, or this batch was undone.
            CommitUnknownError: Not known; may be called again, and a recovery pass decides it.
            OSError: Nothing was committed, such as on a full disk; may be called again.
        """
        self._require(TransactionState.PREPARED)
        if self._commit is None:
            self._still_ours()
            self._commit = self._make_commit(scalars or {}, gpu_s)
        else:  # an earlier call may have made the version, which is no other trainer's then
            self._held.check()
        commit = self._commit
        self._publish(encode(commit))
        self._reach(TransactionState.COMMITTED)
        self._ledger.append(commit)
        try:
            self.left = redo(self._queue, self.name, self._places.folder)
        except OSError as error:  # the version stands; a recovery pass files its records
            self.left = (f"{error.strerror or error}: {error.filename or self._places.consumed}",)
        return commit

    def _make_commit(self, scalars: Mapping[str, float], gpu_s: float | None) -> Commit:
        prepared = self._prepared
        assert prepared is not None
        measured = self.cost_gpu_s if gpu_s is None else gpu_s
        return Commit(
            version=self.version,
            parent=self.version - 1,
            transaction=str(self.name),
            generation=self.name.generation,
            nonce=self.name.nonce,
            members=self._members,
            checkpoint=prepared.checkpoint,
            checkpoint_sha256=prepared.checkpoint_sha256,
            gpu_s=(measured or 0.0) + sum(record.gpu_s for record in self.records),
            scalars=dict(scalars),
            at=timestamp(),
        )

    def _publish(self, data: bytes) -> None:
        seen = write_source(self._queue, self._places, data)
        error: OSError | None = None
        if seen is None:
            self._held.check()
        try:
            if seen is None:
                seen, error = publish(self._queue, self._places, data)
            elif seen is Published.STANDS:  # the call that linked it may not have got so far
                self._queue.fs.sync_folder(self._queue.paths.commits)
        except OSError as unsynced:  # it stands, and a power cut may still undo it
            seen, error = Published.UNKNOWN, unsynced
        if seen is Published.TAKEN:
            raise CommitConflictError(self.name, "another trainer committed it") from error
        if seen is Published.FENCED:
            raise CommitConflictError(self.name, "another trainer has undone this batch") from error
        if seen is Published.UNKNOWN:
            raise CommitUnknownError(self.name, error) from error

    # -- back

    def undo(self, why: str, *, gpu_s: float | None = None) -> Settled:
        """Puts the batch back: valid records to pending, and what it cost is written down.

        A commit of which nothing was known may turn out to stand; then it is redone.

        Args:
            why: A sentence.
            gpu_s: GPU-seconds of the trainer; measured where the number of GPUs is known.

        Raises:
            LockLostError: Another trainer owns the queue and undoes it.
            OSError: It was not undone, or not wholly; a recovery pass does it.
        """
        if self.state in (TransactionState.COMMITTED, TransactionState.ROLLED_BACK):
            raise TransactionError(self.name, self.state, "undone")
        return self._settle(why, gpu_s=gpu_s)

    def _settle(
        self,
        why: str,
        *,
        gpu_s: float | None = None,
        verdicts: Mapping[str, Verdict] | None = None,
    ) -> Settled:
        settled = settle(
            self._queue,
            self._ledger,
            self._held,
            self.name,
            self._places.folder,
            why=why,
            gpu_s=self.cost_gpu_s if gpu_s is None else gpu_s,
            verdicts=verdicts,
        )
        done = TransactionState.COMMITTED if settled.committed else TransactionState.ROLLED_BACK
        self._reach(done)
        self.left = settled.left
        return settled

    def _undo_after(self, error: OSError) -> None:
        # The caller gets the first error, and a recovery pass does what is left; that the queue
        # has another owner explains it, and is what the caller must hear.
        try:
            self._settle(f"the file system: {error.strerror or error}")
        except LockLostError as lost:
            raise lost from error
        except (OSError, FleetError):
            return

    # -- shared

    @property
    def cost_gpu_s(self) -> float | None:
        """GPU-seconds since it was opened; None where the number of GPUs is not known."""
        return None if self._gpus is None else self._gpus * (self._clock() - self._began)

    def _still_ours(self) -> None:
        self._held.check()
        self._ledger.refresh()
        policy = self.version - 1
        if self._ledger.version != policy:
            raise CommitConflictError(self.name, f"the newest version is {self._ledger.version}")
        allowed = self._queue.settings.max_lag
        late = [r for r in self.records if is_too_old(r.version, self._ledger.version, allowed)]
        if late:
            lag = max(lag_of(record.version, policy) for record in late)
            raise CommitConflictError(
                self.name, f"{len(late)} records are up to {lag} versions behind"
            )

    def _require(self, state: TransactionState) -> None:
        if self.state is not state:
            raise TransactionError(self.name, self.state, f"taken beyond {state.value}")

    def _reach(self, state: TransactionState) -> None:
        self.state = state
        self._watch(state)
