"""What a queue looks like: who produces, who trains, what waits, and how quickly it moves.

Looks only; it writes nothing. Not here: what to do about it (`replenish`). Invariant: liveness is
this machine's own word or a counter that was seen to change; what neither tells is None.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise

import msgspec

from fleetcraft.locks import Holder, Judge, lives_here, read_holder
from fleetcraft.locks.generation import highest
from fleetcraft.rollouts.abort import AbortRequest, read_abort
from fleetcraft.rollouts.admission import look, reservations
from fleetcraft.rollouts.beats import BeatReader, Sight
from fleetcraft.rollouts.publishing import published
from fleetcraft.rollouts.quarantine import count_refused
from fleetcraft.rollouts.queue import Counts, RolloutQueue, cannot
from fleetcraft.rollouts.records import Settings

_SILENT_INTERVALS = 3
_RECENT = 9
_LOOKS_PER_INTERVAL = 2


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lock, as one who does not want it sees it.

    Attributes:
        alive: True, False (positively gone, released, or never taken), or None for unknown.
        generation: Of the lock; 0 when nobody ever held it.
        who: The holder, for people.
        why: What says so.
    """

    alive: bool | None
    generation: int
    who: str
    why: str


class LockWatch:
    """Watches one generation lock of a queue without contending for it.

    Args:
        queue: The queue.
        folder: The lock's folder.
        judge: Says whether a holder lives.
        clock: This process's own monotonic clock, in seconds.
    """

    def __init__(
        self,
        queue: RolloutQueue,
        folder: str,
        *,
        judge: Judge = lives_here,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._folder = folder
        self._judge = judge
        self._clock = clock
        self._seen: tuple[int, bytes] | None = None
        self._changed_s: float | None = None

    def look(self) -> Standing:
        """Who holds it now.

        Raises:
            OSError: The file system does not tell.
        """
        names = self._queue.listing(self._folder)
        generation = highest(names)
        if generation == 0:
            return Standing(alive=False, generation=0, who="", why="nobody ever held it")
        holder = read_holder(self._queue.fs.read(f"{self._folder}/gen.{generation}"))
        who = str(holder or "an unreadable owner")
        if f"released.{generation}" in names:
            return Standing(alive=False, generation=generation, who=who, why="it left")
        alive, why = self._judge_it(holder, generation)
        return Standing(alive=alive, generation=generation, who=who, why=why)

    def _judge_it(self, holder: Holder | None, generation: int) -> tuple[bool | None, str]:
        lives = None if holder is None else self._judge(holder)
        if lives is not None:
            return lives, "its process lives" if lives else "its process is gone"
        now_s = self._clock()
        beat = b""
        with contextlib.suppress(FileNotFoundError):
            beat = self._queue.fs.read(f"{self._folder}/beat.{generation}")
        if self._seen is not None and self._seen != (generation, beat):
            self._changed_s = now_s
        self._seen = (generation, beat)
        limit_s = _SILENT_INTERVALS * (
            holder.interval_s if holder else self._queue.settings.lock_interval_s
        )
        if self._changed_s is not None and now_s - self._changed_s < limit_s:
            return True, "it was seen to beat"
        return None, "its machine was not asked, and no beat was seen"


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: its worker, its lease, and what it has published.

    Attributes:
        stream: Its name.
        lease: Who holds it.
        sight: Its worker's beats; None when none was ever written.
        identities: Records that it has published, ever.
        sequence: The highest sequence number of those; None before the first.
        reserved: Identities for which it has room reserved.
        stale_reserved: Those of them that earlier holders had reserved.
    """

    stream: str
    lease: Standing
    sight: Sight | None
    identities: int
    sequence: int | None
    reserved: int
    stale_reserved: int

    def produces(self, run: str, shape: str) -> bool | None:
        """Whether its worker suppresses a replacement; see `Sight.counts_for`.

        A worker whose lease is over produces nothing, whatever its last beat says.
        """
        if self.sight is None or self.lease.alive is False:
            return False
        return self.sight.counts_for(run, shape)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How quickly records come and go, by the clock of the file system; None: too few to say.

    Attributes:
        consumed_per_h: Records an hour, over the last commits.
        produced_per_worker_h: Records an hour of one worker while it is not throttled.
    """

    consumed_per_h: float | None = None
    produced_per_worker_h: float | None = None


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at one look.

    Attributes:
        folder: Where it is.
        settings: What it was made with.
        counts: How many records are where.
        waiting: Distinct identities that are reserved or pending; None when that is not known.
        ready: Pending records in whole groups; None when that is not known.
        coming_back: Those in transactions that are not committed; None when that is not known.
        half_published: Files in ``tmp``, which the next holders of their streams complete.
        lags: Versions behind to pending records.
        refused: Reason to records in quarantine.
        abort: The request that stands.
        trainer: Who trains.
        streams: Every stream that was ever held or has beaten.
        rates: How quickly it moves.
        watched_s: For how long counters were watched.
    """

    folder: str
    settings: Settings
    counts: Counts
    waiting: int | None
    ready: int | None
    coming_back: int | None
    half_published: int
    lags: dict[int, int]
    refused: dict[str, int]
    abort: AbortRequest | None
    trainer: Standing
    streams: tuple[StreamStatus, ...]
    rates: Rates
    watched_s: float


class Watcher:
    """Looks at a queue again and again; what it has seen so far makes liveness known.

    Args:
        queue: The queue.
        judge: Says whether the holder of a lock lives.
        clock: This process's own monotonic clock, in seconds.
    """

    def __init__(
        self,
        queue: RolloutQueue,
        *,
        judge: Judge = lives_here,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = queue
        self._judge = judge
        self._clock = clock
        self._began_s = clock()
        self._beats = BeatReader(queue, clock=clock)
        self._locks: dict[str, LockWatch] = {}

    def look(self) -> QueueStatus:
        """The queue now.

        Raises:
            SpoolError: A folder of it cannot be read.
        """
        try:
            return self._look()
        except OSError as error:
            raise cannot(f"look at {self.queue.paths.folder}", error) from error

    def watch(
        self,
        watch_s: float,
        *,
        enough: Callable[[QueueStatus], bool] = lambda status: False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> QueueStatus:
        """Looks until enough is known or the time is over; beats of other machines need that.

        Raises:
            SpoolError: A folder of it cannot be read.
        """
        until_s = self._clock() + watch_s
        settings = self.queue.settings
        step_s = min(settings.beat_s, settings.lock_interval_s) / _LOOKS_PER_INTERVAL
        status = self.look()
        while not enough(status) and (left_s := until_s - self._clock()) > 0:
            sleep(min(step_s, left_s))
            status = self.look()
        return status

    def _look(self) -> QueueStatus:
        queue = self.queue
        room = look(queue)
        counts = queue.counts()
        pending = queue.names(queue.paths.pending)
        sights = self._beats.look()
        done = {stream: published(queue, stream) for stream in self._names(sights)}
        return QueueStatus(
            folder=queue.paths.folder,
            settings=queue.settings,
            counts=counts,
            waiting=None if room is None else len(room.waiting),
            ready=None if room is None else room.ready(queue.settings.group),
            coming_back=None if room is None else len(room.claimed),
            half_published=len(queue.listing(queue.paths.tmp)),
            lags=dict(sorted(Counter(counts.version - name.version for name in pending).items())),
            refused={reason.value: count for reason, count in sorted(count_refused(queue).items())},
            abort=read_abort(queue),
            trainer=self._standing(queue.paths.trainer_lock),
            streams=tuple(self._stream(name, sights.get(name), done[name]) for name in done),
            rates=measure_rates(queue, done),
            watched_s=self._clock() - self._began_s,
        )

    def _names(self, sights: dict[str, Sight]) -> list[str]:
        return sorted(set(self.queue.listing(self.queue.paths.streams)) | set(sights))

    def _stream(self, stream: str, sight: Sight | None, done: dict[int, set[int]]) -> StreamStatus:
        lease = self._standing(self.queue.paths.stream(stream))
        reserved = [name for name in reservations(self.queue) if name.stream == stream]
        return StreamStatus(
            stream=stream,
            lease=lease,
            sight=sight,
            identities=sum(len(samples) for samples in done.values()),
            sequence=max(done, default=None),
            reserved=len({name.place for name in reserved}),
            stale_reserved=sum(name.generation < lease.generation for name in reserved),
        )

    def _standing(self, folder: str) -> Standing:
        if folder not in self._locks:
            self._locks[folder] = LockWatch(
                self.queue, folder, judge=self._judge, clock=self._clock
            )
        return self._locks[folder].look()


def measure_rates(queue: RolloutQueue, done: Mapping[str, dict[int, set[int]]]) -> Rates:
    """How quickly records come and go, from when the last of them were written.

    Consumption is that of the last eight commits. Production is the median time between
    consecutive sequence numbers of a stream, so that waiting for room does not count, averaged over
    the streams that say something.

    Args:
        queue: The queue.
        done: Each stream's identities; see `publishing.published`.

    Raises:
        OSError: A file cannot be looked at.
    """
    found = (_stream_rate(queue, stream, made) for stream, made in done.items())
    rates = [rate for rate in found if rate is not None]
    return Rates(
        consumed_per_h=_consumed_per_h(queue),
        produced_per_worker_h=statistics.fmean(rates) if rates else None,
    )


def _consumed_per_h(queue: RolloutQueue) -> float | None:
    newest = queue.version()
    times = []
    for version in range(max(1, newest - _RECENT + 1), newest + 1):
        with contextlib.suppress(FileNotFoundError):
            times.append(queue.fs.lstat(queue.paths.commit(version)).st_mtime)
    span_s = max(times) - min(times) if len(times) > 1 else 0.0
    return (len(times) - 1) * queue.settings.batch * 3600 / span_s if span_s > 0 else None


def _stream_rate(queue: RolloutQueue, stream: str, done: dict[int, set[int]]) -> float | None:
    recent = sorted(done)[-_RECENT:]
    ended_s = [
        max(
            queue.fs.lstat(queue.paths.ident_file(stream, sequence, sample)).st_mtime
            for sample in done[sequence]
        )
        for sequence in recent
    ]
    gaps_s = [after - before for before, after in pairwise(ended_s)]
    samples = statistics.fmean(len(done[sequence]) for sequence in recent) if recent else 0.0
    gap_s = statistics.median(gaps_s) if gaps_s else 0.0
    return samples * 3600 / gap_s if gap_s > 0 else None
