"""Graces, the words of a step, what may be cancelled, memory of GPUs: no process runs here."""

from __future__ import annotations

import threading

import pytest

from fleetcraft.errors import ConfigError, SchedulerError, SlurmTimeoutError, UsageError
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.slurm import commands
from fleetcraft.slurm.queue import Step
from fleetcraft.training.launching import gpu_memory
from fleetcraft.training.launching.gpu_memory import read_used_bytes, wait_until_free
from fleetcraft.training.launching.graces import check_graces, stop_bound_s
from fleetcraft.training.launching.order import ORDER_SCHEMA, Order
from fleetcraft.training.launching.steps import (
    find_step,
    in_numbered_step,
    is_one_of_several,
    nodes_of_step,
    require_cancellable,
    srun,
    this_step,
    why_not_cancelled,
)
from fleetcraft.training.launching.surroundings import command_environment
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import StepRecord

OWN = StepRecord(job="12", step="0")


def plan(**more: object) -> RunPlan:
    return RunPlan(run="r1", command=("true",), **more)  # type: ignore[arg-type]


# -- graces


def test_the_defaults_of_a_run_file_fit_into_one_another() -> None:
    check_graces(plan())


@pytest.mark.parametrize(("grace_s", "inner_s"), [(30.0, 30.0), (10.0, 30.0), (32.9, 30.0)])
def test_an_inner_grace_that_is_not_clearly_shorter_is_refused(
    grace_s: float, inner_s: float
) -> None:
    with pytest.raises(ConfigError, match="nothing was launched") as refused:
        check_graces(plan(grace_s=grace_s, inner_grace_s=inner_s))
    assert "33" in refused.value.hint


def test_a_supervisor_that_is_given_less_than_a_whole_stop_is_refused() -> None:
    bound_s = stop_bound_s(60.0)
    check_graces(plan(), outer_s=bound_s)
    with pytest.raises(ConfigError, match="a stop takes up to 74 s"):
        check_graces(plan(), outer_s=bound_s - 1)


# -- steps


def test_only_a_step_of_another_may_be_cancelled() -> None:
    assert why_not_cancelled("12.1", [OWN]) == ""
    assert "runs in" in why_not_cancelled("12.0", [OWN])
    with pytest.raises(UsageError, match="nothing was cancelled"):
        require_cancellable("12.0", [OWN])


@pytest.mark.parametrize(
    "step", ["", "12", "12.", ".1", "12.batch", "12.extern", "12.4294967291", "12_3.1", "*.1"]
)
def test_a_whole_job_or_a_special_step_is_never_cancelled(step: str) -> None:
    assert "is not one numbered step of one job" in why_not_cancelled(step, [])


def test_the_step_of_a_task_is_that_of_its_worker() -> None:
    assert this_step({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}) == OWN
    assert this_step({"SLURM_JOB_ID": "12"}) is None
    assert this_step({}) is None


def test_the_batch_and_interactive_steps_are_no_numbered_steps() -> None:
    assert in_numbered_step({"SLURM_STEP_ID": "3"})
    assert not in_numbered_step({"SLURM_STEP_ID": "4294967290"})
    assert not in_numbered_step({})


RANK = {
    "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n1",
}  # fmt: skip


def test_a_rank_of_several_gets_the_nodes_of_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "hostnames", lambda nodes: nodes.split())
    environ = {**RANK, "SLURM_STEP_NODELIST": "n1 n2 n4"}
    assert is_one_of_several(environ)
    assert nodes_of_step("r1", 2, environ) == ("n1", "n2")
    assert nodes_of_step("r1", 3, environ) == ("n1", "n2", "n4")
    with pytest.raises(ConfigError, match="wants 4 nodes, and the step .* has 3") as refused:
        nodes_of_step("r1", 4, environ)
    assert "nothing was launched" in refused.value.message


@pytest.mark.parametrize(
    "other",
    [
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_NUM_TASKS": ""},
        {"SLURM_STEP_ID": "4294967290"},  # the batch script, whose own step has one rank anyway
        {"FLEET_OWNER": "12.0.0.abc-1"},  # a task, whose worker is a rank of several
    ],
)
def test_elsewhere_slurm_chooses_the_nodes(other: dict[str, str]) -> None:
    environ = {**RANK, **other}
    assert not is_one_of_several(environ)
    assert nodes_of_step("r1", 4, environ) == ()


