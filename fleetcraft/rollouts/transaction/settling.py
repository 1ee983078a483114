"""The end of a transaction, whoever ran it: fence it, look whether it committed, redo or undo.

One function for a trainer's own rollback and for what a dead one left. Invariant: the claim folder
is renamed away before the commits are read, so what is then not committed never will be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.layout.rollouts import TransactionName, commit_source, fenced_by, parse_rollout
from fleetcraft.locks import Held, put_if_absent
from fleetcraft.rollouts.ledger import Ledger, find_commit
from fleetcraft.rollouts.quarantine import Refused, refuse
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import NO_RECORD, Intent, Record, Refusal, encode
from fleetcraft.rollouts.transaction.judging import Judge, Verdict
from fleetcraft.rollouts.transaction.moves import (
    Move,
    discard,
    make_folder,
    move,
    remove_empty,
)
from fleetcraft.rollouts.transaction.records import (
    Places,
    Prepared,
    RolledBack,
    new_token,
)

_Paper = TypeVar("_Paper", Intent, Prepared)


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one transaction.

    Attributes:
        transaction: Its name.
        committed: Whether its commit stands; its records are then among the consumed.
        returned: Records that went back to pending.
        refused: What went to quarantine.
        prepared: A checkpoint that it had prepared and that no commit names; None where there is
            none.
        left: Files that could not be settled, and why; a later pass tries again.
    """

    transaction: str
    committed: bool
    returned: int = 0
    refused: tuple[Refused, ...] = ()
    prepared: Prepared | None = None
    left: tuple[str, ...] = ()


def settle(
    queue: RolloutQueue,
    ledger: Ledger,
    held: Held,
    name: TransactionName,
    folder: str,
    *,
    why: str,
    gpu_s: float | None = None,
    verdicts: Mapping[str, Verdict] | None = None,
) -> Settled:
    """Brings one transaction to its end: redone where its commit stands, undone where it does not.

    May be called again at any time, and by another process after a crash at any point.

    Args:
        queue: The queue.
        ledger: Read again here.
        held: The trainer's lock; looked at once, before anything is moved.
        name: The transaction.
        folder: Its claim folder, fenced already or not; it need not be there.
        why: Why it is undone, if it is.
        gpu_s: GPU-seconds of the trainer that it cost; None when nobody measured them.
        verdicts: What is known of its records, by file name; judged here where that is None.

    Raises:
        LockLostError: Another trainer owns the queue; nothing was moved.
        LockUnknownError: It cannot be told who owns it; nothing was moved.
        LedgerUnknownError: It cannot be told what was committed; it stays fenced.
        OSError: The file system does not tell.
    """
    held.check()
    fenced = _fence(queue, held, name, folder)
    ledger.refresh()
    commit = find_commit(queue, name.version) if name.version <= ledger.version else None
    if commit is not None and commit.transaction == str(name):
        left = redo(queue, name, fenced)
        return Settled(transaction=str(name), committed=True, left=left)
    undo = _Undo(
        queue,
        ledger,
        by_generation=held.generation,
        name=name,
        folder=fenced,
        verdicts=verdicts,
    )
    return undo.run(why, gpu_s)


def _fence(queue: RolloutQueue, held: Held, name: TransactionName, folder: str) -> str:
    if fenced_by(folder) == held.generation:
        return folder  # by an earlier pass under this lock: nobody else knows that name
    fenced = queue.paths.fenced_folder(str(name), held.generation, new_token())
    move(queue.fs, folder, fenced)
    return fenced


# -- redo


def redo(queue: RolloutQueue, name: TransactionName, folder: str) -> tuple[str, ...]:
    """Files the records of a committed transaction among the consumed: one rename of the folder.

    Returns:
        What could not be filed, and why.

    Raises:
        OSError: It was not filed; the commit stands, and a later pass files it.
    """
    fs, places = queue.fs, Places(queue.paths, name)
    moved = move(fs, folder, places.consumed)
    left: tuple[str, ...] = ()
    if moved is Move.TAKEN:
        left = _file_singly(queue, name, folder)
    if moved is Move.GONE and not fs.exists(places.consumed):
        return (f"the records of committed {name} are in no claim folder",)
    if not left:
        fs.sync_folder(queue.paths.consumed)  # before the last other trace of it goes
        _drop_papers(queue, places)
    return left


def _file_singly(queue: RolloutQueue, name: TransactionName, folder: str) -> tuple[str, ...]:
    fs, places = queue.fs, Places(queue.paths, name)
    left = []
    for file in sorted(queue.listing(folder)):
        path = f"{folder}/{file}"
        if move(fs, path, f"{places.consumed}/{file}") is not Move.TAKEN:
            continue
        if path == commit_source(folder):
            discard(fs, path)
            continue
        why = f"the record that {name} was trained on is filed already"
        refused = refuse(
            queue, path, file, Refusal.DUPLICATE_OF_CONSUMED, why, token=new_token(), by=str(name)
        )
        if refused is None:
            left.append(f"{file} went away while it was filed")
    remove_empty(fs, folder)
    return tuple(left)


