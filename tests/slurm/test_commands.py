"""Slurm's programs are started, bounded and judged; nothing but a plain success is one."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fleetcraft.errors import (
    NoAnswerError,
    NotAskedError,
    SchedulerError,
    SlurmFailedError,
    SlurmMissingError,
    SlurmTimeoutError,
    SubmissionUnknownError,
    UsageError,
)
from fleetcraft.identity import process_id
from fleetcraft.slurm import commands, environment, program
from tests.slurm.cluster import Cluster
from tests.slurm.fakes import FakePrograms


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    return FakePrograms(tmp_path, monkeypatch)


@pytest.fixture
def at_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(os, "environ", dict(cluster.env))
    return cluster


# -- asking


def test_what_a_program_prints_is_returned(fakes: FakePrograms) -> None:
    fakes.write("squeue", "printf 'a header\\nüml\\n'")

    assert commands.run(["squeue", "--all"]) == "a header\nüml\n"
    assert [call.words for call in fakes.calls("squeue")] == ["--all"]


def test_a_program_is_asked_without_the_options_that_variables_set(
    fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "SQUEUE_FORMAT": "%j",
        "SINFO_ALL": "1",
        "SACCT_FORMAT": "x",
        "SCANCEL_INTERACTIVE": "1",
        "SLURM_TIME_FORMAT": "relative",
        "SLURM_BITSTR_LEN": "8",
        "SLURM_EXIT_ERROR": "0",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "gpu",
        "LC_ALL": "de_DE.UTF-8",
        "SITE_MODULE": "yes",
    }.items():
        monkeypatch.setenv(name, value)
    fakes.write("squeue", "env")

    seen = dict(line.partition("=")[::2] for line in commands.run(["squeue"]).splitlines())

    kept = {name: seen.get(name) for name in ("SLURM_CONF", "SLURM_CLUSTERS", "SITE_MODULE")}
    assert kept == {"SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "gpu", "SITE_MODULE": "yes"}
    forced = {name: seen.get(name) for name in ("LC_ALL", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")}
    assert forced == {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
    dropped = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SLURM_EXIT")
    assert not [name for name in seen if name.startswith(dropped)]


def test_a_program_has_no_input_and_a_process_group_of_its_own(fakes: FakePrograms) -> None:
    fakes.write("squeue", 'read -r line && echo "read $line"; ps -o pgid= -p $$')

    text = commands.run(["squeue"])

    assert int(text) == fakes.calls("squeue")[0].pid


def test_a_failure_names_the_program_its_exit_code_and_what_it_said(fakes: FakePrograms) -> None:
    fakes.write("squeue", "printf '\\n  slurm_load_jobs \\033[31m error: no\\nmore\\n' >&2; exit 3")

    with pytest.raises(SlurmFailedError) as caught:
        commands.run(["squeue"])

    assert caught.value.message == (
        "squeue failed with exit code 3: slurm_load_jobs \\x1b[31m error: no; nothing was concluded"
    )
    assert (caught.value.returned, caught.value.program) == (3, "squeue")


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "squeue: error: s_p_parse_file: unable to read",
        "sinfo: fatal: Unable to process configuration file",
        "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
    ],
)
def test_an_error_in_words_is_a_failure_whatever_the_exit_code(
    said: str, fakes: FakePrograms
) -> None:
    fakes.write("squeue", f"echo 'A HEADER'; echo '{said}' >&2")

    with pytest.raises(SlurmFailedError, match="exit code 0"):
        commands.run(["squeue"])


def test_a_warning_beside_an_answer_is_none(fakes: FakePrograms) -> None:
    fakes.write("squeue", "echo 'A HEADER'; echo 'squeue: the module slurm/22 is old' >&2")

    assert commands.run(["squeue"]) == "A HEADER\n"


def test_a_program_that_hangs_and_ignores_term_is_stopped_with_what_it_started(
    fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_TERM_GRACE_S", 0.2)
    pids = fakes.folder / "pids"
    fakes.write(
        "squeue",
        f"trap '' TERM; echo 'squeue: still here' >&2\n"
        f"sleep 600 & echo $! >> {pids}; echo $$ >> {pids}\nwhile :; do sleep 600; done",
    )

    with pytest.raises(SlurmTimeoutError, match="squeue did not answer within 1 s.*still here"):
        commands.run(["squeue"], timeout_s=1)

    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    assert [pid for pid in started if _lives_soon_after(pid)] == []


def test_what_a_stopped_program_leaves_in_its_group_is_stopped_too(fakes: FakePrograms) -> None:
    pid_file = fakes.folder / "pid"
    # The program itself goes at the first signal; what it has started does not.
    fakes.write("squeue", f"(trap '' TERM; exec sleep 600) & echo $! > {pid_file}\nwait")

    with pytest.raises(SlurmTimeoutError):
        commands.run(["squeue"], timeout_s=1)

    assert not _lives_soon_after(int(pid_file.read_text()))


def test_a_child_that_keeps_the_pipes_open_does_not_hold_the_answer_back(
    fakes: FakePrograms,
) -> None:
    # A site's wrapper may leave a daemon behind, with its own session and our pipes.
    pid_file = fakes.folder / "pid"
    fakes.write("squeue", f"setsid sleep 600 & echo $! > {pid_file}; echo 'A HEADER'")

    text = commands.run(["squeue"], timeout_s=60)

    left = int(pid_file.read_text())
    assert text == "A HEADER\n"
    assert process_id(left) is not None
    os.kill(left, signal.SIGKILL)


def test_a_program_that_prints_without_end_is_no_answer(
    fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MAX_BYTES", 1 << 20)
    fakes.write("squeue", "exec yes")

    with pytest.raises(NoAnswerError, match="far more"):
        commands.run(["squeue"])


def test_a_long_answer_comes_whole(fakes: FakePrograms) -> None:
    fakes.write("squeue", "seq 300000")

    assert commands.run(["squeue"]).split() == [str(number) for number in range(1, 300001)]


def test_a_program_that_is_not_there_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(SlurmMissingError, match="cannot start squeue: it is not on PATH"):
        commands.run(["squeue"])
    assert not commands.is_here()


def test_a_program_that_cannot_be_started_is_missing(fakes: FakePrograms) -> None:
    fakes.write("squeue", "").write_text("#!/no/such/shell\n")

    with pytest.raises(SlurmMissingError, match="cannot start squeue"):
        commands.run(["squeue"])


def test_text_that_cannot_be_an_argument_starts_nothing(fakes: FakePrograms) -> None:
    fakes.write("scontrol", "echo n1")

    with pytest.raises(SlurmMissingError, match="cannot start scontrol"):
        commands.hostnames("n[1-2]\0")


def test_a_program_ended_by_a_signal_has_failed(fakes: FakePrograms) -> None:
    fakes.write("squeue", "echo 'A HEADER'; kill -9 $$")

    with pytest.raises(SlurmFailedError, match="squeue was ended by signal 9: it said nothing"):
        commands.run(["squeue"])


def test_an_exit_code_that_somebody_else_took_is_no_success(fakes: FakePrograms) -> None:
    fakes.write("squeue", "echo 'A HEADER'")
    # Children of a process that ignores SIGCHLD are waited for by the kernel.
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(SlurmFailedError, match="its exit code was lost"):
            commands.run(["squeue"])
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_question_is_not_put_to_several_clusters(
    fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "cpu,gpu")
    fakes.write("squeue", "echo 'A HEADER'")

    with pytest.raises(NotAskedError, match="several clusters"):
        commands.run(["squeue"])
    assert fakes.calls("squeue") == []


# -- submitting


@pytest.mark.parametrize("printed", ["4711", "4711;gpu", "Welcome to the site\\n4711"])
def test_a_submission_returns_the_job_id(printed: str, fakes: FakePrograms) -> None:
    fakes.write("sbatch", f"printf '{printed}\\n'; echo 'sbatch: error: use less' >&2")

    assert commands.submit(["-N", "4"], "fleet.sbatch", ["a b"]) == "4711"
    assert [call.words for call in fakes.calls("sbatch")] == ["--parsable -N 4 ./fleet.sbatch a b"]


def test_a_refused_submission_says_that_no_job_exists(fakes: FakePrograms) -> None:
    refusal = "Batch job submission failed: Requested time limit is invalid (missing or exceeds)"
    fakes.write("sbatch", f"echo 'sbatch: error: {refusal}' >&2; exit 1")

    with pytest.raises(SlurmFailedError, match="time limit is invalid.*no job was submitted"):
        commands.submit([], "x.sh")


@pytest.mark.parametrize(
    "body",
    [
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv "
        "operation' >&2; exit 1",
        "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller "
        "(connect failure)' >&2; exit 1",
        "echo 'sbatch: error: Batch job submission failed: Transport endpoint is not connected' "
        ">&2; exit 1",
        "echo 'sbatch: error: Batch job submission failed: Broken pipe' >&2; exit 1",
        "exit 1",
        "exit 0",
        "echo 'Submitted batch job 5'",
        "echo 5; echo 6",
        "echo 5; exit 1",
        "kill -9 $$",
        "sleep 600",
    ],
)
def test_a_submission_without_a_plain_answer_may_have_made_a_job(
    body: str, fakes: FakePrograms
) -> None:
    fakes.write("sbatch", body)

    with pytest.raises(SubmissionUnknownError, match="may or may not") as caught:
        commands.submit(["--job-name=fleet-x7", "-N4"], "x.sh", timeout_s=1)

    assert "--name=fleet-x7" in caught.value.hint
    assert len(fakes.calls("sbatch")) == 1


def test_an_sbatch_that_could_not_be_followed_may_have_made_a_job(
    fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.write("sbatch", "echo 5; sleep 600")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # too many watches, epoll_ctl(2)

    monkeypatch.setattr(selectors.EpollSelector, "register", fail)

    with pytest.raises(SubmissionUnknownError, match="could not be followed"):
        commands.submit([], "x.sh")
    with pytest.raises(SlurmFailedError, match="exit code was lost"):
        commands.run(["sbatch"])


def test_without_a_descriptor_to_follow_it_sbatch_is_not_started(
    fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.write("sbatch", "echo 5")

    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(selectors, "DefaultSelector", fail)

    with pytest.raises(SlurmMissingError, match="Too many open files"):
        commands.submit([], "x.sh")
    assert fakes.calls("sbatch") == []


def test_without_sbatch_no_job_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(SlurmMissingError):
        commands.submit([], "x.sh")


def test_a_submission_keeps_who_pays_and_drops_what_changes_the_shape() -> None:
    outside = {
        "SBATCH_ACCOUNT": "proj",
        "SBATCH_PARTITION": "gh",
        "SBATCH_ARRAY_INX": "0-9",
        "SBATCH_WAIT": "1",
        "SBATCH_EXPORT": "NONE",
        "SLURM_CPU_BIND": "none",
        "LC_ALL": "de_DE.UTF-8",
        "HOME": "/home/u",
    }

    kept = environment.for_submission(outside)

    assert sorted(outside.keys() - kept.keys()) == [
        "SBATCH_ARRAY_INX",
        "SBATCH_EXPORT",
        "SBATCH_WAIT",
    ]
    assert kept["LC_ALL"] == "de_DE.UTF-8"


def test_a_submission_inside_a_job_takes_nothing_of_that_job_over() -> None:
    inside = {
        "SLURM_JOB_ID": "7",
        "SLURM_MEM_PER_CPU": "100",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURMD_NODENAME": "n1",
        "CUDA_VISIBLE_DEVICES": "0",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "gpu",
        "PATH": "/bin",
    }

    kept = environment.for_submission(inside)

    assert sorted(kept) == ["PATH", "SLURM_CLUSTERS", "SLURM_CONF"]


# -- cancelling


@pytest.mark.parametrize(
    "what", ["", "all", "12,13", "-u", "12 13", "12.batch", "1.2.3", "\uff11\uff12", "12\n"]
)
def test_only_one_job_or_step_is_cancelled(what: str, fakes: FakePrograms) -> None:
    fakes.write("scancel", "")

    with pytest.raises(UsageError, match="nothing was cancelled"):
        commands.cancel(what)
    assert fakes.calls("scancel") == []


def test_a_signal_is_a_name_or_number(fakes: FakePrograms) -> None:
    fakes.write("scancel", "")

    commands.cancel("12.0", signal="USR1")
    commands.cancel("12_3", signal=15)
    commands.cancel("12+1")
    with pytest.raises(UsageError, match="nothing was signalled"):
        commands.cancel("12", signal="--full")

    assert [call.words for call in fakes.calls("scancel")] == [
        "--signal=USR1 12.0",
        "--signal=15 12_3",
        "12+1",
    ]


@pytest.mark.parametrize(
    "said",
    [
        "scancel: error: Kill job error on job id 12: Job/step already completing or completed",
        "scancel: error: Kill job error on job step id 12.0: Invalid job id specified",
    ],
)
def test_what_has_ended_counts_as_cancelled(said: str, fakes: FakePrograms) -> None:
    fakes.write("scancel", f"echo '{said}' >&2; exit 1")

    commands.cancel("12")


def test_a_cancellation_that_failed_says_what_is_not_known(fakes: FakePrograms) -> None:
    fakes.write("scancel", "echo 'scancel: error: Access/permission denied' >&2; exit 1")

    with pytest.raises(SlurmFailedError, match="whether 12 got it is not known"):
        commands.cancel("12")


# -- names


def test_a_plain_node_name_is_expanded_without_a_program(fakes: FakePrograms) -> None:
    fakes.write("scontrol", "exit 1")

    assert commands.hostnames("node-07.cluster") == ["node-07.cluster"]
    assert [commands.hostnames(none) for none in ("", "(null)", "None assigned")] == [[], [], []]
    assert fakes.calls("scontrol") == []


@pytest.mark.parametrize("printed", ["", "n1 n]", "scontrol: help"])
def test_a_list_that_cannot_be_expanded_is_no_answer(printed: str, fakes: FakePrograms) -> None:
    fakes.write("scontrol", f"echo '{printed}'")

    with pytest.raises(NoAnswerError, match=r"n\[1-2\]"):
        commands.hostnames("n[1-2]")


@pytest.mark.parametrize(
    "config", ["", "ClusterName = lab\n", "Configuration data as of 1\nOther = x\n"]
)
def test_a_configuration_without_its_header_or_name_is_no_answer(config: str) -> None:
    with pytest.raises(NoAnswerError):
        commands.read_cluster_name(config)


# -- steps


def test_a_step_is_a_child_without_input_in_a_group_of_its_own(
    fakes: FakePrograms, tmp_path: Path
) -> None:
    fakes.write("srun", 'cat; echo "$MARK $*"; ps -o pgid= -p $$')

    with (tmp_path / "out").open("wb") as out:
        child = commands.start_step(
            ["srun", "-N1", "true"],
            env={"MARK": "x", "PATH": os.environ["PATH"]},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        assert child.wait(timeout=60) == 0

    said, group = (tmp_path / "out").read_text().splitlines()
    assert said == "x -N1 true"
    assert int(group) == child.pid


def test_a_step_cannot_be_started_without_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(SlurmMissingError, match="cannot start srun"):
        commands.start_step(["srun", "true"])


# -- the real Slurm


def test_a_real_job_is_submitted_and_cancelled(at_cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text('#!/bin/bash\necho "$@" > "$1"; sleep 600\n')
    out = tmp_path / "out"

    job_id = commands.submit(
        ["--nodes=1", "--output=/dev/null"], str(script), [str(out), "two words"]
    )
    at_cluster.wait_for("the job has begun", out.exists)
    commands.cancel(job_id, signal="CONT")
    commands.cancel(job_id)
    at_cluster.wait_for_job(job_id, "CANCELLED")
    commands.cancel(job_id)
    commands.cancel(f"{job_id}.0")
    commands.cancel("99999999")

    assert out.read_text() == f"{out} two words\n"


def test_a_real_refusal_is_told_from_a_lost_answer(
    at_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n")

    with pytest.raises(SlurmFailedError, match="nvalid partition.*no job was submitted"):
        commands.submit(["--partition=nope"], str(script))
    with pytest.raises(SlurmFailedError, match="no job was submitted"):
        commands.submit(["--no-such-option"], str(script))
    with pytest.raises(SlurmFailedError, match="no job was submitted"):
        commands.submit([], str(tmp_path / "missing.sh"))


def test_real_names_are_expanded(at_cluster: Cluster) -> None:
    assert commands.hostnames("n[1-3,07]") == ["n1", "n2", "n3", "n07"]
    with pytest.raises(SchedulerError):
        commands.hostnames("n[1-")


def _lives_soon_after(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while process_id(pid) is not None:
        if time.monotonic() > deadline:
            return True
        time.sleep(0.01)
    return False
