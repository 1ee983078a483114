"""Times are this process's alone: the machine's turn, the GPU's processes, the fleet's gate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.calibration.sweep import timing
from fleetcraft.errors import TryAgainLaterError, UsageError
from tests.calibration.sweep.families import trial
from tests.rig import Rig


@pytest.fixture(autouse=True)
def own_turn(tmp_path, monkeypatch):
    """A machine of this test's own, so that no calibration elsewhere is waited for."""
    monkeypatch.setattr(timing, "node_local_folder", lambda: str(tmp_path))


HOLDER = """
import sys
from fleetcraft.calibration.sweep import timing
timing.node_local_folder = lambda: sys.argv[1]
with timing.machine_turn(lambda: None):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that has the turn."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def never() -> None:
    raise AssertionError("nobody had the turn")


def test_a_turn_that_nobody_has_is_taken_and_given_back():
    for _ in range(2):
        with timing.machine_turn(never, patience_s=0):
            pass


def test_a_second_calibration_says_that_it_waits_and_goes_on_when_the_first_ends(other):
    told = []

    def wait() -> None:
        told.append("waiting")
        other.stdin.close()  # ends the other one

    with timing.machine_turn(wait, patience_s=60):
        assert told == ["waiting"]


def test_waiting_for_the_turn_has_an_end(other):
    waits: list[int] = []

    with (
        pytest.raises(TryAgainLaterError, match="nothing was tried"),
        timing.machine_turn(lambda: waits.append(1), patience_s=0.3),
    ):
        raise AssertionError("two had the turn at once")

    assert waits == [1]


def test_a_killed_calibration_holds_no_turn(other):
    other.send_signal(signal.SIGKILL)
    other.wait(30)

    with timing.machine_turn(never, patience_s=0):
        pass


def test_the_turn_is_not_handed_to_children(tmp_path):
    with timing.machine_turn(never):
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False,
        )  # fmt: skip
        assert child.stdout.readline() == b"up\n"

    with child, timing.machine_turn(never, patience_s=0):
        child.kill()


# ----------------------------------------------------------------------------------- the GPU

LOOK = """
import sys
from fleetcraft.calibration.sweep import timing
timing._LOOK_PAUSE_S = 0.0
timing._DRIVER_PATIENCE_S = float(sys.argv[2])
print(timing.why_shared(sys.argv[1]))
"""


def look(rig: Rig, device: str = "cuda", *, patience_s: float = 30, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, device, str(patience_s)],
        env={**rig.env(), **environment},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_cpu_has_no_list_of_processes():
    assert timing.why_shared("cpu") == ""


def test_a_gpu_with_nobody_on_it_may_be_timed(tmp_path):
    with Rig(tmp_path, settings={"gpus": 2}) as rig:
        assert look(rig) == ""


def test_a_neighbour_on_the_gpu_is_found_on_that_gpu_alone(tmp_path):
    settings = {"gpus": 2, "gpu.1.processes": 2, "gpu.1.pids": "4242,4243"}
    with Rig(tmp_path, settings=settings) as rig:
        assert look(rig, "cuda:0") == ""
        assert look(rig, "cuda:1") == "2 other processes are on the GPU"
        assert look(rig, "cuda:0", CUDA_VISIBLE_DEVICES="1") == "2 other processes are on the GPU"


def test_memory_that_nobody_named_holds_counts_as_shared(tmp_path):
    settings = {"gpus": 2, "gpu.1.mem_used_mib": 4096, "gpu.1.processes": 0}
    with Rig(tmp_path, settings=settings) as rig:
        assert look(rig, "cuda:0") == ""
        said = look(rig, "cuda:1")

    assert said == "the driver names no process, and 4096 MiB of the GPU are held"


@pytest.mark.parametrize(("line", "value", "words"), [
    ("gpu.0.error.processes", "3", "unsupported"),
    ("gpu.0.error.handle", "15", "lost"),
    ("error.init", "9", "does not answer"),
])  # fmt: skip
def test_a_driver_that_does_not_say_who_is_there_counts_as_shared(tmp_path, line, value, words):
    with Rig(tmp_path, settings={"gpus": 1, line: value}) as rig:
        said = look(rig)

    assert said.startswith("who is on the GPU is not known")
    assert words in said


def test_a_driver_that_never_answers_costs_the_times_and_not_the_run(tmp_path):
    with Rig(tmp_path, settings={"gpus": 1, "gpu.0.hang.processes": "inf"}) as rig:
        said = look(rig, patience_s=0.5)

    assert said == "the driver did not say within 0.5 s who is on the GPU"


def test_a_gpu_that_is_not_there_counts_as_shared(tmp_path):
    with Rig(tmp_path, settings={"gpus": 1}) as rig:
        assert look(rig, "cuda:3").startswith("who is on the GPU is not known")


def test_others_who_came_while_a_trial_ran_are_told():
    def came(**evidence: object) -> str:
        return timing.who_came(trial(1, evidence=evidence))

    assert came() == came(neighbour_peak_bytes=None) == came(neighbour_peak_bytes=1 << 20) == ""
    assert came(neighbour_peak_bytes=3 << 30) == "others held 3072 MiB of the GPU while it ran"


def test_auto_is_cuda_only_with_a_gpu_and_a_torch_that_can_use_it(monkeypatch):
    def picked(*, torch: bool, gpu: bool) -> str:
        monkeypatch.setattr(timing, "_is_torch_for_cuda", lambda: torch)
        monkeypatch.setattr(timing, "_shows_gpu", lambda: gpu)
        return timing.pick_device("auto")

    assert picked(torch=True, gpu=True) == "cuda"
    assert picked(torch=True, gpu=False) == "cpu"
    assert picked(torch=False, gpu=True) == "cpu"


@pytest.mark.parametrize(("line", "for_cuda"), [
    ("cuda: Optional[str] = '12.8'\n", True), ("cuda = '13.0'\n", True),
    ("cuda: Optional[str] = None\n", False), ("cuda_extra = '1'\n", False), ("", False),
])  # fmt: skip
def test_the_build_of_torch_is_read_without_loading_it(tmp_path, monkeypatch, line, for_cuda):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('torch was loaded')\n")
    (package / "version.py").write_text(f"debug = False\n{line}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    assert timing._is_torch_for_cuda() is for_cuda


@pytest.mark.parametrize("bad", ["gpu", "cuda:x", "cuda:", "cpu:0", ""])
def test_no_other_device_is_known(bad):
    with pytest.raises(UsageError, match="nothing was tried"):
        timing.pick_device(bad)


# ------------------------------------------------------------------------------- the fleet

TASK = """
import fcntl, os, sys
from fleetcraft.calibration.sweep import timing
from fleetcraft.process import GATE_FD
if sys.argv[1] != "closed":
    path = f"{timing.node_local_folder()}/test-%d.room" % os.getpid()
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), GATE_FD)
    os.unlink(path) if sys.argv[1] == "gone" else None
    fcntl.flock(GATE_FD, {"alone": fcntl.LOCK_EX}.get(sys.argv[1], fcntl.LOCK_SH))
