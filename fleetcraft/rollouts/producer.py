"""The loop of a worker that samples: one unit after another, each with room reserved before it.

Not here: sampling itself, which is the caller's. Invariant: the sequence continues after the
highest identity that the stream has published, so nothing is counted anywhere.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import msgspec

from fleetcraft.errors import SpoolError, UsageError
from fleetcraft.identity import NO_JOB, JobRun
from fleetcraft.locks import Judge, LockUnknownError, lives_here
from fleetcraft.rollouts.abort import abort_stands
from fleetcraft.rollouts.admission import (
    Admission,
    Reservation,
    Throttled,
    release_older,
    require_unit,
)
from fleetcraft.rollouts.beats import Beater
from fleetcraft.rollouts.publishing import (
    Completed,
    Duplicate,
    Published,
    finish_half_published,
    publish,
    published,
)
from fleetcraft.rollouts.queue import RolloutQueue, cannot
from fleetcraft.rollouts.records import PhysicalSlot, ProducerState, Record
from fleetcraft.rollouts.streams import StreamLease
from fleetcraft.rollouts.unit import Unit

_JITTER = 0.25
_T = TypeVar("_T")


class Told(msgspec.Struct, kw_only=True):
    """What a producer has done so far.

    Attributes:
        published: Records that are pending or were.
        refused: Records that were kept in quarantine instead.
        abandoned: Samples for which room was reserved and which were never published.
        units: Units begun.
        completed: What was found half published at the start.
    """

    published: int = 0
    refused: int = 0
    abandoned: int = 0
    units: int = 0
    completed: Completed = msgspec.field(default_factory=Completed)


class Producer:
    """A worker that samples for a queue; a context manager, and an iterator over its units.

    ::

        with Producer("rollouts/wan", "seed6", shape="81x480x832") as producer:
            producer.drain_on(signal.SIGTERM)
            for unit in producer:
                for sample in unit.samples:
                    video, log_probs = generate(unit.prompt_seed, unit.seed(sample))
                    unit.publish(sample, values={"log_probs": log_probs})

    The loop ends, with exit code 0 for the program, when ABORT stands or it was asked to drain;
    what has begun is finished and published first.

    Args:
        queue: The queue, or its folder.
        stream: The stream that this worker holds; no other process may.
        shape: What it makes; replacements are judged by it.
        samples: Samples a unit, a multiple of the queue's group, which is the default.
        version: Says which policy this process has loaded. By default it is the newest commit's,
            which is right only where the caller loads that policy before each unit.
        stop: Asked before each unit; True drains.
        logical_device: What the caller calls its device, such as ``cuda:0``.
        slot: Where this process runs; found out if it is not given.
        by_age: See `StreamLease.acquire`.
        judge: See `StreamLease.acquire`.
        run: The Slurm job that this process is part of.
        poll_s: Seconds between looks for room while throttled.
        patience_s: For how long an operation of the file system that fails is tried again.
        clock: This process's own monotonic clock, in seconds.
    """

    def __init__(
        self,
        queue: RolloutQueue | str,
        stream: str,
        *,
        shape: str = "",
        samples: int | None = None,
        version: Callable[[], int] | None = None,
        stop: Callable[[], bool] = lambda: False,
        logical_device: str = "",
        slot: PhysicalSlot | None = None,
        by_age: bool = False,
        judge: Judge = lives_here,
        run: JobRun = NO_JOB,
        poll_s: float = 5.0,
        patience_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = RolloutQueue.open(queue) if isinstance(queue, str) else queue
        self.stream = stream
        self.shape = shape
        self.logical_device = logical_device
        self.told = Told()
        self._samples = _require_samples(self.queue, samples)
        self._version = version or self.queue.version
        self._stop = stop
        self._acquire = partial(
            StreamLease.acquire,
            self.queue,
            stream,
            by_age=by_age,
            slot=slot,
            judge=judge,
            run=run,
        )
        self._poll_s = poll_s
        self._patience_s = patience_s
        self._clock = clock
        self._drain = threading.Event()
        self._ends = contextlib.ExitStack()
        self._unit: Unit | None = None
        self._waiting = False
        self._next = 0
        self._missing: tuple[int, ...] = ()

    @property
    def state(self) -> ProducerState:
        """What it does now."""
        return self._beater.state

    def drain(self) -> None:
        """Lets the loop end after the present unit; safe from any thread and signal handler."""
        self._drain.set()

    def drain_on(self, *signals: signal.Signals) -> None:
        """Drains when one of these signals comes; to be called from the main thread."""
        for one in signals:
            signal.signal(one, lambda *_: self.drain())

    def __enter__(self) -> Producer:
        with contextlib.ExitStack() as ends:
            self.lease = ends.enter_context(self._acquire())
            self._beater = ends.enter_context(Beater(self.queue, self.lease, shape=self.shape))
            self._admission = Admission(self.queue, self.lease)
            self._patiently(self._take_over)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._ends, contextlib.suppress(OSError):  # the next holder releases what is left
            self._end_unit()

    def __iter__(self) -> Iterator[Unit]:
        while (unit := self.next_unit()) is not None:
            yield unit

    def next_unit(self) -> Unit | None:
        """The next unit, once there is room for it; None when it is time to leave.

        Raises:
            LockLostError: The stream has another holder.
            SpoolError: The queue cannot be read or written, and patience is at its end.
        """
        self._patiently(self._end_unit)
        while not self._patiently(self._must_leave):
            if self._waiting:
                self._patiently(self._complete)
            room = self._patiently(self._reserve)
            if not isinstance(room, Throttled):
                return self._begin(room)
            self._beater.set(ProducerState.THROTTLED)
            self._drain.wait(self._poll_s * random.uniform(1 - _JITTER, 1 + _JITTER))
        self._beater.set(ProducerState.DRAINING)
        return None

    def send(self, record: Record, reservation: Reservation) -> Published | Duplicate:
        """Publishes a record of a unit, patiently; see `Unit.publish`."""
        outcome = self._patiently(lambda: publish(self.queue, record, reservation))
        if isinstance(outcome, Published):
            self.told.published += 1
            self._beater.set(published=1)
        else:
            self.told.refused += 1
        return outcome

    # -- a unit's beginning and end

    def _begin(self, room: Reservation) -> Unit:
        version = self._patiently(self._version)
        self._beater.set(ProducerState.RUNNING, version=version)
        self._unit = Unit(self, room, samples=room.samples, version=version)
        self.told.units += 1
        self._next, self._missing = room.sequence + 1, ()
        return self._unit

    def _end_unit(self) -> None:
        if self._unit is not None:
            self.told.abandoned += self._unit.end()
            self._unit = None

    def _reserve(self) -> Reservation | Throttled:
        return self._admission.reserve(self._next, self._missing or range(self._samples))

    def _must_leave(self) -> bool:
        return self._drain.is_set() or self._stop() or abort_stands(self.queue)

    # -- taking over from the holder before

    def _take_over(self) -> None:
        self._complete()
        release_older(self.queue, self.lease)
        self._next, self._missing = self._continue()

    def _complete(self) -> None:
        done = finish_half_published(self.queue, self.lease, self._admission)
        self._waiting = bool(done.waiting)
        before = self.told.completed
        self.told.completed = Completed(
            published=before.published + done.published,
            refused=before.refused + done.refused,
            torn=before.torn + done.torn,
            waiting=done.waiting,
        )

    def _continue(self) -> tuple[int, tuple[int, ...]]:
        """Where the stream goes on, and the samples that its last unit lacks.

        A unit that was cut short is finished if what it has still waits: its groups are consumed
        whole or not at all.
        """
        done = published(self.queue, self.stream)
        if not done:
            return 0, ()
        last = max(done)
        missing = tuple(sorted(set(range(self._samples)) - done[last]))
        pending = {
            name.sample
            for name in self.queue.names(self.queue.paths.pending)
            if (name.stream, name.sequence) == (self.stream, last)
        }
        return (last, missing) if missing and done[last] <= pending else (last + 1, ())

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """Tries again while the file system fails; a lock that is lost or held is no such thing."""
        until_s = self._clock() + self._patience_s
        while True:
            try:
                return call()
            except (OSError, SpoolError, LockUnknownError) as error:
                if self._clock() >= until_s:
                    if isinstance(error, OSError):
                        raise cannot(f"go on with stream {self.stream}", error) from error
                    raise
            time.sleep(min(1.0, self._poll_s))


def _require_samples(queue: RolloutQueue, samples: int | None) -> int:
    group = queue.settings.group
    count = group if samples is None else samples
    if count < 1 or count % group:
        raise UsageError(
            f"{count} samples a unit do not make whole groups: found {count}, expected a multiple "
            f"of {group}",
            samples=count,
            group=group,
        )
    require_unit(queue, count)
    return count