def put_where_committed(queue: RolloutQueue, ledger: Ledger, record: Record, source: str) -> bool:
    """Files a record that a commit was trained on, should it lie elsewhere and not be filed yet.

    A power loss can forget renames that came before a commit. Returns whether it is filed now;
    False means that this file is none of the commit's, or one too many.

    Raises:
        LedgerUnknownError: A commit cannot be read.
        OSError: It was not moved.
    """
    commit = ledger.find(record.identity)
    file = source.rpartition("/")[2]
    members = commit.members if commit else ()
    mine = [m for m in members if (m.identity, m.digest, m.name) == (
        record.identity, record.digest, file)]  # fmt: skip
    if commit is None or not mine:
        return False
    folder = queue.paths.consumed_folder(commit.version)
    make_folder(queue.fs, folder)
    return move(queue.fs, source, f"{folder}/{file}") is not Move.TAKEN


# -- undo


class _Undo:
    """Valid records back to pending, bad ones to quarantine, and the record of it."""

    def __init__(
        self,
        queue: RolloutQueue,
        ledger: Ledger,
        *,
        by_generation: int,
        name: TransactionName,
        folder: str,
        verdicts: Mapping[str, Verdict] | None,
    ) -> None:
        self._queue = queue
        self._ledger = ledger
        self._by_generation = by_generation
        self._name = name
        self._folder = folder
        self._verdicts = verdicts or {}
        self._judge = Judge(queue, ledger)
        self._token = new_token()
        self._refused: list[Refused] = []
        self._left: list[str] = []
        self._returned = 0

    def run(self, why: str, gpu_s: float | None) -> Settled:
        queue, places = self._queue, Places(self._queue.paths, self._name)
        source = commit_source(self._folder)
        for file in sorted(queue.listing(self._folder)):
            if f"{self._folder}/{file}" != source:
                self._try(file)
        prepared = read_prepared(queue, places)
        if not self._left:
            self._write(places, why, gpu_s, prepared)
            discard(queue.fs, source)
            remove_empty(queue.fs, self._folder)
            _drop_papers(queue, places)
        return Settled(
            transaction=str(self._name),
            committed=False,
            returned=self._returned,
            refused=tuple(self._refused),
            prepared=prepared,
            left=tuple(self._left),
        )

    def _try(self, file: str) -> None:
        if parse_rollout(file) is None:
            self._left.append(f"{file} is no record; it was left in {self._folder}")
            return
        try:
            self._put(file)
        except OSError as error:
            # It says nothing about the record, which stays in the fenced folder for a later pass.
            self._left.append(f"{file}: {error.strerror or error}")

    def _put(self, file: str) -> None:
        path = f"{self._folder}/{file}"
        verdict = self._verdicts.get(file)
        if verdict is None:
            try:
                verdict = self._judge.judge_at(path)
            except FileNotFoundError:
                return
        if verdict.refusal is None:
            self._put_back(path, verdict)
        elif verdict.refusal is not Refusal.DUPLICATE_OF_CONSUMED or not self._put_away(
            path, verdict
        ):
            self._refuse(path, verdict)

    def _put_back(self, path: str, verdict: Verdict) -> None:
        moved = move(self._queue.fs, path, f"{self._queue.paths.pending}/{verdict.file}")
        if moved is Move.DONE:
            self._returned += 1
        elif moved is Move.TAKEN:
            why = "another record of this name was published while this one was claimed"
            self._refuse(
                path, Verdict(verdict.file, verdict.record, Refusal.DUPLICATE_IDENTITY, why)
            )

    def _put_away(self, path: str, verdict: Verdict) -> bool:
        record = verdict.record
        return record is not None and put_where_committed(self._queue, self._ledger, record, path)

    def _refuse(self, path: str, verdict: Verdict) -> None:
        refused = refuse(
            self._queue,
            path,
            verdict.file,
            verdict.refusal or Refusal.UNREADABLE,
            verdict.why,
            token=self._token,
            by=str(self._name),
            record=verdict.record,
            at_version=self._ledger.version,
        )
        if refused is not None:
            self._refused.append(refused)

    def _write(
        self, places: Places, why: str, gpu_s: float | None, prepared: Prepared | None
    ) -> None:
        intent = _read_intent(self._queue, places)
        if intent is None and not self._returned and not self._refused:
            return  # nothing was meant yet
        if gpu_s is None and prepared is not None:
            gpu_s = prepared.gpu_s
        undone = RolledBack(
            transaction=str(self._name),
            version=self._name.version,
            generation=self._name.generation,
            nonce=self._token,
            by_generation=self._by_generation,
            why=why,
            members=intent.members if intent else (),
            refused=tuple(refused.name for refused in self._refused),
            gpu_s=gpu_s,
            checkpoint=prepared.checkpoint if prepared else "",
            checkpoint_sha256=prepared.checkpoint_sha256 if prepared else "",
            at=timestamp(),
        )
        put_if_absent(self._queue.fs, places.rolled_back, encode(undone))


# -- the papers of a transaction


def read_prepared(queue: RolloutQueue, places: Places) -> Prepared | None:
    """The checkpoint that a transaction prepared; None where it prepared none that can be read.

    Raises:
        OSError: The file system does not tell.
    """
    return _read(queue, places.prepared, Prepared)


def _read_intent(queue: RolloutQueue, places: Places) -> Intent | None:
    return _read(queue, places.intent, Intent)


def _read(queue: RolloutQueue, path: str, kind: type[_Paper]) -> _Paper | None:
    try:
        data = queue.fs.read(path)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except NO_RECORD:
        return None


def _drop_papers(queue: RolloutQueue, places: Places) -> None:
    # Whatever they said is in the commit, or in the record of the rollback.
    discard(queue.fs, places.prepared)
    discard(queue.fs, places.intent)
