"""Asking Slurm no more often than it bears, together with all other processes of this user here.

Polls of one kind (one program) are at least ten seconds apart per user and host, whatever they
ask; in between, an answer is shared, with its age, by whoever asks the same of the same cluster.
Not here: what is asked. Invariants: a poll is noted before it starts, so that one that failed or
was killed counts too; the last poll of a question is what is known of it, also when it failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from fleetcraft.errors import FleetError, NotAskedError, SchedulerError
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token, sha256_hex, this_host
from fleetcraft.slurm import commands, environment
from fleetcraft.trust import node_local_folder, require_private_folder

INTERVAL_S = 10.0
"""Least time between two polls of one kind. Source: the contract of the scheduler calls."""
JITTER_FRACTION = 0.1
"""At most so much longer, by chance, so that hosts that started together drift apart."""
PATIENCE_S = 45.0
"""How long a call may take in all, so that two of them fit into a recovery's minute or nearly."""
_FOLDER_VARIABLE = "FLEET_POLLS_DIR"
_FORGET_S = 3600.0
_BUSY_PAUSE_S = 0.1
_TURN_BYTES = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a program printed.

    Attributes:
        text: Its standard output.
        age_s: Seconds since the poll started.
        fresh: Whether that poll started after the question was put to `Polls.ask`.
    """

    text: str
    age_s: float
    fresh: bool


class _Poll(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One poll as it is kept: its times by the clock since boot, and its answer or its failure."""

    boot_id: str
    started_s: float
    ended_s: float
    text: str | None = None
    failure: str = ""
    hint: str = ""


class _Noted(msgspec.Struct, kw_only=True):
    """When the next poll of a kind may start."""

    boot_id: str
    not_before_s: float


