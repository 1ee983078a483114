"""What an attempt has compiled is removed: all of it, nothing beside it, and in bounded time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.caches.clearing import clear_folder, drop_if_empty


def test_a_folder_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "triton"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "kernel.so").write_bytes(b"x")
    os.mkfifo(folder / "a" / "fifo")
    assert clear_folder(str(folder))
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_gone(tmp_path: Path) -> None:
    assert clear_folder(str(tmp_path / "never"))


def test_links_are_removed_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "weights").write_text("precious")
    folder = tmp_path / "triton"
    (folder / "a").mkdir(parents=True)
    (folder / "to_folder").symlink_to(kept)
    (folder / "a" / "to_file").symlink_to(kept / "weights")
    assert clear_folder(str(folder))
    assert (kept / "weights").read_text() == "precious"


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "weights").write_text("precious")
    (tmp_path / "triton").symlink_to(kept)
    assert not clear_folder(str(tmp_path / "triton"))
    assert (kept / "weights").exists()


def test_what_does_not_go_in_time_stays_and_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "triton"
    folder.mkdir()
    (folder / "kernel.so").touch()
    assert not clear_folder(str(folder), limit_s=-1.0)
    assert (folder / "kernel.so").exists()


def test_endless_depth_ends(tmp_path: Path) -> None:
    deep = tmp_path / "triton"
    deep.joinpath(*["d"] * 60).mkdir(parents=True)
    assert not clear_folder(str(deep))
    assert deep.exists()


def test_only_an_empty_folder_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "task" / "2").mkdir(parents=True)
    drop_if_empty(str(tmp_path / "task"))
    assert (tmp_path / "task").exists()
    (tmp_path / "task" / "2").rmdir()
    drop_if_empty(str(tmp_path / "task"))
    assert not (tmp_path / "task").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove anything")
def test_what_cannot_be_removed_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "triton"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "x").touch()
    (folder / "a").chmod(0o500)
    assert not clear_folder(str(folder))
    (folder / "a").chmod(0o700)
