"""A telemetry file as blocks of whole lines, up to the size that it had when it was opened.

Knows bytes, not columns. Invariant: every byte up to the last newline is in exactly one block, no
more than a few blocks are in memory, and nothing but a regular file is read, without blocking.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from fleetcraft.errors import DataError

MAX_LINE_BYTES = 1 << 16
"""A longer line is no row: a row of every column has less than a thousand bytes."""


class Block(NamedTuple):
    """Whole lines, newlines included; empty for one line that is too long to keep."""

    data: bytes
    offset: int


class WholeLines:
    """Reads one file once.

    Args:
        path: The file.
        chunk_bytes: How much is read at a time.
        prefix_bytes: Where to stop; None for the file's size at opening.
        hash_prefix: Whether to compute the SHA-256 of what was read.

    Attributes:
        size_bytes: Where reading ends: the size at opening, or the prefix if that is less.
        end: Offset behind the last whole line so far.
        torn: Whether bytes without a newline stand at the end.
        shrank: Whether the file became shorter while it was read.
    """

    def __init__(
        self, path: str, *, chunk_bytes: int, prefix_bytes: int | None, hash_prefix: bool
    ) -> None:
        self._path = path
        self._chunk_bytes = chunk_bytes
        self._prefix_bytes = prefix_bytes
        self._hash = hashlib.sha256() if hash_prefix else None
        self._hash_beyond = self._hash  # with the beginning of a line that has not ended yet
        self._begun_bytes = 0  # of that line
        self.size_bytes = 0
        self.end = 0
        self.torn = False
        self.shrank = False

    @property
    def sha256(self) -> str:
        """Of all whole lines, in hex; empty if it was not asked for."""
        return self._hash.hexdigest() if self._hash else ""

    def blocks(self) -> Iterator[Block]:
        """The file's whole lines in order.

        Raises:
            DataError: It is not there, no regular file, or reading failed.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                yield from self._blocks(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._error(error.strerror or "it failed") from error

    def _error(self, reason: str) -> DataError:
        return DataError(
            f"cannot read {self._path}: {reason}; read up to byte {self.end}",
            hint="look at the file, and at the disk that it is on",
            path=self._path,
            reason=reason,
            bytes_read=self.end,
        )

    def _blocks(self, fd: int) -> Iterator[Block]:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise self._error("not a regular file")
        size = facts.st_size
        self.size_bytes = size if self._prefix_bytes is None else min(size, self._prefix_bytes)
        rest = b""
        skipping = False
        for piece in self._pieces(fd):
            data = rest + piece
            if skipping and (first := data.find(b"\n")) >= 0:
                yield Block(b"", self._advance(data[: first + 1], whole_line=True))
                data, skipping = data[first + 1 :], False
            cut = data.rfind(b"\n") + 1
            if cut and not skipping:
                block = data[:cut]
                yield Block(block, self._advance(block))
                data = data[cut:]
            skipping = skipping or len(data) > MAX_LINE_BYTES
            rest = b"" if skipping else data
            if skipping:
                self._begin(data)
        self.torn = bool(rest) or skipping

    def _pieces(self, fd: int) -> Iterator[bytes]:
        left = self.size_bytes
        while left > 0:
            piece = os.read(fd, min(left, self._chunk_bytes))
            if not piece:
                self.shrank = True
                return
            left -= len(piece)
            yield piece

    def _begin(self, data: bytes) -> None:
        """Notes a part of a line that is not kept."""
        self._begun_bytes += len(data)
        if self._hash:
            if self._hash_beyond is self._hash:
                self._hash_beyond = self._hash.copy()
            assert self._hash_beyond is not None
            self._hash_beyond.update(data)

    def _advance(self, data: bytes, *, whole_line: bool = False) -> int:
        """Takes whole lines, or the end of a line that was not kept; returns where they began."""
        offset = self.end
        if self._hash and self._hash_beyond:
            self._hash_beyond.update(data)
            self._hash = self._hash_beyond
        self.end += len(data) + (self._begun_bytes if whole_line else 0)
        self._begun_bytes = 0 if whole_line else self._begun_bytes
        return offset
