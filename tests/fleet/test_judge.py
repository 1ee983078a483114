"""Whether an owner lives, by every answer that Slurm can give and every one that it can fail to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleetcraft.errors import SchedulerError
from fleetcraft.fleet import judge
from fleetcraft.fleet.judge import LeaseWatch, Silence, ask_slurm
from fleetcraft.identity import Owner
from fleetcraft.slurm.nodes import Node, Nodes
from fleetcraft.slurm.queue import Job, Jobs, Step, Steps
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.recovery import Liveness, Verdict

BEGAN = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
NOT_TO_BE_ASKED = SchedulerError("not to be asked")
OWNER = Owner("8812", "2", "0", "k3x9q2ab-4")


def lease(**facts: Any) -> Lease:
    known: dict[str, Any] = {
        "job": "8812",
        "rank": "2",
        "launch": "k3x9q2ab",
        "host": "n3",
        "boot_id": "elsewhere",
        "pid_namespace": "pid:[1]",
        "pid": 4,
        "start_ticks": 5,
        "started_at": (BEGAN + timedelta(seconds=4)).isoformat(),
        "interval_s": 30.0,
        "step": "2",
        "cluster": "big",
        "job_start_s": int(BEGAN.timestamp()),
        "restarts": 0,
    }
    return Lease(**{**known, **facts})


def job(**facts: Any) -> Job:
    known: dict[str, Any] = {
        "job_id": "8812",
        "state": "RUNNING",
        "node_list": "n[1-4]",
        "started_at": BEGAN,
        "restarts": 0,
    }
    return make(Job, {**known, **facts})


def make(kind: Any, facts: dict[str, Any]) -> Any:
    """A record whose other fields are empty."""
    empty = {field.name: None for field in fields(kind)}
    return kind(**{**empty, **facts})


class Truth:
    """What Slurm would say; an error is raised, and everything that was asked is kept."""

    def __init__(
        self,
        jobs: list[Job] | SchedulerError,
        steps: list[str] | SchedulerError = NOT_TO_BE_ASKED,
        node: str | SchedulerError = NOT_TO_BE_ASKED,
    ) -> None:
        self._jobs, self._steps, self._node = jobs, steps, node
        self.asked: list[str] = []

    def jobs(self) -> Jobs:
        self.asked.append("jobs")
        if isinstance(self._jobs, SchedulerError):
            raise self._jobs
        found = {job.job_id: job for job in self._jobs}
        return make(Jobs, {"cluster": "big", "age_s": 0.0, "jobs": found})

    def steps(self) -> Steps:
        self.asked.append("steps")
        if isinstance(self._steps, SchedulerError):
            raise self._steps
        found = {step: make(Step, {"step": step}) for step in self._steps}
        return make(Steps, {"age_s": 0.0, "steps": found})

    def nodes(self) -> Nodes:
        self.asked.append("nodes")
        if isinstance(self._node, SchedulerError):
            raise self._node
        found = {"n3": make(Node, {"name": "n3", "state": self._node})} if self._node else {}
        return make(Nodes, {"age_s": 0.0, "nodes": found})


@pytest.fixture(autouse=True)
def four_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`scontrol show hostnames` of this job."""
    monkeypatch.setattr(
        judge.commands,
        "hostnames",
        lambda text: {"n[1-4]": ["n1", "n2", "n3", "n4"], "n[1-2,4]": ["n1", "n2", "n4"]}[text],
    )


def ask(truth: Truth, silence: Silence = Silence.SILENT, held: Lease | None = None) -> Verdict:
    listen: Callable[[Lease], Silence] = lambda lease: silence  # noqa: E731
    return ask_slurm(truth, listen)(OWNER, held)  # type: ignore[arg-type]


@pytest.mark.parametrize("silence", list(Silence))
def test_an_owner_whose_job_is_absent_is_gone_unless_its_lease_was_seen_to_live(
    silence: Silence,
) -> None:
    verdict = ask(Truth([job(job_id="8813")]), silence, lease())

    lives = silence in (Silence.BEATING, Silence.QUIET)
    assert verdict.liveness is (Liveness.ALIVE if lives else Liveness.GONE)


def test_a_beating_lease_costs_slurm_nothing() -> None:
    truth = Truth(SchedulerError("no"))

    assert ask(truth, Silence.BEATING, lease()).liveness is Liveness.ALIVE
    assert truth.asked == []


@pytest.mark.parametrize("held", [lease(), None])
def test_no_answer_about_the_job_is_unknown_and_says_that_slurm_was_asked(
    held: Lease | None,
) -> None:
    verdict = ask(Truth(SchedulerError("squeue did not answer within 15 s")), Silence.SILENT, held)

    assert (verdict.liveness, verdict.unanswered) == (Liveness.UNKNOWN, True)
    assert "squeue did not answer within 15 s" in verdict.reason


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"])
def test_a_job_that_is_over_has_no_living_owner(state: str) -> None:
    assert ask(Truth([job(state=state)]), held=None).liveness is Liveness.GONE


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "REQUEUE_HOLD"])
def test_a_job_that_waits_to_run_again_has_no_living_owner(state: str) -> None:
    assert ask(Truth([job(state=state, started_at=None)]), held=lease()).liveness is Liveness.GONE


