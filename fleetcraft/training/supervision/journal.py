"""The journal of a run: what its supervisors decided and saw, one JSON object a line.

Appended to, never rewritten; every line carries the lock's generation and the epoch. Who reads it
back for decisions is `history`. Invariant: a line that could not be written is kept and written
before the next one, and how many had to be given up is written too.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.files import FileSystem
from fleetcraft.training.records import EVENT_SCHEMA

_MOST_KEPT = 1000
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Event(StrEnum):
    """What a line tells.

    STATE: the supervisor's own course. LAUNCHED, ADOPTED: an epoch was opened. BUILT: the launcher
    has built something else than declared. ALARM, DEAD_RANK, SLOW, QUEUES: what the watch sees.
    EVIDENCE, EVIDENCE_CLOSED: a crash episode opened and closed. DIAGNOSIS, STOPPED, OUTCOME: how
    an attempt ended. RUNG: what the next one tries. BUDGET: what the budgets say. VERIFIED: the
    report before and after. ABORT: the marker was seen. UNKNOWN: something could not be read.
    CLOCK: the wall clock was changed. ANEW: an operator has changed something, so earlier restarts
    do not count. RESUMED: this supervisor is a resume that was claimed, so the run may be launched
    once more although it was done. TOLD_TO_END: a signal came. ELSEWHERE: another rank of this step
    supervises the run. ENDED: the supervisor leaves.
    """

    STATE = "state"
    LAUNCHED = "launched"
    ADOPTED = "adopted"
    ALARM = "alarm"
    DEAD_RANK = "dead_rank"
    SLOW = "slow"
    QUEUES = "queues"
    BUILT = "built"
    EVIDENCE = "evidence"
    EVIDENCE_CLOSED = "evidence_closed"
    DIAGNOSIS = "diagnosis"
    STOPPED = "stopped"
    OUTCOME = "outcome"
    RUNG = "rung"
    BUDGET = "budget"
    VERIFIED = "verified"
    ABORT = "abort"
    UNKNOWN = "unknown"
    CLOCK = "clock"
    ANEW = "anew"
    RESUMED = "resumed"
    TOLD_TO_END = "told_to_end"
    ELSEWHERE = "elsewhere"
    ENDED = "ended"


def event_of(
    event: Event, run: str, generation: int, epoch: int | None, **facts: Any
) -> dict[str, Any]:
    """One event as it is written and told; records among its facts become JSON objects."""
    return {
        "schema": EVENT_SCHEMA,
        "at": timestamp(),
        "run": run,
        "generation": generation,
        "epoch": epoch,
        "event": str(event),
        **{key: msgspec.to_builtins(fact) for key, fact in facts.items()},
    }


class Journal:
    """Writes one run's journal.

    Args:
        path: The file; made when it is not there.
        run: The run's name.
        fs: The seam.
        tell: Is handed every event too, whether or not the file took it.
    """

    def __init__(
        self,
        path: str,
        *,
        run: str,
        fs: FileSystem | None = None,
        tell: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.generation = 0
        self.epoch: int | None = None
        self.trouble = ""
        self._path = path
        self._run = run
        self._fs = fs or FileSystem()
        self._tell = tell
        self._fd: int | None = None
        self._waiting: deque[bytes] = deque()
        self._given_up = 0

    def write(self, event: Event, *, durable: bool = False, **facts: Any) -> None:
        """Appends one event.

        Never raises for a file system that refuses: the line waits, and `trouble` says why.

        Args:
            event: What happened.
            durable: Forced to disk before this returns.
            facts: More of it; records are written as JSON objects.
        """
        value = event_of(event, self._run, self.generation, self.epoch, **facts)
        if self._tell is not None:
            self._tell(value)
        if len(self._waiting) >= _MOST_KEPT:
            self._waiting.popleft()
            self._given_up += 1
        self._waiting.append(_encode(value) + b"\n")
        self._flush(durable=durable)

    def close(self) -> None:
        """Tries once more to write what waits, and closes the file."""
        self._flush(durable=False)
        if self._fd is not None:
            self._fs.close(self._fd)
            self._fd = None

    def _flush(self, *, durable: bool) -> None:
        try:
            fd = self._open()
            while self._waiting:
                # A torn line stays as it is: what another has appended meanwhile must not be cut.
                torn = b"" if self._fs.ends_with_newline(fd) else b"\n"
                self._fs.append(fd, torn + self._waiting[0])
                self._waiting.popleft()
            if self._given_up:
                self._say_given_up(fd)
            if durable:
                self._fs.datasync(fd)
        except OSError as error:
            self.trouble = f"the journal cannot be written: {error.strerror or error}"
            return
        self.trouble = ""

    def _say_given_up(self, fd: int) -> None:
        text = f"{self._given_up} events could not be written and were given up"
        value = event_of(Event.UNKNOWN, self._run, self.generation, self.epoch, why=text)
        self._fs.append(fd, _encode(value) + b"\n")
        self._given_up = 0

    def _open(self) -> int:
        if self._fd is None:
            with contextlib.suppress(FileExistsError):
                self._fs.create(self._path, b"")
            self._fd = self._fs.open_append(self._path)
        return self._fd


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a journal, and how many lines were none."""

    events: tuple[dict[str, Any], ...] = ()
    bad_lines: int = 0


def read_events(path: str, *, fs: FileSystem | None = None) -> Events:
    """Every event of a journal, oldest first; none when there is no journal.

    Raises:
        OSError: What is in it is not known.
    """
    try:
        data = (fs or FileSystem()).read(path)
    except FileNotFoundError:
        return Events()
    found = list(_events(data))
    return Events(
        events=tuple(event for event in found if event is not None),
        bad_lines=sum(event is None for event in found),
    )


def _events(data: bytes) -> Iterator[dict[str, Any] | None]:
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            value = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield None
            continue
        yield value if value.get("schema") == EVENT_SCHEMA else None
