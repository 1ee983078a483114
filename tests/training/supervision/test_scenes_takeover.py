"""Supervisors that die, meet, or are paused: what the next one adopts, and what it does not."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from fleetcraft.locks import GenerationLock
from fleetcraft.training.plan.records import LadderPlan, ProgressPlan
from fleetcraft.training.records import Crash, Knob, State
from fleetcraft.training.supervision.orders import Orders
from tests.training.supervision.scenes import OOM, Event, Scene, entered

Make = Callable[..., Scene]
UNTIL_TOLD = """
step = 0
while not os.path.exists(sys.argv[0] + ".end"):
    time.sleep(0.02)
    step += 1
    report_progress(step)
"""
OLD_LINE = """
print("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED",
      flush=True)
"""


def let_end(one: Scene) -> None:
    Path(f"{one.script}.end").touch()


def kill_supervisor_at(one: Scene, told: Callable[[Event], bool]) -> None:
    with one.process() as child:
        one.wait_for(told)
        child.kill()
        child.wait()


def test_an_old_crash_line_in_an_adopted_log_never_counts(scene: Make) -> None:
    one = scene(OLD_LINE + UNTIL_TOLD)
    kill_supervisor_at(one, entered(State.HEALTHY))

    def end(event: Event, orders: Orders) -> None:
        if entered(State.HEALTHY)(event):
            let_end(one)

    ended = one.supervise(end)

    assert ended.state is State.DONE
    assert len(one.told("launched")) == 1
    assert one.course(generation=2) == [
        "LOCKED", "ADOPTING", "WARMUP", "VERIFYING", "HEALTHY", "DONE",
    ]  # fmt: skip
    assert not [event for event in one.told("evidence") if event["generation"] == 2]
    kept = [name for name in os.listdir(one.paths.archive) if "adopted" in name]
    assert any("ChildFailed" in Path(one.paths.archive, name).read_text() for name in kept)


def test_a_crash_line_that_progress_has_passed_restarts_nothing(scene: Make) -> None:
    script = f"""
for step in range(1, 31):
    time.sleep(0.05)
    report_progress(step)
    if step == 12:
        print({OOM!r}, flush=True)
        time.sleep(0.4)
"""
    one = scene(script)

    ended = one.supervise()

    assert ended.state is State.DONE
    assert len(one.told("launched")) == 1
    assert one.told("evidence")
    assert one.told("evidence_closed")
    assert one.course().count("DIAGNOSING") == 0


def test_a_ghost_with_fresh_files_is_not_adopted(scene: Make) -> None:
    one = scene(UNTIL_TOLD)
    kill_supervisor_at(one, entered(State.HEALTHY))
    one.kill_all()
    attempt = one.paths.attempt(1)
    for folder in (attempt.logs, attempt.progress, attempt.nodes):
        for name in os.listdir(folder):
            os.utime(f"{folder}/{name}")  # all of it looks as if it were written just now

    def end(event: Event, orders: Orders) -> None:
        if entered(State.WARMUP)(event):
            let_end(one)

    ended = one.supervise(end)

    assert ended.state is State.DONE
    assert "ADOPTING" not in one.course(generation=2)
    assert [event["epoch"] for event in one.told("launched")] == [1, 2]
    assert any(".dead." in name for name in os.listdir(one.paths.archive))


def test_of_two_supervisors_the_second_leaves_at_once_and_touches_nothing(scene: Make) -> None:
    one = scene(UNTIL_TOLD)
    with one.process() as first:
        one.wait_for(entered(State.HEALTHY))
        with one.process() as second:
            code = second.wait(timeout=30)
        let_end(one)
        first_code = first.wait(timeout=30)

    assert (first_code, code) == (0, 75)
    assert "belongs to process" in (one.root / "supervisor.log").read_text()
    assert {event["generation"] for event in one.journal()} == {1}


def test_a_supervisor_that_was_paused_past_a_takeover_leaves_and_stops_nothing(
    scene: Make,
) -> None:
    one = scene(UNTIL_TOLD)
    with one.process() as child:
        one.wait_for(entered(State.HEALTHY))
        child.send_signal(signal.SIGSTOP)
        lock = GenerationLock(
            one.paths.lock, purpose="the test", interval_s=0.05, judge=lambda holder: False
        )
        held = lock.acquire()
        child.send_signal(signal.SIGCONT)
        code = child.wait(timeout=30)
        alive = one.alive()
        held.release()

    assert code == 75
    assert alive
    assert one.course()[-1] == "LOCK_LOST"
    assert not one.told("stopped")

    def end(event: Event, orders: Orders) -> None:
        if entered(State.WARMUP)(event):
            let_end(one)

    ended = one.supervise(end)

    assert ended.state is State.DONE
    assert "ADOPTING" in one.course(generation=3)
    assert len(one.told("launched")) == 1


def test_a_run_that_died_while_nobody_watched_is_diagnosed_and_counted(scene: Make) -> None:
    script = f"""
