"""Jobs and steps are read from one whole answer of one cluster, in every version's words."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetcraft.errors import NoAnswerError, SchedulerError
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.queue import Job, my_jobs, my_steps
from tests.slurm.cluster import Cluster
from tests.slurm.fakes import FIELD_END, FakePrograms, recorded


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    return FakePrograms(tmp_path, monkeypatch)


@pytest.fixture
def polls(tmp_path: Path) -> Polls:
    return Polls(str(tmp_path / "polls"), interval_s=0)


@pytest.fixture
def at_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(os, "environ", dict(cluster.env))
    return cluster


def jobs_of(version: str, name: str, fakes: FakePrograms, polls: Polls) -> dict[str, Job]:
    fakes.says("squeue", recorded(version, name))
    found = my_jobs(polls)
    assert found.cluster == "lab"
    return found.jobs


def test_all_jobs_of_this_user_are_asked_for(fakes: FakePrograms, polls: Polls) -> None:
    fakes.says("squeue", recorded("22.05", "squeue-jobs"))
    my_jobs(polls)
    my_steps_failed = pytest.raises(NoAnswerError)
    with my_steps_failed:
        my_steps(polls)

    jobs, steps = (call.words for call in fakes.calls("squeue"))
    for words in (jobs, steps):
        assert words.startswith(f"--local --all --user={os.geteuid()} ")
    assert "--states=all" in jobs
    assert "--steps" in steps


def test_a_recorded_queue_is_read(fakes: FakePrograms, polls: Polls) -> None:
    jobs = jobs_of("22.05", "squeue-jobs", fakes, polls)

    assert jobs["15"] == Job(
        job_id="15",
        name="train-7",
        comment="nonce=ab12cd | 50%",
        state="RUNNING",
        partition="main",
        account="proj",
        qos="normal",
        nodes=1,
        node_list="n1",
        reason=None,
        restarts=0,
        submitted_at=datetime(2026, 11, 30, 0, 8, 30, tzinfo=UTC),
        started_at=datetime(2026, 11, 30, 0, 8, 33, tzinfo=UTC),
        ends_at=datetime(2026, 11, 30, 0, 28, 33, tzinfo=UTC),
        time_limit_s=1200,
        time_left_s=17 * 60 + 1,
        tres_per_node="gres:gpu:a100:1",
        tres={"cpu": 1, "node": 1, "billing": 1},
        display_id="15",
        elements=1,
    )
    states = {job_id: job.state for job_id, job in jobs.items()}
    assert states == {
        "12": "CANCELLED",
        "13": "COMPLETED",
        "14": "FAILED",
        "15": "RUNNING",
        "16": "CANCELLED",
        "17": "SUSPENDED",
        "18": "PENDING",
        "19": "PENDING",
        "20": "CANCELLED",
        "21": "PENDING",
        "22": "CANCELLED",
        "23": "CANCELLED",
        "24": "PENDING",
        "25": "RUNNING",
    }


def test_names_and_comments_may_hold_anything(fakes: FakePrograms, polls: Polls) -> None:
    jobs = jobs_of("22.05", "squeue-jobs", fakes, polls)

    assert jobs["17"].name == "two\nlines"
    assert jobs["17"].partition == "hid"
    assert jobs["17"].comment is None


def test_a_requeued_job_has_its_restarts_and_no_start(fakes: FakePrograms, polls: Polls) -> None:
    requeued = jobs_of("22.05", "squeue-jobs", fakes, polls)["18"]

    assert (requeued.restarts, requeued.state) == (1, "PENDING")
    assert (requeued.started_at, requeued.ends_at, requeued.node_list) == (None, None, "")
    assert requeued.reason == "QOSMaxJobsPerUserLimit"


def test_array_elements_and_components_have_job_ids_of_their_own(
    fakes: FakePrograms, polls: Polls
) -> None:
    jobs = jobs_of("22.05", "squeue-jobs", fakes, polls)

    shown = {jobs[job_id].display_id: jobs[job_id].elements for job_id in ("22", "23", "24", "25")}
    assert shown == {"22+0": 1, "22+1": 1, "24_[2,4,6,8%1]": 4, "24_0": 1}


def test_older_words_are_understood(fakes: FakePrograms, polls: Polls) -> None:
    jobs = jobs_of("20.11", "squeue-jobs", fakes, polls)

    running, later, late = jobs["101"], jobs["102"], jobs["103"]
    assert (running.time_limit_s, running.time_left_s, running.ends_at) == (None, None, None)
    assert (running.account, running.qos, running.tres_per_node) == (None, None, "gpu:4")
    assert (later.time_limit_s, later.time_left_s, later.started_at) == (None, None, None)
    assert (late.state, late.time_left_s) == ("COMPLETING", None)


def test_newer_words_are_kept_and_unknown_ones_are_no_numbers(
    fakes: FakePrograms, polls: Polls
) -> None:
    jobs = jobs_of("24.05", "squeue-jobs", fakes, polls)

    assert jobs["4000001"].tres_per_node == "gres/gpu:gh200:1"
    assert jobs["4000001"].comment is None
    new = jobs["4000002"]
    assert (new.state, new.restarts, new.nodes) == ("EXPEDITING", None, None)
    assert jobs["4000003"].elements == 100
    assert jobs["4000003"].partition == "gh,gh-dev"


def test_a_cluster_that_was_named_stands_above_the_header(
    fakes: FakePrograms, polls: Polls
) -> None:
    jobs = jobs_of("23.02", "squeue-jobs-of-a-named-cluster", fakes, polls)

    assert jobs["7"].node_list == "nid[000123-000130,000140-000147]"
    assert (jobs["7"].restarts, jobs["8"].state) == (2, "REQUEUE_HOLD")


def test_where_the_rows_name_no_cluster_the_controller_is_asked(
    fakes: FakePrograms, polls: Polls
) -> None:
    text = recorded("23.02", "squeue-jobs-without-cluster")
    fakes.says("squeue", text.replace(f"(null){FIELD_END}0", f"(null){FIELD_END}{os.geteuid()}"))
    fakes.says("scontrol", recorded("22.05", "scontrol-config"))

    assert (my_jobs(polls).cluster, list(my_jobs(polls).jobs)) == ("lab", ["7"])
    fakes.says("squeue", text.partition("\n")[0] + "\n")
    assert (my_jobs(polls, max_age_s=-1).cluster, my_jobs(polls).jobs) == ("lab", {})
    assert len(fakes.calls("scontrol")) == 1


def test_an_empty_queue_of_a_cluster_without_a_name_is_no_answer(
    fakes: FakePrograms, polls: Polls
) -> None:
    fakes.says("squeue", recorded("22.05", "squeue-jobs").partition("\n")[0] + "\n")
    fakes.write("scontrol", "exit 1")

    with pytest.raises(SchedulerError, match="scontrol failed"):
        my_jobs(polls)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (f"25{FIELD_END}24_0", f"15{FIELD_END}24_0", "a job twice"),
        (f"15{FIELD_END}15", f"{FIELD_END}15", "job id ''"),
        (f"{FIELD_END}RUNNING{FIELD_END}", f"{FIELD_END}{FIELD_END}", "state ''"),
        (f"lab{FIELD_END}", f"lab{FIELD_END}1", "other users"),
        (f"15{FIELD_END}N/A{FIELD_END}lab", f"15{FIELD_END}N/A{FIELD_END}gpu", "several clusters"),
    ],
)
def test_rows_that_cannot_be_true_make_the_whole_no_answer(
    old: str, new: str, said: str, fakes: FakePrograms, polls: Polls
) -> None:
    text = recorded("22.05", "squeue-jobs")
    assert old in text
    fakes.says("squeue", text.replace(old, new))

    with pytest.raises(NoAnswerError, match=said):
        my_jobs(polls)


@pytest.mark.parametrize("body", ["", "exit 0", "exit 1", "echo", "echo JOBID"])
def test_an_answer_that_is_none_is_never_an_empty_queue(
    body: str, fakes: FakePrograms, polls: Polls
) -> None:
    fakes.write("squeue", body)

    with pytest.raises(SchedulerError):
        my_jobs(polls)
    with pytest.raises(SchedulerError):
        my_steps(polls)


def test_a_squeue_that_hangs_is_given_up(fakes: FakePrograms, polls: Polls) -> None:
    fakes.write("squeue", "sleep 600")

    with pytest.raises(SchedulerError, match="did not answer within 1 s"):
        my_jobs(polls, patience_s=1)


@pytest.mark.parametrize("name", ["squeue-steps", "squeue-steps-of-a-named-cluster"])
def test_recorded_steps_are_read(name: str, fakes: FakePrograms, polls: Polls) -> None:
    fakes.says("squeue", recorded("22.05", name))

    steps = my_steps(polls)

    assert steps.cluster == "lab"
    assert sorted(steps.steps) == ["15.0", "15.1", "15.batch", "17.batch", "25.batch"]
    one = steps.steps["15.1"]
    assert (one.name, one.node_list, one.state) == ("sleep", "n1", "RUNNING")
    assert one.started_at == datetime(2026, 11, 30, 0, 8, 33, tzinfo=UTC)


def test_steps_are_known_by_job_id_whatever_kind_they_are(
    fakes: FakePrograms, polls: Polls
) -> None:
    fakes.says("squeue", recorded("24.05", "squeue-steps"))

    steps = my_steps(polls).steps

    assert sorted(steps) == [
        "4000001.0",
        "4000001.TBD",
        "4000001.extern",
        "4000001.interactive",
        "4000010.batch",
        "4000021.0+1",
    ]
    assert steps["4000001.TBD"].started_at is None
    assert steps["4000021.0+1"].name == "part | two\nlines"


# -- the real Slurm


def test_real_jobs_of_every_kind_are_listed(at_cluster: Cluster, polls: Polls) -> None:
    slurm = at_cluster
    done = slurm.submit("--job-name=done", script="exit 0")
    running = slurm.submit(
        "--nodes=2", "--time=5", "--gres=gpu:1", "--comment=a | b", script="sleep 600"
    )
    slurm.wait_for_job(running, "RUNNING")
    slurm.wait_for_job(done, "COMPLETED")
    waiting = slurm.submit("--hold", "--job-name=two\nlines", script="exit 0")
    array = slurm.submit("--hold", "--array=0-4", script="exit 0")

    found = my_jobs(polls)

    jobs = found.jobs
    states = {job_id: jobs[job_id].state for job_id in (done, running, waiting, array)}
    assert states == {
        done: "COMPLETED",
        running: "RUNNING",
        waiting: "PENDING",
        array: "PENDING",
    }
    one = jobs[running]
    assert (one.nodes, one.time_limit_s, one.comment, one.restarts) == (2, 300, "a | b", 0)
    assert (one.tres["node"], jobs[waiting].tres["node"]) == (2, 1)
    assert one.node_list == "n[1-2]"
    assert one.time_left_s is not None
    assert one.time_left_s <= 300
    assert one.started_at is not None
    assert one.ends_at is not None
    assert (one.ends_at - one.started_at).total_seconds() == 300
    assert "gpu:1" in (one.tres_per_node or "")
    assert (jobs[waiting].name, jobs[waiting].reason) == ("two\nlines", "JobHeldUser")
    assert (jobs[waiting].started_at, jobs[waiting].node_list) == (None, "")
    assert (jobs[array].display_id, jobs[array].elements) == (f"{array}_[0-4]", 5)
    shown = slurm.run("scontrol", "show", "config").stdout
    assert f"ClusterName             = {found.cluster}\n" in shown


def test_a_real_requeued_job_keeps_its_id_and_counts(at_cluster: Cluster, polls: Polls) -> None:
    slurm = at_cluster
    job_id = slurm.submit("--requeue", script="sleep 600")
    slurm.wait_for_job(job_id, "RUNNING")
    slurm.run("scontrol", "requeue", job_id)
    slurm.wait_for("it has gone back", lambda: slurm.job_state(job_id) != "RUNNING")
    slurm.wait_for("its count has grown", lambda: _restarts(polls, job_id) == 1)


def test_a_real_suspended_job_is_listed_with_its_steps(
    at_cluster: Cluster, polls: Polls, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may suspend a job")
    slurm = at_cluster
    pids = [tmp_path / "batch", tmp_path / "step"]
    script = f"echo $$ > {pids[0]}; srun --job-name=work bash -c 'echo $$ > {pids[1]}; read -r _'"
    job_id = slurm.submit("--nodes=1", script=f"sleep 600 | ({script})")
    slurm.wait_for("both have begun", lambda: all(pid.exists() for pid in pids))
    running = my_steps(polls).steps
    slurm.run("scontrol", "suspend", job_id)
    suspended = my_jobs(polls).jobs[job_id]
    slurm.wait_for("both are stopped", lambda: [_state(pid) for pid in pids] == ["T", "T"])
    slurm.run("scontrol", "resume", job_id)
    # Slurm 22.05 never ends what is cancelled while it is still stopped.
    slurm.wait_for("both go on", lambda: "T" not in [_state(pid) for pid in pids])

    assert suspended.state == "SUSPENDED"
    assert {f"{job_id}.0", f"{job_id}.batch"} <= running.keys()
    assert running[f"{job_id}.0"].name == "work"
    assert running[f"{job_id}.0"].node_list.startswith("n")


def test_real_steps_of_an_array_element_have_its_job_id(at_cluster: Cluster, polls: Polls) -> None:
    slurm = at_cluster
    array = slurm.submit("--array=0-1", "--nodes=1", script="sleep 600")
    slurm.wait_for("both run", lambda: len(_running(polls, f"{array}_")) == 2)
    jobs = _running(polls, f"{array}_")
    slurm.wait_for(
        "both have a step",
        lambda: {f"{job_id}.batch" for job_id in jobs} <= my_steps(polls, fresh=True).steps.keys(),
    )


def _restarts(polls: Polls, job_id: str) -> int | None:
    return my_jobs(polls, fresh=True).jobs[job_id].restarts


def _running(polls: Polls, prefix: str) -> list[str]:
    jobs = my_jobs(polls, fresh=True).jobs.values()
    return [j.job_id for j in jobs if j.display_id.startswith(prefix) and j.state == "RUNNING"]


def _state(pid_file: Path) -> str:
    """One letter for how a process is: S asleep, T stopped."""
    stat = Path(f"/proc/{int(pid_file.read_text())}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]
