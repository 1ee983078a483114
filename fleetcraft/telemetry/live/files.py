"""The telemetry folder as it grows: what every logger last said, looked at again and again.

Each look reads what was appended since the one before. Not here: spools, and what it all means
(`live_state`). Invariant: nothing but private regular files of this user is read, and a file that
shrank or was replaced is read anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import msgspec

from fleetcraft.gpu.states import number
from fleetcraft.layout import parse_telemetry_file, sidecar
from fleetcraft.telemetry.live.newest import NewestRows, Reading
from fleetcraft.telemetry.live.private_files import MountClock, open_file, open_folder
from fleetcraft.telemetry.tail import (
    TAIL_BYTES,
    last_written_first,
    newest_first,
    read_end,
    sidecar_value,
)

FIRST_BYTES = 1 << 13
"""Of a file whose sidecar names its GPUs, the first read is so long if that shows them all: five
samples of eight GPUs."""
_BACKLOG_BYTES = 1 << 20  # after a long pause the end of a file is enough
_MARK_BYTES = 64  # by the end of what was read, a file is known again
OLD_FACTOR = 24
"""A file unwritten for so many times the time to forget is history, and is not read."""
_OLD_AGAIN_S = 60.0


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """What the newest logger of one job on one node has said.

    Attributes:
        node: Its node.
        job: Its job.
        file: The name of its file.
        readings: Each GPU or slice that it has told of.
        reason: Why there are none.
        age_s: Since its file was last written.
        interval_s: Between its samples.
        ended_at: When it ended, as it says itself; empty for one that has not said so.
        end_reason: Why it ended.
        expected_gpus: How many it should see; None when nothing told it.
        gpu_names: Models by UUID.
    """

    node: str
    job: str
    file: str
    readings: tuple[Reading, ...] = ()
    reason: str = ""
    age_s: float
    interval_s: float
    ended_at: str = ""
    end_reason: str = ""
    expected_gpus: int | None = None
    gpu_names: Mapping[str, str] = msgspec.field(default_factory=dict)


class Look(msgspec.Struct, kw_only=True):
    """One look at the folder.

    Attributes:
        logged: The newest logger of each job and node, but for history.
        problem: Why the folder was not read.
        files: Files that are followed.
        bytes_read: Of rows, by this look.
        rows_rejected: Torn and damaged lines of the files that are followed.
        rows_waiting: Last lines that have no newline yet.
        refused: Files that were not read, each with the reason.
    """

    logged: list[Logged] = msgspec.field(default_factory=list)
    problem: str = ""
    files: int = 0
    bytes_read: int = 0
    rows_rejected: int = 0
    rows_waiting: int = 0
    refused: list[str] = msgspec.field(default_factory=list)


class LiveTelemetry:
    """Follows a telemetry folder.

    Args:
        folder: Where the files are.
        forget_s: After how long without a word a logger counts no more.
    """

    def __init__(self, folder: str, forget_s: float) -> None:
        self._folder = folder
        self._old_s = forget_s * OLD_FACTOR
        self._clock = MountClock(folder)
        self._names: frozenset[str] = frozenset()
        self._places: dict[tuple[str, str], list[str]] = {}
        self._files: dict[str, _File] = {}

    def look(self) -> Look:
        """Reads what is new.

        Costs a listing of the folder, and for each job and node two looks at files; nothing of
        history is opened more than once a minute. Raises nothing: what could not be read is told.
        """
        look = Look()
        try:
            folder_fd = open_folder(self._folder)
        except FileNotFoundError:
            look.problem = f"no telemetry folder at {self._folder}"
            return look
        except OSError as error:
            look.problem = f"{self._folder}: {error.strerror}"
            return look
        try:
            self._look(look, folder_fd, self._clock.now_s())
        except OSError as error:
            look.problem = f"{self._folder}: {error.strerror}"
            look.logged = []
        finally:
            os.close(folder_fd)
        return look

    def _look(self, look: Look, folder_fd: int, now_s: float) -> None:
        names = frozenset(os.listdir(folder_fd))
        if names != self._names:
            self._names, self._places = names, newest_first(sorted(names))
        kept: dict[str, _File] = {}
        for newest in self._places.values():
            for name in last_written_first(folder_fd, newest):
                file = kept[name] = self._files.get(name) or _File(name)
                try:
                    look.bytes_read += file.look(folder_fd, now_s, self._old_s)
                except OSError as error:
                    look.refused.append(f"{name}: {error.strerror}")
                    continue
                if file.is_history or file.has_rows:
                    break
        self._files = kept
        self._sum_up(look, now_s)

    def _sum_up(self, look: Look, now_s: float) -> None:
        here_s = time.time()
        for newest in self._places.values():
            files = [self._files[name] for name in newest if name in self._files]
            read = [file for file in files if file.was_read]
            look.files += len(read)
            look.rows_rejected += sum(file.rejected for file in read)
            look.rows_waiting += sum(file.rows.waiting for file in read)
            chosen = next((file for file in read if file.has_rows), read[0] if read else None)
            if chosen is not None:
                look.logged.append(chosen.logged(now_s, here_s))


class _File:
    """One file, and how far it was read."""

    def __init__(self, name: str) -> None:
        parsed = parse_telemetry_file(name)
        assert parsed is not None
        self.name = name
        self.node, self.job = parsed.node, parsed.job
        self.rows = NewestRows()
        self.was_read = False
        self.is_history = False
        self._rejected_before = 0
        self._identity = (0, 0)
        self._offset = 0
        self._mark = b""
        self._written_s = 0.0
        self._looked_s = 0.0
        self._beside = _Beside()

    @property
    def has_rows(self) -> bool:
        """Whether it has told anything yet."""
        return self.was_read and not self.rows.is_empty

    @property
    def rejected(self) -> int:
        """Lines of it that were no rows."""
        return self._rejected_before + self.rows.rejected

    def look(self, folder_fd: int, now_s: float, old_s: float) -> int:
        """Reads what was appended; returns how many bytes that were.

        Raises:
            OSError: It is not there any more, or may not be read.
        """
        here_s = time.monotonic()
        if self.is_history and here_s - self._looked_s < _OLD_AGAIN_S:
            return 0
        self._looked_s = here_s
        self.was_read = False
        fd, facts = open_file(folder_fd, self.name)
        try:
            self._written_s = facts.st_mtime
            self.is_history = now_s - facts.st_mtime > old_s
            if self.is_history:
                return 0
            self._beside.look(folder_fd, self.name)
            self.was_read = True
            return self._read(fd, facts)
        finally:
            os.close(fd)

    def _read(self, fd: int, facts: os.stat_result) -> int:
        identity = (facts.st_dev, facts.st_ino)
        grown = facts.st_size - self._offset
        if identity == self._identity and not grown:
            return 0
        if identity == self._identity and self._offset and 0 < grown <= _BACKLOG_BYTES:
            data = os.pread(fd, grown + len(self._mark), self._offset - len(self._mark))
            # The number of a file that was removed may be that of the next one.
            if data.startswith(self._mark):
                new = data[len(self._mark) :]
                self._advance(self._offset + len(new), data)
                self.rows.feed(new)
                return len(new)
        self._identity = identity
        return self._begin(fd, facts.st_size)

    def _advance(self, offset: int, data: bytes) -> None:
        self._offset = offset
        self._mark = data[-_MARK_BYTES:]

    def _begin(self, fd: int, size_bytes: int) -> int:
        self._rejected_before += self.rows.rejected
        names = self._beside.gpu_names
        read_bytes = 0
        for most_bytes in (FIRST_BYTES, TAIL_BYTES) if names else (TAIL_BYTES,):
            self.rows, offset = read_end(fd, size_bytes, most_bytes)
            read_bytes += min(size_bytes, most_bytes)
            if size_bytes <= most_bytes or self.rows.shows(names):
                break
        start = max(0, offset - _MARK_BYTES)
        self._advance(offset, os.pread(fd, offset - start, start))
        return read_bytes

    def logged(self, now_s: float, here_s: float) -> Logged:
        """What it says.

        Args:
            now_s: By the clock that dates the file.
            here_s: By this host's clock.
        """
        age_s = max(0.0, now_s - self._written_s)
        interval_s = self._beside.interval_s or self.rows.interval_s()
        readings, reason = self.rows.readings(interval_s=interval_s, file_age_s=age_s, now_s=here_s)
        return Logged(
            node=self.node,
            job=self.job,
            file=self.name,
            readings=tuple(readings),
            reason=reason,
            age_s=age_s,
            interval_s=interval_s,
            ended_at=self._beside.ended_at,
            end_reason=self._beside.end_reason,
            expected_gpus=self._beside.expected_gpus,
            gpu_names=self._beside.gpu_names,
        )


class _Beside:
    """A file's sidecar, read again when it was replaced."""

    def __init__(self) -> None:
        self._seen: tuple[int, int, int] | None = None
        self._take({})

    def look(self, folder_fd: int, name: str) -> None:
        """Reads it if it is another one."""
        try:
            facts = os.stat(sidecar(name), dir_fd=folder_fd, follow_symlinks=False)
            seen = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        except OSError:
            seen = None
        if seen != self._seen:
            self._seen = seen
            self._take(sidecar_value(folder_fd, name))

    def _take(self, said: Mapping[str, object]) -> None:
        self.interval_s = number(said.get("interval_s")) or None
        self.ended_at = _words(said.get("ended_at"))
        self.end_reason = _words(said.get("end_reason"))
        expected = said.get("expected_gpus")
        self.expected_gpus = expected if type(expected) is int and expected >= 0 else None
        gpus = said.get("gpus")
        listed = [one for one in gpus if isinstance(one, dict)] if isinstance(gpus, list) else []
        self.gpu_names = {
            uuid: _words(one.get("name")) for one in listed if (uuid := _words(one.get("uuid")))
        }


def _words(value: object) -> str:
    return value if isinstance(value, str) else ""
