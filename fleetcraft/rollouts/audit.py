"""The proof: no record was trained on twice, and none was lost.

Reads everything and moves nothing, so it may run beside producers and a trainer. It walks the
chain of commits itself and does not rest on the ledger's judgement. Invariant: what could not be
read makes the answer unknown, never yes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from fleetcraft.errors import DataError, TryAgainLaterError
from fleetcraft.layout.rollouts import (
    RolloutName,
    parse_half,
    parse_ident,
    parse_rollout,
    transaction_of_folder,
)
from fleetcraft.rollouts.accounts import (
    RefusedCosts,
    RolledBackCosts,
    refused_costs,
    rolled_back_costs,
)
from fleetcraft.rollouts.lag import Bucket, bucket_of, tabulate
from fleetcraft.rollouts.ledger import IdentitySet, committed_versions, read_commit
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Commit, Identity, Member, Record, Refusal
from fleetcraft.rollouts.sentences import Sentences
from fleetcraft.rollouts.transaction.judging import load_record
from fleetcraft.rollouts.verifying import fault_of, files_of

_LOOKS = 3
_COPIES = frozenset(
    {Refusal.DUPLICATE_IDENTITY, Refusal.DUPLICATE_IN_BATCH, Refusal.DUPLICATE_OF_CONSUMED}
)
Progress = Callable[[int, int], None]
_Seen = TypeVar("_Seen")


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. Counts are of records unless they say otherwise.

    Attributes:
        ok: True: proved; False: something is wrong; None: something could not be read.
        version: The newest version.
        duplicates: Surplus records of identities that are committed or that wait: 0 when each is
            there once.
        trained_twice: Of those, identities that two members of commits have.
        committed: Members of commits.
        pending: Waiting.
        claimed: In the folders of transactions without a commit.
        unfiled: Committed, and still in a claim folder: the next recovery files them.
        quarantined: Refused and kept, by reason.
        unexplained: Refused records without a reason beside them; their names say the class.
        half_published: Bound to their identity, and not pending yet.
        missing: Published identities of which no record is anywhere; None when that is not known.
        verified: Consumed records that were read, with digest, identity and lag as they must be.
        files_verified: Files beside records, every byte of which was read; 0 unless that was asked.
        rolled_back: Transactions that committed nothing.
        gpu_s: GPU-seconds of commits: generation and update.
        rolled_back_gpu_s: GPU-seconds of the trainer in transactions that committed nothing.
        rolled_back_unmeasured: Transactions of which that is not known.
        quarantined_gpu_s: GPU-seconds that generating the refused records cost.
        quarantined_unmeasured: Refused records of which that is not known.
        buckets: Trained on and discarded for lag, by length of the prompt.
        problems: What is wrong, each as a sentence.
        unknown: What could not be read, each as a sentence.
    """

    ok: bool | None
    version: int = 0
    duplicates: int = 0
    trained_twice: int = 0
    committed: int = 0
    pending: int = 0
    claimed: int = 0
    unfiled: int = 0
    quarantined: dict[Refusal, int] = {}
    unexplained: int = 0
    half_published: int = 0
    missing: int | None = 0
    verified: int = 0
    files_verified: int = 0
    rolled_back: int = 0
    gpu_s: float = 0.0
    rolled_back_gpu_s: float = 0.0
    rolled_back_unmeasured: int = 0
    quarantined_gpu_s: float = 0.0
    quarantined_unmeasured: int = 0
    buckets: tuple[Bucket, ...] = ()
    problems: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def audit(
    queue: RolloutQueue,
    *,
    records: bool = True,
    files: bool = False,
    progress: Progress = lambda done, total: None,
) -> Audit:
    """Audits a queue.

    Args:
        queue: The queue.
        records: Whether every consumed record is read and its digest computed. Without it names
            are compared, ``verified`` is 0, and the buckets have no committed ones.
        files: Whether every byte of the files beside consumed and pending records is read, and its
            SHA-256 compared; one that is not there any more is a problem then. Needs ``records``.
        progress: Told how many of how many versions were read.
    """
    return _Auditing(queue, records=records, files=files, progress=progress).run()


