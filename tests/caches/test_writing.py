"""Whose turn it is to write: one at a time, patience with the living, none with the silent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fleetcraft.caches import writing
from fleetcraft.caches.hub import HubFiles, StorageError, parse_repo
from fleetcraft.caches.writing import take_turn
from fleetcraft.identity import HostId
from fleetcraft.locks import LockHeldError

REPO = parse_repo("org/tiny")


def test_a_waiting_caller_takes_its_turn_when_the_first_has_left(tmp_path: Path) -> None:
    first = take_turn(str(tmp_path), REPO, purpose="first")
    assert first is not None
    told: list[str] = []

    def leave(seconds: float) -> None:
        first.release()

    second = take_turn(
        str(tmp_path), REPO, purpose="second", wait_s=60, tell=told.append, sleep=leave
    )

    assert second is not None
    assert second.generation == 2
    assert len(told) == 1
    assert told[0].startswith("waiting: second is the turn of process")
    assert "nothing was done" not in told[0]


def test_a_caller_whose_wish_is_fulfilled_takes_no_turn(tmp_path: Path) -> None:
    first = take_turn(str(tmp_path), REPO, purpose="first")
    assert first is not None
    looks = iter([False, True])

    waited = take_turn(
        str(tmp_path), REPO, purpose="second", wait_s=60, ready=lambda: next(looks),
        sleep=lambda seconds: None,
    )  # fmt: skip

    assert waited is None


def test_other_repositories_are_not_waited_for(tmp_path: Path) -> None:
    assert take_turn(str(tmp_path), REPO, purpose="first")
    assert take_turn(str(tmp_path), parse_repo("org/other"), purpose="second")


def on_another_node(monkeypatch: pytest.MonkeyPatch, hub: Path) -> None:
    """A writer of a node about which nothing is known here, and which does not beat."""
    from fleetcraft.locks import generation

    monkeypatch.setattr(writing, "_BEAT_S", 0.01)
    there = HostId(host="c9", boot_id="other", pid_namespace="pid:[9]")
    monkeypatch.setattr(generation, "this_host", lambda: there)
    assert take_turn(str(hub), REPO, purpose="first") is not None


def test_a_silent_writer_of_another_node_is_not_waited_for_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_another_node(monkeypatch, tmp_path)
    pauses: list[float] = []

    with pytest.raises(LockHeldError) as caught:
        take_turn(str(tmp_path), REPO, purpose="second", wait_s=1e6, sleep=pauses.append)

    assert (caught.value.exit_code, len(pauses)) == (75, 3)
    assert "--take-over" in caught.value.hint


def test_a_silent_writer_of_another_node_is_followed_by_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_another_node(monkeypatch, tmp_path)

    held = take_turn(str(tmp_path), REPO, purpose="second", take_over=True)

    assert held is not None
    assert held.generation == 2


def test_a_hub_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    class ReadOnly(HubFiles):
        def make_shared_folder(self, path: str) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with pytest.raises(StorageError, match="nothing was changed"):
        take_turn(str(tmp_path), REPO, purpose="first", fs=ReadOnly())