@pytest.mark.parametrize(
    "state", ["COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "WHAT_IS_THIS"]
)
def test_a_state_that_says_nothing_of_processes_is_unknown(state: str) -> None:
    assert ask(Truth([job(state=state)]), held=lease()).liveness is Liveness.UNKNOWN


def test_a_requeued_job_that_runs_again_is_not_the_owners_run() -> None:
    verdict = ask(Truth([job(restarts=1)]), Silence.DOUBTFUL, lease())

    assert verdict.liveness is Liveness.GONE
    assert "restart 1" in verdict.reason


def test_a_job_id_that_was_used_again_is_told_apart_by_its_start() -> None:
    later = BEGAN + timedelta(days=40)

    assert ask(Truth([job(started_at=later)]), held=lease()).liveness is Liveness.GONE


@pytest.mark.parametrize("later", [timedelta(minutes=4), timedelta(days=40)])
def test_a_lease_that_does_not_know_its_jobs_start_is_not_judged_by_its_nodes_clock(
    later: timedelta,
) -> None:
    held = lease(job_start_s=None)
    truth = Truth([job(started_at=BEGAN + later)])

    assert ask(truth, Silence.DOUBTFUL, held).liveness is Liveness.ALIVE


def test_a_job_of_another_cluster_is_unknown_here() -> None:
    verdict = ask(Truth([]), held=lease(cluster="small"))

    assert verdict.liveness is Liveness.UNKNOWN
    assert "'small'" in verdict.reason


def test_a_running_job_without_a_lease_is_unknown() -> None:
    assert ask(Truth([job()]), held=None).liveness is Liveness.UNKNOWN


def test_a_running_job_whose_lease_is_only_late_is_alive_and_no_step_is_asked_for() -> None:
    truth = Truth([job()])

    assert ask(truth, Silence.DOUBTFUL, lease()).liveness is Liveness.ALIVE
    assert truth.asked == ["jobs"]


@pytest.mark.parametrize(
    ("steps", "node", "nodes", "liveness"),
    [
        (["8812.0", "8812.1"], "allocated", "n[1-4]", Liveness.GONE),  # its step is not listed
        (["8812.2"], "allocated", "n[1-4]", Liveness.UNKNOWN),
        (["8812.2"], "down", "n[1-4]", Liveness.GONE),
        (["8812.2"], "draining", "n[1-4]", Liveness.UNKNOWN),
        (["8812.2"], "", "n[1-4]", Liveness.UNKNOWN),  # the node is not listed
        (["8812.2"], "allocated", "n[1-2,4]", Liveness.GONE),  # the job lost the node
        (["8812.2"], "", "n[1-2,4]", Liveness.UNKNOWN),  # Slurm may call it something else
        (SchedulerError("hung"), "down", "n[1-4]", Liveness.UNKNOWN),
        (["8812.2"], SchedulerError("hung"), "n[1-4]", Liveness.UNKNOWN),
    ],
)
def test_in_a_running_job_a_silent_owner_is_gone_with_its_step_or_node(
    steps: Any, node: Any, nodes: str, liveness: Liveness
) -> None:
    verdict = ask(Truth([job(node_list=nodes)], steps, node), Silence.SILENT, lease())

    assert verdict.liveness is liveness
    assert verdict.unanswered == ("hung" in verdict.reason)


def test_a_lease_that_cannot_be_looked_at_makes_no_owner_dead() -> None:
    truth = Truth([job()], [], "down")

    assert ask(truth, Silence.UNKNOWN, lease()).liveness is Liveness.UNKNOWN


def test_owners_outside_slurm_are_not_asked_about() -> None:
    truth = Truth([])
    owner = Owner("L0123456789ab", "0", "0", "k3x9q2ab-4")

    verdict = ask_slurm(truth, lambda lease: Silence.SILENT)(owner, lease(job=owner.job))  # type: ignore[arg-type]

    assert verdict.liveness is Liveness.UNKNOWN
    assert truth.asked == []


def test_a_living_observer_goes_by_change_and_its_own_clock() -> None:
    now = 1000.0
    watch = LeaseWatch(lambda: now)
    heard = []
    for at, counter in [(0, 7), (20, 7), (31, 8), (60, 8), (76, 8), (120, 8), (121, 8), (130, 9)]:
        now = 1000.0 + at
        heard.append(watch(lease(counter=counter)))

    assert heard == [
        Silence.QUIET,  # seen for the first time
        Silence.QUIET,
        Silence.BEATING,
        Silence.QUIET,
        Silence.DOUBTFUL,
        Silence.DOUBTFUL,
        Silence.SILENT,  # three intervals after the change
        Silence.BEATING,
    ]
