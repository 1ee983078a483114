"""A log read as a stream: new lines that bear a signature, and the last step that it shows.

One pass of one expression over bytes finds candidate lines; only those are taken apart. Invariant:
memory is bounded whatever the log holds, and a line that begins before the fence never counts.
"""

from __future__ import annotations

import os
from types import TracebackType

from fleetcraft.files import FileSystem
from fleetcraft.training.diagnosing.fences import TAIL_BYTES, holds
from fleetcraft.training.diagnosing.hits import Hit
from fleetcraft.training.diagnosing.lines import Piece, read_piece
from fleetcraft.training.diagnosing.steps import StepReader
from fleetcraft.training.records import LogFence

CHUNK_BYTES = 1 << 20
_MOST_CARRIED = 1 << 18
_ABOVE = 1024
_MOST_HITS = 2048


class LogScan:
    """Reads one log on and on.

    The file stays open between looks, so a log that is renamed away is read to its end before the
    new one of its name is begun.

    Args:
        path: The log; it need not be there yet.
        fence: Where it stood when the attempt began.
        fs: The seam.

    Attributes:
        path: The log.
        step: The last completed step that its text shows; None before the first.
        first_step: The first one that it showed after the newest hit; None while it showed none.
        offset: How far it was read.
        lines: Whole lines read.
        left_out: Hits beyond 2,048 a look, which were counted only.
        trouble: Why the last look is not whole; empty when it is.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fence: LogFence | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.step: int | None = None
        self.first_step: int | None = None
        self.offset = 0
        self.lines = 0
        self.left_out = 0
        self.trouble = ""
        self._fence = fence
        self._files = fs or FileSystem()
        self._fd = -1
        self._seam = b""
        self._above = b""
        self._carry = b""
        self._skip_line = False
        self._steps = StepReader()
        self._error: OSError | None = None

    def look(self, *, final: bool = False) -> list[Hit]:
        """Reads what is new.

        A half line waits for its end, and a traceback for its exception, but not longer than until
        a look at which nothing is new.

        Args:
            final: Nothing more will be written: the last line counts without its end, too.

        Returns:
            New hits in the order of the log. After an OSError those that were read; `trouble`
            says why there are no more, and the next look goes on from there.
        """
        self.trouble, self._error = "", None
        hits: list[Hit] = []
        try:
            if self._fd < 0 and not self._open():
                return hits
            came = self._read_on(hits)
            if self._follow_name():
                came = self._read_on(hits) or came
            if final or not came:
                self._take(b"", hits, final=final)
        except OSError as error:
            self._error = error
            self.trouble = f"{self.path}: {error.strerror or error}"
        return hits

    def raise_trouble(self) -> None:
        """Raises the OSError of the last look, if it had one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Closes the log."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def __enter__(self) -> LogScan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- the file behind the name

    def _open(self) -> bool:
        try:
            self._fd = self._files.open_read(self.path)
        except FileNotFoundError as error:
            self._error, self.trouble = error, f"{self.path}: not there"
            return False
        if self._fence is not None and self._fence.size_bytes:
            self._begin_at_fence(self._fence)
        self._fence = None
        return True

    def _begin_at_fence(self, fence: LogFence) -> None:
        if holds(self._files, self._fd, fence):
            self.offset = fence.size_bytes
        else:
            # Whether what it holds is old or new cannot be told, so none of it counts.
            self.offset = self._files.size(self._fd)
            self.trouble = (
                f"{self.path}: not the file that was fenced (it shrank or was replaced); what it "
                f"held up to byte {self.offset} was passed over"
            )
        begin = max(0, self.offset - TAIL_BYTES)
        self._seam = self._files.read_at(self._fd, self.offset - begin, begin)
        self._skip_line = self._seam[-1:] not in (b"", b"\n", b"\r")

    def _follow_name(self) -> bool:
        """Whether there may be more: in the file that has the log's name now, opened anew.

        The same bytes before the same place are the same log, whatever its inode number says: those
        change when a file is migrated. And only an open asks an NFS server how long the file is.
        """
        try:
            fresh = self._files.open_read(self.path)
        except FileNotFoundError:
            return False  # renamed away, and perhaps still written to through its descriptor
        try:
            place = self.offset - len(self._seam)
            same = self._files.read_at(fresh, len(self._seam), place) == self._seam
            if not same and self._files.size(self._fd) < self.offset:
                self.trouble = f"{self.path}: cut below byte {self.offset}; read anew"
        except OSError:
            self._files.close(fresh)
            raise
        self._files.close(self._fd)
        self._fd = fresh
        if not same:
            self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        self.offset, self._skip_line = 0, False
        self._above = self._carry = self._seam = b""

    # -- its lines

    def _read_on(self, hits: list[Hit]) -> bool:
        """Whether there was anything."""
        before = self.offset
        while chunk := self._files.read_at(self._fd, CHUNK_BYTES, self.offset):
            self.offset += len(chunk)
            self._seam = (self._seam + chunk[-TAIL_BYTES:])[-TAIL_BYTES:]
            self._take(chunk, hits, final=False)
        return self.offset > before

    def _take(self, chunk: bytes, hits: list[Hit], *, final: bool) -> None:
        start = len(self._above)
        data = self._above + self._carry + chunk
        begin = self.offset - len(data)
        whole = max(start, _last_end(data))
        if final or len(data) - whole > _MOST_CARRIED // 2:
            whole = len(data)  # a line without end is cut, so that memory stays bounded
        if self._skip_line:
            # The line across the fence began before it.
            first = _first_end(data)
            if first < 0:
                self._carry = b""
                return
            self._skip_line = False
            data, begin, whole = data[first:], begin + first, max(0, whole - first)
        piece = read_piece(data, whole, start=start, final=final or not chunk)
        self._keep(piece, data, begin, hits)
        self._above, self._carry = _above(data, piece.used), data[piece.used :]

    def _keep(self, piece: Piece, data: bytes, begin: int, hits: list[Hit]) -> None:
        place = counted = len(self._above)
        for found in piece.finds:
            self._pass(data, place, found.begin)
            self.lines += data.count(b"\n", counted, found.begin)
            counted, place = found.begin, found.end
            if len(hits) >= _MOST_HITS:
                self.left_out += 1
                continue
            hits.append(
                Hit(
                    crash=found.crash,
                    role=found.role,
                    path=self.path,
                    byte=begin + found.begin,
                    line=self.lines + 1,
                    text=found.text,
                    at=found.at,
                    rank=found.rank,
                    step=self.step,
                    first_step=self.first_step,
                    chained=found.chained,
                    oom=found.oom,
                )
            )
            self.first_step = None
        self._pass(data, place, piece.used)
        self.lines += data.count(b"\n", counted, piece.used)

    def _pass(self, data: bytes, begin: int, end: int) -> None:
        """Takes the steps of lines that are no hits."""
        if begin >= end:
            return
        if self.first_step is None:
            self.first_step = self._steps.first(data, begin, end)
        step = self._steps.last(data, begin, end)
        if step is not None:
            self.step = step


def _above(data: bytes, used: int) -> bytes:
    """The last whole lines before a place, a few: what the next lines may refer to."""
    begin = max(0, used - _ABOVE)
    if begin:
        begin = data.find(b"\n", begin, used) + 1 or used
    return data[begin:used]


def _last_end(data: bytes) -> int:
    return max(data.rfind(b"\n"), data.rfind(b"\r")) + 1


def _first_end(data: bytes) -> int:
    ends = [one for sign in (b"\n", b"\r") if (one := data.find(sign)) >= 0]
    return min(ends) + 1 if ends else -1
