"""A tmpfs that is full in the middle of a fleet's run, and then has room again.

Not here: lines that fit in part (`tests/crash/test_full_disk.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.errors import SpoolError
from fleetcraft.files import FileSystem
from fleetcraft.spool import setup
from fleetcraft.spool.check import check
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import enqueue, enqueue_batch
from fleetcraft.spool.tree import SpoolTree
from tests.crash.mounts.full_disk import Filler, full_in_the_middle
from tests.crash.mounts.mounting import CannotMountError, small_tmpfs

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("kind", ["bytes", "files"])
def test_nothing_is_lost_when_the_disk_is_full_and_workers_leave_with_their_own_code(
    kind: str, tmp_path: Path
) -> None:
    try:
        outcome = full_in_the_middle(tmp_path, kind, tasks=12, turns=1)
    except CannotMountError as error:
        pytest.skip(str(error))
    assert outcome.faults == []
    assert outcome.judgement.completed == 12
    assert 9 in outcome.worker_codes
    assert set(outcome.worker_codes) <= {0, 5, 9}


@pytest.mark.parametrize("kind", ["bytes", "files"])
def test_an_enqueue_that_is_refused_for_want_of_room_takes_none_itself(
    kind: str, tmp_path: Path
) -> None:
    try:
        with small_tmpfs(tmp_path / "small", size="1m", inodes=120) as mount:
            tree = SpoolTree(str(mount / "spool"))
            setup.set_up(tree)
            command = f"true {'p' * 9000}"
            many = [TaskSpec(name=f"t{n}", command=command, project_dir="/") for n in range(150)]
            with pytest.raises(SpoolError, match="No space left"):
                enqueue_batch(tree, many)
            assert tree.fs.listdir(tree.paths.tmp) == []
            filler = Filler(mount, kind)
            filler.fill()
            with pytest.raises(SpoolError, match="No space left"):
                enqueue(tree, many[0])
            assert tree.fs.listdir(tree.paths.tmp) == []
            filler.free()
            assert enqueue_batch(tree, many[:5]).enqueued == 5
            assert check(tree).notices == []
    except CannotMountError as error:
        pytest.skip(str(error))


def test_a_file_that_does_not_fit_is_not_left_behind_in_part(tmp_path: Path) -> None:
    try:
        with small_tmpfs(tmp_path / "small", size="64k") as mount:
            with pytest.raises(OSError, match="No space left") as caught:
                FileSystem().create(f"{mount}/large", b"x" * 100_000)
            assert caught.value.filename == f"{mount}/large"
            assert list(mount.iterdir()) == []
    except CannotMountError as error:
        pytest.skip(str(error))
