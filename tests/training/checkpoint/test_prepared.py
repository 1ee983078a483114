"""Checkpoints that no ledger names: never the newest, and out of use before training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.training.checkpoint.prepared import (
    newest_allowed,
    prepared,
    quarantine_uncommitted,
)
from fleetcraft.training.checkpoint.records import CheckpointUnknownError, Manifest
from fleetcraft.training.checkpoint.store import CheckpointStore
from tests.training.checkpoint.stores import save


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def test_a_checkpoint_that_no_commit_names_is_never_the_newest(store: CheckpointStore) -> None:
    named = save(store, 1)
    save(store, 2)
    ledger = {named.sha256}
    assert newest_allowed(store, lambda manifest: manifest.sha256 in ledger) == named
    assert [manifest.step for manifest in prepared(store, lambda m: m.sha256 in ledger)] == [2]


def test_it_goes_to_quarantine_and_its_step_can_be_saved_again(store: CheckpointStore) -> None:
    named = save(store, 1)
    save(store, 2, text="before the commit")
    asked: list[int] = []
    moved = quarantine_uncommitted(
        store, lambda manifest: manifest == named, check=lambda: asked.append(1)
    )
    assert [manifest.step for manifest in moved] == [2]
    assert asked == [1]
    assert store.newest() == named
    again = save(store, 2, text="once more")
    assert store.newest() == again
    assert len(store.look().quarantined) == 1


def test_what_the_ledger_cannot_tell_is_left_alone_and_is_no_answer(
    store: CheckpointStore,
) -> None:
    save(store, 1)

    def unknown(manifest: Manifest) -> bool | None:
        return None

    assert quarantine_uncommitted(store, unknown) == ()
    with pytest.raises(CheckpointUnknownError, match="ledger does not tell"):
        newest_allowed(store, unknown)