class Polls:
    """The polls of this user on this host.

    Args:
        folder: Where polls are noted; a private folder in this machine's memory if None, or the
            one that ``FLEET_POLLS_DIR`` names.
        clock: Seconds that never step, the same for all processes: since boot, sleep included.
        sleep: Waits.
        interval_s: Least time between polls of one kind.

    On disk: ``<kind>.turn`` is locked (flock, so that it is free once its holder is dead) by
    whoever polls, and says when the next poll may start; ``<kind>-<digest>.answer`` is the last
    poll of one question.
    """

    def __init__(
        self,
        folder: str | None = None,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._folder = folder
        self._clock = clock or _since_boot_s
        self._sleep = sleep
        self._interval_s = interval_s
        self._boot_id = this_host().boot_id
        self._fs = FileSystem()

    def ask(
        self,
        kind: str,
        argv: Sequence[str],
        *,
        fresh: bool = False,
        max_age_s: float = INTERVAL_S,
        patience_s: float = PATIENCE_S,
    ) -> Answer:
        """Answers a question from what is known of it, or by a poll when its turn has come.

        Args:
            kind: What is spaced: ``squeue``, ``sinfo``, ``sacct``, …
            argv: The program and its arguments: the question.
            fresh: Only an answer will do whose poll starts after this call; many that ask so at
                once share one poll.
            max_age_s: Oldest answer that will do, if not fresh.
            patience_s: How long this call may take; a program that hangs is stopped two seconds
                after that at the latest.

        Raises:
            NotAskedError: Its turn did not come in time, or there is no safe place to note polls.
            SchedulerError: The poll failed, or one that would have done has failed already.
        """
        began_s = self._clock()
        timeout_s = min(commands.TIMEOUT_S, max(1.0, patience_s))
        question = self._question(kind, argv)
        while True:
            known = self._known(question, began_s, fresh=fresh, max_age_s=max_age_s)
            if known is not None:
                return self._answer(known, kind, began_s)
            with self._turn(kind) as turn:
                wait_s = _BUSY_PAUSE_S if turn is None else turn.wait_s
                if turn is not None and wait_s <= 0:
                    return self._answer(self._poll(turn, question, argv, timeout_s), kind, began_s)
            if self._clock() + wait_s > began_s + patience_s - timeout_s:
                raise _not_our_turn(kind, patience_s, self._interval_s)
            self._sleep(wait_s + random.uniform(0.0, _BUSY_PAUSE_S))

    def _question(self, kind: str, argv: Sequence[str]) -> str:
        """The path of the last poll of this question to this cluster."""
        program = commands.find(argv[0])
        env = environment.for_questions()
        cluster = [env.get(name, "") for name in environment.WHICH_CLUSTER]
        key = sha256_hex("\0".join([program, *cluster, *argv]).encode("utf-8", "surrogateescape"))
        return f"{self._place()}/{kind}-{key[:32]}.answer"

    def _place(self) -> str:
        # Looked at anew each time: some systems clear a user's shared memory at every logout.
        try:
            folder = self._folder or os.environ.get(_FOLDER_VARIABLE)
            folder = folder or f"{node_local_folder()}/polls"
            require_private_folder(folder)
        except (OSError, FleetError) as error:
            raise _not_kept_apart(error) from error
        return folder

    def _known(
        self, question: str, began_s: float, *, fresh: bool, max_age_s: float
    ) -> _Poll | None:
        """The last poll of a question, if it will do; a failure does for one interval only."""
        try:
            poll = _decode_poll(self._fs.read(question))
        except (OSError, msgspec.DecodeError, RecursionError):
            return None
        now_s = self._clock()
        if poll.boot_id != self._boot_id or not poll.started_s <= poll.ended_s <= now_s:
            return None
        if fresh:
            return poll if poll.started_s >= began_s else None
        if poll.text is None:
            return poll if now_s - poll.ended_s <= self._interval_s else None
        return poll if now_s - poll.started_s <= max_age_s else None

    @contextlib.contextmanager
    def _turn(self, kind: str) -> Iterator[_Turn | None]:
        """The right to poll one kind, held while in the block; None while another has it."""
        path = f"{self._place()}/{kind}.turn"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise _not_kept_apart(error) from error
        try:
            try:
                has_it = _lock(fd) and _is_at(fd, path)  # else it was forgotten before that
            except OSError as error:  # a file system without flock
                raise _not_kept_apart(error) from error
            yield _Turn(fd, self._boot_id, self._clock, self._interval_s) if has_it else None
        finally:
            os.close(fd)

    def _poll(self, turn: _Turn, question: str, argv: Sequence[str], timeout_s: float) -> _Poll:
        started_s = self._clock()
        try:
            turn.note()
        except OSError as error:
            raise _not_kept_apart(error) from error
        poll = None
        try:
            text = commands.run(argv, timeout_s=timeout_s)
            poll = self._ended(started_s, text=text)
        except SchedulerError as error:
            poll = self._ended(started_s, failure=error.message, hint=error.hint)
            raise
        finally:
            with contextlib.suppress(OSError):
                turn.note()
            self._keep(question, poll)
        return poll

    def _ended(
        self, started_s: float, *, text: str | None = None, failure: str = "", hint: str = ""
    ) -> _Poll:
        return _Poll(
            boot_id=self._boot_id,
            started_s=started_s,
            ended_s=self._clock(),
            text=text,
            failure=failure,
            hint=hint,
        )

    def _keep(self, question: str, poll: _Poll | None) -> None:
        """Keeps a poll for others.

        Where it cannot be kept, or was broken off, what was known before does not stay either.
        """
        temporary = f"{question}.{os.getpid()}.{new_launch_token()}.new"
        try:
            if poll is not None:
                self._fs.create(temporary, _encode(poll))
                self._fs.replace(temporary, question)
                return
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.unlink(temporary)
        finally:
            self._forget_old()
        with contextlib.suppress(OSError):
            self._fs.unlink(question)

    def _forget_old(self) -> None:
        """Removes what nobody has asked for an hour; a turn that somebody has stays."""
        oldest = time.time() - _FORGET_S
        with contextlib.suppress(OSError):
            for name in self._fs.listdir(self._place()):
                path = f"{self._place()}/{name}"
                if self._fs.lstat(path).st_mtime >= oldest:
                    continue
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if _lock(fd):
                        self._fs.unlink(path)
                finally:
                    os.close(fd)

    def _answer(self, poll: _Poll, kind: str, began_s: float) -> Answer:
        age_s = max(0.0, self._clock() - poll.started_s)
        if poll.text is None:
            raise SchedulerError(
                f"{poll.failure} ({age_s:.0f} s ago; {kind} is not asked again so soon)",
                hint=poll.hint,
                age_s=age_s,
            )
        return Answer(text=poll.text, age_s=age_s, fresh=poll.started_s >= began_s)


class _Turn:
    """The locked file that says when the next poll of a kind may start."""

    def __init__(
        self, fd: int, boot_id: str, clock: Callable[[], float], interval_s: float
    ) -> None:
        self._fd = fd
        self._boot_id = boot_id
        self._clock = clock
        self._interval_s = interval_s
        self._longest_s = interval_s * (1 + JITTER_FRACTION)

    @property
    def wait_s(self) -> float:
        """Seconds until a poll may start; none where what is noted cannot be true."""
        try:
            noted = _decode_noted(os.pread(self._fd, _TURN_BYTES, 0))
        except msgspec.DecodeError:
            return 0.0
        left_s = noted.not_before_s - self._clock()
        plausible = noted.boot_id == self._boot_id and left_s <= self._longest_s
        return max(0.0, left_s) if plausible else 0.0

    def note(self) -> None:
        """Notes that a poll starts or has ended now."""
        not_before_s = self._clock() + random.uniform(self._interval_s, self._longest_s)
        noted = _Noted(boot_id=self._boot_id, not_before_s=not_before_s)
        # One write of always the same length: no reader finds half of it.
        os.pwrite(self._fd, _encode(noted).ljust(_TURN_BYTES), 0)


_encode = msgspec.json.Encoder().encode
_decode_poll = msgspec.json.Decoder(_Poll).decode
_decode_noted = msgspec.json.Decoder(_Noted).decode


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _lock(fd: int) -> bool:
    """Locks a file, unless somebody else has."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: str) -> bool:
    """Whether this very file has the name now."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _not_kept_apart(error: Exception) -> NotAskedError:
    return NotAskedError(
        f"polls cannot be kept apart: {error}; Slurm was not asked",
        hint=f"make room there, or name a private folder in {_FOLDER_VARIABLE}",
    )


def _not_our_turn(kind: str, patience_s: float, interval_s: float) -> NotAskedError:
    return NotAskedError(
        f"{kind} was not asked: within {patience_s:g} s its turn did not come "
        f"(polls are {interval_s:g} s apart)",
        hint="other fleetcraft processes of yours on this host ask too; try again",
        kind=kind,
        patience_s=patience_s,
    )
