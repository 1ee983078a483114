"""A rename is judged by what is there, not by what was reported of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fleetcraft.files import FileSystem
from fleetcraft.rollouts.transaction.moves import Move, discard, make_folder, move, remove_empty


class Lying(FileSystem):
    """Does it, and reports that it failed."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self._code = code

    def _lie(self, path: str) -> None:
        raise OSError(self._code, os.strerror(self._code), path)

    def rename_new(self, source: str, destination: str) -> None:
        super().rename_new(source, destination)
        self._lie(source)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._lie(path)

    def make_folder(self, path: str) -> None:
        super().make_folder(path)
        self._lie(path)


LIES = (errno.ENOENT, errno.EEXIST, errno.EIO, errno.ESTALE)


@pytest.mark.parametrize("code", LIES)
def test_what_was_done_and_reported_as_failed_is_done(tmp_path: Path, code: int) -> None:
    fs, source, destination = Lying(code), tmp_path / "a", tmp_path / "b"
    source.touch()
    assert move(fs, str(source), str(destination)) is Move.DONE
    assert destination.exists()
    discard(fs, str(destination))
    assert not destination.exists()
    make_folder(fs, str(tmp_path / "folder"))


def test_a_source_that_is_nowhere_is_gone(tmp_path: Path) -> None:
    assert move(FileSystem(), str(tmp_path / "a"), str(tmp_path / "b")) is Move.GONE


def test_a_name_that_is_taken_leaves_both(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    assert move(FileSystem(), str(tmp_path / "a"), str(tmp_path / "b")) is Move.TAKEN
    assert (tmp_path / "b").read_text() == "b"
    assert (tmp_path / "a").exists()


def test_what_was_not_done_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(FileNotFoundError):
        move(FileSystem(), str(tmp_path / "a"), str(tmp_path / "nowhere" / "b"))
    with pytest.raises(IsADirectoryError):
        discard(FileSystem(), str(tmp_path))
    with pytest.raises(FileNotFoundError):
        make_folder(FileSystem(), str(tmp_path / "nowhere" / "b"))


def test_a_folder_that_cannot_be_looked_at_tells_nothing(tmp_path: Path) -> None:
    class Blind(Lying):
        def exists(self, path: str) -> bool:
            raise OSError(errno.EACCES, "Permission denied", path)

    (tmp_path / "a").touch()
    with pytest.raises(PermissionError):
        move(Blind(errno.EIO), str(tmp_path / "a"), str(tmp_path / "b"))


def test_only_an_empty_folder_is_removed(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    (tmp_path / "empty").mkdir()
    for name in ("full", "empty", "none"):
        remove_empty(FileSystem(), str(tmp_path / name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
