"""A folder of checkpoints that somebody else has written: nothing is followed, run or believed."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.errors import DataError
from fleetcraft.layout.checkpoints import CONTINUED, MANIFEST
from fleetcraft.layout.runs import RunPaths
from fleetcraft.training.checkpoint.claims import read_declared
from fleetcraft.training.checkpoint.distributed import read_metadata
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import CheckpointError, Level, Part
from fleetcraft.training.checkpoint.retention import clear
from fleetcraft.training.checkpoint.store import CheckpointStore
from tests.training.checkpoint.stores import fill, save

DEEP = "[" * 200_000


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints")
    save(store, 1)
    save(store, 2)
    return store


def marker(store: CheckpointStore) -> Path:
    return Path(store.paths.step(2), MANIFEST)


def change(store: CheckpointStore, how: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(marker(store).read_text())
    how(content)
    marker(store).write_text(json.dumps(content))


def outside(content: dict[str, Any]) -> None:
    content["ranks"][0]["files"][0]["path"] = "../../elsewhere"


def part_outside(content: dict[str, Any]) -> None:
    content["ranks"][0]["parts"]["weights"]["files"] = ["../step-000000001/weights.bin"]


def part_without_hash(content: dict[str, Any]) -> None:
    content["ranks"][0]["parts"]["weights"]["files"] = ["rank-00000/other.pt"]


def many_ranks(content: dict[str, Any]) -> None:
    content["world_size"] = 10**15


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (outside, "not below its folder"),
        (part_outside, "of which it has no hash"),
        (part_without_hash, "of which it has no hash"),
        (many_ranks, "its ranks are not 0 to"),
    ],
)
def test_a_manifest_that_reaches_out_or_lies_is_a_fault(
    store: CheckpointStore, how: Callable[[dict[str, Any]], None], why: str
) -> None:
    change(store, how)
    (fault,) = store.look().faults
    assert why in fault.why
    assert store.newest_validated_step() == 1


def deep(path: Path) -> None:
    path.write_text(f'{{"odd": {DEEP}')


def huge(path: Path) -> None:
    with path.open("r+") as file:
        file.truncate(1 << 40)  # of holes: reading it would take all memory


def linked(path: Path) -> None:
    os.symlink(shutil.move(path, path.parent.parent / "moved.json"), path)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("make", [deep, huge, linked, fifo])
@pytest.mark.parametrize("name", [MANIFEST, CONTINUED])
def test_a_marker_or_note_of_any_shape_costs_only_itself(
    store: CheckpointStore, make: Callable[[Path], None], name: str
) -> None:
    broken = 2 if name == MANIFEST else 1
    make(Path(store.paths.step(broken), name))

    assert [fault.path for fault in store.look().faults] == (
        [store.paths.step(2)] if name == MANIFEST else []
    )
    assert store.newest_validated_step() == (1 if name == MANIFEST else 2)
    verdict = store.verify(store.committed()[0], Level.CONTINUED)
    assert verdict.answer is (name == MANIFEST)


def test_a_checkpoint_behind_a_link_is_none_and_deletion_stops_at_links(
    store: CheckpointStore, tmp_path: Path
) -> None:
    archive = shutil.move(store.paths.step(1), tmp_path / "archive")
    os.symlink(archive, store.paths.step(1))
    kept = sorted(os.listdir(archive))

    assert [fault.why for fault in store.look().faults] == ["it is a link or a file, no folder"]
    clear(store.fs, store.paths.step(1))

    assert sorted(os.listdir(archive)) == kept
    assert not os.path.lexists(store.paths.step(1))


def test_shards_behind_a_linked_folder_are_not_in_the_checkpoint(
    store: CheckpointStore, tmp_path: Path
) -> None:
    shards = Path(store.paths.step(2), "rank-00000")
    os.symlink(shutil.move(shards, tmp_path / "shards"), shards)
    verdict = store.verify(store.committed()[1], Level.SIZES)
    assert verdict.broken
    assert verdict.reasons == ("rank-00000 is a link",)
    assert store.newest_validated_step() == 1


def test_a_step_has_one_name(store: CheckpointStore) -> None:
    shutil.copytree(store.paths.step(2), f"{store.paths.folder}/step-0000000002")
    assert [manifest.step for manifest in store.committed()] == [1, 2]


def test_two_ranks_that_name_one_file_commit_nothing(store: CheckpointStore) -> None:
    saves = [
        store.save(3, rank=rank, world_size=2, nonce="abcd", protocol=PLAIN_RUN, wait_s=0)
        for rank in range(2)
    ]
    Path(saves[0].shared("dcp"), "shard").touch()
    for saving in saves:
        fill(saving)
        saving.part(Part.CRITIC, "dcp/shard", shared=True)
        saving.done()
    with pytest.raises(CheckpointError, match="twice; it was not committed"):
        saves[0].commit()
    assert [pending.complete for pending in store.look().pending] == [False]


def test_a_declared_end_of_any_shape_is_no_absent_end(tmp_path: Path) -> None:
    run = RunPaths(str(tmp_path / "run"))
    Path(run.folder).mkdir()
    Path(run.end).write_text(f'{{"odd": {DEEP}')
    with pytest.raises(DataError, match="cannot be read"):
        read_declared(run)


def test_changed_bytes_of_a_shard_are_refused_and_never_an_error_of_its_reader(
    tmp_path: Path,
) -> None:
    torch = pytest.importorskip("torch")
    from fleetcraft.training.checkpoint.torch_state import _load

    path = tmp_path / "state.pt"
    chance = random.Random(0)
    refused = 0
    for new_format in (True, False):
        state = {"a": torch.arange(9.0), "b": [1, "x", {"y": (1, 2)}]}
        torch.save(state, path, _use_new_zipfile_serialization=new_format)
        data = path.read_bytes()
        for _ in range(150):
            changed = bytearray(data[: chance.choice([len(data), chance.randrange(len(data))])])
            for _ in range(min(len(changed), chance.choice([1, 2, 40]))):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            path.write_bytes(changed)
            try:
                _load(str(path), "cpu")
            except CheckpointError:
                refused += 1
            with pytest.raises(CheckpointError):
                read_metadata(str(path))
    assert refused > 100
