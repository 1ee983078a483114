"""Hashing and copying one file: what changed meanwhile, who is to blame, and where it lies.

Not here: whole folders; test_archive.py has them.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.evidence.files.copying import (
    BUFFER_BYTES,
    ChangedError,
    How,
    Reader,
    copy,
    place_of,
)
from fleetcraft.files import BulkFileSystem


class BetweenFS(BulkFileSystem):
    """Lets something happen once, after the first piece was read."""

    def __init__(self, happen: Callable[[], object]) -> None:
        super().__init__()
        self.happen: Callable[[], object] | None = happen

    def read_into(self, fd: int, buffer: memoryview) -> int:
        count = super().read_into(fd, buffer)
        happen, self.happen = self.happen, None
        if happen is not None:
            happen()
        return count


@pytest.mark.parametrize("size", [0, 1, BUFFER_BYTES - 1, BUFFER_BYTES, 2 * BUFFER_BYTES + 4097])
@pytest.mark.parametrize("reread", [False, True])
def test_a_file_of_any_size_is_hashed(size: int, reread: bool, tmp_path: Path) -> None:
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    advanced: list[int] = []
    found = Reader(BulkFileSystem()).hash(
        str(tmp_path / "f"), reread=reread, keep=10, advance=advanced.append
    )
    assert (found.size_bytes, found.sha256) == (size, hashlib.sha256(data).hexdigest())
    assert (found.head, found.tail) == (data[:10], data[-10:])
    assert sum(advanced) == size
    assert (found.how is How.CACHED) == (not reread)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda at: at.write_bytes(b"other"), "it was written to"),
        (lambda at: at.write_bytes(b"longer than it was"), "5 bytes before, 18 after"),
        (lambda at: at.write_bytes(b""), "5 bytes before, 0 after"),
    ],
)
def test_a_file_that_changes_while_it_is_read_has_no_digest(
    change: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"first")
    os.utime(path, ns=(1, 1))
    with pytest.raises(ChangedError, match=words):
        Reader(BetweenFS(lambda: change(path))).hash(str(path))


class FailingFS(BulkFileSystem):
    """Fails at one operation, without the name of a file, as the system does."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def read_into(self, fd: int, buffer: memoryview) -> int:
        self._fail("read")
        return super().read_into(fd, buffer)

    def write(self, fd: int, data: bytes | memoryview) -> None:
        self._fail("write")
        super().write(fd, data)

    def seal(self, fd: int, mode: int = 0o444) -> None:
        self._fail("seal")
        super().seal(fd, mode)

    def _fail(self, at: str) -> None:
        if at == self.at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(("at", "whose"), [("read", "from"), ("write", "to"), ("seal", "to")])
def test_an_error_names_the_file_that_is_to_blame(at: str, whose: str, tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(b"1")
    fs = FailingFS(at)
    with pytest.raises(OSError, match="Input/output error") as failed:
        copy(Reader(fs), fs, str(tmp_path / "from"), str(tmp_path / "to"))
    assert failed.value.filename == str(tmp_path / whose)


def test_a_copy_never_replaces_a_file(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(b"1")
    (tmp_path / "to").write_bytes(b"kept")
    fs = BulkFileSystem()
    with pytest.raises(FileExistsError):
        copy(Reader(fs), fs, str(tmp_path / "from"), str(tmp_path / "to"))
    assert (tmp_path / "to").read_bytes() == b"kept"


def test_the_file_system_of_a_path_is_named_as_the_kernel_does(tmp_path: Path) -> None:
    assert place_of("/proc/self").type == "proc"
    (tmp_path / "way").symlink_to("/proc")
    assert place_of(str(tmp_path / "way")).type == "proc"
    assert place_of(str(tmp_path / "not there yet")).type == place_of(str(tmp_path)).type != ""
