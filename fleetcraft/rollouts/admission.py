"""Room in the queue: reserved before generation begins, given back when a record is published.

A reservation is an empty file a record, named by the identity that it is for; while it is only
asked for, its name says so. Not here: what is published under it. Invariant: distinct identities
that are reserved, pending, or claimed by an uncommitted transaction never exceed the high water,
and no number of them is kept anywhere.
"""

from __future__ import annotations

import contextlib
import errno
from collections import Counter
from collections.abc import Iterable

import msgspec

from fleetcraft.errors import UsageError
from fleetcraft.layout.rollouts import (
    Place,
    ReservationName,
    TransactionName,
    parse_reservation,
    transaction_of_folder,
)
from fleetcraft.locks import Judge, lives_here, read_holder
from fleetcraft.locks.generation import highest
from fleetcraft.rollouts.queue import RolloutQueue, cannot
from fleetcraft.rollouts.records import NO_RECORD, Commit
from fleetcraft.rollouts.streams import StreamLease
from fleetcraft.rollouts.transaction.moves import Move, discard, move

_LOOKS = 4


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What fills a queue, as one pass over its folders saw it.

    A record that moved meanwhile is counted once, and never missed while it stays in the queue.
    """

    pending: frozenset[Place]
    """Published, and not claimed."""
    waiting: frozenset[Place]
    """Reserved or asked for, or pending."""
    claimed: frozenset[Place]
    """In the folders of transactions that are not committed: they may come back."""

    @property
    def taken(self) -> int:
        """Distinct identities of both."""
        return len(self.waiting | self.claimed)

    def ready(self, group: int) -> int:
        """Pending records in whole groups of so many samples: what a trainer can take.

        Groups are told by names; see `Unit.group`.
        """
        sizes = Counter(
            (stream, sequence, sample // group) for stream, sequence, sample in self.pending
        )
        return group * sum(size == group for size in sizes.values())


class Throttled(msgspec.Struct, frozen=True, kw_only=True):
    """No room now; healthy. ``waiting`` and ``claimed`` are counts of records; None: not known."""

    waiting: int | None
    claimed: int | None
    why: str


class Reservation:
    """Room for the samples of one sequence number. Made by `Admission` alone.

    Attributes:
        lease: Of the stream that it was made for.
        sequence: The sequence number.
    """

    def __init__(self, queue: RolloutQueue, lease: StreamLease, sequence: int) -> None:
        self.lease = lease
        self.sequence = sequence
        self._queue = queue
        self._samples: set[int] = set()

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples for which room is still reserved."""
        return tuple(sorted(self._samples))

    def path(self, sample: int, *, asked: bool = False) -> str:
        """The file that reserves room for one sample, or asks for it."""
        lease = self.lease
        name = ReservationName(lease.stream, self.sequence, sample, lease.generation, asked)
        return self._queue.paths.reservation(name)

    def release(self, sample: int | None = None) -> None:
        """Gives the room of one sample back, or of all that are left.

        Raises:
            OSError: It may still be reserved; releasing again is safe.
        """
        for one in self.samples if sample is None else (sample,):
            discard(self._queue.fs, self.path(one))
            self._samples.discard(one)

    def _ask(self, samples: Iterable[int]) -> None:
        for sample in samples:
            # What a withdrawal that failed left behind is this holder's own.
            with contextlib.suppress(FileExistsError):
                self._queue.fs.create(self.path(sample, asked=True), b"")

    def _keep(self, samples: Iterable[int]) -> None:
        fs = self._queue.fs
        for sample in samples:
            asked = self.path(sample, asked=True)
            moved = move(fs, asked, self.path(sample))
            if moved is Move.GONE:  # the next holder of the stream released it
                raise FileNotFoundError(errno.ENOENT, "the reservation was taken away", asked)
            self._samples.add(sample)
            if moved is Move.TAKEN:
                discard(fs, asked)

    def _withdraw(self, samples: Iterable[int]) -> None:
        for sample in samples:
            discard(self._queue.fs, self.path(sample, asked=True))
        self.release()