def test_one_node_is_this_one_also_in_a_step_of_several() -> None:
    assert nodes_of_step("r1", 1, RANK) == ()


def test_a_step_is_found_by_its_name_and_an_id_of_another_name_is_not_it() -> None:
    listed = {
        f"7.{n}": Step(step=f"7.{n}", name=name, node_list="", started_at=None, state="RUNNING")
        for n, name in enumerate(["train-r1-a", "bash"])
    }
    assert find_step(listed, "train-r1-a", None) is listed["7.0"]
    assert find_step(listed, "train-r1-a", StepRecord(job="7", step="0")) is listed["7.0"]
    assert find_step(listed, "train-r1-a", StepRecord(job="7", step="1")) is None
    assert find_step(listed, "train-r1-b", None) is None


def test_a_step_asks_for_its_nodes_and_no_others() -> None:
    words = srun(6, name="n", directory="/", gpus_per_node=None, overlap=False)
    assert {"--nodes=6", "--ntasks=6", "--ntasks-per-node=1"} <= set(words)
    assert "--overlap" not in words
    inside = srun(1, name="n", directory="/", gpus_per_node=2, overlap=True, node_list=["a", "b"])
    assert {"--overlap", "--gres=gpu:2", "--nodelist=a,b"} <= set(inside)


# -- the command's environment


def test_ranks_of_several_nodes_are_told_where_they_meet_unless_the_run_says_so() -> None:
    order = Order(
        schema=ORDER_SCHEMA, run="r1", epoch=3, generation=1, nonce="n", attempt="/a",
        command=("torchrun",), nodes=2, step_name="s", port=20001,
        environment={"PET_MASTER_PORT": "29400"},
    )  # fmt: skip
    environ = {"SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "n2"}
    made = command_environment(order, AttemptPaths("/a"), "n3", environ)
    assert (made["FLEET_NODE_RANK"], made["FLEET_NODE_COUNT"]) == ("1", "2")
    assert (made["PET_NNODES"], made["PET_NODE_RANK"], made["PET_MASTER_ADDR"]) == ("2", "1", "n2")
    assert made["PET_MASTER_PORT"] == "29400"
    assert made["FLEET_LAUNCH_NODE"] == "n3"


def test_a_step_that_does_not_say_which_node_this_is_begins_nothing() -> None:
    order = Order(
        schema=ORDER_SCHEMA, run="r1", epoch=3, generation=1, nonce="n", attempt="/a",
        command=("torchrun",), nodes=2, step_name="s",
    )  # fmt: skip
    with pytest.raises(SchedulerError):
        command_environment(order, AttemptPaths("/a"), "n3", {})
    assert SlurmTimeoutError("squeue", 1.0).exit_code == 4


# -- GPU memory


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_memory_that_comes_back_is_waited_for() -> None:
    clock = Clock()
    sizes = iter([90 << 30, 40 << 30, 300 << 20])
    freed = wait_until_free(lambda: {"GPU-1": next(sizes)}, clock=clock, sleep=clock.sleep)
    assert (freed.free, freed.seconds) == (True, 1.0)


def test_memory_that_stays_is_told_within_the_bound() -> None:
    clock = Clock()
    freed = wait_until_free(
        lambda: {"GPU-1": 90 << 30, "GPU-2": 0}, bound_s=5.0, clock=clock, sleep=clock.sleep
    )
    assert (freed.free, freed.seconds) == (False, 5.0)
    assert "GPU-1: 92160 MiB" in freed.why
    assert "GPU-2" not in freed.why


def test_what_others_had_before_the_launch_may_stay() -> None:
    freed = wait_until_free(lambda: {"GPU-1": 9 << 30}, before={"GPU-1": 9 << 30})
    assert freed.free is True


def test_a_driver_that_does_not_tell_says_neither_free_nor_held() -> None:
    assert wait_until_free(lambda: None).free is None


def test_a_driver_that_does_not_return_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()

    def visible() -> list[str]:
        stuck.wait(30)
        return []

    monkeypatch.setattr(gpu_memory, "visible_gpus", visible)
    assert read_used_bytes(timeout_s=0.05) is None
    stuck.set()
