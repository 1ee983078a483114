"""Stops of real launches: bounded, whole, and honest about what they could not end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.files import FileSystem
from fleetcraft.identity import ProcessId, process_id
from fleetcraft.training.launching.looking import Launch
from fleetcraft.training.launching.nonce_scan import find_by_nonce
from fleetcraft.training.launching.sights import Whole
from fleetcraft.training.launching.start import launch
from fleetcraft.training.launching.stop import stop
from fleetcraft.training.records import Stopped, StopResult
from tests.training.launching.harness import DEAF, ESCAPED, PLAIN, REFORKING, Run, wait_until

FREEZER = Path("/sys/fs/cgroup/freezer")


def keeper_pid(started: Launch) -> int:
    (node,) = started.look().nodes
    assert node.keeper is not None
    return node.keeper.keeper.process.pid


class Patient:
    """A clock that counts what was slept, not how long a busy machine takes to look around."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def clock(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self._now_s += seconds


def assert_reaped(started: Launch, stopped: Stopped) -> None:
    assert (stopped.result, stopped.left, stopped.why) == (StopResult.REAPED, (), "")
    assert find_by_nonce(started.nonce) == ()


@pytest.mark.parametrize(
    "code",
    [
        PLAIN,
        DEAF,
        ESCAPED,
        REFORKING.format(pause=0.01),
        REFORKING.format(pause=0.001),
        REFORKING.format(pause=0),
    ],
    ids=["plain", "deaf to TERM", "escaped", "reforking 10 ms", "1 ms", "without pause"],
)
def test_a_stop_leaves_nothing_that_has_the_nonce(run: Run, code: str) -> None:
    started = run.python(code)
    stopped = stop(started, grace_s=0.2, why="a test")
    assert_reaped(started, stopped)
    (end,) = started.look().ends
    assert (end.told_to_stop, end.clean) == (True, True)


def test_a_command_that_heeds_term_ends_by_it_and_nothing_is_killed(run: Run) -> None:
    code = PLAIN.replace(
        "time.sleep", "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); time.sleep"
    )
    started = run.python(code)
    stopped = stop(started, grace_s=20.0)
    assert_reaped(started, stopped)
    (end,) = started.look().ends
    assert (end.exit_code, stopped.killed) == (5, 0)


def test_a_launch_is_stopped_that_has_not_yet_begun(run: Run) -> None:
    started = run.launch(sys.executable, "-c", PLAIN)
    stopped = stop(started, grace_s=0.2)
    assert_reaped(started, stopped)
    assert started.look().whole is Whole.ENDED


def test_a_launch_that_has_ended_is_stopped_again_without_harm(run: Run) -> None:
    started = run.launch("true")
    run.ended(started)
    assert_reaped(started, stop(started, grace_s=0.2))
    assert_reaped(started, stop(started, grace_s=0.2))


@pytest.mark.parametrize("code", [PLAIN, DEAF, ESCAPED, REFORKING.format(pause=0.01)],
                         ids=["plain", "deaf", "escaped", "reforking"])  # fmt: skip
def test_what_a_killed_keeper_leaves_is_found_by_its_nonce_and_stopped(run: Run, code: str) -> None:
    started = run.python(code)
    os.kill(keeper_pid(started), signal.SIGKILL)
    wait_until(lambda: started.look().whole is Whole.LOST, "the loss is seen")
    stopped = stop(started, grace_s=0.2, kill_wait_s=10.0)
    assert_reaped(started, stopped)


def test_a_member_of_its_session_that_wiped_its_environment_is_stopped_too(run: Run) -> None:
    code = (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'], env={})\n"
        "open('pid', 'w').write(str(child.pid)); open('up', 'w').close(); time.sleep(600)\n"
    )
    started = run.python(code)
    pid = int((run.work / "pid").read_text())
    os.kill(keeper_pid(started), signal.SIGKILL)
    stopped = stop(started, grace_s=0.2)
    assert_reaped(started, stopped)
    assert process_id(pid) is None


def test_a_paused_child_is_stopped(run: Run) -> None:
    started = run.python("import os; open('pid', 'w').write(str(os.getpid())); " + PLAIN)
    os.kill(int((run.work / "pid").read_text()), signal.SIGSTOP)
    assert_reaped(started, stop(started, grace_s=0.2))


def test_a_paused_keeper_is_given_its_time_and_then_ended_with_its_command(run: Run) -> None:
    started = run.python(DEAF, look_s=0.05)
    os.kill(keeper_pid(started), signal.SIGSTOP)
    patient = Patient()
    stopped = stop(started, grace_s=0.0, kill_wait_s=0.5, clock=patient.clock, sleep=patient.sleep)
    assert_reaped(started, stopped)
    assert stopped.killed >= 2


def test_an_order_that_cannot_be_written_still_stops_what_is_on_this_machine(run: Run) -> None:
    class Full(FileSystem):
        def create(
            self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False
        ) -> None:
            if "STOP" in path:
                raise OSError(28, "No space left on device", path)
            super().create(path, data, mode=mode, durable=durable)

    plan = run.plan(sys.executable, "-c", DEAF)
    epoch = run.epoch(plan.command)
    started = launch(run.paths.attempt(1), plan, epoch, environment={}, fs=Full())
    run.launches.append(started)
    wait_until(lambda: run.is_up(started), "it is up")

    stopped = stop(started, grace_s=0.1)

    assert (stopped.result, stopped.left) == (StopResult.REAPED, ())
    assert "No space left" in stopped.why
    assert find_by_nonce(started.nonce) == ()


def test_memory_that_does_not_come_back_leaves_the_node_unreaped(run: Run) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        time.sleep(min(seconds, 0.01))

    started = run.launch("true")
    run.ended(started)
    stopped = stop(
        started,
        grace_s=0.1,
        gpu_memory=lambda: {"GPU-1": 90 << 30},
        clock=lambda: now[0],
        sleep=sleep,
    )
    assert stopped.result is StopResult.UNREAPED
    assert "GPU-1: 92160 MiB" in stopped.why

    assert stop(started, grace_s=0.1, gpu_memory=lambda: None).result is StopResult.REAPED


@pytest.fixture
def freezer() -> Iterator[Path]:
    folder = FREEZER / f"fleetcraft-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no writable freezer of cgroup v1 here: {error}")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (folder / "cgroup.procs").read_text(), "the frozen ones are gone")
    folder.rmdir()


def test_a_child_that_cannot_be_killed_is_reported_as_left_and_in_bounded_time(
    run: Run, freezer: Path
) -> None:
    code = "import os; open('pid', 'w').write(str(os.getpid())); " + PLAIN
    started = run.python(code, kill_wait_s=0.5)
    pid = int((run.work / "pid").read_text())
    frozen = process_id(pid)
    assert frozen is not None
    (freezer / "cgroup.procs").write_text(str(pid))
    (freezer / "freezer.state").write_text("FROZEN")
    wait_until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", "it is frozen")

    patient = Patient()
    stopped = stop(started, grace_s=0.1, kill_wait_s=0.5, clock=patient.clock, sleep=patient.sleep)

    assert stopped.result is StopResult.UNREAPED
    assert [record.process for record in stopped.left] == [ProcessId(pid, frozen.start_ticks)]
    assert f"pids {pid}" in stopped.why
    (end,) = started.look().ends
    assert (end.clean, end.exit_code, end.signal) == (False, None, None)