class _Auditing:
    """One audit.

    Folders are listed in the order in which records move, so that on a live queue a record that
    moves on meanwhile is met later.
    """

    def __init__(
        self, queue: RolloutQueue, *, records: bool, files: bool, progress: Progress
    ) -> None:
        self._queue = queue
        self._records = records
        self._files = files and records
        self._files_verified = 0
        self._looked_at = IdentitySet(queue.settings.run)
        self._progress = progress
        self._problems = Sentences()
        self._unknown = Sentences()
        self._consumed = IdentitySet(queue.settings.run)
        self._read = 0
        self._twice = 0
        self._verified = 0
        self._unfiled = 0
        self._gpu_s = 0.0
        self._buckets: Counter[str] = Counter()
        self._commits: dict[str, int] = {}  # transaction to version

    def run(self) -> Audit:
        published = self._safely(self._published, set[Identity]())
        pending = self._safely(self._pending, list[Identity]())
        claimed = self._safely(self._claimed, dict[str, list[Identity]]())
        self._chain(claimed)
        refused = self._safely(lambda: refused_costs(self._queue), RefusedCosts())
        undone = self._safely(lambda: rolled_back_costs(self._queue), RolledBackCosts())
        half = self._safely(self._half, set[Identity]())
        waits = self._open(claimed)
        surplus = self._surplus([*pending, *waits])
        missing = self._missing(published, [*pending, *waits, *half], refused)
        if undone.unreadable:
            self._problems.say(f"{undone.unreadable} records of rollbacks cannot be understood")
        return Audit(
            ok=False if self._problems else None if self._unknown else True,
            version=self._read,
            duplicates=self._twice + surplus,
            trained_twice=self._twice,
            committed=len(self._consumed) + self._twice,
            pending=len(pending),
            claimed=len(waits),
            unfiled=self._unfiled,
            quarantined=refused.by_reason,
            unexplained=refused.unexplained,
            half_published=len(half),
            missing=missing,
            verified=self._verified,
            files_verified=self._files_verified,
            rolled_back=undone.transactions,
            gpu_s=self._gpu_s,
            rolled_back_gpu_s=undone.gpu_s,
            rolled_back_unmeasured=undone.unmeasured,
            quarantined_gpu_s=refused.gpu_s,
            quarantined_unmeasured=refused.unmeasured,
            buckets=tabulate(self._buckets.elements(), refused.discarded),
            problems=self._problems.sentences(),
            unknown=self._unknown.sentences(),
        )

    def _safely(self, look: Callable[[], _Seen], nothing: _Seen) -> _Seen:
        try:
            return look()
        except OSError as error:
            self._unknown.say(f"{error.filename or 'the queue'}: {error.strerror or error}")
            return nothing

    # -- where records are

    def _published(self) -> set[Identity]:
        found = set()
        for stream in self._queue.listing(self._queue.paths.ident):
            for file in self._queue.listing(self._queue.paths.ident_folder(stream)):
                if place := parse_ident(file):
                    found.add(self._identity(stream, *place))
        return found

    def _identity(self, stream: str, sequence: int, sample: int) -> Identity:
        return Identity(self._queue.settings.run, stream, sequence, sample)

    def _of_name(self, name: RolloutName) -> Identity:
        return self._identity(name.stream, name.sequence, name.sample)

    def _pending(self) -> list[Identity]:
        """Identities by what the records say, since a name may lie."""
        folder = self._queue.paths.pending
        return [self._true_identity(folder, name) for name in self._queue.names(folder)]

    def _true_identity(self, folder: str, name: RolloutName) -> Identity:
        if self._records:
            try:
                record = load_record(self._queue, f"{folder}/{name}").record
            except FileNotFoundError:  # it has moved on, and is met again
                record = None
            if record is not None:
                if fault := self._look_at_files(record):
                    self._problems.say(f"{name}, which waits: {fault}")
                return record.identity
        return self._of_name(name)

    def _look_at_files(self, record: Record) -> str:
        if not self._files or not record.files or record.identity in self._looked_at:
            return ""
        self._looked_at.add(record.identity)
        fault = self._safely(lambda: files_of(self._queue, record), None)
        self._files_verified += 0 if fault is None or fault else len(record.files)
        return fault or ""

    def _claimed(self) -> dict[str, list[Identity]]:
        found: dict[str, list[Identity]] = {}
        for entry, names in self._queue.claims():
            transaction = str(transaction_of_folder(entry) or entry)
            found.setdefault(transaction, []).extend(map(self._of_name, names))
        return found

    def _waiting(self) -> list[Identity]:
        pending = self._safely(self._pending, list[Identity]())
        return pending + self._open(self._safely(self._claimed, dict[str, list[Identity]]()))

    def _open(self, claimed: dict[str, list[Identity]]) -> list[Identity]:
        return [
            identity
            for transaction, identities in claimed.items()
            if transaction not in self._commits
            for identity in identities
        ]

    def _half(self) -> set[Identity]:
        halves = map(parse_half, self._queue.listing(self._queue.paths.tmp))
        return {self._of_name(half.name) for half in halves if half is not None}

    # -- the chain

    def _chain(self, claimed: dict[str, list[Identity]]) -> None:
        """Reads the commits that were not read yet."""
        try:
            versions = committed_versions(self._queue)
        except TryAgainLaterError as error:
            self._unknown.say(error.message)
            return
        newest = max(versions, default=0)
        while self._read < newest:
            self._read += 1
            self._version(self._read, claimed)
            self._progress(self._read, newest)

    def _version(self, version: int, claimed: dict[str, list[Identity]]) -> None:
        try:
            commit = read_commit(self._queue, version)
        except TryAgainLaterError as error:
            self._unknown.say(error.message)
            return
        except DataError as error:
            self._problems.say(str(error.facts["why"]))
            return
        self._commits[commit.transaction] = version
        self._gpu_s += commit.gpu_s
        if len(commit.members) != self._queue.settings.batch:
            batch = self._queue.settings.batch
            self._problems.say(f"v{version} has {len(commit.members)} records, expected {batch}")
        for member in commit.members:
            if not self._consumed.add(member.identity):
                self._twice += 1
                self._problems.say(f"{member.identity} was trained on again by v{version}")
        self._groups(commit)
        self._safely(lambda: self._filed(commit, claimed), None)

    def _groups(self, commit: Commit) -> None:
        size = self._queue.settings.group
        for start in range(0, len(commit.members), size):
            names = {member.group for member in commit.members[start : start + size]}
            if len(names) != 1:
                self._problems.say(f"v{commit.version} has a group that is not whole")
                return

    def _filed(self, commit: Commit, claimed: dict[str, list[Identity]]) -> None:
        folder = self._queue.paths.consumed_folder(commit.version)
        there = set(self._queue.names(folder))
        waits = set(claimed.get(commit.transaction, ()))
        for member in commit.members:
            name = parse_rollout(member.name)
            if name in there:
                there.discard(name)
                self._verify(commit, folder, member)
            elif member.identity in waits or self._waits_still(commit, member):
                self._unfiled += 1
            elif name in self._queue.names(folder):  # it was filed meanwhile
                self._verify(commit, folder, member)
            else:
                self._problems.say(f"the record {member.name} of v{commit.version} is not filed")
        for extra in sorted(there):
            self._problems.say(
                f"{extra} is filed under v{commit.version}, which has no such member"
            )

    def _waits_still(self, commit: Commit, member: Member) -> bool:
        return member.identity in self._claimed().get(commit.transaction, ())

    def _verify(self, commit: Commit, folder: str, member: Member) -> None:
        if not self._records:
            return
        try:
            read = load_record(self._queue, f"{folder}/{member.name}")
            record = read.record
            fault = read.why if record is None else fault_of(self._queue, commit, member, record)
            if record is not None and not fault:
                fault = self._look_at_files(record)
        except OSError as error:
            self._unknown.say(f"{error.filename or member.name}: {error.strerror or error}")
            return
        if record is None or fault:
            self._problems.say(f"{member.name} of v{commit.version}: {fault}")
            return
        self._verified += 1
        self._buckets[bucket_of(record.prompt_tokens)] += 1

    # -- sums

    def _surplus(self, waits: list[Identity]) -> int:
        """Records that wait beside another of their identity, at every one of several looks.

        One that moved while the folders were listed is seen twice once, not always.
        """
        found = self._suspects(waits)
        for _ in range(_LOOKS - 1):
            if found:
                found &= self._suspects(self._waiting())
        for identity in sorted(found):
            trained = identity in self._consumed
            said = "waits, and was trained on already" if trained else "waits more than once"
            self._problems.say(f"{identity} {said}")
        return found.total()

    def _suspects(self, waits: list[Identity]) -> Counter[Identity]:
        times = Counter(waits)
        return +Counter({one: times[one] - 1 + (one in self._consumed) for one in times})

    def _missing(
        self, published: set[Identity], found: Iterable[Identity], refused: RefusedCosts
    ) -> int | None:
        """Published identities of which there is no record; looked for more than once."""
        located = set(found)
        for _ in range(_LOOKS):
            located |= {
                self._of_name(name)
                for each in refused.refused
                if each.refusal not in _COPIES and (name := parse_rollout(each.file)) is not None
            }
            lost = {one for one in published if one not in self._consumed} - located
            if not lost:
                return 0
            if self._unknown:  # they may be in what could not be read
                self._unknown.say(f"whether {len(lost)} published identities have a record")
                return None
            located |= set(self._waiting())
            self._chain({})
            refused = self._safely(lambda: refused_costs(self._queue), refused)
        for identity in sorted(lost):
            self._problems.say(f"{identity} was published, and its record is nowhere")
        return len(lost)
