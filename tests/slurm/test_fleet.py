"""Fleets on a real Slurm: submitted, drained, cut, killed, requeued; no task is lost or run twice.

Every wait is for a condition. Tasks that must be running at a certain moment wait for a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster
from tests.worker.harness import children, processes_with

REPO = Path(__file__).resolve().parents[2]
TEMPLATES = REPO / "infra" / "slurm"
PYTHON = shlex.quote(sys.executable)
HOLD = "until [ -e go ]; do sleep 0.1; done"
STUBBORN = "trap '' TERM; " + HOLD


class Site:
    """A scratch tree and a project directory on a cluster, and the fleets that a test launches."""

    def __init__(self, cluster: Cluster, base: Path) -> None:
        self.cluster = cluster
        self.root = base / "a root"
        self.project = base / "project"
        self.project.mkdir()
        self.env = {
            **cluster.env,
            "PYTHONPATH": str(REPO),
            # All nodes are one host here, and its processes would wait for one another's turn.
            "FLEET_POLLS_DIR": str(base / "polls"),
        }
        self.ok("init")

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fleetcraft", "--root", self.root]
        command += ["--project-dir", self.project, *words]
        return subprocess.run(
            command,
            env=self.env,
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def ok(self, *words: str) -> Any:
        done = self.call("--json", *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    def enqueue(self, name: str, command: str, *options: str) -> None:
        self.ok("enqueue", "-n", name, *options, "--", command)

    def enqueue_many(self, name: str, command: str, count: int) -> None:
        """Tasks ``name-001`` and so on; ``{n}`` in the command is their number."""
        rows = self.project / f"{name}.jsonl"
        rows.write_text(
            "".join(
                json.dumps({"name": f"{name}-{n:03d}", "command": command.replace("{n}", str(n))})
                + "\n"
                for n in range(1, count + 1)
            )
        )
        self.ok("enqueue", "--from", str(rows))

    def launch(self, *options: str, nodes: int = 4, minutes: str = "10") -> str:
        words = ["launch", "-N", str(nodes), "--time", minutes, "--idle", "1", "--heartbeat", "1"]
        launched = self.ok(*words, *options)
        assert launched["schema"] == "fleetcraft.launch/1"
        return str(launched["job_id"])

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = self.ok("status")["counts"]
        return found

    def files(self, state: str) -> list[str]:
        return [path.name for path in (self.root / "taskq" / state).rglob("*.sh*")]

    def history(self, name: str) -> list[dict[str, Any]]:
        lines = self._record(name).splitlines()
        mark = "#FLEET-RUN "
        return [json.loads(line[len(mark) :]) for line in lines if line.startswith(mark)]

    def _record(self, name: str) -> str:
        for _ in range(100):  # a task that moves meanwhile is seen nowhere, twice, or not there
            paths = list((self.root / "taskq").glob(f"*/**/{name}.sh*"))
            with contextlib.suppress(FileNotFoundError):
                if len(paths) == 1:
                    return paths[0].read_text()
            time.sleep(0.01)
        raise AssertionError(f"{name} is in {paths}, expected one place")

    def outcomes(self, name: str) -> list[str]:
        return [line["outcome"] for line in self.history(name)]

    def lines(self, file: str) -> list[str]:
        path = self.project / file
        return path.read_text().splitlines() if path.exists() else []

    def go(self) -> None:
        (self.project / "go").touch()

    def wait(self, what: str, is_so: Callable[[], object], patience_s: float = 60.0) -> None:
        try:
            self.cluster.wait_for(what, lambda: bool(is_so()), patience_s=patience_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def wait_running(self, count: int) -> None:
        self.wait(f"{count} tasks run", lambda: len(self.files("running")) == count)

    def ended(self, job: str, *states: str, patience_s: float = 60.0) -> str:
        """Waits until a job is over, and gives the batch log."""
        self.wait(
            f"job {job} is {' or '.join(states)}",
            lambda: self.cluster.job_state(job) in states,
            patience_s,
        )
        return self.batch_log(job)

    def batch_log(self, job: str) -> str:
        path = self.root / "logs" / f"fleet-{job}.log"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        found = sorted((self.root / "logs").glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in found)

    def worker_pid(self, rank: int) -> int:
        """The worker of a rank: not its srun, nor a task of it."""
        of_rank = set(processes_with("FLEET_RANK", str(rank)))
        for pid in of_rank & set(processes_with("FLEET_ROOT", str(self.root))):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--orders" in words and b"srun" not in os.path.basename(words[0]):
                return pid
        raise AssertionError(f"no worker of rank {rank}:\n{self.logs()}")


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    made = Site(cluster, tmp_path)
    yield made
    cluster.run("scancel", "--me")
    for pid in processes_with("FLEET_ROOT", str(made.root)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(180)
def test_one_job_does_each_of_200_tasks_once_and_ends_by_itself(site: Site) -> None:
    site.enqueue_many("t", 'echo "$FLEET_TASK $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" >> ran', 200)

    job = site.launch("--gpus-per-node", "2")

    log = site.ended(job, "COMPLETED")
    ran = [line.split() for line in site.lines("ran")]
    assert sorted(line[0] for line in ran) == [f"t-{n:03d}" for n in range(1, 201)]
    assert {line[1] for line in ran} == {"n1", "n2", "n3", "n4"}
    assert {line[2] for line in ran} == {"0,1"}
    assert site.counts() == {"waiting": 0, "pending": 0, "running": 0, "done": 200, "failed": 0}
    assert "200 done" in log
    assert site.ok("check")["faults"] == []


@pytest.mark.timeout(180)
def test_what_scancel_and_a_kill_leave_behind_is_put_back_and_a_second_job_finishes(
    site: Site,
) -> None:
    site.enqueue_many("held", HOLD, 4)
    site.enqueue("stubborn", STUBBORN, "--lane", "first")
    job = site.launch("--grace", "60", nodes=3)
    site.wait_running(3)

    site.cluster.run("scancel", job)

    site.ended(job, "CANCELLED")
    # Slurm killed the worker while it waited for the stubborn task; the others gave theirs back.
    assert [name.partition(".")[0] for name in site.files("running")] == ["stubborn"]
    report = site.ok("recover")
    assert (report["recovered"], report["unknown"]) == (1, 0)
    assert site.outcomes("stubborn") == ["lost"]
    assert site.counts()["pending"] == 5
    assert site.counts()["failed"] == 0

    site.go()
    again = site.launch(nodes=2)
    site.ended(again, "COMPLETED")
    assert site.counts() == {"waiting": 0, "pending": 0, "running": 0, "done": 5, "failed": 0}
    assert site.ok("check")["faults"] == []


@pytest.mark.timeout(240)
def test_the_loss_of_a_node_and_of_a_worker_stops_nobody_else(site: Site) -> None:
    site.enqueue_many("held", HOLD, 4)
    job = site.launch("--idle", "8")  # longer than a worker takes to its first recovery pass
    site.wait_running(4)
    (on_n3,) = [name for name in site.files("running") if f".sh.{job}.2." in name]
    (on_n2,) = [name for name in site.files("running") if f".sh.{job}.1." in name]
    site.enqueue_many("later", "echo {n} >> later", 20)

    site.cluster.kill_node("n3")
    os.kill(site.worker_pid(1), signal.SIGKILL)

    site.wait("n2's worker is there again", lambda: site.outcomes(on_n2.partition(".")[0]))
    site.wait("the others go on", lambda: len(site.lines("later")) == 20)
    site.wait("n3's task is put back", lambda: site.outcomes(on_n3.partition(".")[0]), 120)
    site.go()
    log = site.ended(job, "COMPLETED", patience_s=120)
    assert site.counts() == {"waiting": 0, "pending": 0, "running": 0, "done": 24, "failed": 0}
    assert site.outcomes(on_n3.partition(".")[0]) == ["lost", "completed"]
    assert site.outcomes(on_n2.partition(".")[0]) == ["lost", "completed"]
    assert sorted(site.lines("later"), key=int) == [str(n) for n in range(1, 21)]
    assert "n2 (rank 1): died: it was ended by signal 9; it is started again" in log
    assert "n3 (rank 2): over: it vanished: the job has lost the node" in log
    assert site.ok("check")["faults"] == []


@pytest.mark.timeout(240)
def test_at_the_end_of_the_walltime_nothing_is_cut_and_nothing_too_long_is_begun(
    site: Site,
) -> None:
    for number in (1, 2):
        site.enqueue(f"too-long-{number}", "echo x >> begun", "--time", "00:02:00")
    site.enqueue_many("stubborn", STUBBORN, 6)

    job = site.launch(minutes="1", nodes=4)

    site.wait_running(4)
    site.ended(job, "COMPLETED", "TIMEOUT", patience_s=120)
    assert site.lines("begun") == []
    assert site.counts() == {"waiting": 0, "pending": 8, "running": 0, "done": 0, "failed": 0}
    assert site.outcomes("stubborn-001") == ["interrupted"]
    assert site.outcomes("too-long-1") == []


@pytest.mark.timeout(180)
def test_a_requeued_fleet_goes_on_and_a_warning_drains_it(site: Site) -> None:
    site.enqueue_many("held", HOLD, 4)
    job = site.launch(nodes=2)
    site.wait_running(2)

    site.cluster.run("scontrol", "requeue", job)

    site.wait("all is put back", lambda: len(site.files("pending")) == 4)
    site.ended(job, "PENDING")
    # Not at once: a slurmd refuses credentials of the second in which it revoked the job's last
    # one, which is why Slurm itself lets a requeued job wait.
    site.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")
    site.wait_running(2)
    outcomes = [site.outcomes(f"held-{n:03d}") for n in range(1, 5)]
    assert sorted(outcomes) == [[], [], ["interrupted"], ["interrupted"]]
    leases = [json.loads(p.read_text()) for p in (site.root / "taskq/workers").glob("*.json")]
    assert sorted(lease.get("restarts", 0) for lease in leases) == [0, 0, 1, 1]

    site.cluster.run("scancel", "--batch", "--signal=USR1", job)
    site.wait("it drains", lambda: "drain: warned by SIGUSR1" in site.batch_log(job))
    assert len(site.files("running")) == 2
    site.go()
    site.ended(job, "COMPLETED")
    counts = site.counts()
    assert (counts["done"], counts["pending"], counts["running"]) == (2, 2, 0)


@pytest.mark.timeout(180)
def test_the_batch_scripts_work_by_hand_from_any_folder(site: Site) -> None:
    (site.project / "fleet.yaml").write_text(f"root: {json.dumps(str(site.root))}\n")
    site.enqueue_many("t", "echo {n} >> ran", 6)

    def sbatch(*words: str | Path) -> str:
        done = subprocess.run(
            ["sbatch", "--parsable", *words],
            cwd=site.project,
            env={**site.env, "FLEETCRAFT_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    fleet = sbatch("-N1", TEMPLATES / "fleet.sbatch", "--idle", "1")
    smoke = sbatch("-N2", "--gpus-per-node=2", TEMPLATES / "smoke.sbatch")
    node = sbatch("--time=5", TEMPLATES / "devnode.sbatch")

    site.ended(fleet, "COMPLETED")
    assert sorted(site.lines("ran")) == [str(n) for n in range(1, 7)]
    assert "6 done" in (site.project / f"fleet-{fleet}.log").read_text()
    site.wait("smoke is over", lambda: site.cluster.job_state(smoke) in ("COMPLETED", "FAILED"))
    said = (site.project / f"fleet-smoke-{smoke}.log").read_text()
    assert "all is well: 2 nodes, 2 tasks done" in said, said
    assert said.count("2 by Slurm; ok") == 2
    assert [path.name for path in site.root.glob("smoke*")] == []
    site.cluster.wait_for_job(node, "RUNNING")
    inside = site.cluster.run("srun", f"--jobid={node}", "--overlap", "printenv", "SLURM_JOB_ID")
    assert inside.stdout.strip() == node
    site.cluster.run("scancel", node)
    site.cluster.wait_for_job(node, "CANCELLED")
    assert f"srun --jobid={node} --overlap" in (site.project / f"fleet-dev-{node}.log").read_text()


@pytest.mark.timeout(180)
def test_workers_wait_behind_a_marker_beside_a_command_with_a_world_of_its_own(
    site: Site,
) -> None:
    fleetcraft = f"{PYTHON} -m fleetcraft"
    train = (
        'echo "$SLURMD_NODENAME $SLURM_PROCID of $SLURM_NTASKS $CUDA_VISIBLE_DEVICES" >> world; '
        '[ "$SLURM_PROCID" = 0 ] || exit 0; '
        "until [ -e checkpoint ]; do sleep 0.1; done; "
        f"{fleetcraft} barrier write ready.json checkpoint; "
        "until [ $(wc -l < scored) -ge 3 ]; do sleep 0.1; done; touch train.done"
    )
    site.enqueue_many("score", "[ -e ready.json ] && echo {n} >> scored", 3)
    (site.project / "scored").touch()
    words = ["salloc", "--nodes=4", "--gpus-per-node=2", "--exclusive", "--time=10"]
    words += [sys.executable, "-m", "fleetcraft", "--root", str(site.root), "launch", "--here"]
    words += ["--idle", "1", "--heartbeat", "1", "--beside", train, "--beside-nodes", "2"]
    words += ["--after-marker", "ready.json", "--until-marker", "train.done", "--json"]
    with (site.project / "out").open("wb") as out, (site.project / "err").open("wb") as err:
        here = subprocess.Popen(words, cwd=site.project, env=site.env, stdout=out, stderr=err)
    site.wait("both ranks run", lambda: len(site.lines("world")) == 2)
    site.wait(
        "two workers are there",
        lambda: len(list((site.root / "taskq/workers").glob("*.json"))) == 2,
    )
    time.sleep(3)  # three times their idle time, and longer than between two looks at the marker
    assert len(site.files("pending")) == 3
    (site.project / "checkpoint").write_text("weights")

    assert here.wait(90) == 0, (site.project / "err").read_text()
    *events, report = map(json.loads, site.lines("out"))
    assert sorted(site.lines("world")) == ["n1 0 of 2 0,1", "n2 1 of 2 0,1"]
    assert sorted(site.lines("scored")) == ["1", "2", "3"]
    assert [row["node"] for row in report["nodes"]] == ["n3", "n4"]
    assert all(row["in_order"] and "train.done" in row["reason"] for row in report["nodes"])
    assert {event["schema"] for event in events} == {"fleetcraft.launch_event/1"}


@pytest.mark.timeout(180)
def test_two_fleets_share_one_spool_and_ctrl_c_gives_a_fleet_up_in_order(site: Site) -> None:
    site.enqueue_many("t", "sleep 0.2; echo $SLURM_JOB_ID {n} >> ran", 60)
    batch = site.launch(nodes=2)
    words = ["salloc", "--nodes=2", "--exclusive", "--time=10", sys.executable, "-m", "fleetcraft"]
    words += ["--root", str(site.root), "launch", "--here", "--idle", "60", "--heartbeat", "1"]
    with (site.project / "err").open("wb") as err:
        here = subprocess.Popen(
            words,
            cwd=site.project,
            env={**site.env, "FLEET_POLLS_DIR": f"{site.env['FLEET_POLLS_DIR']}2"},
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
    site.ended(batch, "COMPLETED")
    ran = [line.split() for line in site.lines("ran")]
    assert sorted(int(number) for _, number in ran) == list(range(1, 61))
    assert len({job for job, _ in ran}) == 2
    site.enqueue("held", HOLD)
    site.wait_running(1)

    (launcher,) = children(here.pid)
    os.kill(launcher, signal.SIGINT)

    assert here.wait(60) == 130, (site.project / "err").read_text()
    assert site.outcomes("held") == ["interrupted"]
    assert site.counts() == {"waiting": 0, "pending": 1, "running": 0, "done": 60, "failed": 0}


@pytest.mark.timeout(240)
def test_a_balance_that_would_fall_below_the_headroom_refuses_a_launch(
    accounting_cluster: Cluster, tmp_path: Path
) -> None:
    limit = "GrpTRESMins=node=6000"  # 100 node-hours
    accounting_cluster.run("sacctmgr", "-i", "modify", "account", "proj", "set", limit)
    try:
        site = Site(accounting_cluster, tmp_path)
        site.env["FLEET_SLURM_ACCOUNT"] = "proj"
        words = ("--json", "launch", "-N", "4", "--time", "10:00:00")

        site.env["FLEET_BALANCE_HEADROOM_H"] = "70"
        refused = site.call(*words)
        assert refused.returncode == 1, refused.stderr
        error = json.loads(refused.stderr)["error"]
        assert error["facts"]["check"] == "balance"
        assert "this fleet takes up to 40.0" in error["message"]

        site.env["FLEET_BALANCE_HEADROOM_H"] = "50"
        checks = {check["name"]: check for check in site.ok(*words[1:], "--dry-run")["checks"]}
        assert checks["balance"]["status"] == "ok", checks["balance"]
        assert accounting_cluster.run("squeue", "-h").stdout == ""
    finally:
        no_limit = "GrpTRESMins=node=-1"
        accounting_cluster.run("sacctmgr", "-i", "modify", "account", "proj", "set", no_limit)
