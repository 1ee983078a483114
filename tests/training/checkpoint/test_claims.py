"""A declared end, and the one resume where a done task has not reached it.

The scenario is that of the first seed document: a done task at version 30 of 37.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fleetcraft.errors import DataError, SpoolError, UsageError
from fleetcraft.layout.runs import RunPaths
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.training.checkpoint.claims import (
    check_end,
    claim_resume,
    declare_end,
    read_claims,
    read_declared,
)
from fleetcraft.training.checkpoint.records import Kind, Part
from fleetcraft.training.checkpoint.resuming import Standing, look_at_run
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.plan.records import End
from tests.training.checkpoint.incident import RESUME, TASK, Incident
from tests.training.checkpoint.stores import Crash, Interrupted, copies, os_error, save

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    made = Incident(tmp_path)
    made.declare()
    made.end_task(TASK)
    return made


# ---------------------------------------------------------------------------- the declared end


def test_an_end_is_declared_once_and_the_same_again_changes_nothing(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path))
    assert read_declared(paths) is None
    declare_end(paths, End(step=37))
    declare_end(paths, End(step=37))
    declared = read_declared(paths)
    assert declared is not None
    assert declared.end == End(step=37)
    with pytest.raises(SpoolError, match="declares another end already"):
        declare_end(paths, End(step=40))
    with pytest.raises(UsageError, match="cannot be the name of a task"):
        declare_end(paths, End(task="../x", step=1))
    with pytest.raises(UsageError, match="EXACT or WEIGHTS"):
        declare_end(paths, End(kind="GOOD", step=1))


def test_an_end_that_cannot_be_read_is_no_absent_end(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path))
    Path(paths.end).write_text("{}")
    with pytest.raises(DataError, match="nothing was concluded"):
        read_declared(paths)


@pytest.mark.parametrize(
    ("saved", "end", "answer", "why"),
    [
        ((), End(step=37), False, "no checkpoint is there, expected EXACT step 37"),
        ((30,), End(step=37), False, "the newest EXACT checkpoint is step 30, expected step 37"),
        ((30, 37), End(step=37), True, "step 37 is committed, EXACT"),
        ((30, 40), End(step=37), True, "step 40 is committed, EXACT"),
        ((30, -37), End(step=37), False, "step 30; step 37 is WEIGHTS, expected step 37"),
        ((30, -37), End(step=37, kind="WEIGHTS"), True, "step 37 is committed, WEIGHTS"),
        ((-30, 37), End(step=37, kind="WEIGHTS"), True, "step 37 is committed, EXACT"),
        ((37,), End(step=37, payload=("out.txt",)), False, "its payload out.txt is missing"),
        ((), End(), None, "the run declares no end"),
    ],
)
def test_an_end_is_reached_by_what_is_committed(
    tmp_path: Path, saved: tuple[int, ...], end: End, answer: bool | None, why: str
) -> None:
    paths = RunPaths(str(tmp_path))
    store = CheckpointStore(paths.checkpoints)
    for step in saved:  # negative: of weights alone
        save(store, abs(step), but=Part.OPTIMIZER if step < 0 else None)
    checked = check_end(end, store, paths)
    assert checked.answer is answer
    assert why in checked.reason


def test_a_payload_must_not_be_empty(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path))
    store = CheckpointStore(paths.checkpoints)
    end = End(payload=("out.txt",))
    (tmp_path / "out.txt").touch()
    assert check_end(end, store, paths).reason == "its payload out.txt is empty"
    (tmp_path / "out.txt").write_text("x")
    assert check_end(end, store, paths).answer is True
    (tmp_path / "link.txt").symlink_to("nothing")
    (tmp_path / "folder.txt").mkdir()
    for name in ("link.txt", "folder.txt"):
        checked = check_end(End(payload=(name,)), store, paths)
        assert (checked.answer, checked.reason) == (False, f"its payload {name} is no file")


@pytest.mark.parametrize("operation", ["listdir", "read", "lstat"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_read_answers_nothing(tmp_path: Path, operation: str, code: int) -> None:
    paths = RunPaths(str(tmp_path))
    save(CheckpointStore(paths.checkpoints), 30)
    fs = Interrupted(0, os_error(code), only=operation)
    checked = check_end(End(step=37), CheckpointStore(paths.checkpoints, fs=fs), paths)
    assert checked.answer is None
    assert os.strerror(code) in checked.reason


# ---------------------------------------------------------------------------- the one resume


def test_a_done_task_at_version_30_of_37_is_resumed_exactly_once(incident: Incident) -> None:
    save(incident.store, 30)
    assert incident.look().standing is Standing.INVALID
    assert incident.spool.tree.locate(RESUME) is None

    first = incident.look(resume=True)
    assert (first.standing, first.have, first.want) == (Standing.RESUMED, 30, 37)
    assert first.resume == RESUME
    for _ in range(3):
        again = incident.look(resume=True)
        assert again.standing is Standing.RESUMING
        assert "is pending" in again.reason

    record = incident.spool.tree.read(incident.spool.tree.find(RESUME).path)
    exported, command = record.spec.command.split("\n")
    assert command == "python train.py"
    assert exported == (
        f"export FLEET_RESUME_FROM={incident.store.paths.step(30)} FLEET_RESUME_KIND=EXACT"
    )
    assert (record.spec.retries, record.spec.outputs) == (2, ("out.txt",))
    (claim,) = read_claims(incident.paths, TASK)
    assert (claim.name, claim.have, claim.want, claim.kind) == (RESUME, 30, 37, Kind.EXACT)
    assert os.path.exists(incident.paths.resume_claim(TASK, "30", "37"))


def test_the_end_that_a_resume_reaches_makes_the_claim_valid(incident: Incident) -> None:
    save(incident.store, 30)
    incident.look(resume=True)
    save(incident.store, 37)
    incident.end_task(RESUME)
    assert incident.look(resume=True).standing is Standing.VALID


def test_a_resume_that_came_further_is_followed_by_one_more(incident: Incident) -> None:
    save(incident.store, 30)
    incident.look(resume=True)
    save(incident.store, 33)
    assert incident.look(resume=True).standing is Standing.RESUMING  # the first still waits
    incident.end_task(RESUME)
    assert incident.look(resume=True).resume == f"{TASK}.resume-33-37"
    assert len(read_claims(incident.paths, TASK)) == 2


def test_a_resume_that_came_no_further_or_failed_asks(incident: Incident) -> None:
    save(incident.store, 30)
    incident.look(resume=True)
    incident.end_task(RESUME)
    came_no_further = incident.look(resume=True)
    assert came_no_further.standing is Standing.ASKS
    assert "is done and came no further" in came_no_further.reason


def test_a_resume_that_failed_asks(tmp_path: Path) -> None:
    incident = Incident(tmp_path)
    incident.declare()
    incident.end_task(TASK)
    save(incident.store, 30)
    incident.look(resume=True)
    incident.end_task(RESUME, "failed")
    failed = incident.look(resume=True)
    assert (failed.standing, failed.resume) == (Standing.ASKS, RESUME)
    assert "failed" in failed.reason


def test_only_weights_ask_first_and_say_so_in_the_record(incident: Incident) -> None:
    save(incident.store, 30, but=Part.OPTIMIZER)
    asked = incident.look(resume=True)
    assert (asked.standing, asked.kind) == (Standing.ASKS, Kind.WEIGHTS)
    assert "holds weights only (missing: optimizer)" in asked.reason
    assert read_claims(incident.paths, TASK) == ()
    consented = incident.look(resume=True, from_weights=True)
    assert consented.standing is Standing.RESUMED
    (claim,) = read_claims(incident.paths, TASK)
    assert claim.kind is Kind.WEIGHTS
    record = incident.spool.tree.read(incident.spool.tree.find(RESUME).path)
    assert "FLEET_RESUME_KIND=WEIGHTS" in record.spec.command


def test_an_older_exact_checkpoint_is_resumed_from_rather_than_newer_weights(
    incident: Incident,
) -> None:
    save(incident.store, 30)
    save(incident.store, 35, but=Part.RNG_CPU)
    assert incident.look(resume=True).resume == RESUME


def test_without_any_checkpoint_it_asks(incident: Incident) -> None:
    asked = incident.look(resume=True)
    assert asked.standing is Standing.ASKS
    assert "no checkpoint of a step to resume from" in asked.reason


def test_a_task_that_is_not_done_claims_nothing(tmp_path: Path) -> None:
    incident = Incident(tmp_path)
    assert incident.look(resume=True).standing is Standing.NO_END
    incident.declare()
    save(incident.store, 30)
    assert incident.look(resume=True).standing is Standing.NOT_CLAIMED
    other = RunPaths(str(tmp_path / "runs" / "other"))
    os.makedirs(other.folder)
    declare_end(other, End(step=1))
    gone = look_at_run(other, incident.spool.tree, resume=True)
    assert (gone.standing, gone.reason) == (
        Standing.NOT_CLAIMED,
        "task other is not in the spool",
    )


@pytest.mark.parametrize("operation", ["listdir", "read", "lstat"])
def test_what_cannot_be_told_resumes_nothing(incident: Incident, operation: str) -> None:
    save(incident.store, 30)
    for at in range(4):
        fs = Interrupted(at, os_error(errno.EIO), only=operation)
        found = look_at_run(incident.paths, incident.spool.tree, resume=True, fs=fs)
        if fs.count <= at:
            break
        assert found.standing is Standing.UNKNOWN, found
    else:
        return
    assert len(read_claims(incident.paths, TASK)) == 1  # the undisturbed pass


def test_checkpoints_elsewhere_are_looked_for_where_the_run_declares_them(
    tmp_path: Path,
) -> None:
    incident = Incident(tmp_path)
    elsewhere = tmp_path / "work" / "ckpt"
    declare_end(incident.paths, End(step=37), checkpoints=str(elsewhere))
    incident.end_task(TASK)
    save(CheckpointStore(elsewhere), 37)
    assert incident.look().standing is Standing.VALID


def test_a_controller_that_is_killed_at_any_file_operation_leaves_one_resume(
    incident: Incident,
) -> None:
    save(incident.store, 30)
    with copies() as copy:
        points = _killed(copy(incident.root), Interrupted())
        assert points > 20
        for at in range(points):
            root = copy(incident.root)
            _killed(root, Interrupted(at, performed=at % 2 == 0))
            paths, tree = RunPaths(str(root / "runs" / TASK)), SpoolTree(str(root / "taskq"))
            claimed = len(read_claims(paths, TASK))
            standing = look_at_run(paths, tree, resume=True).standing
            assert standing is (Standing.RESUMING if claimed else Standing.RESUMED)
            assert len(read_claims(paths, TASK)) == 1
            assert tree.find(RESUME)
            assert look_at_run(paths, tree, resume=True).standing is Standing.RESUMING


def _killed(root: Path, fs: Interrupted) -> int:
    """One pass whose every file operation, of the run and of the spool, may be its last."""
    paths, tree = RunPaths(str(root / "runs" / TASK)), SpoolTree(str(root / "taskq"), fs)
    with contextlib.suppress(Crash):
        look_at_run(paths, tree, resume=True, fs=fs)
    return fs.count


def test_one_of_many_threads_wins_a_claim(incident: Incident) -> None:
    manifest = save(incident.store, 30)
    barrier = threading.Barrier(8)
    won: list[bool] = []

    def contend() -> None:
        barrier.wait()
        won.append(claim_resume(incident.paths, TASK, manifest, 37))

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_four_controllers_as_processes_and_many_passes_make_one_resume(
    incident: Incident,
) -> None:
    save(incident.store, 30)
    program = (
        "import sys\n"
        "from fleetcraft.layout.runs import RunPaths\n"
        "from fleetcraft.spool.tree import SpoolTree\n"
        "from fleetcraft.training.checkpoint.resuming import look_at_run\n"
        "paths, tree = RunPaths(sys.argv[1]), SpoolTree(sys.argv[2])\n"
        "sys.stdin.readline()\n"
        "found = [look_at_run(paths, tree, resume=True).standing.value for _ in range(25)]\n"
        "print(*found)\n"
    )
    controllers = [
        subprocess.Popen(
            [sys.executable, "-c", program, incident.paths.folder, incident.spool_dir],
            env={**os.environ, "PYTHONPATH": str(REPO)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for controller in controllers:
        assert controller.stdin is not None
        controller.stdin.write("go\n")
        controller.stdin.flush()
    said = [controller.communicate(timeout=100)[0].split() for controller in controllers]
    assert [controller.returncode for controller in controllers] == [0] * 4
    every = [word for words in said for word in words]
    assert len(every) == 100
    assert every.count("resumed") == 1
    assert set(every) == {"resumed", "resuming"}
    assert len(read_claims(incident.paths, TASK)) == 1
    names = os.listdir(incident.spool.tree.paths.names)
    assert sorted(names) == [TASK, RESUME]
