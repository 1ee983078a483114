"""A disk that differs from the page cache: what rereading sees, and nothing less does.

Needs root, a loop device and mkfs.ext4; skipped elsewhere. Not here: doubles that lie, which
test_archive.py has.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.evidence.files.archive import archive, verify_archive
from fleetcraft.evidence.files.verifying import Verdict
from fleetcraft.evidence.records import Level
from fleetcraft.files import BulkFileSystem
from tests.evidence.folders import frozen

FIBMAP, FIGETBSZ = 1, 2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A mounted file system, and the file that holds its blocks."""
    image, mount = tmp_path / "image", tmp_path / "disk"
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("a disk of its own needs root and mkfs.ext4")
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mount.mkdir()
    words = ["mount", "-o", "loop", str(image), str(mount)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("no loop device can be mounted here")
    yield mount, image
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_bit_that_flipped_on_the_disk_alone_is_seen_by_rereading_and_by_nothing_less(
    disk: tuple[Path, Path], tmp_path: Path
) -> None:
    mount, image = disk
    manifest = frozen(tmp_path / "set", {"kept.csv": b"1,2\n" * 4000})
    receipt = archive(manifest, str(tmp_path / "set"), str(mount / "arch")).receipt
    assert (receipt.how, receipt.place.type, receipt.not_checked) == ({"direct": 1}, "ext4", ())
    path = mount / "arch/data/kept.csv"
    assert path.read_bytes() == (tmp_path / "set/kept.csv").read_bytes()  # now it is in the cache
    flip_on_disk(path, image)

    cached = verify_archive(str(mount / "arch"), Level.HASHED)
    assert cached.verdict is Verdict.VERIFIED
    assert "page cache" in cached.not_checked[0]
    reread = verify_archive(str(mount / "arch"), Level.REREAD)
    assert reread.verdict is Verdict.REFUTED
    assert [(d.change.value, d.path) for d in reread.differences] == [("changed", "kept.csv")]


def test_advice_alone_also_reads_the_disk_where_the_cache_follows_it(
    disk: tuple[Path, Path], tmp_path: Path
) -> None:
    mount, image = disk
    manifest = frozen(tmp_path / "set", {"kept.csv": b"1,2\n" * 4000})
    archive(manifest, str(tmp_path / "set"), str(mount / "arch"))
    path = mount / "arch/data/kept.csv"
    path.read_bytes()
    flip_on_disk(path, image)
    found = verify_archive(str(mount / "arch"), Level.REREAD, fs=NoDirectFS())
    assert found.how == {"advised": 1}
    assert found.verdict is Verdict.REFUTED


class NoDirectFS(BulkFileSystem):
    def open_source(self, path: str, *, direct: bool = False) -> int:
        if direct:
            raise OSError(22, "no direct reads", path)
        return super().open_source(path)


def flip_on_disk(path: Path, image: Path) -> None:
    """Changes a byte of a file's first block below the file system, which does not notice."""
    with path.open("rb") as file:
        block = struct.unpack("i", fcntl.ioctl(file, FIBMAP, struct.pack("i", 0)))[0]
        size = struct.unpack("i", fcntl.ioctl(file, FIGETBSZ, struct.pack("i", 0)))[0]
    with image.open("r+b") as file:
        file.seek(block * size)
        assert file.read(4) == b"1,2\n"
        file.seek(block * size)
        file.write(b"3")
