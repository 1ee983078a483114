"""What the seam makes of mounts in trouble, and what `BulkFileSystem` adds to it.

Not here: the atomic operations, which the protocols' tests exercise; `tests/crash/mounts` has real
mounts in trouble.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import stat
from pathlib import Path

import pytest

from fleetcraft.files import BulkFileSystem, FileSystem

FS = BulkFileSystem()


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as refused:
            FileSystem().create(path, b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.value.filename == path
    assert os.listdir(tmp_path) == []


def test_a_name_that_is_taken_keeps_its_file_when_another_is_to_be_created(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        FileSystem().create(str(tmp_path / "f"), b"new")
    assert (tmp_path / "f").read_bytes() == b"old"


class Blind(FileSystem):
    """A mount without flags of rename that does not tell what is there."""

    def __init__(self) -> None:
        super().__init__()
        self._rename_flags_work = False

    def exists(self, path: str) -> bool:
        raise OSError(errno.EIO, "Input/output error", path)


def test_nothing_is_renamed_without_flags_where_it_is_not_known_that_the_name_is_free(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "b").write_bytes(b"old")
    with pytest.raises(OSError, match="Input/output error"):
        Blind().rename_new(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"old"


@pytest.mark.parametrize(("times", "is_read"), [(2, True), (50, False)])
def test_a_file_that_was_replaced_while_it_was_read_is_read_anew(
    times: int, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "f")
    (tmp_path / "f").write_bytes(b"content")
    left = [times]
    real = os.fstat

    def stale(fd: int) -> os.stat_result:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(fd)

    found: bytes | OSError
    with monkeypatch.context() as patched:  # pytest itself needs it to tell of a failure
        patched.setattr(os, "fstat", stale)
        try:
            found = FileSystem().read(path)
        except OSError as error:
            found = error
    if is_read:
        assert found == b"content"
    else:
        assert isinstance(found, OSError)
        assert (found.errno, found.filename) == (errno.ESTALE, path)


def test_what_is_written_in_pieces_is_read_back_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    fd = FS.open_new(path)
    FS.write(fd, b"one ")
    FS.write(fd, memoryview(b"two"))
    FS.seal(fd)
    FS.forget_cached(fd)
    FS.close(fd)
    assert FS.read(path) == b"one two"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o444


def test_a_new_file_is_private_until_it_is_sealed_and_never_replaces_one(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    fd = FS.open_new(path)
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    FS.seal(fd, 0o400)
    FS.close(fd)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o400
    with pytest.raises(FileExistsError):
        FS.open_new(path)


def test_a_source_is_a_regular_file_and_no_link(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to("f")
    os.mkfifo(tmp_path / "pipe")
    for name, code in (("link", errno.ELOOP), ("pipe", errno.EINVAL), ("gone", errno.ENOENT)):
        with pytest.raises(OSError) as refused:  # noqa: PT011
            FS.open_source(str(tmp_path / name))
        assert refused.value.errno == code


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 3 << 20])
@pytest.mark.parametrize("direct", [False, True])
def test_any_size_is_read_through_an_aligned_buffer(
    size: int, direct: bool, tmp_path: Path
) -> None:
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    buffer = memoryview(mmap.mmap(-1, 1 << 20))
    fd = opened_or_skipped(str(tmp_path / "f"), direct=direct)
    read = b""
    while len(read) < size:
        read += buffer[: FS.read_into(fd, buffer)]
    FS.close(fd)
    assert read == data


def opened_or_skipped(path: str, *, direct: bool) -> int:
    try:
        return FS.open_source(path, direct=direct)
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            pytest.skip("this file system has no O_DIRECT")
        raise
