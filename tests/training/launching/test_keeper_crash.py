"""A keeper that is killed at each of its file operations, or whose file system fails there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fleetcraft.training.launching.adoption import find_live
from fleetcraft.training.launching.order import ORDER_SCHEMA, Order
from fleetcraft.training.launching.sights import Answer
from fleetcraft.training.launching.stop import stop
from fleetcraft.training.records import StopResult
from tests.training.launching.harness import Run

REPO = Path(__file__).resolve().parents[3]
KEEPER = """
import os, signal, sys
from fleetcraft.files import FileSystem
from fleetcraft.training.launching.keeper import NodeKeeper
from fleetcraft.training.launching.order import Order
from fleetcraft.training.launching.reading import read_record
from tests.training.launching.harness import Faulty

def fault():
    if sys.argv[3] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return OSError(int(sys.argv[3]), os.strerror(int(sys.argv[3])))

order = read_record(FileSystem(), sys.argv[1], Order)
fs = Faulty(int(sys.argv[2]), fault, performed=sys.argv[4] == "performed")
code = NodeKeeper(order, fs).serve()
print(fs.count)
sys.exit(code)
"""


def prepare(run: Run) -> str:
    """A launch whose keeper the test starts itself; returns the path of its order."""
    command = ("bash", "-c", "echo x >> began")
    epoch = run.epoch(command)
    paths = run.paths.attempt(epoch.number)
    for folder in paths.folders():
        Path(folder).mkdir(mode=0o700)
    order = Order(
        schema=ORDER_SCHEMA, run="r1", epoch=epoch.number, generation=1, nonce=epoch.nonce,
        attempt=paths.folder, command=command, directory=str(run.work), grace_s=0.1,
        look_s=30.0,
    )  # fmt: skip
    Path(paths.order).write_bytes(msgspec.json.encode(order))
    return paths.order


def keep(run: Run, order: str, cut: int, fault: str, performed: str) -> tuple[int, int]:
    """Runs that keeper to its end: its exit code, and how many operations it made if it told."""
    done = subprocess.run(
        [sys.executable, "-c", KEEPER, order, str(cut), fault, performed],
        env={**os.environ, "PYTHONPATH": str(REPO), "FLEET_LAUNCH_NONCE": run.nonces[-1]},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, int(done.stdout or 10_000)


def began(run: Run) -> int:
    path = run.work / "began"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.timeout(180)
def test_a_keeper_killed_at_any_operation_leaves_what_the_next_supervisor_can_settle(
    run: Run,
) -> None:
    started = 0
    for cut in range(1, 60):
        order = prepare(run)
        before = began(run)
        code, count = keep(run, order, cut, "kill", "not performed")

        found = find_live(run.paths, moved=lambda: False)
        if found.answer is not Answer.DEAD:
            assert found.launch is not None, found.why
            assert stop(found.launch, grace_s=0.1).result is StopResult.REAPED
            found = find_live(run.paths, moved=lambda: False)
        assert found.answer is Answer.DEAD, f"killed at {cut}: {found.why}"
        assert began(run) - before <= 1
        started += began(run) - before
        if code == 0:
            assert count < cut
            assert started > 1, "it was also killed after its command had begun"
            return
    raise AssertionError("it never came to an end")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("performed", "first"), [("performed", 1), ("not performed", 2)])
def test_an_operation_that_fails_once_starts_the_command_at_most_once(
    run: Run, performed: str, first: int
) -> None:
    for cut in range(first, 60, 2):
        order = prepare(run)
        before = began(run)
        _, count = keep(run, order, cut, str(errno.EIO), performed)
        found = find_live(run.paths, moved=lambda: False)
        assert found.answer is Answer.DEAD, f"failed at {cut}: {found.why}"
        assert began(run) - before <= 1
        if count < cut:
            assert began(run) - before == 1
            assert found.ends[-1].exit_code == 0
            return
    raise AssertionError("it never came to an end")


def test_a_keeper_loads_nothing_that_is_heavy() -> None:
    heavy = ["torch", "pandas", "numpy", "psutil", "rich", "click", "yaml", "pynvml", "subprocess"]
    code = (
        "import sys, fleetcraft.training.launching.keeper\n"
        f"print(sorted(set({heavy}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"
