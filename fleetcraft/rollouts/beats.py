"""Heartbeats of producers: written by each, judged by a reader's own clock.

Not here: the lease, which alone says who may publish. Invariant: a producer is fresh because its
counter was seen to change, never because of a time that another machine wrote.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import TryAgainLaterError
from fleetcraft.identity import new_launch_token
from fleetcraft.layout.rollouts import is_beat_temporary, parse_beat
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import NO_RECORD, Beat, ProducerState, encode
from fleetcraft.rollouts.streams import StreamLease
from fleetcraft.rollouts.transaction.moves import discard


class Beater:
    """Writes the beats of one producer: from a thread of its own, and at each change of state.

    Beats are not durable, and one that cannot be written is only missed. As a context manager it
    begins with STARTING and ends with EXITED.

    Args:
        queue: The queue.
        lease: The stream, held.
        shape: What the producer makes, such as ``81x480x832``.
    """

    def __init__(self, queue: RolloutQueue, lease: StreamLease, *, shape: str = "") -> None:
        self._queue = queue
        self._lease = lease
        self._shape = shape
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = ProducerState.STARTING
        self._counter = 0
        self._published = 0
        self._version: int | None = None

    @property
    def state(self) -> ProducerState:
        """What the producer does now."""
        return self._state

    def set(
        self, state: ProducerState | None = None, *, version: int | None = None, published: int = 0
    ) -> None:
        """Notes what the producer does; a change of state is written at once.

        Args:
            state: Its state; None leaves it.
            version: The policy's version that it samples from; None leaves it.
            published: Records that it has published since the last call.
        """
        with self._lock:
            changed = state is not None and state is not self._state
            self._state = state or self._state
            self._version = self._version if version is None else version
            self._published += published
        if changed:
            self.beat()

    def beat(self) -> bool:
        """Writes one beat; says whether that worked.

        A holder that was followed writes none: it would speak for the one that followed it.
        """
        with self._lock:
            self._counter += 1
            try:
                self._lease.check()
            except TryAgainLaterError:
                return False
            return _write(self._queue, self._now())

    def _now(self) -> Beat:
        return Beat(
            run=self._queue.settings.run,
            stream=self._lease.stream,
            state=self._state,
            counter=self._counter,
            shape=self._shape,
            slot=self._lease.slot,
            lease_generation=self._lease.generation,
            lease_nonce=self._lease.nonce,
            published=self._published,
            version=self._version,
            at=timestamp(),
        )

    def __enter__(self) -> Beater:
        self._remove_left_behind()
        self.beat()
        self._thread = threading.Thread(target=self._keep_beating, name="rollout beat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.set(ProducerState.EXITED)

    def _remove_left_behind(self) -> None:
        """Removes the temporaries of holders that were killed between two operations."""
        folder = self._queue.paths.beats
        with contextlib.suppress(OSError):
            for file in self._queue.listing(folder):
                if is_beat_temporary(file, self._lease.stream):
                    discard(self._queue.fs, f"{folder}/{file}")

    def _keep_beating(self) -> None:
        while not self._stop.wait(self._queue.settings.beat_s):
            self.beat()


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """One producer as a reader sees it.

    Attributes:
        stream: Its stream.
        beat: What it last wrote; None when that cannot be understood.
        fresh: Whether its counter changed within the freshness limit; None: not watched for long
            enough to say.
        quiet_s: Seconds without a change, by the reader's clock; never more than it has watched.
    """

    stream: str
    beat: Beat | None
    fresh: bool | None
    quiet_s: float

    def counts_for(self, run: str, shape: str) -> bool | None:
        """Whether it makes what a replacement would make: only then it suppresses one.

        A worker that drains or has left makes nothing more. None: not known.
        """
        beat = self.beat
        if beat is None:
            return None if self.fresh is None else False
        leaves = beat.state in (ProducerState.DRAINING, ProducerState.EXITED)
        if leaves or beat.run != run or (shape and beat.shape != shape):
            return False
        return self.fresh


class BeatReader:
    """Reads all beats of a queue again and again, and says which are fresh.

    Args:
        queue: The queue.
        clock: This process's own monotonic clock, in seconds.
    """

    def __init__(self, queue: RolloutQueue, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue = queue
        self._clock = clock
        self._first: dict[str, float] = {}
        self._last: dict[str, tuple[tuple[str, int], float | None]] = {}

    def look(self) -> dict[str, Sight]:
        """Every producer that has ever beaten, by stream.

        Raises:
            OSError: The beats cannot be listed, or one cannot be read: that is unknown, not silent.
        """
        now_s = self._clock()
        sights = {}
        for file in sorted(self._queue.listing(self._queue.paths.beats)):
            stream = parse_beat(file)
            if stream is not None:
                with contextlib.suppress(FileNotFoundError):
                    sights[stream] = self._see(stream, now_s)
        return sights

    def _see(self, stream: str, now_s: float) -> Sight:
        beat = _read(self._queue.fs.read(self._queue.paths.beat(stream)))
        mark = (beat.lease_nonce, beat.counter) if beat else ("", 0)
        first_s = self._first.setdefault(stream, now_s)
        before = self._last.get(stream)
        if before is None or before[0] != mark:
            # The first sight is no change: it may be years old.
            self._last[stream] = (mark, None if before is None else now_s)
        changed_s = self._last[stream][1]
        quiet_s = now_s - (first_s if changed_s is None else changed_s)
        within = quiet_s < self._queue.settings.fresh_s
        fresh = (None if within else False) if changed_s is None else within
        if beat is not None and beat.state is ProducerState.EXITED:
            fresh = False  # its own last word
        return Sight(stream=stream, beat=beat, fresh=fresh, quiet_s=quiet_s)


def _write(queue: RolloutQueue, beat: Beat) -> bool:
    # The temporary's name is used once: two writers of one file would tear it.
    temporary = queue.paths.beat_temporary(beat.stream, new_launch_token())
    try:
        queue.fs.create(temporary, encode(beat))
        queue.fs.replace(temporary, queue.paths.beat(beat.stream))
    except OSError:
        with contextlib.suppress(OSError):
            queue.fs.unlink(temporary)
        return False
    return True


def _read(data: bytes) -> Beat | None:
    try:
        return msgspec.json.decode(data, type=Beat)
    except NO_RECORD:
        return None
