"""The sandbox cluster as its user sees it: what it starts, what it stops, and what it refuses.

Not here: what fleetcraft does with a cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.slurm.cluster import SANDBOX, Cluster, missing, sandbox

REPO = SANDBOX.parents[2]
NOBODY = 65534
needs_slurm = pytest.mark.skipif(bool(missing()), reason=missing())


def run_in(folder: Path, *argv: str) -> str:
    """What a client prints in the environment that a shell would take from `env`."""
    done = subprocess.run(
        [
            "bash",
            "-c",
            'eval "$("$0" env --dir "$1")" && shift && exec "$@"',
            SANDBOX,
            folder,
            *argv,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def processes_of(folder: Path) -> list[str]:
    """The processes that have anything of a folder in their words, environment or open files."""
    found = []
    for proc in Path("/proc").iterdir():
        if not proc.name.isdecimal() or int(proc.name) == os.getpid():
            continue
        try:
            known = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            known += b"\0".join(os.fsencode(os.readlink(fd)) for fd in (proc / "fd").iterdir())
        except OSError:
            continue
        if os.fsencode(folder) in known:
            found.append(known.decode(errors="replace")[:200])
    return found


def links_to(folder: Path) -> list[Path]:
    """The private links to a folder that are left in /tmp."""
    return [link for link in Path("/tmp").glob("slurm-*/d") if Path(os.readlink(link)) == folder]


def is_stopped(folder: Path) -> bool:
    return not processes_of(folder) and not links_to(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a sandbox, stopped whatever happens to the test."""
    yield tmp_path / "sandbox"
    sandbox("stop", "--dir", tmp_path / "sandbox")


@needs_slurm
def test_two_clusters_live_side_by_side_and_stop_without_a_trace(tmp_path: Path) -> None:
    plain, odd = (
        tmp_path / "a",
        tmp_path / ("a folder's name that no socket could have " + "x" * 60),
    )
    sizes = {plain: ("--nodes", "2", "--gpus-per-node", "1"), odd: ("--gpus-per-node=0,3",)}

    with ThreadPoolExecutor() as both:
        started = list(both.map(lambda f: sandbox("start", "--dir", f, *sizes[f]), sizes))
    try:
        assert [done.returncode for done in started] == [0, 0], [done.stderr for done in started]
        gres = {f: run_in(f, "sinfo", "-hN", "-p", "main", "-o", "%N %T %G") for f in sizes}
        gpus = run_in(odd, "srun", "-wn2", "--gres=gpu:3", "printenv", "CUDA_VISIBLE_DEVICES")
        run_in(plain, "sbatch", "-N2", "--output=/dev/null", "--wrap", "srun sleep 600")
        first = sandbox("stop", "--dir", odd)
        untouched = sandbox("status", plain, "--json")
    finally:
        stopped = [sandbox("stop", f) for f in sizes]

    assert gres[plain].split("\n")[:2] == ["n1 idle gpu:1", "n2 idle gpu:1"]
    assert gres[odd].split("\n")[:2] == ["n1 idle (null)", "n2 idle gpu:3"]
    assert gpus == "0,1,2\n"
    assert (first.returncode, first.stdout) == (0, "")
    assert json.loads(untouched.stdout)["running"] is True
    assert [done.returncode for done in stopped] == [0, 0]
    assert is_stopped(plain)
    assert is_stopped(odd)
    assert {entry.name for entry in odd.iterdir()} == {"conf", "log", "sandbox.json"}


@needs_slurm
def test_verbs_answer_for_a_folder_whether_something_runs_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [sandbox(verb, "--dir", folder) for verb in ("stop", "status", "env")]
    before.append(sandbox("kill-node", "n1", "--dir", folder))
    start = sandbox("--nodes", "1", "start", "--dir", folder)
    again = sandbox("start", folder, "--nodes", "1")
    monkeypatch.chdir(folder.parent)
    env = sandbox("env", "--dir", folder.name)
    modes = {entry.stat().st_mode & 0o077 for entry in (folder, folder / "conf/slurm.conf")}
    stops = [sandbox("stop", "--dir", folder, "--purge") for _ in range(2)]

    assert [done.returncode for done in before] == [0, 1, 1, 1]
    assert before[2].stdout == ""
    assert start.returncode == 0, start.stderr
    assert start.stdout == ""
    assert again.returncode == 1
    assert "already" in again.stderr
    assert "hint:" in again.stderr
    assert env.stdout.startswith("export SLURM_CONF=")
    assert modes == {0}
    assert [done.returncode for done in stops] == [0, 0]
    assert not folder.exists()


