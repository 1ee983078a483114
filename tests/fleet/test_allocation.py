"""The launcher against steps that die, srun that lies, and a Slurm that does not answer.

srun is a program that runs a shell script of the test for each rank, in the environment and with
the input that a worker would get. What a healthy Slurm does is in tests/slurm/test_fleet.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.fleet.allocation.steps import Ending, ending, srun
from fleetcraft.identity import JobRun, Owner
from fleetcraft.layout import Lane
from fleetcraft.slurm import queue
from fleetcraft.slurm.allocated import gpus_of_steps, read_gpus
from fleetcraft.spool import claims, leases
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.store import Spool
from fleetcraft.spool.tree import SpoolTree
from tests.fleet.quiet_slurm import QuietSlurm, _table

REPO = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("launcher.py")
NO_STEPS = _table(queue._STEPS.columns, [])
# One start after another gets a number of its own.
_SRUN = """\
rank=${FLEET_RANK:-beside}
start=$(($(cat '{0}'/starts.$rank 2>/dev/null || echo 0) + 1))
echo $start > '{0}'/starts.$rank
export start
exec sh '{0}'/rank.$rank
"""


class Stage(QuietSlurm):
    """Job 7 on n1 and n2, its spool, and what each rank does."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patch)
        self.spool = folder / "root" / "taskq"
        (folder / "root").mkdir(mode=0o700)
        (folder / "root" / "logs").mkdir()
        set_up(SpoolTree(str(self.spool)))
        self.steps_text = folder / "steps"
        self.job()
        self.steps()
        self.write("srun", _SRUN.replace("{0}", str(folder)))
        self.write("scancel", "exit 0")
        for rank in (0, 1):
            self.rank(rank, self.leaves(rank))
        self._running: list[subprocess.Popen[str]] = []

    # -- Slurm's answers

    def job(self, **facts: str) -> None:
        """What squeue lists of the job."""
        self.jobs({"JobID": "7", "NodeList": "n1,n2", "NumNodes": "2", **facts})
        jobs = self.folder / "squeue.text"
        self.write(
            "squeue",
            f"case \"$*\" in *--steps*) cat '{self.steps_text}' ;; *) cat '{jobs}' ;; esac",
        )

    def steps(self, *steps: str) -> None:
        """The steps that squeue lists, as ``ID NAME NODE``."""
        rows = [
            {
                "StepID": step,
                "JobID": step.partition(".")[0],
                "StepName": name,
                "Nodes": node,
                "Cluster": "lab",
            }
            | {"UserID": str(os.geteuid()), "StepState": "RUNNING", "StartTime": "1795997313"}
            for step, name, node in map(str.split, steps)
        ]
        self.steps_text.write_text(_table(queue._STEPS.columns, rows))

    def no_answer(self) -> None:
        self.write("squeue", "echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1")

    # -- what steps do

    def rank(self, rank: int | str, script: str) -> None:
        (self.folder / f"rank.{rank}").write_text(script + "\n")

    def leaves(self, rank: int, reason: str = "nothing to claim") -> str:
        """A worker that says in its lease that it left, and does."""
        lease = {
            "job": "7", "rank": str(rank), "launch": "LAUNCH", "host": "n", "boot_id": "b",
            "pid_namespace": "", "pid": 1, "start_ticks": 1, "started_at": "", "interval_s": 1,
            "left_at": "2026-11-29T20:00:00.000Z", "reason": reason,
        }  # fmt: skip
        path = f"{self.spool}/workers/7.{rank}.$$.json"
        text = shlex.quote(json.dumps(lease))
        return f"echo {text} | sed s/LAUNCH/$$/ > {path}.new; mv {path}.new {path}"

    def waits_for_go(self) -> str:
        return f"until [ -e '{self.folder}/go' ]; do sleep 0.05; done"

    def go(self) -> None:
        (self.folder / "go").touch()

    # -- the launcher

    def start(self, **plan: Any) -> Launcher:
        given = {
            "job_id": "7", "nodes": ["n1", "n2"], "worker": ["worker"], "spool": str(self.spool),
            "root": str(self.folder / "root"), "project_dir": str(self.folder), "restarts": 2,
            "grace_s": 1.0, "warning_s": 60.0, "gpus": {"n1": 2}, **plan,
        }  # fmt: skip
        with (self.folder / "err").open("w") as err:
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(given)],
                env={**os.environ, "PYTHONPATH": str(REPO), "SLURM_JOB_ID": "7"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        self._running.append(process)
        return Launcher(self, process)

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        # A script that was left waiting ends when it finds its folder gone or this file there.
        (self.folder / "end").touch()
        self.go()

    def starts(self, rank: int) -> int:
        path = self.folder / f"starts.{rank}"
        return int(path.read_text() or 0) if path.exists() else 0

    def calls_of(self, rank: int) -> list[str]:
        return [c.words for c in self.calls("srun") if f"--job-name=fleet-{rank} " in c.words]


class Launcher:
    """A launcher that runs."""

    def __init__(self, stage: Stage, process: subprocess.Popen[str]) -> None:
        self._stage = stage
        self.process = process
        self.events: list[dict[str, Any]] = []

    def until(self, event: str, text: str = "") -> dict[str, Any]:
        """Reads events up to one of this kind that says this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found: dict[str, Any] = json.loads(line)
            self.events.append(found)
            if found["event"] == event and text in str(found.get("text", "")):
                return found
        err = (self._stage.folder / "err").read_text()
        raise AssertionError(f"no event {event} {text!r}: {self.events}\n{err}")

    def report(self) -> dict[str, Any]:
        found = self.until("report")
        assert self.process.wait(60) == found["exit_code"]
        return found

    def kinds(self, node: str) -> list[str]:
        return [e["event"] for e in self.events if e.get("node") == node]


def wait_until(is_so: Callable[[], object], limit_s: float = 60.0) -> None:
    give_up_at = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    made = Stage(tmp_path, monkeypatch)
    yield made
    made.close()


# -------------------------------------------------------------------------------- how they end


def test_it_ends_when_all_workers_have_left_and_says_why_each_did(stage: Stage) -> None:
    report = stage.start().report()

    assert report["exit_code"] == 0
    assert report["nodes"]["n1"] == {"over": "nothing to claim", "in_order": True, "starts": 1}
    (call,) = stage.calls_of(0)
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist=n1 " in call
    assert "--gres=gpu:2" in call
    left = re.search(r" worker --orders --walltime=(\d+)s$", call)
    assert left is not None
    assert 14300 < int(left[1]) <= 14380
    assert "--gres" not in stage.calls_of(1)[0]


def test_a_worker_that_dies_is_started_again_after_growing_pauses_and_then_given_up(
    stage: Stage,
) -> None:
    stage.rank(0, "kill -9 $$")

    report = stage.start().report()

    assert report["exit_code"] == 1
    assert report["nodes"]["n1"]["starts"] == 3
    assert "restarts are used up (2)" in report["nodes"]["n1"]["over"]
    assert report["nodes"]["n2"]["in_order"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (2, "options were refused"),
        (3, "configuration"),
        (5, "the spool refuses"),
        (6, "no GPU"),
        (8, "fails task after task"),
        (143, "told to end by signal 15"),
    ],
)
def test_a_worker_that_would_end_the_same_way_again_is_not_started_again(
    stage: Stage, code: int, said: str
) -> None:
    stage.rank(0, f"exit {code}")

    report = stage.start().report()

    assert report["exit_code"] == 1
    assert report["nodes"]["n1"]["starts"] == 1
    assert said in report["nodes"]["n1"]["over"]


def test_a_worker_that_finds_a_drain_marker_has_ended_in_order(stage: Stage) -> None:
    stage.rank(0, "exit 5")
    (stage.spool / "DRAIN").write_text("{}")

    assert stage.start().report()["exit_code"] == 0


@pytest.mark.parametrize("code", [1, 9, 70, 137])
def test_a_worker_that_failed_is_started_again_and_may_then_leave_in_order(
    stage: Stage, code: int
) -> None:
    stage.rank(0, f"[ $start = 2 ] || exit {code}\n{stage.leaves(0)}")

    report = stage.start().report()

    assert report["exit_code"] == 0
    assert report["nodes"]["n1"]["starts"] == 2


def test_exit_codes_of_srun_mean_what_was_seen_of_it() -> None:
    assert ending(0) is Ending.MAYBE_LEFT
    assert [ending(code) for code in (-9, 250, 251)] == [Ending.SRUN] * 3
    assert [ending(code) for code in (1, 9, 70, 137)] == [Ending.DIED] * 4


# ------------------------------------------------------------------- when srun cannot be believed


def test_an_srun_that_answers_0_for_a_node_that_the_job_has_lost_is_not_believed(
    stage: Stage,
) -> None:
    stage.job(NodeList="n2", NumNodes="1")
    stage.rank(0, "exit 0")

    report = stage.start().report()

    assert report["nodes"]["n1"]["over"] == "it vanished: the job has lost the node"
    assert report["nodes"]["n1"]["starts"] == 1
    assert not report["nodes"]["n1"]["in_order"]
    assert report["exit_code"] == 0  # the fleet has survived it


def test_a_fleet_that_lost_all_its_nodes_has_failed(stage: Stage) -> None:
    stage.job(NodeList="n9", NumNodes="1")
    stage.rank(0, "exit 0")
    stage.rank(1, "exit 0")

    assert stage.start().report()["exit_code"] == 1


def claim_of_rank_0(stage: Stage) -> SpoolTree:
    """A task that rank 0 holds, and its lease, which never beats."""
    spool = Spool(str(stage.spool))
    spool.enqueue("held", "true")
    lease = leases.new_lease(run=JobRun(job="7", step="0", cluster="lab"), rank="0", interval_s=0.2)
    lease.host = "n1"
    leases.publish(spool.tree, lease)
    source = spool.tree.paths.pending_record("held", Lane.PLAIN)
    owner = Owner("7", "0", "0", f"{lease.launch}-1")
    assert claims.claim(spool.tree, "held", source, owner) is not None
    return spool.tree


def test_when_all_others_have_left_the_task_of_a_lost_node_is_waited_for_and_given_to_one(
    stage: Stage,
) -> None:
    tree = claim_of_rank_0(stage)
    stage.job(NodeList="n2", NumNodes="1")
    stage.rank(0, "exit 0")

    launcher = stage.start(claims_patience_s=60.0)
    launcher.until("stay", "(1)")
    report = launcher.report()

    assert tree.claims() == []
    assert report["nodes"]["n2"]["starts"] == 2
    assert report["nodes"]["n1"]["starts"] == 1
    assert report["exit_code"] == 0


def test_a_lost_nodes_task_that_does_not_come_back_is_not_waited_for_for_ever(
    stage: Stage,
) -> None:
    tree = claim_of_rank_0(stage)
    stage.rank(0, "exit 250")
    stage.nodes({"NodeList": "n1", "StateLong": "allocated*"}, {"NodeList": "n2"})
    stage.steps("7.0 fleet-0 n1")  # Slurm lists it, so that its claim stays unknown

    launcher = stage.start(claims_patience_s=2.0)
    launcher.until("stay", "(1)")
    report = launcher.report()

    assert len(tree.claims()) == 1
    assert report["nodes"]["n2"]["starts"] == 1


def test_the_task_of_a_node_that_is_down_is_given_to_one_of_the_others(stage: Stage) -> None:
    tree = claim_of_rank_0(stage)
    stage.rank(0, "exit 250")
    stage.nodes({"NodeList": "n1", "StateLong": "down*"}, {"NodeList": "n2"})

    launcher = stage.start(claims_patience_s=60.0)
    launcher.until("stay", "(1)")

    assert launcher.report()["nodes"]["n2"]["starts"] == 2
    assert tree.claims() == []


def test_while_slurm_does_not_answer_a_doubtful_worker_is_neither_given_up_nor_started(
    stage: Stage,
) -> None:
    stage.rank(0, f"[ $start = 2 ] || {{ {stage.waits_for_go()}; exit 250; }}\n{stage.leaves(0)}")
    stage.rank(1, f"until [ -e {stage.folder}/end ]; do sleep 0.05; done; {stage.leaves(1)}")
    launcher = stage.start()
    launcher.until("start")
    stage.no_answer()
    stage.go()
    launcher.until("doubt")
    asked = len(stage.calls("squeue"))
    wait_until(lambda: len(stage.calls("squeue")) >= asked + 3)
    assert stage.starts(0) == 1
    assert launcher.process.poll() is None

    stage.job()
    (stage.folder / "end").touch()

    report = launcher.report()
    assert report["nodes"]["n1"]["starts"] == 2
    assert report["exit_code"] == 0


def test_an_empty_answer_is_no_answer(stage: Stage) -> None:
    stage.rank(0, f"[ $start = 2 ] || {{ {stage.waits_for_go()}; exit 250; }}\n{stage.leaves(0)}")
    launcher = stage.start()
    launcher.until("start")
    stage.write("squeue", "exit 0")
    stage.go()
    launcher.until("doubt")
    asked = len(stage.calls("squeue"))
    wait_until(lambda: len(stage.calls("squeue")) >= asked + 3)
    assert stage.starts(0) == 1
    stage.job()
    assert launcher.report()["nodes"]["n1"]["starts"] == 2


def test_a_step_that_outlives_its_srun_is_cancelled_before_another_is_started(
    stage: Stage,
) -> None:
    stage.steps("7.0 fleet-0 n1", "7.1 fleet-1 n2", "8.0 fleet-0 n1")
    stage.rank(0, f"[ $start = 2 ] || kill -9 $$\n{stage.leaves(0)}")
    launcher = stage.start()
    launcher.until("doubt", "step 7.0 has no srun any more and is cancelled")
    wait_until(lambda: stage.calls("scancel"))
    assert stage.starts(0) == 1
    assert {call.words for call in stage.calls("scancel")} == {"7.0"}

    stage.steps("8.0 fleet-0 n1")

    report = launcher.report()
    assert report["nodes"]["n1"]["starts"] == 2
    assert report["exit_code"] == 0


def test_a_node_that_is_down_is_waited_for_and_its_worker_comes_back_with_it(
    stage: Stage,
) -> None:
    stage.nodes({"NodeList": "n1", "StateLong": "down*"}, {"NodeList": "n2"})
    stage.rank(0, f"[ $start = 2 ] || exit 250\n{stage.leaves(0)}")
    stage.rank(1, f"until [ -e {stage.folder}/end ]; do sleep 0.05; done; {stage.leaves(1)}")
    launcher = stage.start(restarts=0)
    launcher.until("away")
    assert stage.starts(0) == 1

    stage.nodes({"NodeList": "n1"}, {"NodeList": "n2"})

    launcher.until("back")
    launcher.until("left")
    (stage.folder / "end").touch()
    assert launcher.report()["exit_code"] == 0


def test_nobody_stays_for_a_node_that_is_down(stage: Stage) -> None:
    stage.nodes({"NodeList": "n1", "StateLong": "down*"}, {"NodeList": "n2"})
    stage.rank(0, "exit 250")

    report = stage.start().report()

    assert report["nodes"]["n1"] == {"over": "the node is down", "in_order": False, "starts": 1}


# ------------------------------------------------------------------------------------- the walltime


def test_workers_start_without_a_limit_when_slurm_stays_silent_and_hear_of_it_later(
    stage: Stage,
) -> None:
    stage.no_answer()
    heard = stage.folder / "heard"
    for rank in (0, 1):
        stage.rank(rank, f"read -r word; echo $word >> '{heard}'; {stage.leaves(rank)}")
    launcher = stage.start()
    launcher.until("note", "left (squeue failed with exit code 1")
    launcher.until("start")
    launcher.until("start")
    wait_until(lambda: stage.calls_of(0))  # which its srun notes itself
    assert "--walltime" not in stage.calls_of(0)[0]

    stage.job(TimeLeft="10:00")

    assert launcher.report()["exit_code"] == 0
    words = heard.read_text().splitlines()
    assert len(words) == 2
    assert all(500 <= int(word.removeprefix("walltime ")) <= 600 for word in words)


def _told(stage: Stage) -> Path:
    """Both ranks note what they are told, and leave at ``drain`` and ``interrupt``."""
    told = stage.folder / "told"
    for rank in (0, 1):
        stage.rank(
            rank,
            f"while read -r word; do echo $word >> '{told}'; case $word in\n"
            f"drain) {stage.leaves(rank)}; exit 0 ;;\n"
            f"interrupt) exit 143 ;; esac; done",
        )
    return told


def test_the_warning_signal_reaches_each_worker_as_a_word_and_no_process_as_a_signal(
    stage: Stage,
) -> None:
    told = _told(stage)
    launcher = stage.start()
    launcher.until("start")
    launcher.until("start")

    launcher.process.send_signal(signal.SIGUSR1)

    assert launcher.report()["exit_code"] == 0
    assert told.read_text() == "drain\ndrain\n"


def test_a_warning_that_comes_early_is_heeded_at_the_time_it_was_asked_for(stage: Stage) -> None:
    stage.job(TimeLeft="1:03")
    told = _told(stage)
    launcher = stage.start(warning_s=60.0)
    launcher.until("start")
    launcher.until("start")
    # 60 s are more than a tenth of this walltime: the last 6 s are kept. Of two signals the one
    # with the lower number, which is this, is taken first.
    launcher.process.send_signal(signal.SIGUSR1)
    launcher.process.send_signal(signal.SIGTERM)

    assert launcher.report()["exit_code"] == 143
    assert told.read_text() == "interrupt\ninterrupt\n"


def test_the_second_signal_kills_what_did_not_end_at_the_first(stage: Stage) -> None:
    stage.rank(0, f"trap : INT; until [ -e {stage.folder}/end ]; do sleep 0.05; done")
    launcher = stage.start()
    launcher.until("start")
    launcher.until("left")
    launcher.process.send_signal(signal.SIGINT)
    launcher.until("interrupt")
    time.sleep(0.3)  # what follows at once is the same press of a key
    assert launcher.process.poll() is None

    launcher.process.send_signal(signal.SIGINT)

    report = launcher.report()
    assert report["exit_code"] == 130
    assert not report["nodes"]["n1"]["in_order"]


# ------------------------------------------------------------------------------ beside the workers


def test_workers_drain_when_the_command_beside_them_ends_without_its_marker(
    stage: Stage,
) -> None:
    stage.rank("beside", f"until [ -e {stage.folder}/starts.0 ]; do sleep 0.05; done; exit 7")
    told = _told(stage)
    launcher = stage.start(
        beside="train", beside_nodes=1, until_marker=str(stage.folder / "train.done")
    )

    report = launcher.report()

    assert report["exit_code"] == 1
    assert report["beside"] == "it ended with exit code 7"
    assert list(report["nodes"]) == ["n2"]
    assert told.read_text() == "drain\n"


# ------------------------------------------------------------------------------ words and answers


def test_gpus_are_read_for_each_node_whatever_their_type() -> None:
    text = (
        "JobId=7 JobName=fleet\n   JOB_GRES=gpu:a100:5\n"
        "     Nodes=n1 CPU_IDs=0-7 Mem=0 GRES=gpu:a100:3(IDX:0-2)\n"
        "     Nodes=n2 CPU_IDs=0-7 Mem=0 GRES=gpu:1(IDX:0),gpu:1g.5gb:1(IDX:2)\n"
        "     Nodes=n4 CPU_IDs=0-7 Mem=0 GRES=\n"
    )
    assert read_gpus("7", text) == {"n1": 3, "n2": 2, "n4": 0}


def test_a_step_that_takes_no_orders_gets_no_input_and_falls_with_its_first_rank() -> None:
    words = srun(["n1", "n2"], name="x", project_dir="/p", gpus=None, orders=False)
    assert "--input=none" in words
    assert "--kill-on-bad-exit=1" in words
    assert "--nodelist=n1,n2" in words


def test_a_step_asks_for_no_more_gpus_than_the_smallest_node_of_its_job_has() -> None:
    assert gpus_of_steps({"n1": 2, "n2": 2}) == {"n1": 2, "n2": 2}
    assert gpus_of_steps({"n1": 2, "n2": 3, "n3": 1}) == {"n1": 1, "n2": 1, "n3": 1}
    assert gpus_of_steps({"n1": 2, "n2": 0}) == {"n1": 0, "n2": 0}
    assert gpus_of_steps({}) == {}


def test_a_step_that_outlived_its_nodes_absence_is_cancelled_before_another_is_started(
    stage: Stage,
) -> None:
    stage.nodes({"NodeList": "n1", "StateLong": "allocated*"}, {"NodeList": "n2"})
    stage.steps("7.0 fleet-0 n1")
    stage.rank(0, f"[ $start = 2 ] || exit 250\n{stage.leaves(0)}")
    stage.rank(1, f"until [ -e {stage.folder}/end ]; do sleep 0.05; done; {stage.leaves(1)}")
    launcher = stage.start(restarts=0)
    launcher.until("away")

    stage.nodes({"NodeList": "n1"}, {"NodeList": "n2"})
    wait_until(lambda: stage.calls("scancel"))
    assert stage.starts(0) == 1
    assert {call.words for call in stage.calls("scancel")} == {"7.0"}

    stage.steps()
    launcher.until("back")
    launcher.until("left")
    (stage.folder / "end").touch()
    assert launcher.report()["exit_code"] == 0


def test_a_command_that_has_all_nodes_and_ends_well_is_a_success(stage: Stage) -> None:
    stage.rank("beside", "exit 0")

    report = stage.start(beside="train", beside_nodes=2).report()

    assert (report["exit_code"], report["nodes"]) == (0, {})
