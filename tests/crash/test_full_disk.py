"""A full disk: a small mount of its own on which a history line does not fit.

Records are padded so that the line needs another page, or is torn after its first bytes. Not here:
a quota, which answers EDQUOT where this answers ENOSPC; test_crash_points has both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.layout import Lane
from fleetcraft.spool import setup
from fleetcraft.spool.check import check
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import Published, enqueue
from fleetcraft.spool.record import Outcome, compose
from fleetcraft.spool.recovery import ask_this_machine, recover
from fleetcraft.spool.tree import SpoolTree

REPO = Path(__file__).resolve().parents[2]
PAGE = os.sysconf("SC_PAGE_SIZE")
# How many bytes of the line still fit: none, a part of its mark, its mark and a little, most of it.
ROOM = (0, 5, 11, 40, 90)

# Claims the task, fills the disk, and ends the claim: what a worker does whose disk has filled.
FINISH_ON_A_FULL_DISK = """
import json, os, sys
from fleetcraft.errors import FleetError
from fleetcraft.identity import Owner
from fleetcraft.spool import claims, leases
from fleetcraft.spool.record import HistoryLine, Outcome, destination
from fleetcraft.spool.tree import SpoolTree

root, outcome = sys.argv[1], Outcome(sys.argv[2])
claims._APPEND_PAUSE_S = 0.0
tree = SpoolTree(root)
lease = leases.new_lease(rank="0", interval_s=30.0)
leases.publish(tree, lease)
owner = Owner(lease.job, "0", "0", f"{lease.launch}-1")
held = claims.claim(tree, "t", tree.paths.pending_record("t", ""), owner)
tree.fs.close(tree.fs.create_log(tree.paths.log("t", 1)))
fd = os.open(f"{root}/filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for size in (65536, 4096, 1):
    try:
        while os.write(fd, b"x" * size):
            pass
    except OSError:
        pass
to = destination(held.record, outcome)
line = HistoryLine(claim=owner.token, outcome=outcome, to=to, attempt=1, host="c1", reason="r" * 60)
try:
    claims.close_own(tree, held, line)
    said = {}
except FleetError as error:
    said = {"message": error.message, "committed": error.committed, "kind": type(error).__name__}
print(json.dumps(said))
"""


@pytest.fixture
def small_mount(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("there is no mount program here")
    if made.returncode != 0:
        pytest.skip(f"no tmpfs may be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def spec_with_room(room: int) -> TaskSpec:
    """A task whose record leaves so many bytes free in its last page."""
    command = "true"
    bare = TaskSpec(name="t", command=command, project_dir="/", retries=1)
    missing = PAGE - room - len(compose(bare, "0" * 12))
    return TaskSpec(
        name="t", command=f"{command}\n#{'p' * (missing - 2)}", project_dir="/", retries=1
    )


def prepared(folder: Path, room: int) -> SpoolTree:
    tree = SpoolTree(str(folder / "spool"))
    setup.set_up(tree)
    enqueue(tree, spec_with_room(room))
    assert os.path.getsize(tree.paths.name("t")) == PAGE - room
    return tree


def finish_on_a_full_disk(tree: SpoolTree, outcome: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", FINISH_ON_A_FULL_DISK, tree.paths.root, outcome],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("room", ROOM)
def test_a_completed_task_is_committed_although_its_line_does_not_fit(
    small_mount: Path, room: int
) -> None:
    tree = prepared(small_mount, room)
    said = finish_on_a_full_disk(tree, "completed")
    assert said["committed"] is True
    assert os.listdir(tree.paths.done) == ["t.sh"]
    assert check(tree).ok


@pytest.mark.parametrize("room", ROOM)
def test_anything_else_stays_in_running_and_is_recovered_once_there_is_room(
    small_mount: Path, room: int
) -> None:
    tree = prepared(small_mount, room)
    said = finish_on_a_full_disk(tree, "failed")
    assert said["committed"] is False
    assert len(tree.claims()) == 1

    os.unlink(f"{tree.paths.root}/filler")
    report = recover(tree, ask_this_machine())

    assert report.recovered == 1
    record = tree.read(tree.paths.pending_record("t", Lane.PLAIN))
    assert [line.outcome for line in record.history] == [Outcome.LOST]
    assert check(tree).ok


@pytest.mark.parametrize("room", ROOM)
def test_a_torn_line_does_not_make_another_task_of_it(small_mount: Path, room: int) -> None:
    tree = prepared(small_mount, room)
    finish_on_a_full_disk(tree, "failed")
    os.unlink(f"{tree.paths.root}/filler")
    recover(tree, ask_this_machine())
    assert enqueue(tree, spec_with_room(room), if_absent=True) is Published.ALREADY_THERE
    assert tree.read(tree.paths.name("t")).spec == spec_with_room(room)


@pytest.mark.parametrize("room", ROOM)
def test_a_recovery_on_the_full_disk_leaves_the_claim_as_it_is(
    small_mount: Path, room: int
) -> None:
    tree = prepared(small_mount, room)
    finish_on_a_full_disk(tree, "failed")
    report = recover(tree, ask_this_machine())
    assert report.recovered == 0
    assert "No space left" in report.reason
    assert len(tree.claims()) == 1
