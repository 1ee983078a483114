"""Queues, leases and records for the tests of producers, and a file system that goes wrong.

Not here: any judgement of what is left. Invariant: after a kill nothing of the disturbed process
reaches the disk any more, its clearing up included.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fleetcraft.files
from fleetcraft.files import FileSystem
from fleetcraft.locks import Holder
from fleetcraft.rollouts.admission import Admission, Reservation
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import PhysicalSlot, Record, Settings
from fleetcraft.rollouts.streams import StreamLease

SLOT = PhysicalSlot(host="c1", device_uuid="GPU-1")
LIED_ABOUT = ("rename_new", "replace", "link", "unlink")
LIES = (errno.ENOENT, errno.EEXIST, errno.EIO, errno.ESTALE)


class QuickFS(FileSystem):
    """The real file system without forced writes: nothing here cuts the power."""

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        super().create(path, data, mode=mode)

    def sync_folder(self, path: str) -> None:
        pass


class Killed(BaseException):
    """The process was ended here."""


class DisturbedFS(QuickFS):
    """Does something to one operation.

    Args:
        at: Which one, from 1; with ``lie``, which rename, link or unlink.
        how: ``before`` or ``after`` kills there; an errno fails instead; ``lie`` does it and then
            reports ``code``; ``from`` fails this and every later write with ``code``.
        code: See ``how``.
    """

    def __init__(self, at: int, how: str | int, code: int = 0) -> None:
        super().__init__()
        self.at, self.how, self.code = at, how, code
        self.steps = 0
        self.hit = ""
        self.dead = False
        self._inside = threading.local()  # a beat of another thread is inside of itself alone

    def step(self, name: str, perform: Callable[..., Any], arguments: Any, named: Any) -> Any:
        if self.dead:
            raise Killed
        if getattr(self._inside, "of", False):
            return perform(self, *arguments, **named)
        if not self._is_hit(name):
            return self._do(perform, arguments, named)
        self.hit = name
        if self.how == "before":
            self.dead = True
            raise Killed
        if isinstance(self.how, int):
            raise OSError(self.how, os.strerror(self.how))
        if self.how == "from":
            raise OSError(self.code, os.strerror(self.code))
        result = self._do(perform, arguments, named)
        if self.how == "after":
            self.dead = True
            raise Killed
        assert result is None
        raise OSError(self.code, os.strerror(self.code))

    def _is_hit(self, name: str) -> bool:
        if self.how == "lie" and name not in LIED_ABOUT:
            return False
        if self.how == "from" and name not in ("create", "link", "replace", "make_folder"):
            return False
        self.steps += 1
        return self.steps >= self.at if self.how == "from" else self.steps == self.at

    def _do(self, perform: Callable[..., Any], arguments: Any, named: Any) -> Any:
        self._inside.of = True
        try:
            return perform(self, *arguments, **named)
        finally:
            self._inside.of = False


def _disturbed(name: str) -> Callable[..., Any]:
    perform = getattr(QuickFS, name)

    def method(self: DisturbedFS, *arguments: Any, **named: Any) -> Any:
        return self.step(name, perform, arguments, named)

    return method


for _name, _method in vars(fleetcraft.files.FileSystem).items():
    if callable(_method) and not _name.startswith("_"):
        setattr(DisturbedFS, _name, _disturbed(_name))


def disturbances(act: Callable[[FileSystem], object]) -> Iterator[DisturbedFS]:
    """Every single kill, fault and lie of an act, each as a fresh file system.

    Args:
        act: Run once undisturbed, to count its operations.
    """
    counted = DisturbedFS(0, "before")
    act(counted)
    lied = DisturbedFS(0, "lie")
    act(lied)
    for at in range(1, counted.steps + 1):
        for how in ("before", "after", errno.EIO, errno.ENOSPC):
            yield DisturbedFS(at, how)
    for at in range(1, lied.steps + 1):
        for code in LIES:
            yield DisturbedFS(at, "lie", code)


class OwnClock:
    """A process's own clock, which moves only while that process waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def settings_for(**given: Any) -> Settings:
    """Small numbers: a batch of four, at most ten in the queue, refilled below five."""
    small = {"run": "wan", "batch": 4, "high_water": 10, "low_water": 5, "lock_interval_s": 0.02,
             "beat_s": 0.02, "fresh_s": 0.2}  # fmt: skip
    return Settings(**{**small, **given})


def queue_in(folder: Path | str, fs: FileSystem | None = None, **given: Any) -> RolloutQueue:
    return RolloutQueue.create(f"{folder}/q", settings_for(**given), fs=fs or QuickFS())


def with_fs(queue: RolloutQueue, fs: FileSystem) -> RolloutQueue:
    """The same queue as another process has it open."""
    return RolloutQueue(queue.paths, queue.settings, fs)


def gone(holder: Holder) -> bool:
    return False


def unknown(holder: Holder) -> None:
    return None


def lease_of(queue: RolloutQueue, stream: str = "s", **given: Any) -> StreamLease:
    """A lease by a process that does not wait in real time; earlier holders count as gone."""
    clock = OwnClock()
    ways = {"slot": SLOT, "judge": gone, "clock": clock, "sleep": clock.sleep, **given}
    return StreamLease.acquire(queue, stream, **ways)


def room_for(
    queue: RolloutQueue, lease: StreamLease, sequence: int = 0, samples: int = 1
) -> Reservation:
    room = Admission(queue, lease).reserve(sequence, range(samples))
    assert isinstance(room, Reservation), room
    return room


def record_of(lease: StreamLease, sequence: int = 0, sample: int = 0, **given: Any) -> Record:
    facts: dict[str, Any] = {
        "run": "wan", "stream": lease.stream, "sequence": sequence, "sample": sample,
        "group": f"{lease.stream}.{sequence}", "version": 0, "slot": lease.slot,
        "lease_generation": lease.generation, "lease_nonce": lease.nonce,
        "scalars": {"reward": 0.5}, "values": {"log_probs": [-1.0, -2.0]},
    }  # fmt: skip
    return Record(**{**facts, **given})


def files_in(folder: str) -> list[str]:
    return sorted(os.listdir(folder))
