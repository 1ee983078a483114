"""What a stream has to send, on disk before any of it is sent.

A batch of rows and the place of the follower after it are one line, so both are there or neither.
A session is what is written between two confirmations: when the service has confirmed all of it,
the cursor names the next one. Invariant: a row has one number for ever, so a row that may have
arrived is asked for by its number, and is neither sent twice nor left out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError, SpoolError
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token
from fleetcraft.layout.streams import StreamPaths
from fleetcraft.locks import put_if_absent
from fleetcraft.streaming.rows import Row

IDENTITY_SCHEMA = "fleetcraft.stream-identity/1"
CURSOR_SCHEMA = "fleetcraft.stream-cursor/1"
_T = TypeVar("_T")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream is, published once.

    Attributes:
        schema: `IDENTITY_SCHEMA`.
        id: The name that the service knows it by.
        source: What is followed, relative to the scratch tree.
        offline: Whether its files are uploaded by somebody else later.
        at: Wall clock, for people.
    """

    schema: str = IDENTITY_SCHEMA
    id: str
    source: str
    offline: bool
    at: str = ""


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """Up to where everything has arrived.

    Attributes:
        schema: `CURSOR_SCHEMA`.
        session: The session that begins here.
        next_row: The number of the first row that has not arrived.
        place: Where the follower was then.
    """

    schema: str = CURSOR_SCHEMA
    session: int = 1
    next_row: int = 0
    place: dict[str, Any] = {}


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that follow one another, the number of the first, and the place behind the last."""

    first: int
    rows: list[Row]
    place: dict[str, Any]


class Outbox:
    """The rows of one stream; its owner holds the stream's lock.

    Attributes:
        identity: What the stream is.
        next_row: The number that the next row gets.
        place: Where its follower is.
        session_bytes: What the session's file holds by now.
    """

    def __init__(self, paths: StreamPaths, *, fs: FileSystem | None = None) -> None:
        self._paths = paths
        self._fs = fs or FileSystem()
        self.identity = Identity(id="", source="", offline=False)
        self._cursor = Cursor()
        self.next_row = 0
        self.place: dict[str, Any] = {}
        self.session_bytes = 0

    @property
    def first_row(self) -> int:
        """The number of the first row of the session."""
        return self._cursor.next_row

    @property
    def unsettled(self) -> int:
        """Rows of the session."""
        return self.next_row - self._cursor.next_row

    def open(self, source: str, *, offline: bool) -> None:
        """Reads how far the stream is, or begins it.

        Args:
            source: What is followed, relative to the scratch tree.
            offline: As asked for now.

        Raises:
            DataError: Its records are damaged, or it is of something else.
            SpoolError: They cannot be read or written.
        """
        try:
            self.identity = self._identity(source, offline=offline)
            self._cursor = self._read(self._paths.cursor, Cursor) or Cursor()
            self.next_row, self.place = self._cursor.next_row, self._cursor.place
            self.session_bytes = 0
            for batch in self.batches():
                self.next_row = batch.first + len(batch.rows)
                self.place = batch.place
        except OSError as error:
            raise self._refused("read", error) from error

    def _identity(self, source: str, *, offline: bool) -> Identity:
        path = self._paths.identity
        if (known := self._read(path, Identity)) is None:
            name = f"{self._paths.name}-{new_launch_token()}"
            new = Identity(id=name, source=source, offline=offline, at=timestamp())
            put_if_absent(self._fs, path, msgspec.json.encode(new) + b"\n")
            known = self._read(path, Identity) or new
        if known.source != source:
            raise DataError(
                f"the stream in {self._paths.folder} is of {known.source}, not of {source}; "
                "nothing was sent",
                hint="give the run another name, or send it to another --project",
                source=known.source,
            )
        return known

    def batches(self) -> Iterator[Batch]:
        """The session's batches, one at a time; torn lines are none.

        Raises:
            OSError: They cannot be read.
        """
        expected = self._cursor.next_row
        for line in self._lines():
            try:
                # Not msgspec's reader: a row may hold NaN.
                value = json.loads(line)
                batch = Batch(first=value["first"], rows=value["rows"], place=value["place"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            if batch.first == expected:
                expected += len(batch.rows)
                yield batch

    def _lines(self) -> Iterator[bytes]:
        try:
            fd = self._fs.open_read(self._paths.session(self._cursor.session))
        except FileNotFoundError:
            return
        try:
            offset, half = 0, b""
            while data := self._fs.read_at(fd, 1 << 20, offset):
                offset += len(data)
                *lines, half = (half + data).split(b"\n")
                yield from lines
            self.session_bytes = offset
        finally:
            self._fs.close(fd)

    def append(self, rows: Sequence[Row], place: Mapping[str, Any]) -> Batch:
        """Writes a batch, durably; only then may it be sent.

        Raises:
            SpoolError: It could not be written: nothing of it may be sent, and the follower has to
                be restored to `place`.
        """
        batch = Batch(first=self.next_row, rows=list(rows), place=dict(place))
        value = {"first": batch.first, "rows": batch.rows, "place": batch.place}
        data = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        path = self._paths.session(self._cursor.session)
        try:
            with contextlib.suppress(FileExistsError):
                self._fs.create(path, b"", durable=True)
            fd = self._fs.open_append(path)
            try:
                torn = b"" if self._fs.ends_with_newline(fd) else b"\n"
                self._fs.append(fd, torn + data)
                self._fs.datasync(fd)
            finally:
                self._fs.close(fd)
        except OSError as error:
            raise self._refused("write", error) from error
        self.session_bytes += len(data)
        self.next_row += len(batch.rows)
        self.place = batch.place
        return batch

    def settle(self) -> None:
        """Notes that everything has arrived; the next session begins.

        Raises:
            SpoolError: It could not be noted. Rows of the session will be asked for by number.
        """
        before = self._cursor
        new = Cursor(session=before.session + 1, next_row=self.next_row, place=self.place)
        temporary = f"{self._paths.cursor}.{new_launch_token()}.tmp"
        try:
            self._fs.create(temporary, msgspec.json.encode(new) + b"\n", durable=True)
            self._fs.replace(temporary, self._paths.cursor)
            self._fs.sync_folder(self._paths.folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._fs.unlink(temporary)
            raise self._refused("write", error) from error
        self._cursor, self.session_bytes = new, 0
        with contextlib.suppress(OSError):  # the cursor names the next one, so nobody reads it
            self._fs.unlink(self._paths.session(before.session))

    def _read(self, path: str, kind: type[_T]) -> _T | None:
        try:
            return msgspec.json.decode(self._fs.read(path), type=kind)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(
                f"cannot read {path}: {error}; nothing was sent",
                hint="move the stream's folder away to send all of it to a new one",
                path=path,
            ) from error

    def _refused(self, verb: str, error: OSError) -> SpoolError:
        return SpoolError(
            f"cannot {verb} how far {self._paths.name!r} was sent: {error.strerror or error} "
            f"({self._paths.folder}); nothing more was sent",
            hint="check space, quota and permissions, and call again: it goes on where it was",
            path=self._paths.folder,
        )