print(timing.fleet_note())
if sys.argv[1] in ("alone", "shared"):
    os.unlink(path)
"""


@pytest.mark.parametrize(("gate", "task", "noted"), [
    ("alone", "t1", False), ("shared", "t1", True), ("shared", "", False), ("closed", "t1", False),
])  # fmt: skip
def test_a_task_that_shares_its_node_is_told_so(gate, task, noted):
    done = subprocess.run(
        [sys.executable, "-c", TASK, gate],
        env={**os.environ, "FLEET_TASK": task},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert ("enqueue it with --timed" in done.stdout) is noted


# ---------------------------------------------------------------------------------- trials


def test_a_trial_without_times_keeps_its_memory_and_the_reason():
    timed = trial(2, samples_per_s=2.0, evidence={"exit": 0})

    bare = timing.without_times(timed, "1 other process")

    assert (bare.cycle_walls_s, bare.samples_per_s, bare.phases[0].walls_s) == ((), None, ())
    assert bare.peak_bytes == timed.peak_bytes
    assert bare.evidence == {"exit": 0, "not_timed": "1 other process"}


def test_the_longest_silence_is_that_of_the_journal_without_the_start(tmp_path: Path):
    lines = [("begin", 0.0), ("environment", 50.0), ("pass_begin", 51.0), ("check", 58.5),
             ("phase_begin", 59.0), ("phase_end", 61.0)]  # fmt: skip
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(
        f'{{"event": "{name}", "mono_s": {at}, "pass": "checks", "phase": "decode", '
        '"name": "noise", "ok": true}\n'
        for name, at in lines
    ))  # fmt: skip

    assert timing.longest_silence_s(trial(1, journal=str(journal))) == pytest.approx(7.5)
    assert timing.longest_silence_s(trial(1, walls=(3.0, 3.0, 4.0))) == 3.0
    assert timing.longest_silence_s(trial(1, walls=())) is None