@needs_slurm
def test_what_a_crash_left_is_ended_by_stop_and_by_the_next_start(folder: Path) -> None:
    sandbox("start", "--dir", folder, "--nodes", "2")
    run_in(folder, "sbatch", "-N2", "--output=/dev/null", "--wrap", "srun sleep 600")
    daemons = json.loads(sandbox("status", "--json", "--dir", folder).stdout)["daemons"]
    keepers = {
        name: int((folder / "run" / f"{name}.process").read_text().split()[0])
        for name in ("n1", "n2")
    }
    # What came from a node is then nobody's child any more.
    for pid in (*keepers.values(), daemons["slurmctld"]):
        os.kill(pid, signal.SIGKILL)
    half_dead = sandbox("status", "--dir", folder)
    anew = sandbox("start", "--dir", folder, "--nodes", "1")
    nodes = run_in(folder, "sinfo", "-hN", "-p", "main", "-o", "%N %T")
    jobs = run_in(folder, "squeue", "-h")
    stop = sandbox("stop", "--dir", folder)

    assert half_dead.returncode == 1
    assert anew.returncode == 0, anew.stderr
    assert nodes == "n1 idle\n"
    assert jobs == ""
    assert stop.returncode == 0
    assert is_stopped(folder)


@needs_slurm
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing_running(
    folder: Path, number: signal.Signals, tmp_path: Path
) -> None:
    # With a slurmd that never says a word the start waits, for as long as the test needs.
    mute = tmp_path / "slurmd"
    mute.write_text("#!/bin/sh\n[ $1 = -V ] && echo slurm 22.05 && exit\nexec sleep 600\n")
    mute.chmod(0o755)
    # What a shell runs in its background ignores Ctrl-C, and so would all its children.
    heed = ("env", "--default-signal=INT")
    start = subprocess.Popen(
        [*heed, sys.executable, SANDBOX, "start", "--dir", folder],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
    )
    give_up_at = time.monotonic() + 60
    while not (folder / "run" / "n4.process").exists() and time.monotonic() < give_up_at:
        time.sleep(0.01)
    start.send_signal(number)
    _, told = start.communicate(timeout=60)

    assert start.returncode == 128 + number
    assert b"interrupted" in told
    assert is_stopped(folder)


@needs_slurm
def test_a_start_that_fails_says_what_slurm_said_and_leaves_nothing_running(folder: Path) -> None:
    start = sandbox("start", "--dir", folder, "--nodes", "1", "--set", "SelectType=select/none")

    assert start.returncode == 4
    assert "slurmctld" in start.stderr
    assert str(folder / "log") in start.stderr
    assert "select/none" in start.stderr
    assert "Traceback" not in start.stderr
    assert is_stopped(folder)


