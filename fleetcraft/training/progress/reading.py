"""What ranks have reported, read again and again from where the last look ended.

Knows files and lines; what progress means is `watching`'s. Ages are those of the reader's own
clock, from when it saw a change; the writers' clocks and times of files are never used. Invariant:
what could not be read changes nothing that was seen before, and `trouble` says so.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import progress_file
from fleetcraft.training.progress.lines import MAX_NAMES, ProgressLine, parse_line
from fleetcraft.training.records import ProcessRecord, RankProgress

LogSteps = Callable[[], int | None]
"""The last completed step that a log's text tells; None while it told none."""
LOG_RANK = -1
"""The rank under which steps of a log appear, when no rank itself counts any."""
CHUNK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 16
LOOK_BYTES = (
    1 << 23
)  # about 0.3 s of parsing: a look at an old run's long files is no stall of ours
_SEAM_BYTES = 256
_NAME = re.compile(r"rank-(\d{5,9})\.jsonl")


def read_at(path: str, offset: int, limit_bytes: int) -> tuple[bytes, int]:
    """Some bytes of a regular file from an offset, and the file's size.

    Raises:
        OSError: Not there, a symbolic link, no regular file, or unreadable.
    """
    # Opened anew each time: on NFS only an open asks the server how long the file is now.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"not a regular file: {path}")
        if facts.st_size <= offset:
            return b"", facts.st_size
        # No more than is there: Python makes room for all that is asked for.
        return os.pread(fd, min(limit_bytes, facts.st_size - offset), offset), facts.st_size
    finally:
        os.close(fd)


class ProgressReader:
    """Follows the progress files of one attempt.

    Lines that stand there when the reader first looks are history: they say where a rank is, but
    they are no change that was seen. Half a line waits for its end. A file that became shorter, or
    whose bytes before the last place read are others, is read anew from its beginning.

    Memory is bounded: one chunk, and the last report of each rank.

    Attributes:
        trouble: Why the last look is not whole; empty when it is.
        rejected: Lines that were not, or not wholly, taken, by kind.
        replaced: How often a file was found to have been replaced or cut.
        world_size: As a rank told; None while none did.
    """

    def __init__(
        self,
        folder: str,
        *,
        fs: FileSystem | None = None,
        clock: Callable[[], float] = time.monotonic,
        log_steps: LogSteps | None = None,
        read: Callable[[str, int, int], tuple[bytes, int]] = read_at,
    ) -> None:
        """Reads nothing yet.

        Args:
            folder: The attempt's progress files.
            fs: The seam for listing.
            clock: Seconds; only differences count.
            log_steps: Asked when no rank counts steps.
            read: The seam for reading, see `read_at`.
        """
        self.trouble = ""
        self.rejected: Counter[str] = Counter()
        self.replaced = 0
        self.world_size: int | None = None
        self._folder = folder
        self._fs = fs or FileSystem()
        self._clock = clock
        self._read = read
        self._log_steps = log_steps
        self._log = _Rank(LOG_RANK, history=True)
        self._ranks: dict[int, _Rank] = {}
        self._names: list[str] | None = None

    def look(self) -> dict[int, RankProgress]:
        """Reads what is new; the last report of each rank, by rank."""
        now_s = self._clock()
        troubles: list[str] = []
        self._find_ranks(troubles)
        left = LOOK_BYTES
        for rank in self._ranks.values():
            try:
                left -= self._follow(rank, now_s, left)
            except OSError as error:
                troubles.append(f"rank {rank.rank}: {error.strerror or error}")
                continue
            if rank.behind_bytes:
                troubles.append(f"rank {rank.rank}: {rank.behind_bytes} bytes are not read yet")
        self.trouble = "; ".join(troubles[:4]) + (
            f"; and {len(troubles) - 4} more" if len(troubles) > 4 else ""
        )
        seen = {rank.rank: rank.report() for rank in self._ranks.values()}
        if self._log_steps and all(one.step is None for one in seen.values()):
            self._ask_log(self._log_steps, now_s)
            if self._log.step is not None:
                seen[LOG_RANK] = self._log.report()
        return seen

    def _find_ranks(self, troubles: list[str]) -> None:
        try:
            names = self._fs.listdir(self._folder)
        except OSError as error:
            troubles.append(f"{self._folder}: {error.strerror or error}")
            if isinstance(error, FileNotFoundError) and self._names is None:
                self._names = []  # what appears there later is news
            return
        if names == self._names:
            return
        for name in names:
            if (match := _NAME.fullmatch(name)) and (number := int(match[1])) not in self._ranks:
                self._ranks[number] = _Rank(number, history=self._names is None)
        self._names = names

    def _follow(self, rank: _Rank, now_s: float, budget: int) -> int:
        """Reads one file on; returns the bytes that this took."""
        path = progress_file(self._folder, rank.rank)
        taken = 0
        while True:
            start = rank.offset - len(rank.seam)
            data, size = self._read(path, start, CHUNK_BYTES)
            if size < rank.offset or (data and not data.startswith(rank.seam)):
                self.replaced += 1
                rank.begin_anew()
                continue
            self._take(rank, data[len(rank.seam) :], now_s)
            taken += len(data)
            more = max(0, size - start - len(data))
            if not more:
                rank.history = rank.again = False
            if not more or taken >= budget or not data:
                rank.behind_bytes = more
                return taken

    def _take(self, rank: _Rank, data: bytes, now_s: float) -> None:
        end = data.rfind(b"\n") + 1
        if not end and len(data) >= MAX_LINE_BYTES:
            if not rank.skipping:
                self._reject(rank, "too long")
            rank.skipping = True
            rank.advance(data)
            return
        lines = data[:end].split(b"\n")[:-1]
        if rank.skipping and lines:
            rank.skipping = False
            del lines[0]
        for raw in lines:
            if raw and not raw.isspace():
                self._take_line(rank, raw, now_s)
        rank.advance(data[:end])

    def _take_line(self, rank: _Rank, raw: bytes, now_s: float) -> None:
        line = parse_line(raw) if len(raw) <= MAX_LINE_BYTES else ProgressLine(wrong="too long")
        if line.wrong:
            self._reject(rank, line.wrong)
        if line.world_size is not None:
            self.world_size = line.world_size
        rank.take(line, raw, now_s)

    def _reject(self, rank: _Rank, kind: str) -> None:
        rank.reject()
        self.rejected[kind] += 1

    def _ask_log(self, log_steps: LogSteps, now_s: float) -> None:
        step = log_steps()
        if step is not None and step != self._log.step:
            self._log.take(ProgressLine(step=step, name="log"), b"", now_s)
        self._log.history = False