class Admission:
    """Gives room to one producer. Once refused, it waits until the queue is below the low water.

    Below it are fewer records in whole groups than that; what is reserved or in pieces does not
    count, since it may be that of a worker that died, and would then keep all others waiting while
    the trainer waits for them.

    Args:
        queue: The queue.
        lease: The producer's stream.
    """

    def __init__(self, queue: RolloutQueue, lease: StreamLease) -> None:
        self._queue = queue
        self._lease = lease
        self._throttled = False

    def reserve(self, sequence: int, samples: Iterable[int]) -> Reservation | Throttled:
        """Reserves room for records that are to be generated, or says that there is none.

        The reservation is made first and counted after: of several producers that try at once,
        whoever was last sees all of them, and withdraws if that is too many.

        Args:
            sequence: Their sequence number.
            samples: Their places in it; all get room, or none does.

        Raises:
            UsageError: More than could ever be sure to get room.
            LockLostError: The stream has another holder.
            SpoolError: The queue cannot be written.
        """
        wanted = tuple(samples)
        require_unit(self._queue, len(wanted))
        self._lease.check()
        try:
            if self._throttled and (refusal := self._above_low_water()):
                return refusal
            return self._try(sequence, wanted)
        except OSError as error:
            raise cannot(f"reserve room for stream {self._lease.stream}", error) from error

    def _above_low_water(self) -> Throttled | None:
        room = look(self._queue)
        settings = self._queue.settings
        if room is not None and room.ready(settings.group) < settings.low_water:
            return None
        return _throttled(room, f"waits until fewer than {settings.low_water} are pending")

    def _try(self, sequence: int, samples: tuple[int, ...]) -> Reservation | Throttled:
        reservation = Reservation(self._queue, self._lease, sequence)
        try:
            reservation._ask(samples)
            room = look(self._queue)
            self._throttled = room is None or room.taken > self._queue.settings.high_water
            if not self._throttled:
                reservation._keep(samples)
                return reservation
        except OSError:
            with contextlib.suppress(OSError):
                reservation._withdraw(samples)
            raise
        reservation._withdraw(samples)
        mine = {(self._lease.stream, sequence, sample) for sample in samples}
        if room is not None:
            room = msgspec.structs.replace(room, waiting=room.waiting - mine)
        high = self._queue.settings.high_water
        return _throttled(room, f"{len(samples)} more would exceed {high}")


def require_unit(queue: RolloutQueue, samples: int) -> None:
    """Refuses a unit that might never get room, because a batch that is claimed may come back.

    Raises:
        UsageError: It has no sample, or too many.
    """
    most = max(1, queue.settings.high_water - queue.settings.batch)
    if not 1 <= samples <= most:
        raise UsageError(
            f"cannot reserve room for {samples} samples at once: found {samples}, "
            f"expected 1 to {most}; nothing was reserved",
            hint="make fewer samples a unit, or a queue with a higher high_water",
            samples=samples,
            most=most,
        )


def look(queue: RolloutQueue) -> Room | None:
    """What fills a queue; None when transactions came and went too quickly to be sure.

    A listing may miss a name that comes or goes meanwhile, so each folder is listed again. Records
    move from reserved to pending to a claim folder, and back only by the undo of a transaction.
    Each transaction claims a record once and gives it back once, and its intent lies in ``txn``
    before. So if no intent came during these looks, a record that was there all the while was seen.

    Raises:
        OSError: A folder cannot be listed.
    """
    for _ in range(_LOOKS):
        before = set(queue.listing(queue.paths.transactions))
        reserved = {name.place for _ in range(2) for name in reservations(queue)}
        pending: set[Place] = set()
        claimed: set[Place] = set()
        for _ in range(2):
            claimed |= _uncommitted(queue)
            pending |= {name.place for name in queue.names(queue.paths.pending)}
        claimed |= _uncommitted(queue)
        if before >= set(queue.listing(queue.paths.transactions)):
            waiting = frozenset(reserved | pending)
            return Room(
                pending=frozenset(pending), waiting=waiting, claimed=frozenset(claimed - waiting)
            )
    return None


