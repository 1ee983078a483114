"""``fleetcraft train checkpoints``: what it lists, verifies and retires, and its exit codes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fleetcraft.cli.train import COMMANDS
from fleetcraft.cli.train.checkpoints import checkpoints_command
from fleetcraft.files import FileSystem
from fleetcraft.layout.checkpoints import MANIFEST
from fleetcraft.locks import GenerationLock
from fleetcraft.training.checkpoint.records import Part
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.view.train_checkpoints import checkpoints_shape
from tests.cli.conftest import Fleet
from tests.training.checkpoint.stores import save


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    os.makedirs(tmp_path / "run")
    for step in (10, 20, 30):
        save(store, step)
    return store


def test_its_help_begins_as_the_table_says(bare_fleet: Fleet) -> None:
    assert (checkpoints_command.help or "").partition("\n")[0] == COMMANDS["checkpoints"][1]
    called = bare_fleet.bare("train", "checkpoints", "--help")
    assert called.code == 0
    assert "Examples:\n  fleetcraft train checkpoints" in called.out


def test_checkpoints_in_json_and_in_words(bare_fleet: Fleet, store: CheckpointStore) -> None:
    save(store, 40, but=Part.OPTIMIZER)
    store.save(50)
    called = bare_fleet.bare("train", "checkpoints", store.paths.folder, "--json")
    assert (called.code, called.err) == (0, "")
    found = called.json
    assert found["schema"] == "fleetcraft.train-checkpoints/1"
    assert (found["newest"], found["newest_exact"]) == (40, 30)
    assert [(c["step"], c["kind"], c["missing"]) for c in found["checkpoints"]][2:] == [
        (30, "EXACT", []),
        (40, "WEIGHTS", ["optimizer"]),
    ]
    assert found["checkpoints"][0]["verified"] is None
    assert [u["step"] for u in found["unfinished"]] == [50]

    text = bare_fleet.bare("train", "checkpoints", os.path.dirname(store.paths.folder)).out
    assert f"{store.paths.folder}: 4 checkpoints\n" in text
    assert "marker (missing for EXACT: optimizer)" in text
    assert "1 save not committed (step 50)" in text
    short = bare_fleet.bare("train", "checkpoints", store.paths.folder, "--limit", "1").out
    assert "... and 3 older" in short


def test_levels_are_reported_by_name(bare_fleet: Fleet, store: CheckpointStore) -> None:
    continued = bare_fleet.bare(
        "train", "checkpoints", store.paths.folder, "--verify", "continued", "--json"
    )
    assert continued.code == 1
    assert [c["verified"]["answer"] for c in continued.json["checkpoints"]] == [True, True, False]
    assert continued.json["checkpoints"][0]["verified"]["proved"] == [
        "marker", "sizes", "hashes", "continued",
    ]  # fmt: skip
    one = bare_fleet.bare(
        "train", "checkpoints", store.paths.folder, "--verify", "hashes", "--step", "20", "--json"
    )
    assert one.code == 0
    assert [bool(c["verified"]) for c in one.json["checkpoints"]] == [False, True, False]


def test_a_broken_checkpoint_and_what_is_none_are_a_no(
    bare_fleet: Fleet, store: CheckpointStore
) -> None:
    first = store.committed()[0]
    os.truncate(f"{first.folder}/{first.files[0].path}", 3)
    called = bare_fleet.bare("train", "checkpoints", store.paths.folder, "--verify", "sizes")
    assert called.code == 1
    assert "marker; sizes: BROKEN: rank-00000/" in called.out
    os.mkdir(store.paths.step(99))
    listed = bare_fleet.bare("train", "checkpoints", store.paths.folder)
    assert listed.code == 1
    assert "no checkpoint:\n" in listed.out


def test_loaded_is_proved_by_loading(bare_fleet: Fleet, store: CheckpointStore) -> None:
    called = bare_fleet.bare(
        "train", "checkpoints", store.paths.folder, "--verify", "loaded", "--step", "10"
    )
    assert called.code == 1
    assert "none of its files ends with .pt" in called.out


def test_retiring_is_said_first_and_then_done(bare_fleet: Fleet, store: CheckpointStore) -> None:
    words = ("train", "checkpoints", store.paths.folder, "--retire", "--keep", "1")
    dry = bare_fleet.bare(*words, "--dry-run")
    assert dry.code == 0
    assert "would retire step 10 (" in dry.out
    assert len(store.committed()) == 3
    done = bare_fleet.bare(*words, "--json")
    assert done.json["retired"]["steps"] == [10]
    assert done.json["retired"]["anchor"] == 20
    assert [manifest.step for manifest in store.committed()] == [20, 30]
    assert "no checkpoint is retired" in bare_fleet.bare(*words).out


def test_another_component_that_retires_is_waited_for_by_the_caller(
    bare_fleet: Fleet, store: CheckpointStore
) -> None:
    GenerationLock(store.paths.owner, purpose="retention").acquire()
    called = bare_fleet.bare("train", "checkpoints", store.paths.folder, "--retire", "--json")
    assert called.code == 75
    assert called.error["type"] == "LockHeldError"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("no-such-folder",), "no folder at 'no-such-folder'"),
        ((".", "--dry-run"), "--dry-run goes with --retire"),
        ((".", "--step", "7"), "no checkpoint of step 7 is committed"),
    ],
)
def test_a_call_that_is_off_is_told_so(
    bare_fleet: Fleet, words: tuple[str, ...], said: str
) -> None:
    called = bare_fleet.bare("train", "checkpoints", *words)
    assert called.code == 2
    assert said in called.err


def test_escapes_in_a_marker_do_not_reach_the_terminal(
    bare_fleet: Fleet, store: CheckpointStore
) -> None:
    marker = Path(store.paths.step(30), "COMMITTED.json")
    data = marker.read_bytes().replace(
        b'"schema":"fleetcraft.checkpoint/1"', b'"schema":"\\u001b[31m"'
    )
    marker.write_bytes(data)
    called = bare_fleet.bare("train", "checkpoints", store.paths.folder)
    assert called.code == 1
    assert "\x1b" not in called.out


def test_with_one_that_cannot_be_looked_at_none_is_the_newest(store: CheckpointStore) -> None:
    marker = f"{store.paths.step(30)}/{MANIFEST}"

    class NoPermission(FileSystem):
        def lstat(self, path: str) -> os.stat_result:
            if path == marker:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return super().lstat(path)

    sight = CheckpointStore(store.paths.folder, fs=NoPermission()).look()
    shape = checkpoints_shape(store.paths.folder, sight, {}, None)
    assert (shape["newest"], shape["newest_exact"]) == (None, None)
    assert [one["step"] for one in shape["checkpoints"]] == [10, 20]
    assert shape["unknown"][0]["why"] == "Permission denied"