micro = int(os.environ["MICRO_BATCH"])
step = 0
while step < 25 or micro > 12:
    time.sleep(0.02)
    step += 1
    report_progress(step)
    if micro > 12 and os.path.exists(sys.argv[0] + ".die"):
        sys.exit({OOM!r})
"""
    knob = Knob(name="micro_batch", value=16, floor=4, quantum=4, variable="MICRO_BATCH")
    one = scene(script, ladder=LadderPlan(knobs=(knob,)))
    kill_supervisor_at(one, entered(State.HEALTHY))
    Path(f"{one.script}.die").touch()
    until(lambda: not one.alive())

    ended = one.supervise()

    assert ended.state is State.DONE
    assert one.course(generation=2)[:4] == ["LOCKED", "DIAGNOSING", "STOPPING", "BACKOFF"]
    (told,) = one.told("diagnosis")
    assert told["diagnosis"]["class"] == Crash.CUDA_OOM
    rung = one.told("launched")[-1]["rung"]
    assert (rung["knob"], rung["before"], rung["after"]) == ("micro_batch", 16, 12)


def test_a_run_that_nobody_watches_and_that_stands_still_is_stopped_not_adopted(
    scene: Make,
) -> None:
    script = """
for step in range(1, 15):
    time.sleep(0.04)
    report_progress(step)
    if epoch == 1 and step == 12:
        time.sleep(600)
"""
    one = scene(script, progress=ProgressPlan(stall_least_s=4.0))
    with one.process() as child:
        one.wait_for(entered(State.HEALTHY))
        child.kill()
        child.wait()

    ended = one.supervise()

    assert ended.state is State.DONE
    assert "ADOPTING" not in one.course(generation=2)
    assert [event["stopped"]["result"] for event in one.told("stopped")] == ["REAPED"]
    assert one.is_gone()


def test_a_run_on_a_node_that_cannot_be_asked_blocks_and_is_left_alone(scene: Make) -> None:
    one = scene(UNTIL_TOLD)
    kill_supervisor_at(one, entered(State.HEALTHY))
    attempt = one.paths.attempt(1)
    (name,) = [name for name in os.listdir(attempt.nodes) if name.endswith(".keeper.json")]
    keeper = Path(attempt.nodes, name)
    away = keeper.read_text().replace(f'"host":"{os.uname().nodename}"', '"host":"n017"')
    Path(attempt.nodes, "n017.keeper.json").write_text(away.replace(name.split(".")[0], "n017"))
    keeper.unlink()
    pids = one.alive()

    ended = one.supervise()

    assert (ended.state, ended.exit_code) == (State.BLOCKED, 1)
    assert "find out whether processes of the run live" in ended.next_step
    assert set(pids) <= set(one.alive())
    assert not one.told("stopped")


def test_records_that_cannot_be_read_block_before_anything_is_launched(scene: Make) -> None:
    one = scene("report_progress(1)")
    one.supervise()
    Path(one.paths.epoch(1)).write_text("torn")

    ended = one.supervise()

    assert ended.state is State.BLOCKED
    assert len(one.told("launched")) == 1


def test_an_epoch_that_was_published_and_never_launched_costs_nothing(scene: Make) -> None:
    one = scene("report_progress(1)")
    one.supervise()
    shutil.rmtree(one.paths.attempt(1).folder)
    Path(one.paths.events).unlink()

    ended = one.supervise()

    assert ended.state is State.DONE
    assert [event["epoch"] for event in one.told("launched")] == [2]
    assert one.told("budget") == []


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
