"""A save whose process is killed at a system call: the cross-check of the seam's own counter.

strace kills the process as it enters a call that changes names or forces to disk. Not here: kills
at every operation; test_saving.py has those.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.training.checkpoint.records import Kind, Level
from fleetcraft.training.checkpoint.store import CheckpointStore
from tests.training.checkpoint.stores import copies, save

REPO = Path(__file__).resolve().parents[3]
SAVE = """
import sys
from fleetcraft.training.checkpoint.store import CheckpointStore
from tests.training.checkpoint.stores import save
save(CheckpointStore(sys.argv[1]), 2)
"""
# Each with how often a save makes that call, at least: a guard against a test that kills nothing.
KILLS = [("renameat2", 1), ("linkat,link", 2), ("fdatasync", 5), ("fsync", 8)]


def save_killed_at(folder: Path, calls: str, which: int) -> int:
    inject = f"inject={calls}:signal=KILL:when={which}"
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", inject,
         sys.executable, "-c", SAVE, str(folder)],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip(f"strace cannot trace here: {done.stderr.strip()}")
    return done.returncode


@pytest.mark.parametrize(("calls", "least"), KILLS)
def test_a_kill_at_a_system_call_leaves_the_old_checkpoint_or_the_whole_new_one(
    tmp_path: Path, calls: str, least: int
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    template = tmp_path / "template"
    save(CheckpointStore(template), 1)
    with copies() as copy:
        for which in sorted({1, (least + 1) // 2, least}):
            store = CheckpointStore(copy(template))
            code = save_killed_at(Path(store.paths.folder), calls, which)
            assert code not in (0, 1), f"{calls} {which} killed nothing"
            store.complete()
            newest = store.newest(Kind.EXACT, Level.HASHES)
            assert newest is not None
            assert newest.step in (1, 2)
            assert not store.look().faults
            save(store, 3)
            assert store.newest_validated_step() == 3
