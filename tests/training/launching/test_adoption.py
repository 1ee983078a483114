"""Finding the launch of a supervisor that is gone: it lives, it is dead, or that is not known."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from fleetcraft.errors import SlurmTimeoutError
from fleetcraft.files import FileSystem
from fleetcraft.identity import HostId, ProcessId, process_id, this_host
from fleetcraft.slurm.queue import Step
from fleetcraft.training.diagnosing.fences import holds
from fleetcraft.training.launching.adoption import Adoption, find_live
from fleetcraft.training.launching.looking import Launch
from fleetcraft.training.launching.nonce_scan import find_by_nonce
from fleetcraft.training.launching.order import NONCE, ORDER_SCHEMA, Order
from fleetcraft.training.launching.sights import Answer, Whole
from fleetcraft.training.launching.start import AttemptExistsError, launch
from fleetcraft.training.launching.stop import stop
from fleetcraft.training.records import (
    Keeper,
    LogFence,
    NodeEnd,
    ProcessRecord,
    StepRecord,
    StopResult,
)
from tests.training.launching.harness import DEAF, PLAIN, Run, wait_until

NODE = this_host().host
TALKING = (
    "import sys, time\nopen('up', 'w').close()\nn = 0\n"
    "while True:\n    print('line', n, flush=True); n += 1; time.sleep(0.02)\n"
)


def still_holds(fence: LogFence) -> bool:
    fs = FileSystem()
    fd = fs.open_read(fence.path)
    try:
        return holds(fs, fd, fence)
    finally:
        fs.close(fd)


def find(run: Run, *, moved: bool = True, patience_s: float = 0.2, **more: object) -> Adoption:
    return find_live(
        run.paths,
        moved=lambda: moved,
        generation=2,
        patience_s=patience_s,
        **more,  # type: ignore[arg-type]
    )


def log_of(started: Launch) -> Path:
    return Path(started.paths.log(NODE))


def kill_keeper(started: Launch) -> None:
    (node,) = started.look().nodes
    assert node.keeper is not None
    os.kill(node.keeper.keeper.process.pid, signal.SIGKILL)
    wait_until(lambda: started.look().whole is Whole.LOST, "the loss is seen")


def publish(
    run: Run, *, place: HostId, process: ProcessId, step: StepRecord | None = None,
    step_name: str = "", end: NodeEnd | None = None,
) -> None:  # fmt: skip
    """A launch as its records tell of it, without any process."""
    epoch = run.epoch(("true",))
    paths = run.paths.attempt(epoch.number)
    for folder in paths.folders():
        Path(folder).mkdir(mode=0o700)
    order = Order(
        schema=ORDER_SCHEMA, run="r1", epoch=epoch.number, generation=1, nonce=epoch.nonce,
        attempt=paths.folder, command=("true",), step_name=step_name and f"train-r1-{epoch.nonce}",
    )  # fmt: skip
    Path(paths.order).write_bytes(msgspec.json.encode(order))
    record = ProcessRecord(place=place, process=process, nonce=epoch.nonce)
    keeper = Keeper(node=place.host, keeper=record, step=step)
    Path(paths.keeper(place.host)).write_bytes(msgspec.json.encode(keeper))
    Path(paths.log(place.host)).write_text("torch.OutOfMemoryError: CUDA out of memory\n")
    if end is not None:
        Path(paths.ended(place.host)).write_bytes(msgspec.json.encode(end))


def test_a_run_that_was_never_launched_has_nothing_to_adopt(run: Run) -> None:
    assert find(run).answer is Answer.DEAD


def test_a_living_run_is_adopted_with_a_fence_where_its_log_stands(run: Run) -> None:
    started = run.python(TALKING)
    wait_until(lambda: log_of(started).exists() and log_of(started).stat().st_size > 0, "it talks")

    found = find(run)

    assert (found.answer, found.alive) == (Answer.LIVE, True), found.why
    assert found.epoch is not None
    assert found.epoch.number == 1
    fence = next(fence for fence in found.fences if fence.path == str(log_of(started)))
    (copy,) = [a.archive for a in found.archived if a.log == fence.path]
    assert Path(copy).read_bytes() == log_of(started).read_bytes()[: fence.size_bytes]
    assert still_holds(fence)
    assert [a.moved for a in found.archived] == [False] * len(found.archived)
    wait_until(lambda: log_of(started).stat().st_size > fence.size_bytes, "it goes on talking")
    assert found.launch is not None
    assert found.launch.look().whole is Whole.RUNNING
    assert stop(found.launch, grace_s=0.2).result is StopResult.REAPED


def test_a_supervisor_that_is_killed_leaves_a_run_that_the_next_one_adopts(
    run: Run, tmp_path: Path
) -> None:
    plan = run.plan(sys.executable, "-S", "-E", "-c", TALKING)
    epoch = run.epoch(plan.command)
    code = (
        "import msgspec, sys, time\n"
        "from fleetcraft.layout.runs import RunPaths\n"
        "from fleetcraft.training.launching.start import launch\n"
        "from fleetcraft.training.plan.records import RunPlan\n"
        "from fleetcraft.training.records import Epoch\n"
        "plan = msgspec.json.decode(sys.argv[1], type=RunPlan)\n"
        "epoch = msgspec.json.decode(sys.argv[2], type=Epoch)\n"
        "launch(RunPaths(sys.argv[3]).attempt(1), plan, epoch, environment={})\n"
        "time.sleep(600)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code, msgspec.json.encode(plan), msgspec.json.encode(epoch),
         run.paths.folder],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        start_new_session=True,
    )  # fmt: skip
    wait_until((run.work / "up").exists, "the command runs")
    os.killpg(supervisor.pid, signal.SIGKILL)
    supervisor.wait()

    found = find(run)

    assert found.answer is Answer.LIVE, found.why
    assert found.launch is not None
    assert found.launch.look().whole is Whole.RUNNING
    assert stop(found.launch, grace_s=0.2).result is StopResult.REAPED
    assert find_by_nonce(epoch.nonce) == ()


def test_what_lives_without_moving_is_not_adopted_and_can_be_stopped(run: Run) -> None:
    started = run.python(DEAF)
    log_of(started).touch()  # a log of this very moment proves nothing

    found = find(run, moved=False)

    assert (found.answer, found.alive) == (Answer.UNKNOWN, True)
    assert "no counter of it was seen to move" in found.why
    assert found.launch is not None
    assert log_of(started).exists(), "the log of a living writer is never moved"
    assert stop(found.launch, grace_s=0.1).result is StopResult.REAPED
    assert find(run).answer is Answer.DEAD


def test_a_wait_that_is_cut_short_ends_the_patience(run: Run) -> None:
    run.python(PLAIN)
    began = time.monotonic()
    found = find(run, moved=False, patience_s=600.0, wait=lambda _s: None)
    assert found.answer is Answer.UNKNOWN
    assert time.monotonic() - began < 60


def test_a_dead_run_with_a_fresh_log_is_dead_and_its_log_is_moved_away(run: Run) -> None:
    started = run.launch("bash", "-c", "echo ChildFailedError; exit 1")
    run.ended(started)
    now = time.time()
    os.utime(log_of(started), (now, now))

    found = find(run)

    assert (found.answer, found.launch) == (Answer.DEAD, None)
    assert [end.exit_code for end in found.ends] == [1]
    assert list(Path(started.paths.logs).iterdir()) == []
    moved = {archived.log: archived.archive for archived in found.archived}
    assert Path(moved[str(log_of(started))]).read_text() == "ChildFailedError\n"
    again = find(run)
    assert (again.answer, again.archived) == (Answer.DEAD, ()), "a second pass finds nothing to do"


def test_processes_without_a_keeper_are_not_adopted_and_can_be_stopped(run: Run) -> None:
    started = run.python(PLAIN)
    kill_keeper(started)

    found = find(run)

    assert (found.answer, found.alive) == (Answer.UNKNOWN, True)
    assert "no keeper any more" in found.why
    assert found.launch is not None
    assert stop(found.launch, grace_s=0.2).result is StopResult.REAPED
    assert find(run).answer is Answer.DEAD


def test_a_launch_whose_folder_was_not_made_is_closed_for_good(run: Run) -> None:
    plan = run.plan("bash", "-c", "touch began")
    epoch = run.epoch(plan.command)

    assert find(run).answer is Answer.DEAD

    # The first supervisor was only paused, and goes on.
    with pytest.raises(AttemptExistsError):
        launch(run.paths.attempt(epoch.number), plan, epoch, environment={})
    assert not (run.work / "began").exists()


def test_a_keeper_that_comes_late_to_a_closed_launch_begins_nothing(run: Run) -> None:
    plan = run.plan("bash", "-c", "touch began")
    epoch = run.epoch(plan.command)
    paths = run.paths.attempt(epoch.number)
    answers: list[Adoption] = []

    class Paused(FileSystem):
        """Another supervisor takes over after the order was given, before the keeper starts."""

        def create_log(self, path: str) -> int:
            answers.append(find(run))
            return super().create_log(path)

    late = launch(paths, plan, epoch, environment={}, fs=Paused())
    run.launches.append(late)

    (end,) = run.ended(late).ends
    assert answers[0].answer is Answer.DEAD
    assert end.told_to_stop
    assert not (run.work / "began").exists()


def test_a_pid_that_was_used_again_is_no_keeper(run: Run) -> None:
    me = process_id(os.getpid())
    assert me is not None
    publish(run, place=this_host(), process=ProcessId(me.pid, me.start_ticks - 1))
    assert find(run).answer is Answer.DEAD


def test_a_reboot_ends_what_ran_before_it(run: Run) -> None:
    before = msgspec.structs.replace(this_host(), boot_id="another-boot")
    publish(run, place=before, process=ProcessId(1, 1))
    found = find(run)
    assert (found.answer, found.alive) == (Answer.DEAD, False)


def test_a_keeper_on_another_machine_is_unknown_without_slurm(run: Run) -> None:
    publish(run, place=HostId("elsewhere", "b", "p"), process=ProcessId(1, 1))
    found = find(run)
    assert (found.answer, found.alive) == (Answer.UNKNOWN, None)
    assert "elsewhere" in found.why
    assert found.launch is not None
    stopped = stop(found.launch, grace_s=0.0, kill_wait_s=0.0)
    assert stopped.result is StopResult.UNREAPED
    assert "another machine" in stopped.why


def away(run: Run) -> str:
    """A launch as step 7.3 on another machine; returns the name of its step."""
    step = StepRecord(job="7", step="3")
    publish(run, place=HostId("n9", "b", "p"), process=ProcessId(1, 1), step=step, step_name="step")
    return f"train-r1-{run.nonces[-1]}"


def steps(name: str, id_: str = "7.3") -> Mapping[str, Step]:
    return {id_: Step(step=id_, name=name, node_list="n9", started_at=None, state="RUNNING")}


def test_a_step_that_slurm_lists_is_adopted_once_it_is_seen_to_move(run: Run) -> None:
    name = away(run)
    found = find(run, steps=lambda: steps(name))
    assert found.answer is Answer.LIVE, found.why
    assert find(run, steps=lambda: steps(name), moved=False).answer is Answer.UNKNOWN


def test_a_step_that_a_successful_answer_lacks_is_gone(run: Run) -> None:
    away(run)
    found = find(run, steps=lambda: {})
    assert (found.answer, found.alive) == (Answer.DEAD, False)


def test_a_step_of_the_same_id_and_another_name_is_another_step(run: Run) -> None:
    away(run)
    assert find(run, steps=lambda: steps("interactive")).answer is Answer.DEAD


def test_slurm_that_does_not_answer_leaves_it_unknown(run: Run) -> None:
    def no_answer() -> Mapping[str, Step]:
        raise SlurmTimeoutError("squeue", 15.0)

    away(run)
    found = find(run, steps=no_answer)
    assert (found.answer, found.alive) == (Answer.UNKNOWN, None)
    assert "did not tell" in found.why


def test_an_end_that_left_processes_on_another_machine_is_unknown(run: Run) -> None:
    place = HostId("elsewhere", "b", "p")
    end = NodeEnd(node="elsewhere", nonce="x", clean=False)
    publish(run, place=place, process=ProcessId(1, 1), end=end)
    found = find(run)
    assert found.answer is Answer.UNKNOWN
    assert "processes of it may be left on elsewhere" in found.why


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("part", ["epochs", "nodes", "order.json"])
def test_what_cannot_be_read_is_unknown(run: Run, code: int, part: str) -> None:
    class Failing(FileSystem):
        def listdir(self, path: str) -> list[str]:
            self._fail(path)
            return super().listdir(path)

        def read(self, path: str) -> bytes:
            self._fail(path)
            return super().read(path)

        def _fail(self, path: str) -> None:
            if path.endswith(part):
                raise OSError(code, os.strerror(code), path)

    run.ended(run.launch("true"))
    found = find(run, fs=Failing())
    assert (found.answer, found.launch) == (Answer.UNKNOWN, None)
    assert os.strerror(code) in found.why


def test_a_log_folder_that_cannot_be_written_any_more_leaves_it_unknown(run: Run) -> None:
    class Refusing(FileSystem):
        def rename_new(self, source: str, destination: str) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", source)

    run.ended(run.launch("true"))
    found = find(run, fs=Refusing())
    assert found.answer is Answer.UNKNOWN
    assert "cannot be moved to the archive" in found.why


def test_a_move_that_was_performed_and_reported_as_failed_is_no_trouble(run: Run) -> None:
    class Lying(FileSystem):
        def rename_new(self, source: str, destination: str) -> None:
            super().rename_new(source, destination)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)

    run.ended(run.launch("true"))
    found = find(run, fs=Lying())
    assert found.answer is Answer.DEAD
    assert all(Path(archived.archive).exists() for archived in found.archived)


def test_two_launches_that_live_are_more_than_can_be_adopted(run: Run) -> None:
    run.python(PLAIN)
    (run.work / "up").unlink()
    run.python(PLAIN)
    found = find(run)
    assert found.answer is Answer.UNKNOWN
    assert "epochs 1, 2" in found.why


def test_the_nonce_variable_is_the_one_that_is_promised() -> None:
    assert NONCE == "FLEET_LAUNCH_NONCE"
