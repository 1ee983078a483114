"""How a supervised run ends: done, aborted, given up, stopped on order, and what is kept of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.training.checkpoint.claims import read_declared
from fleetcraft.training.plan.records import Budget, BudgetPlan, End, LadderPlan, ProgressPlan
from fleetcraft.training.records import Crash, Knob, State
from fleetcraft.training.supervision.orders import Orders
from fleetcraft.training.supervision.overview import clear_abort, look_at_run, put_abort
from tests.training.supervision.scenes import OOM, Event, Scene, entered

Make = Callable[..., Scene]
STEADY = """
for step in range(1, 21):
    time.sleep(0.05)
    report_progress(step, tokens=100, loss=1 / step)
"""
ENDLESS = """
step = 0
while not os.path.exists(os.environ["FLEET_ABORT_FILE"]):
    time.sleep(0.02)
    step += 1
    report_progress(step)
sys.exit(3)
"""


def test_a_run_is_launched_verified_and_done(scene: Make) -> None:
    one = scene(STEADY)

    ended = one.supervise()

    assert (ended.state, ended.exit_code) == (State.DONE, 0)
    assert one.course() == [
        "LOCKED", "LAUNCHING", "WARMUP", "VERIFYING", "HEALTHY", "DONE",
    ]  # fmt: skip
    status = look_at_run(one.paths).status
    assert status is not None
    assert (status.state, status.step, status.loss) == (State.DONE, 20, 1 / 20)
    assert one.is_gone()


def test_a_run_that_is_done_is_not_launched_again_unless_somebody_says_so(scene: Make) -> None:
    one = scene("report_progress(1)")
    one.supervise()

    again = one.supervise()
    anew = one.supervise(anew=True)

    assert again.state is State.DONE
    assert anew.state is State.DONE
    assert one.course(generation=2) == ["LOCKED", "DONE"]
    assert "LAUNCHING" in one.course(generation=3)


def test_abort_is_protocol_and_holds_until_it_is_cleared(scene: Make) -> None:
    one = scene(ENDLESS)

    def ask(event: Event, orders: Orders) -> None:
        if entered(State.HEALTHY)(event):
            put_abort(one.paths, "the data of shard 7 is wrong")

    ended = one.supervise(ask)
    again = one.supervise()
    clear_abort(one.paths)
    cleared = one.supervise(ask)

    assert (ended.state, ended.exit_code) == (State.ABORTED, 3)
    assert "--clear" in ended.next_step
    assert (again.state, one.course(generation=2)) == (State.ABORTED, ["LOCKED", "ABORTED"])
    assert cleared.state is State.ABORTED
    assert [event["rung"]["kind"] for event in one.told("launched")] == ["first", "unchanged"]
    assert one.told("budget") == []


def test_exit_code_3_without_the_marker_is_a_crash(scene: Make) -> None:
    one = scene("report_progress(1); sys.exit(3)", budgets=BudgetPlan(each=1, backoff_s=(0.0,)))

    ended = one.supervise()

    assert (ended.state, ended.exit_code) == (State.EXHAUSTED, 1)
    assert len(one.told("launched")) == 2
    assert "ABORTED" not in one.course()


def test_a_run_that_always_fails_is_given_up_and_stays_given_up(scene: Make) -> None:
    script = "report_progress(1); print('RuntimeError: Connection reset by peer'); sys.exit(1)"
    one = scene(script, budgets=BudgetPlan(total=Budget(restarts=1), backoff_s=(0.0,)))

    first = one.supervise()
    launched = len(one.told("launched"))
    second = one.supervise()
    third = one.supervise(anew=True)

    assert (first.state, first.exit_code) == (State.EXHAUSTED, 1)
    assert "--anew" in first.next_step
    assert launched == 2
    assert (second.state, one.course(generation=2)) == (State.EXHAUSTED, ["LOCKED", "EXHAUSTED"])
    assert third.state is State.EXHAUSTED
    assert len(one.told("launched")) == 4
    assert one.is_gone()


def test_an_error_of_the_code_is_not_tried_again_unchanged(scene: Make) -> None:
    one = scene("report_progress(1)\nraise KeyError('lr')")

    ended = one.supervise()

    assert ended.state is State.EXHAUSTED
    assert len(one.told("launched")) == 1
    (told,) = one.told("diagnosis")
    assert told["diagnosis"]["class"] == Crash.CODE_ERROR


def test_term_stops_the_run_and_the_next_supervisor_goes_on_at_no_cost(scene: Make) -> None:
    one = scene(ENDLESS)

    def end(event: Event, orders: Orders) -> None:
        if entered(State.VERIFYING)(event):
            orders.end(signal.SIGTERM)

    ended = one.supervise(end)
    left = one.alive()
    again = one.supervise(end)

    assert (ended.state, ended.exit_code) == (State.IDLE, 143)
    assert left == []
    assert again.exit_code == 143
    assert one.course(generation=2)[:3] == ["LOCKED", "LAUNCHING", "WARMUP"]
    assert [event["rung"]["kind"] for event in one.told("launched")] == ["first", "unchanged"]


def test_a_supervisor_may_leave_its_run_alive_for_the_next_one_to_adopt(scene: Make) -> None:
    one = scene(ENDLESS)

    def end(event: Event, orders: Orders) -> None:
        if entered(State.HEALTHY)(event):
            orders.end(signal.SIGTERM)

    ended = one.supervise(end, detach=True)
    alive = one.alive()
    again = one.supervise(end)

    assert (ended.state, ended.exit_code) == (State.HEALTHY, 143)
    assert alive
    assert again.exit_code == 143
    assert "ADOPTING" in one.course(generation=2)
    assert len(one.told("launched")) == 1
    (adopted,) = one.told("adopted")
    assert (adopted["epoch"], adopted["attempt"]) == (2, 1)
    assert one.is_gone()


def test_a_knob_is_lowered_one_rung_an_attempt_until_the_run_fits(scene: Make) -> None:
    script = f"""