@needs_slurm
def test_a_cluster_of_tests_is_stopped_even_if_its_process_is_killed() -> None:
    program = (
        "import time; from tests.slurm.cluster import Cluster;"
        "c = Cluster(nodes=1); print(c.dir, flush=True); time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], cwd=REPO, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    folder = Path(child.stdout.readline().strip())
    child.kill()
    child.communicate()
    give_up_at = time.monotonic() + 60
    while folder.exists() and time.monotonic() < give_up_at:
        time.sleep(0.05)

    assert not folder.exists()
    assert is_stopped(folder)


def test_a_job_on_four_nodes_sees_its_gpus(cluster: Cluster) -> None:
    argv = ["bash", "-c", 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"']
    told = cluster.run("srun", "-N4", "--gres=gpu:2", *argv).stdout

    assert sorted(told.splitlines()) == [f"{node} 0,1" for node in cluster.nodes]


def test_a_stopped_controller_answers_nobody_and_knows_its_jobs_when_it_is_started_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = cluster.submit("-N1", script=f'until [[ -e "{tmp_path}/end" ]]; do sleep 0.2; done')
    cluster.wait_for_job(job, "RUNNING")

    stopped = cluster.sandbox("stop-controller")
    silent = cluster.run("squeue", check=False)
    status = json.loads(cluster.sandbox("status", "--json").stdout)
    again = cluster.sandbox("stop-controller")
    started = cluster.sandbox("start-controller")
    ran = cluster.sandbox("start-controller")
    (tmp_path / "end").touch()

    assert [done.returncode for done in (stopped, again, started, ran)] == [0, 0, 0, 0]
    assert silent.returncode != 0
    assert (status["running"], status["daemons"]["slurmctld"]) == (False, None)
    assert "did not run" in again.stderr
    assert "ran already" in ran.stderr
    cluster.wait_for_job(job, "COMPLETED")


def test_a_killed_node_goes_down_alone_with_all_its_processes_and_comes_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    # One step per node; on n3 also a process that has left its step, group and environment.
    slipped = f"env -i setsid sleep 600.{os.getpid()}"
    inner = (
        f'if [[ $SLURMD_NODENAME == n3 ]]; then ({slipped} &); fi; touch "$0/$SLURMD_NODENAME"; '
    )
    inner += 'while [[ ! -e "$0/end" ]]; do sleep 0.2; done; echo "$SLURMD_NODENAME" >>"$0/done"'
    step = f"srun -N1 -n1 -w $node --gres=gpu:2 bash -c '{inner}' '{tmp_path}' &"
    script = f"for node in {' '.join(cluster.nodes)}; do {step} done; wait"
    job = cluster.submit("--no-kill", "-N4", "--gres=gpu:2", script=script)
    begun = [tmp_path / node for node in cluster.nodes]
    cluster.wait_for("all steps run", lambda: all(file.exists() for file in begun))
    sleeper = f"600.{os.getpid()}"
    cluster.wait_for("one has slipped away", lambda: _count(sleeper) == 1)

    cluster.kill_node("n3")
    left_at_once = _count(sleeper)
    again = cluster.sandbox("kill-node", "n3")
    cluster.wait_for("n3 is down", lambda: cluster.node_states()["n3"] == "down*")
    alive = cluster.job_state(job)
    nodes = cluster.run("squeue", "-h", "-j", job, "-o", "%N").stdout.strip()
    (tmp_path / "end").touch()
    ended = cluster.wait_for_job(job, "COMPLETED", "FAILED")
    cluster.revive_node("n3")

    assert left_at_once == 0
    assert again.returncode == 0
    assert "was off" in again.stderr
    assert (alive, nodes, ended) == ("RUNNING", "n[1-2,4]", "COMPLETED")
    assert sorted((tmp_path / "done").read_text().split()) == ["n1", "n2", "n4"]
    assert cluster.run("srun", "-wn3", "printenv", "SLURMD_NODENAME").stdout == "n3\n"


def _count(word: str) -> int:
    """How many processes have exactly this word in their command."""
    count = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        count += words[0].endswith(b"sleep") and word.encode() in words
    return count


def test_a_job_of_the_urgent_partition_puts_another_back_into_the_queue(cluster: Cluster) -> None:
    usual = cluster.submit("-N4", "--requeue", "--exclusive", script="sleep 600")
    cluster.wait_for_job(usual, "RUNNING")
    urgent = cluster.submit("-N4", "-p", "urgent", "--exclusive", script="sleep 600")
    cluster.wait_for_job(urgent, "RUNNING")

    shown = cluster.run("scontrol", "show", "job", usual).stdout
    assert "JobState=PENDING" in shown
    assert "Restarts=1" in shown


def test_a_test_finds_the_cluster_at_rest_whatever_the_one_before_did(cluster: Cluster) -> None:
    job = cluster.submit("-N4", "--exclusive", script="srun sleep 600")
    waiting = cluster.submit("-N4", "--exclusive", script="true")
    cluster.wait_for_job(job, "RUNNING")
    cluster.kill_node("n2")

    cluster.come_to_rest()

    assert cluster.job_state(job) == cluster.job_state(waiting) == "CANCELLED"
    assert set(cluster.node_states().values()) == {"idle"}


def test_accounting_knows_the_account_its_usage_and_its_limit(accounting_cluster: Cluster) -> None:
    cluster = accounting_cluster
    cluster.run("srun", "-N2", "true")
    listed = ("sacct", "-nPX", "-S", "now-1hours", "-o", "account,state,nnodes")
    cluster.wait_for("sacct knows", lambda: "proj|COMPLETED|2" in cluster.run(*listed).stdout)
    share = cluster.run("sshare", "-nP", "-o", "Account,User,GrpTRESMins,GrpTRESRaw").stdout
    limit = ("sacctmgr", "-i", "modify", "account", "proj", "set")
    cluster.run(*limit, "GrpTRESMins=node=0")
    held = cluster.submit("-N1", script="true")
    cluster.wait_for(
        "the limit holds the job",
        lambda: "Assoc" in cluster.run("squeue", "-h", "-j", held, "-o", "%r").stdout,
    )
    cluster.run(*limit, "GrpTRESMins=node=-1")
    refused = cluster.run("sbatch", "-A", "other", "--wrap", "true", check=False)

    assert "proj" in share
    assert "node=" in share
    assert cluster.wait_for_job(held, "COMPLETED") == "COMPLETED"
    assert refused.returncode != 0
    assert "account" in refused.stderr


@needs_slurm
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_rights_can_have_a_cluster() -> None:
    home = Path("/tmp") / f"fc-nobody-{os.getpid()}"
    tool = home / "slurm"  # a copy, as the repository may lie where nobody can look
    home.mkdir(mode=0o755)
    shutil.copytree(SANDBOX.parent, tool, ignore=shutil.ignore_patterns("__pycache__"))
    (home / "own").mkdir()
    os.chown(home / "own", NOBODY, NOBODY)
    script = (
        'set -e; s=$0; d=$1; trap \'"$s" stop --dir "$d"\' EXIT; "$s" start --dir "$d" --nodes 2;'
        ' eval "$("$s" env --dir "$d")";'
        " srun -N2 --gres=gpu:2 bash -c 'echo \"$(id -u) $CUDA_VISIBLE_DEVICES\"';"
        ' "$s" kill-node n2 --dir "$d"; "$s" revive-node n2 --dir "$d"'
    )
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    try:
        done = subprocess.run(
            [*become, "bash", "-c", script, tool / "sandbox", home / "own" / "d"],
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        still_there = processes_of(home / "own" / "d")
    finally:
        shutil.rmtree(home)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{NOBODY} 0,1"] * 2
    assert not still_there


def test_an_unknown_node_is_refused_with_the_names_of_those_there(cluster: Cluster) -> None:
    done = cluster.sandbox("kill-node", "n9")

    assert done.returncode == 2
    assert "no node 'n9'" in done.stderr
    assert "n1, n2, n3, n4" in done.stderr
