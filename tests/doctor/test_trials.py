"""The trials of a mount: all is well on a real one, and every lie of a lying one is named."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from fleetcraft.doctor.findings import Finding, Verdict
from fleetcraft.doctor.trials import try_mount
from fleetcraft.files import FileSystem


def tried(fs: FileSystem, folder: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in try_mount(fs, str(folder))}


def refusing(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def test_a_real_mount_passes_every_trial_and_is_left_as_it_was(tmp_path: Path) -> None:
    found = tried(FileSystem(), tmp_path)
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}, found
    assert len(found) == 12
    assert list(tmp_path.iterdir()) == []


class Flips(FileSystem):
    """Writes something else than it was given."""

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        flipped = bytes([data[0] ^ 1]) + data[1:] if data else data
        super().create(path, flipped, mode=mode, durable=durable)


class Copies(FileSystem):
    """A rename that leaves the old name behind."""

    def rename_new(self, source: str, destination: str) -> None:
        self.create(destination, self.read(source))


class Overwrites(FileSystem):
    """A rename that takes a name which is taken."""

    def rename_new(self, source: str, destination: str) -> None:
        os.rename(source, destination)


class Replaces(FileSystem):
    """A replacement that first removes; it waits until somebody has seen that."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = threading.Event()

    def read(self, path: str) -> bytes:
        try:
            return super().read(path)
        except FileNotFoundError:
            self._seen.set()
            raise

    def replace(self, source: str, destination: str) -> None:
        os.unlink(destination)
        assert self._seen.wait(30)
        super().replace(source, destination)


class LinksCopy(FileSystem):
    """A link that is a copy, and never refuses."""

    def link(self, source: str, destination: str) -> None:
        if os.path.exists(destination):
            os.unlink(destination)
        self.create(destination, self.read(source))


class AppendsAtStart(FileSystem):
    """An append that does not look where the end is."""

    def append(self, fd: int, data: bytes) -> None:
        # Without O_APPEND, for Linux's pwrite appends where that is set.
        plain = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
        try:
            os.pwrite(plain, data, 0)
        finally:
            os.close(plain)


class ListsLate(FileSystem):
    """A listing from before."""

    def listdir(self, path: str) -> list[str]:
        names = super().listdir(path)
        return names if not path.endswith("/listing") else [n for n in names if "moved" in n]


class ForgetsCase(FileSystem):
    """Names that differ only in case are one."""

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        folder, name = os.path.split(path)
        super().create(f"{folder}/{name.lower()}", data, mode=mode, durable=durable)


@pytest.mark.parametrize(
    ("fs", "name", "says"),
    [
        (Flips(), "write", "not what was written"),
        (Copies(), "rename", "the old name is still there"),
        (Copies(), "claim", "both won"),
        (Overwrites(), "rename no replace", "was not refused"),
        (Replaces(), "replace", "not there for a moment"),
        (LinksCopy(), "hard links", "two files"),
        (LinksCopy(), "put if absent", "both won"),
        (AppendsAtStart(), "append", "are whole"),
        (ListsLate(), "listing", "not in the listing"),
        (ForgetsCase(), "names", "differ only in case"),
    ],
)
def test_a_mount_that_breaks_a_rule_is_wrong_and_says_how(
    tmp_path: Path, fs: FileSystem, name: str, says: str
) -> None:
    found = tried(fs, tmp_path)[name]
    assert found.verdict is Verdict.WRONG
    assert says in found.found
    assert found.expected
    assert found.hint


class Without(FileSystem):
    """Refuses one operation with one error.

    Args:
        operation: Its name.
        code: The error.
    """

    def __init__(self, operation: str, code: int) -> None:
        super().__init__()

        def refuse(*_: object, **__: object) -> None:
            raise refusing(code)

        setattr(self, operation, refuse)


def test_without_hard_links_there_is_another_way_so_it_is_advice(tmp_path: Path) -> None:
    found = tried(Without("link", errno.EPERM), tmp_path)
    assert found["hard links"].verdict is Verdict.ADVICE
    assert "no hard links" in found["hard links"].found
    assert found["put if absent"].found == "not tried: there are no hard links here"
    assert found["rename"].verdict is Verdict.OK


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_an_error_of_the_disk_is_wrong_and_leaves_the_other_trials(
    tmp_path: Path, code: int
) -> None:
    found = tried(Without("datasync", code), tmp_path)
    assert found["force to disk"].verdict is Verdict.WRONG
    assert os.strerror(code) in found["force to disk"].found
    assert [f.name for f in found.values() if f.verdict is not Verdict.OK] == ["force to disk"]


class Full(FileSystem):
    """Has no room for much."""

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        if len(data) > 1 << 16:
            raise refusing(errno.EDQUOT)
        super().create(path, data, mode=mode, durable=durable)


def test_a_quota_that_is_used_up_is_wrong_and_the_hint_says_how_to_look(tmp_path: Path) -> None:
    found = tried(Full(), tmp_path)["write"]
    assert found.verdict is Verdict.WRONG
    assert "quota" in found.hint


def test_where_nothing_can_be_made_there_is_one_finding(tmp_path: Path) -> None:
    found = tried(Without("make_folder", errno.EROFS), tmp_path)
    assert list(found) == ["write"]
    assert found["write"].verdict is Verdict.WRONG
    assert "read-only" in found["write"].hint


class ShortNames(FileSystem):
    """Holds names of 143 bytes, as an encrypted home does."""

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        if len(os.path.basename(path)) > 143:
            raise refusing(errno.ENAMETOOLONG)
        super().create(path, data, mode=mode, durable=durable)


def test_a_mount_of_short_names_is_advice(tmp_path: Path) -> None:
    found = tried(ShortNames(), tmp_path)["names"]
    assert found.verdict is Verdict.ADVICE
    assert "short names" in found.hint
