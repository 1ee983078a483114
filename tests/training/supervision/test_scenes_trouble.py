"""Runs in trouble: a frozen counter with dead ranks, a trainer that ignores TERM, a false end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.clock import parse_timestamp
from fleetcraft.training.plan.records import BudgetPlan, End, LadderPlan, ProgressPlan
from fleetcraft.training.records import Crash, Knob, State
from tests.training.supervision.scenes import OOM, REPO, Event, Scene

Make = Callable[..., Scene]
ALARM_S = 3.0
WARMUP_S = 3.0
"""Long enough for the processes of a scene to start on a busy machine."""
DRAFTERS = f"""
# One launcher, one trainer, three drafters; the ranks are processes of this very file.
role = sys.argv[1] if len(sys.argv) > 1 else ""
if not role:
    ranks = [subprocess.Popen([sys.executable, sys.argv[0], name], env={{**os.environ, "RANK": n}})
             for n, name in enumerate(("trainer", "drafter-0", "drafter-1", "drafter-2"))
             for n in (str(n),)]
    for rank in ranks:
        rank.wait()
    sys.exit(0)
anchors = int(os.environ["MAX_ANCHORS"])
frozen = anchors > 768
for step in range(611, 691 if frozen else 721):
    time.sleep(0.06)
    queues = {{"q_pre": (50, 50), "q_hs": (26, 50)}} if role == "trainer" else None
    report_progress(step, tokens=8192, name=role, queues=queues)
if frozen and role in ("drafter-1", "drafter-2"):
    print(f"[rank{{os.environ['RANK']}}]: Traceback (most recent call last):\\n"
          f"[rank{{os.environ['RANK']}}]: " + {OOM!r}, file=sys.stderr, flush=True)
    sys.exit(1)
if frozen:
    while True:  # it waits for the drafters, spinning as a collective does
        time.sleep(0.01)
"""


def seconds(first: Event, last: Event) -> float:
    begin, end = parse_timestamp(first["at"]), parse_timestamp(last["at"])
    assert begin is not None
    assert end is not None
    return (end - begin).total_seconds()


def test_a_run_frozen_at_step_690_with_two_of_three_drafters_dead_is_healed(scene: Make) -> None:
    knob = Knob(name="max_anchors", value=1024, floor=256, quantum=256, variable="MAX_ANCHORS")
    one = scene(
        DRAFTERS,
        warmup_s=WARMUP_S,
        ladder=LadderPlan(knobs=(knob,)),
        progress=ProgressPlan(
            stall_least_s=ALARM_S, tokens_per_step=8192, accumulation=4, queues=("q_pre", "q_hs")
        ),
    )

    ended = one.supervise()

    assert ended.state is State.DONE, one.course()
    dead = next(event for event in one.told("dead_rank") if len(event["ranks"]) == 2)
    assert [rank["name"] for rank in dead["ranks"]] == ["drafter-1", "drafter-2"]
    assert dead["step"] == 690
    assert "2 of 4 ranks gone: drafter-1" in dead["why"]
    (found,) = one.told("diagnosis")
    assert found["diagnosis"]["class"] == Crash.CUDA_OOM
    assert found["diagnosis"]["step"] == 690
    assert found["diagnosis"]["oom"]["shortfall_bytes"] == pytest.approx(0.17 * 2**30, rel=0.01)
    # The knob is the one thing that was changed, and its cost stands beside the cure.
    first, second = one.told("launched")
    assert (second["rung"]["kind"], second["rung"]["after"]) == ("knob", 768)
    assert not second["rung"]["confounded"]
    (*_, verified) = one.told("verified")
    report = "\n".join(verified["report"])
    assert "max_anchors 1024 -> 768" in report
    assert "throughput before: not measured" not in report
    assert "quality effect: not measured" in report
    verifying = next(
        e for e in one.journal() if e["event"] == "state" and e["state"] == "VERIFYING"
    )
    # The last is for a busy machine; hours without a word is what must not be.
    assert seconds(verifying, found) < 12 * 0.06 + 2 * ALARM_S + 20
    assert one.is_gone()
    assert first["epoch"] == 1


def test_a_frozen_counter_under_living_ranks_is_raised_with_its_arithmetic(scene: Make) -> None:
    script = """
for step in range(1, 15):
    time.sleep(0.05)
    report_progress(step, tokens=100, name="trainer")
