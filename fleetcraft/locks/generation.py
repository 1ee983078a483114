"""The generation lock: who decides for a folder, on any file system that has ``link``.

``gen.N`` says who owns generation N and is published once; its owner bumps ``beat.N`` while it
lives and publishes ``released.N`` when it leaves. The highest generation is the owner. Nothing is
ever taken away: a contender publishes ``gen.N+1``, and an owner that was paused meanwhile finds
that out by `Held.check` before its next durable act. Invariant: a generation has one owner for
ever, and what the file system or a judge cannot tell takes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from fleetcraft.clock import timestamp
from fleetcraft.errors import TryAgainLaterError
from fleetcraft.files import FileSystem
from fleetcraft.identity import NO_JOB, JobRun, new_launch_token, process_id, this_host
from fleetcraft.locks.holder import Holder, Judge, lives_here, read_holder, write_holder
from fleetcraft.locks.publishing import put_if_absent

_GENERATION = re.compile(r"gen\.([1-9]\d*)")
_OF_GENERATION = re.compile(r"(?:gen|beat|released)\.([1-9]\d*)(?:\..+\.tmp)?")
_SILENT_INTERVALS = 3
_LOOKS_PER_INTERVAL = 2
_JITTER_INTERVALS = 0.2
_KEPT_GENERATIONS = 32
_FS = FileSystem()
# Nonces under which a generation may stand that this process does not own: a failure hid that it
# was taken, or kept its release from being written. By seam, since a model has several processes.
_not_owned: WeakKeyDictionary[FileSystem, set[str]] = WeakKeyDictionary()


class LockHeldError(TryAgainLaterError):
    """Somebody else owns the lock, or may own it; nothing was done, and nobody waits for it.

    ``may_be_gone`` says that it was silent for long and that nothing more is known of it.
    """


class LockLostError(TryAgainLaterError):
    """A later generation exists: this process must decide nothing more. Nothing was stopped."""


class LockUnknownError(TryAgainLaterError):
    """The file system does not say who owns the lock, so it counts as not owned."""


@dataclass(frozen=True, slots=True)
class _Sight:
    """The lock as one look saw it; generation 0 is a lock that nobody has owned yet."""

    generation: int
    holder: bytes = b""
    beat: bytes = b""
    released: bool = False


class GenerationLock:
    """One lock: a private folder that holds nothing else.

    Args:
        folder: It must be there, and be writable by this user only.
        purpose: What the owner decides, for the message that others get.
        interval_s: Seconds between the owner's beats.
        judge: Says whether a silent holder lives; this machine's own processes by default.
        run: The Slurm job that this process is part of.
        fs: The seam.
        clock: This process's own monotonic clock, in seconds.
        sleep: Waits by that clock.
    """

    def __init__(
        self,
        folder: str,
        *,
        purpose: str,
        interval_s: float = 5.0,
        judge: Judge = lives_here,
        run: JobRun = NO_JOB,
        fs: FileSystem | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.folder = folder
        self.fs = fs or _FS
        self._purpose = purpose
        self._interval_s = interval_s
        self._judge = judge
        self._run = run
        self._clock = clock
        self._sleep = sleep

    def path(self, kind: str, generation: int) -> str:
        """The file ``gen``, ``beat`` or ``released`` of a generation."""
        return f"{self.folder}/{kind}.{generation}"

    def acquire(self, *, by_age: bool = False) -> Held:
        """Becomes the owner, or says who is.

        A lock that is free or was released is taken at once. A holder is watched for three of its
        intervals by this process's own clock; if nothing changes and it is positively gone, the
        next generation is taken. Nobody waits for a living holder.

        Args:
            by_age: Consent to take the lock from a silent holder of which nothing else is known.

        Raises:
            LockHeldError: Somebody owns it, or was quicker, or may still live.
            LockUnknownError: The file system does not tell.
        """
        sight = self._look()
        if sight.generation == 0 or sight.released:
            return self._take(sight.generation + 1, "released" if sight.released else "none before")
        if self._is_left_behind(sight.holder):
            return self._take(sight.generation + 1, "taken by this process, which was not told")
        why = self._why_taken(sight, by_age=by_age)
        self._sleep(random.uniform(0, _JITTER_INTERVALS) * self._interval_s)
        now = self._look()
        if now != sight and not now.released:
            raise self._held(now, "it was seen at work")
        return self._take(now.generation + 1, "released" if now.released else why)

    # -- looking

    def _look(self) -> _Sight:
        try:
            names = self.fs.listdir(self.folder)
            generation = highest(names)
            if generation == 0:
                return _Sight(0)
            released = f"released.{generation}" in names
            holder = self.fs.read(self.path("gen", generation))
            return _Sight(generation, holder, self._read_beat(generation), released)
        except OSError as error:
            raise self.unknown(error, "it was not taken") from error

    def _read_beat(self, generation: int) -> bytes:
        try:
            return self.fs.read(self.path("beat", generation))
        except FileNotFoundError:
            return b""

    def _why_taken(self, sight: _Sight, *, by_age: bool) -> str:
        """Why the generation of a silent holder is over.

        Raises:
            LockHeldError: It is not, or that is not known.
        """
        holder = read_holder(sight.holder)
        if holder is not None and self._judge(holder):
            raise self._held(sight, "it lives")
        silent_s, released = self._watch(sight, holder)
        if released:
            return "released"
        lives = None if holder is None else self._judge(holder)
        if lives is False:
            return f"gone, and silent for {silent_s:.0f} s"
        if lives is None and by_age:
            return f"silent for {silent_s:.0f} s, taken by consent"
        state = "it lives" if lives else "nothing says that it is gone"
        silence = f"silent for {silent_s:.0f} s, but {state}"
        raise self._held(sight, silence, may_be_gone=lives is None)

    def _watch(self, sight: _Sight, holder: Holder | None) -> tuple[float, bool]:
        """Waits until the holder was silent for long enough, or left; says how long, and which."""
        theirs_s = holder.interval_s if holder else 0.0
        limit_s = _SILENT_INTERVALS * max(self._interval_s, theirs_s)
        began = self._clock()
        while (silent_s := self._clock() - began) < limit_s:
            self._sleep(min(self._interval_s / _LOOKS_PER_INTERVAL, limit_s - silent_s))
            now = self._look()
            if now.released:
                return silent_s, True
            if now != sight:
                raise self._held(now, "it was seen at work")
        return silent_s, False

    # -- taking

    def disown(self, holder: Holder) -> None:
        """Notes that this process does not own what may stand under its name."""
        _not_owned.setdefault(self.fs, set()).add(holder.nonce)

    def _is_left_behind(self, content: bytes) -> bool:
        holder = read_holder(content)
        return holder is not None and holder.nonce in _not_owned.get(self.fs, ())

    def _take(self, generation: int, after: str) -> Held:
        here = this_host()
        try:
            me = process_id(os.getpid())
        except OSError as error:  # a record that names no process would count as a dead one's
            raise self.unknown(error, "it was not taken") from error
        holder = Holder(
            schema="fleetcraft.lock/1",
            generation=generation,
            nonce=new_launch_token(),
            purpose=self._purpose,
            host=here.host,
            boot_id=here.boot_id,
            pid_namespace=here.pid_namespace,
            pid=os.getpid(),
            start_ticks=me.start_ticks if me else 0,
            interval_s=self._interval_s,
            taken_at=timestamp(),
            after=after,
            run=self._run,
        )
        data = write_holder(holder)
        try:
            taken = put_if_absent(self.fs, self.path("gen", generation), data)
        except OSError as error:
            self.disown(holder)
            raise self.unknown(error, "whether it was taken is not known, so it was not") from error
        if not taken:
            raise self._held(self._look(), "it was quicker")
        held = Held(self, holder, data)
        try:
            held.check()
        except TryAgainLaterError:
            held.release()  # else this very process, which lives, would keep itself out
            raise
        with contextlib.suppress(OSError):
            held.beat()
        self._forget_old(generation)
        return held

    def _forget_old(self, generation: int) -> None:
        # A contender that slept through so many generations could take a number once more; it
        # would find the higher ones at its first check.
        with contextlib.suppress(OSError):
            for name in self.fs.listdir(self.folder):
                match = _OF_GENERATION.fullmatch(name)
                if match and int(match[1]) <= generation - _KEPT_GENERATIONS:
                    self.fs.unlink(f"{self.folder}/{name}")

    # -- saying

    def _held(self, sight: _Sight, state: str, *, may_be_gone: bool = False) -> LockHeldError:
        holder = read_holder(sight.holder)
        who = str(holder) if holder else f"an owner whose record in {self.folder} is unreadable"
        return LockHeldError(
            f"{self._purpose} belongs to {who} ({state}); nothing was done",
            hint="let it finish, or end that process and call again",
            lock=self.folder,
            generation=sight.generation,
            holder=str(holder or ""),
            state=state,
            may_be_gone=may_be_gone,
        )

    def unknown(self, error: OSError, what: str) -> LockUnknownError:
        """The error for a lock about which the file system does not tell."""
        return LockUnknownError(
            f"cannot tell who owns {self._purpose}: {error.strerror or error} ({self.folder}); "
            f"{what}",
            hint="check the mount, its quota and the folder's permissions, then call again",
            lock=self.folder,
        )

    def lost(self, generation: int, now: int) -> LockLostError:
        """The error for an owner that another has followed."""
        return LockLostError(
            f"{self._purpose} was taken over (generation {now} after {generation}); "
            "nothing more is decided here, and nothing was stopped",
            hint=f"who has it now: cat {self.path('gen', now)}",
            lock=self.folder,
            generation=generation,
            now=now,
        )


class Held:
    """The lock as its owner has it: `check` before each durable act, `release` at the end.

    As a context manager it beats from a thread of its own, which shows that the process lives and
    says nothing of what it does, and releases at the end. Made by `GenerationLock.acquire` alone.
    """

    def __init__(self, lock: GenerationLock, holder: Holder, content: bytes) -> None:
        self.holder = holder
        self._lock = lock
        self._content = content
        self._beats = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def generation(self) -> int:
        """The number that every durable decision of this owner carries."""
        return self.holder.generation

    def check(self) -> None:
        """Rereads who owns the lock.

        This cannot guard what follows it: a process may be paused right after. Durable acts are
        therefore published under names that say what may happen once (`put_if_absent`).

        Raises:
            LockLostError: A later generation exists, or another owner has this one.
            LockUnknownError: The file system does not tell.
        """
        lock = self._lock
        try:
            now = highest(lock.fs.listdir(lock.folder))
            mine = now == self.generation
            content = lock.fs.read(lock.path("gen", now)) if mine else b""
        except OSError as error:
            raise lock.unknown(error, "nothing was decided") from error
        if now < self.generation:
            gone = OSError(errno.ENOENT, f"generation {self.generation} is not to be seen")
            raise lock.unknown(gone, "nothing was decided")
        if not mine or content != self._content:
            raise lock.lost(self.generation, now)

    def beat(self) -> None:
        """Shows that this process lives.

        Raises:
            OSError: It could not be written; a silent owner may be followed by another.
        """
        self._beats += 1
        fs = self._lock.fs
        path = self._lock.path("beat", self.generation)
        temporary = f"{path}.{self.holder.nonce}.tmp"
        data = f"{self.holder.nonce} {self._beats}\n".encode()
        try:
            fs.create(temporary, data)
        except FileExistsError:
            fs.unlink(temporary)  # left by an earlier beat that failed
            fs.create(temporary, data)
        fs.replace(temporary, path)

    def release(self) -> bool:
        """Lets the next one take over at once; says whether that could be written.

        Another's generation is left alone: a folder that was made anew may have one of this number.
        Where it could not be written, this very process may take the lock again all the same.
        """
        self._lock.disown(self.holder)
        fs, path = self._lock.fs, self._lock.path("released", self.generation)
        data = f'{{"nonce":"{self.holder.nonce}","at":"{timestamp()}"}}\n'.encode()
        try:
            mine = fs.read(self._lock.path("gen", self.generation)) == self._content
            return mine and put_if_absent(fs, path, data)
        except OSError:
            return False

    def __enter__(self) -> Held:
        self._thread = threading.Thread(target=self._keep_beating, name="lock beat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.release()

    def _keep_beating(self) -> None:
        while not self._stop.wait(self.holder.interval_s):
            # A missed beat only makes this owner silent, and silence alone proves nothing.
            with contextlib.suppress(OSError):
                self.beat()


def highest(names: list[str]) -> int:
    """The highest generation among file names; 0 where there is none."""
    found = (_GENERATION.fullmatch(name) for name in names)
    return max((int(match[1]) for match in found if match), default=0)