micro = int(os.environ["MICRO_BATCH"])
for step in range(1, 36):
    time.sleep(0.04)
    if step == 22 and micro > 9:
        sys.exit({OOM!r})
    report_progress(step, tokens=micro * 10, device_memory_bytes=micro << 20)
"""
    knob = Knob(name="micro_batch", value=16, floor=4, quantum=3, variable="MICRO_BATCH")
    one = scene(script, ladder=LadderPlan(knobs=(knob,)))

    ended = one.supervise()

    assert ended.state is State.DONE
    rungs = [event["rung"] for event in one.told("launched")]
    assert [(rung["kind"], rung["before"], rung["after"]) for rung in rungs] == [
        ("first", None, None), ("knob", 16, 12), ("knob", 12, 9),
    ]  # fmt: skip
    report = "\n".join(one.told("verified")[-1]["report"])
    assert "micro_batch 12 -> 9, against epoch 2" in report
    assert "quality effect: not measured" in report
    assert "9.0 MiB now; headroom 95.0 GiB" in report
    assert os.path.exists(one.paths.report(3))
    assert one.told("diagnosis")[0]["diagnosis"]["oom"]["cause"] == "capacity"


LAUNCHER = """
# Two ranks that end after their last step, and a launcher that takes its time, as torchrun does.
if len(sys.argv) == 1:
    ranks = [subprocess.Popen([sys.executable, sys.argv[0], n], env={**os.environ, "RANK": n})
             for n in "01"]
    codes = [rank.wait() for rank in ranks]
    time.sleep(float(os.environ["TAKES_S"]) if epoch == 1 else 0)
    sys.exit(max(codes))
for step in range(1, 11):
    time.sleep(0.05)
    report_progress(step, tokens=100, loss=0.5)
"""


def test_a_launcher_that_ends_after_its_ranks_is_no_trouble(scene: Make) -> None:
    one = scene(LAUNCHER)
    one.plan.environment["TAKES_S"] = "1.5"

    ended = one.supervise()

    assert ended.state is State.DONE
    assert "SUSPECT" not in one.course()
    assert one.told("dead_rank") == []
    status = look_at_run(one.paths).status
    assert status is not None
    assert (status.step, status.loss, status.dead) == (10, 0.5, ())
    assert {rank.alive for rank in status.ranks} == {False}
    # Ten steps of 0.05 s: not what is left of them after 1.5 s without any.
    assert status.steps_per_s is not None
    assert status.steps_per_s > 4


def test_a_launcher_that_hangs_without_its_ranks_is_noticed(scene: Make) -> None:
    one = scene(LAUNCHER, progress=ProgressPlan(stall_least_s=1.0), warmup_s=3.0)
    one.plan.environment["TAKES_S"] = "600"

    ended = one.supervise()

    assert ended.state is State.DONE
    assert [rank["rank"] for rank in one.told("dead_rank")[0]["ranks"]] == [0, 1]
    assert len(one.told("launched")) == 2
    assert one.is_gone()


def test_a_claimed_resume_launches_a_run_that_was_done_once_more(
    scene: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scene("report_progress(1)")
    one.supervise()

    monkeypatch.setenv("FLEET_RESUME_FROM", "/checkpoints/step-30")
    resumed = one.supervise()
    again = one.supervise()

    assert (resumed.state, again.state) == (State.DONE, State.DONE)
    assert "LAUNCHING" in one.course(generation=2)
    assert one.course(generation=3) == ["LOCKED", "DONE"]
    (told,) = one.told("resumed")
    assert told["checkpoint"] == "/checkpoints/step-30"


def test_a_declared_end_says_where_the_checkpoints_lie(scene: Make, tmp_path: Path) -> None:
    one = scene("report_progress(1)", end=End(payload=("done",)), checkpoints=str(tmp_path / "c"))
    Path(one.paths.folder).mkdir(parents=True)
    Path(one.paths.folder, "done").write_text("x")

    assert one.supervise().state is State.DONE

    declared = read_declared(one.paths)
    assert declared is not None
    assert declared.checkpoints == str(tmp_path / "c")