while epoch == 1:
    time.sleep(0.05)
    report_progress(14, tokens=0)
"""
    plan = ProgressPlan(stall_least_s=ALARM_S, tokens_per_step=100, tokens_per_s=1000.0)
    one = scene(script, progress=plan, warmup_s=WARMUP_S)

    ended = one.supervise()

    assert ended.state is State.DONE
    (alarm,) = one.told("alarm")
    assert alarm["step"] == 14
    assert "100 tokens / 1,000 tok/s = 0.1 s a step" in alarm["expected"]["arithmetic"]
    assert "0 came" in alarm["expected"]["arithmetic"]
    assert alarm["quiet_s"] >= ALARM_S
    assert [rank["name"] for rank in alarm["census"]] == ["trainer"]
    assert one.told("diagnosis")[0]["diagnosis"]["class"] == Crash.UNKNOWN


def test_a_trainer_that_ignores_term_and_escapes_is_gone_after_a_bounded_stop(scene: Make) -> None:
    script = """
report_progress(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if epoch == 1:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
    time.sleep(600)
"""
    plan = ProgressPlan(stall_least_s=ALARM_S)
    one = scene(script, grace_s=0.5, progress=plan, warmup_s=WARMUP_S)

    ended = one.supervise()

    assert ended.state is State.DONE
    (stopped,) = one.told("stopped")
    assert stopped["stopped"]["result"] == "REAPED"
    assert one.is_gone()


CHECKPOINTS = """
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.checkpoint.records import Part
store = CheckpointStore(os.environ["FLEET_CHECKPOINTS"])
have = store.newest_validated_step() or 0
for step in range(have + 1, have + 31 if epoch == 1 else 38):
    time.sleep(0.01)
    report_progress(step)
    if step in (30, 37):
        with store.save(step, generation=int(os.environ["FLEET_GENERATION"])) as saving:
            with open(saving.path("weights.bin"), "wb") as file:
                file.write(b"weights %d" % step)
            saving.part(Part.WEIGHTS, "weights.bin")
            saving.done()
            saving.commit()
"""


def test_an_exit_with_0_at_version_30_of_37_is_not_done(scene: Make) -> None:
    one = scene(CHECKPOINTS, end=End(step=37, kind="WEIGHTS"))

    ended = one.supervise()

    assert ended.state is State.DONE, one.journal()
    assert len(one.told("launched")) == 2
    suspected = [e for e in one.journal() if e["event"] == "state" and e["state"] == "SUSPECT"]
    assert "it ended with 0, but" in suspected[0]["why"]
    assert "step 30" in suspected[0]["why"]
    assert "step 37" in ended.why


def test_an_end_that_never_comes_is_given_up(scene: Make) -> None:
    one = scene("report_progress(1)", end=End(step=37), budgets=BudgetPlan(backoff_s=(0.0,)))

    ended = one.supervise()

    assert ended.state is State.EXHAUSTED
    assert len(one.told("launched")) == 2


TORCHRUN = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, 13):
    dist.all_reduce(torch.ones(1))
    report_progress(step, tokens=10, name=f"rank {rank}")
    if epoch == 1 and step == 6 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.mark.timeout(400)  # it loads torch six times
@pytest.mark.skipif(
    not Path(sys.executable).with_name("torchrun").exists(), reason="there is no torchrun"
)
def test_torchrun_with_two_ranks_goes_on_after_one_was_killed(scene: Make) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    one = scene(
        TORCHRUN,
        before=(torchrun, "--standalone", "--nproc-per-node", "2"),
        world_size=2,
        warmup_s=0.2,
        grace_s=5.0,
        inner_grace_s=3.0,
    )

    ended = one.supervise()

    assert ended.state is State.DONE, one.journal()
    assert len(one.told("launched")) == 2
    (found,) = one.told("diagnosis")
    assert found["diagnosis"]["class"] == Crash.KILLED_UNCONFIRMED
    assert 1 in found["diagnosis"]["ranks"]
    assert one.is_gone()


def test_supervising_loads_no_torch() -> None:
    code = (
        "import sys, fleetcraft.training.supervision.entry, fleetcraft.cli.train.supervise;"
        "print([n for n in ('torch', 'pandas', 'rich', 'matplotlib') if n in sys.modules])"
    )

    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert said.stdout.strip() == "[]"
