"""What a policy was trained on: the chain of commits, and every identity in it.

Read only; `transaction` publishes commits. Invariant: versions are 1, 2, ... without a gap, each
names the one before, and none is skipped because it could not be read.
"""

from __future__ import annotations

import msgspec

from fleetcraft.errors import DataError, TryAgainLaterError
from fleetcraft.layout.rollouts import parse_commit
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import COMMIT_SCHEMA, NO_RECORD, Commit, Identity

_CHUNK_BITS = 1024
_decode = msgspec.json.Decoder(Commit).decode


class LedgerUnknownError(TryAgainLaterError):
    """The file system does not say what was committed, so nothing may be built on it."""


class LedgerBrokenError(DataError):
    """The chain of commits is not whole: a gap, a torn file, or an identity that is in it twice."""


class Frontier(msgspec.Struct, frozen=True, kw_only=True):
    """How far one stream was consumed.

    Attributes:
        stream: Its name.
        consumed: Records of it that were trained on.
        first_open: The lowest sequence of which no sample was; all below were.
        next_sequence: One more than the highest of which a sample was.
    """

    stream: str
    consumed: int
    first_open: int
    next_sequence: int


class IdentitySet:
    """Identities of one run, as bits.

    1,024 consecutive sequences of one stream and sample take about 300 bytes, and an identity that
    has no neighbours as much. A million records of eight streams are well under one megabyte.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._chunks: dict[tuple[str, int, int], int] = {}
        self._counts: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._samples: dict[str, set[int]] = {}

    def add(self, identity: Identity) -> bool:
        """Adds one; False when it was there already."""
        if identity in self:
            return False
        stream, sequence, sample = identity.stream, identity.sequence, identity.sample
        chunk, bit = divmod(sequence, _CHUNK_BITS)
        key = (stream, sample, chunk)
        self._chunks[key] = self._chunks.get(key, 0) | 1 << bit
        self._counts[stream] = self._counts.get(stream, 0) + 1
        self._next[stream] = max(self._next.get(stream, 0), sequence + 1)
        self._samples.setdefault(stream, set()).add(sample)
        return True

    def __contains__(self, identity: Identity) -> bool:
        chunk, bit = divmod(identity.sequence, _CHUNK_BITS)
        bits = self._chunks.get((identity.stream, identity.sample, chunk), 0)
        return identity.run == self._run and bool(bits >> bit & 1)

    def __len__(self) -> int:
        return sum(self._counts.values())

    @property
    def streams(self) -> tuple[str, ...]:
        """Every stream of which something is in it, in the order of names."""
        return tuple(sorted(self._counts))

    def frontier(self, stream: str) -> Frontier:
        """How far one stream goes."""
        return Frontier(
            stream=stream,
            consumed=self._counts.get(stream, 0),
            first_open=self._first_open(stream),
            next_sequence=self._next.get(stream, 0),
        )

    def _first_open(self, stream: str) -> int:
        samples = self._samples.get(stream, set())
        chunk = 0
        while True:
            bits = 0
            for sample in samples:
                bits |= self._chunks.get((stream, sample, chunk), 0)
            if bits != (1 << _CHUNK_BITS) - 1:
                lowest_clear = (~bits & bits + 1).bit_length() - 1
                return chunk * _CHUNK_BITS + lowest_clear
            chunk += 1


class Ledger:
    """The commits of one queue, as far as they were read. Made by `load`.

    It remembers identities as bits (`IdentitySet`) and one digest a version, about 110 bytes.

    Attributes:
        version: The newest version; 0 before the first commit.
        newest: Its commit, which names the checkpoint to start from; None before the first.
        consumed: Every identity that was trained on.
        gpu_s: GPU-seconds of all commits.
    """

    def __init__(self, queue: RolloutQueue) -> None:
        self._queue = queue
        self.version = 0
        self.newest: Commit | None = None
        self.consumed = IdentitySet(queue.settings.run)
        self.gpu_s = 0.0
        self._checkpoints: set[str] = set()

    @classmethod
    def load(cls, queue: RolloutQueue) -> Ledger:
        """Reads every commit.

        Raises:
            LedgerUnknownError: One of them, or the folder, cannot be read.
            LedgerBrokenError: The chain is not whole.
        """
        ledger = cls(queue)
        highest = max(committed_versions(queue), default=0)
        for version in range(1, highest + 1):
            ledger.append(read_commit(queue, version))
        return ledger

    def refresh(self) -> int:
        """Reads what was committed since; returns how many versions that were.

        Raises:
            LedgerUnknownError: It cannot be told.
            LedgerBrokenError: The chain is not whole.
        """
        before = self.version
        while self._has_next():
            self.append(read_commit(self._queue, self.version + 1))
        return self.version - before

    def _has_next(self) -> bool:
        queue = self._queue
        try:
            if queue.fs.exists(queue.paths.commit(self.version + 1)):
                return True
            # That there is none counts only where the folder shows what is known to be there.
            if self.version and queue.fs.exists(queue.paths.commit(self.version)):
                return False
            highest = max(committed_versions(queue), default=0)
        except OSError as error:
            raise _unknown(queue, error) from error
        if highest != self.version:
            raise _broken(queue, f"v{self.version + 1} is missing below v{highest}")
        return False

    def append(self, commit: Commit) -> None:
        """Takes the next commit in.

        Raises:
            LedgerBrokenError: It is not the next one, or trains on something a second time.
        """
        if commit.version != self.version + 1:
            raise _broken(self._queue, f"v{commit.version} follows v{self.version}")
        for member in commit.members:
            if not self.consumed.add(member.identity):
                raise _broken(self._queue, f"v{commit.version} has {member.identity} once more")
        self.version, self.newest = commit.version, commit
        self.gpu_s += commit.gpu_s
        self._checkpoints.add(commit.checkpoint_sha256)

    def contains(self, identity: Identity) -> bool:
        """Whether a record of this identity was trained on."""
        return identity in self.consumed

    def frontier(self, stream: str) -> Frontier:
        """How far one stream was consumed: the resume cursor, which no crash can move."""
        return self.consumed.frontier(stream)

    @property
    def frontiers(self) -> tuple[Frontier, ...]:
        """The frontier of every stream of which something was consumed."""
        return tuple(self.consumed.frontier(stream) for stream in self.consumed.streams)

    def names_checkpoint(self, sha256: str) -> bool:
        """Whether a commit names the checkpoint whose manifest has this digest."""
        return sha256 in self._checkpoints

    def find(self, identity: Identity) -> Commit | None:
        """The commit that has an identity, newest looked at first; None when none has it.

        Reads commits from disk: the ledger remembers who was consumed, not by which version.

        Raises:
            LedgerUnknownError: A commit cannot be read.
        """
        if not self.contains(identity):
            return None
        for version in range(self.version, 0, -1):
            commit = read_commit(self._queue, version)
            if any(member.identity == identity for member in commit.members):
                return commit
        return None


def committed_versions(queue: RolloutQueue) -> list[int]:
    """The versions that have a commit, by name, in order.

    Raises:
        LedgerUnknownError: The folder cannot be listed; a folder that is not there says nothing.
    """
    try:
        names = queue.fs.listdir(queue.paths.commits)
    except OSError as error:
        raise _unknown(queue, error) from error
    return sorted(version for version in map(parse_commit, names) if version is not None)


def read_commit(queue: RolloutQueue, version: int) -> Commit:
    """One commit, checked as far as it can be by itself.

    Raises:
        LedgerUnknownError: It cannot be read.
        LedgerBrokenError: It is not there, or is no commit of this version after the one before.
    """
    commit = find_commit(queue, version)
    if commit is None:
        raise _broken(queue, f"v{version} is missing")
    return commit


def find_commit(queue: RolloutQueue, version: int) -> Commit | None:
    """One commit; None when that version was positively not committed.

    Raises:
        LedgerUnknownError: It cannot be told.
        LedgerBrokenError: It is no commit of this version after the one before.
    """
    try:
        data = queue.fs.read(queue.paths.commit(version))
    except FileNotFoundError as error:
        if not _folder_is_there(queue):
            raise _unknown(queue, error) from error
        return None
    except OSError as error:
        raise _unknown(queue, error) from error
    try:
        commit = _decode(data)
    except NO_RECORD as error:
        raise _broken(queue, f"v{version} cannot be read: {error}") from error
    if commit.schema != COMMIT_SCHEMA:
        raise _broken(queue, f"v{version} has schema {commit.schema!r}, expected {COMMIT_SCHEMA!r}")
    if (commit.version, commit.parent) != (version, version - 1):
        said = f"says version {commit.version} after {commit.parent}"
        raise _broken(queue, f"v{version} {said}")
    return commit


def _folder_is_there(queue: RolloutQueue) -> bool:
    try:
        return queue.fs.exists(queue.paths.commits)
    except OSError:
        return False


def _unknown(queue: RolloutQueue, error: OSError) -> LedgerUnknownError:
    return LedgerUnknownError(
        f"cannot tell what was committed in {queue.paths.commits}: {error.strerror or error}; "
        "nothing was decided",
        hint="check the mount and the folder's permissions, then call again",
        folder=queue.paths.commits,
    )


def _broken(queue: RolloutQueue, why: str) -> LedgerBrokenError:
    return LedgerBrokenError(
        f"the commits in {queue.paths.commits} are no whole chain: {why}; nothing was trained",
        hint=f"fleetcraft rollouts audit {queue.paths.folder}",
        folder=queue.paths.commits,
        why=why,
    )