def reservations(queue: RolloutQueue) -> list[ReservationName]:
    """Every reservation that stands or is asked for.

    Raises:
        OSError: The folder cannot be listed.
    """
    found = map(parse_reservation, queue.listing(queue.paths.reserved))
    return [name for name in found if name is not None]


def release_older(queue: RolloutQueue, lease: StreamLease) -> int:
    """Releases what earlier holders of a stream had reserved; only its holder may.

    Returns:
        How many reservations were released.

    Raises:
        LockLostError: The stream has another holder.
        SpoolError: The queue cannot be written.
    """
    lease.check()
    return _release(queue, lease.stream, below=lease.generation)


def release_dead(queue: RolloutQueue, *, judge: Judge = lives_here) -> dict[str, int]:
    """Releases the reservations of holders that left or are positively gone.

    For whoever repairs a queue. A holder of which nothing is known keeps what it reserved.

    Args:
        queue: The queue.
        judge: Says whether a holder lives.

    Returns:
        Stream to the number of reservations that were released.

    Raises:
        SpoolError: The queue cannot be read or written.
    """
    try:
        streams = sorted({name.stream for name in reservations(queue)})
        over = {stream: _over(queue, stream, judge) for stream in streams}
    except OSError as error:
        raise cannot(f"look at the reservations of {queue.paths.folder}", error) from error
    released = {stream: _release(queue, stream, below=below) for stream, below in over.items()}
    return {stream: count for stream, count in released.items() if count}


def lease_is_over(queue: RolloutQueue, stream: str, judge: Judge) -> bool:
    """Whether a stream's holder left or is positively gone, or nobody ever held it.

    Raises:
        OSError: The lease cannot be read.
    """
    newest = highest(queue.listing(queue.paths.stream(stream)))
    return _over(queue, stream, judge) > newest


def _over(queue: RolloutQueue, stream: str, judge: Judge) -> int:
    """The first generation of a stream's lease that may not be over."""
    folder = queue.paths.stream(stream)
    names = queue.listing(folder)
    newest = highest(names)
    if newest == 0 or f"released.{newest}" in names:
        return newest + 1
    holder = read_holder(queue.fs.read(f"{folder}/gen.{newest}"))
    gone = holder is not None and judge(holder) is False
    return newest + 1 if gone else newest


def _release(queue: RolloutQueue, stream: str, *, below: int) -> int:
    released = 0
    try:
        for name in reservations(queue):
            if name.stream == stream and name.generation < below:
                discard(queue.fs, queue.paths.reservation(name))
                released += 1
    except OSError as error:
        raise cannot(f"release what stream {stream} had reserved", error) from error
    return released


def _uncommitted(queue: RolloutQueue) -> set[Place]:
    found: set[Place] = set()
    for folder, names in queue.claims():
        if names and not _is_committed(queue, transaction_of_folder(folder)):
            found |= {name.place for name in names}
    return found


def _is_committed(queue: RolloutQueue, transaction: TransactionName | None) -> bool:
    """Whether a transaction's records will never come back; no when that cannot be read."""
    if transaction is None:
        return False
    try:
        data = queue.fs.read(queue.paths.commit(transaction.version))
        return msgspec.json.decode(data, type=Commit).transaction == str(transaction)
    except (OSError, *NO_RECORD):
        return False


def _throttled(room: Room | None, why: str) -> Throttled:
    if room is None:
        why = "transactions come and go too quickly to count what is there"
        return Throttled(waiting=None, claimed=None, why=why)
    return Throttled(waiting=len(room.waiting), claimed=len(room.claimed), why=why)
