"""Streams, durability and the disk's own bytes: what `BulkFileSystem` adds to the seam.

Not here: the atomic operations, which the protocols' tests exercise.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path

import pytest

from fleetcraft.files import BulkFileSystem

FS = BulkFileSystem()


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