Value = TypeVar("Value")


def _merged(before: dict[str, Value], now: dict[str, Value]) -> dict[str, Value]:
    both = before | now
    # Names that change with every line would else grow without end.
    return both if len(both) <= MAX_NAMES else now


class _Rank:
    """One rank's file and what it said so far."""

    def __init__(self, rank: int, *, history: bool) -> None:
        self.rank = rank
        self.history = history
        self.again = False
        self.offset = 0
        self.seam = b""
        self.skipping = False
        self.behind_bytes = 0
        self.bad_lines = 0
        self._lines = 0
        self._tokens: float | None = None
        self._base: int | None = None
        self._process: ProcessRecord | None = None
        self.step: int | None = None
        self._first_step: int | None = None
        self._name = self._phase = ""
        self._last: bytes = b""
        self._loss: float | None = None
        self._queues: dict[str, tuple[int, int | None]] = {}
        self._metrics: dict[str, float] = {}
        self._memory: int | None = None
        self._step_changed_s: float | None = None
        self._changed_s: float | None = None
        self._phase_since_s: float | None = None
        self._report: RankProgress | None = None

    def begin_anew(self) -> None:
        """The file is another one, or was cut: what stands there now is no change that was seen."""
        self.offset, self.seam, self.skipping = 0, b"", False
        self.history = self.again = True
        self._base = None

    def reject(self) -> None:
        """Counts a line that was not, or not wholly, taken."""
        self.bad_lines += 1
        self._report = None

    def advance(self, data: bytes) -> None:
        """Marks whole lines as read."""
        if data:
            self.offset += len(data)
            self.seam = (self.seam + data[-_SEAM_BYTES:])[-_SEAM_BYTES:]

    def take(self, line: ProgressLine, raw: bytes, now_s: float) -> None:
        """Takes what one line says."""
        self._report = None
        self._lines += 1
        self._last = raw
        if not self.history:
            self._changed_s = now_s
        if line.hello:
            self._process, self._base = line.process, None
            self._set_phase(line.phase or "", now_s)
        elif line.phase is not None:
            self._set_phase(line.phase, now_s)
        if line.name:
            self._name = line.name
        if line.tokens is not None and not self.again:
            self._tokens = (self._tokens or 0.0) + line.tokens
        if line.loss is not None:
            self._loss = line.loss
        if line.queues:
            self._queues = _merged(self._queues, line.queues)
        if line.metrics:
            self._metrics = _merged(self._metrics, line.metrics)
        if line.device_memory_bytes is not None:
            self._memory = line.device_memory_bytes
        if line.step is not None:
            self._take_step(line.step, now_s)

    def _take_step(self, step: int, now_s: float) -> None:
        # The first step of a process counts as grown, also when it resumed at an earlier one.
        grown = self._base is None or step > self._base
        self.step = self._base = step
        if self._first_step is None:
            self._first_step = step
        if grown and not self.history:
            self._step_changed_s = now_s

    def _set_phase(self, phase: str, now_s: float) -> None:
        if phase != self._phase:
            self._phase = phase
            self._phase_since_s = now_s if phase else None

    def report(self) -> RankProgress:
        """The record of what was said so far."""
        if self._report is None:
            self._report = self._record()
        return self._report

    def _record(self) -> RankProgress:
        return RankProgress(
            rank=self.rank,
            name=self._name,
            process=self._process,
            step=self.step,
            first_step=self._first_step,
            tokens=None if self._tokens is None else round(self._tokens),
            loss=self._loss,
            queues=self._queues,
            metrics=self._metrics,
            device_memory_bytes=self._memory,
            phase=self._phase,
            lines=self._lines,
            bad_lines=self.bad_lines,
            step_changed_s=self._step_changed_s,
            changed_s=self._changed_s,
            phase_since_s=self._phase_since_s,
            last_line=self._last[:2000].decode("utf-8", "replace")[:500],
        )
