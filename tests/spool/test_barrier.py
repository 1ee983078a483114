"""A barrier says what is ready, and only what verifies counts as ready."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.errors import SpoolError, UsageError
from fleetcraft.spool import barrier


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "shards").mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"w" * 3000)
    (folder / "shards" / "0.bin").write_bytes(b"s" * 10)
    return folder


def test_a_barrier_over_a_folder_names_every_file_with_size_and_hash(
    tmp_path: Path, payload: Path
) -> None:
    made = barrier.write(str(tmp_path / "ready.json"), [str(payload)])

    assert [(item.path, item.bytes) for item in made.payload] == [
        ("checkpoint/model.bin", 3000),
        ("checkpoint/shards/0.bin", 10),
    ]
    assert barrier.is_ready(str(tmp_path / "ready.json"))
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "ready.json"]


def test_a_barrier_moves_with_its_payload(tmp_path: Path, payload: Path) -> None:
    barrier.write(str(tmp_path / "ready.json"), [str(payload)])
    there = tmp_path.with_name(tmp_path.name + "-moved")
    tmp_path.rename(there)
    try:
        assert barrier.is_ready(str(there / "ready.json"))
    finally:
        there.rename(tmp_path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda p: (p / "model.bin").write_bytes(b"w" * 2999), "2999 bytes, and the barrier says"),
        (lambda p: (p / "model.bin").write_bytes(b"x" * 3000), "other content"),
        (lambda p: (p / "shards" / "0.bin").unlink(), "is missing"),
    ],
)
def test_a_payload_that_is_not_as_it_was_is_not_ready(
    tmp_path: Path, payload: Path, damage: object, reason: str
) -> None:
    path = str(tmp_path / "ready.json")
    barrier.write(path, [str(payload)])
    damage(payload)  # type: ignore[operator]

    state = barrier.check(path)

    assert state.ready is False
    assert reason in state.reason


def test_a_payload_that_cannot_be_read_is_not_known(tmp_path: Path, payload: Path) -> None:
    path = str(tmp_path / "ready.json")
    barrier.write(path, [str(payload)])
    (payload / "model.bin").unlink()
    os.mkfifo(payload / "model.bin")

    state = barrier.check(path)

    assert state.ready is None
    assert not barrier.is_ready(path)


@pytest.mark.parametrize("text", ["", "yes\n", "[]", '{"schema":"other/1"}'])
def test_a_file_that_is_no_barrier_is_not_ready(tmp_path: Path, text: str) -> None:
    (tmp_path / "ready.json").write_text(text)

    state = barrier.check(str(tmp_path / "ready.json"))

    assert state.ready is False
    assert "is no barrier record" in state.reason


def test_a_record_that_another_user_can_write_is_not_ready(tmp_path: Path, payload: Path) -> None:
    barrier.write(str(tmp_path / "ready.json"), [str(payload)])
    (tmp_path / "ready.json").chmod(0o666)

    assert "another user" in barrier.check(str(tmp_path / "ready.json")).reason


def test_the_same_barrier_again_is_the_one_that_stands(tmp_path: Path, payload: Path) -> None:
    path = str(tmp_path / "ready.json")
    first = barrier.write(path, [str(payload)])

    assert barrier.write(path, [str(payload)]) == first


def test_a_barrier_is_never_changed(tmp_path: Path, payload: Path) -> None:
    path = str(tmp_path / "ready.json")
    first = barrier.write(path, [str(payload)])
    (payload / "model.bin").write_bytes(b"other")

    with pytest.raises(SpoolError, match="another payload"):
        barrier.write(path, [str(payload)])

    found = barrier.check(path).barrier
    assert found is not None
    assert found.id == first.id


def test_a_payload_that_is_missing_or_empty_makes_no_barrier(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for given in ("nowhere", "empty"):
        with pytest.raises(UsageError):
            barrier.write(str(tmp_path / "ready.json"), [str(tmp_path / given)])
    assert os.listdir(tmp_path) == ["empty"]


def test_a_payload_of_which_a_folder_cannot_be_listed_makes_no_barrier(
    tmp_path: Path, payload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: str) -> Any:
        if os.path.basename(path) == "shards":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)

    with pytest.raises(OSError, match="Input/output error"):
        barrier.write(str(tmp_path / "ready.json"), [str(payload)])
    assert not (tmp_path / "ready.json").exists()


def test_a_record_without_payload_says_that_its_producer_is_done(tmp_path: Path) -> None:
    path = tmp_path / "done.json"
    barrier.write(str(path), [], note="all steps")

    assert barrier.is_ready(str(path))
    assert json.loads(path.read_text())["note"] == "all steps"
