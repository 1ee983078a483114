"""Kill -9 of workers, fleets and recoverers: nothing is lost, nothing runs twice at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleetcraft.identity import Owner
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.record import closing_lines
from fleetcraft.spool.recovery import Liveness, Verdict
from fleetcraft.worker.survivors import stop_survivors
from tests.worker.harness import (
    REPO,
    Site,
    children,
    escape_to,
    lives,
    processes_with,
    wait_until,
)

# Runs for a minute in its first attempt, says in the second whether anything of the first is left.
FIRST_LONG = """
lives() { [ -e /proc/$1 ] && ! grep -q '^State:.[ZX]' /proc/$1/status; }
echo "$FLEET_ATTEMPT $$" >> attempts
if [ $FLEET_ATTEMPT = 1 ]; then sleep 60 & echo $! >> survivors; wait; fi
for pid in $(cat survivors); do lives $pid && echo $pid >> still_there; done
true
"""

RECOVER = """
import json, sys
from fleetcraft.spool.store import Spool
from fleetcraft.worker.survivors import stop_survivors
report = Spool(sys.argv[1]).recover(stop_survivors=stop_survivors)
print(json.dumps([report.recovered, report.rolled_forward, report.unknown]))
"""


def recover_elsewhere(site: Site) -> list[int]:
    """Recovered, rolled forward and unknown, as another process saw it."""
    done = subprocess.run(
        [sys.executable, "-c", RECOVER, site.spool.root],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        timeout=60,
    )
    counted: list[int] = json.loads(done.stdout)
    return counted


def pid_of(site: Site, name: str) -> int:
    """The pid of a task as the journal has it."""

    def look() -> list[int]:
        starts = (event for event in site.journals() if event.get("task") == name)
        return [event["pid"] for event in starts if event["event"] == "start"]

    return wait_until(look, f"{name} was started")[-1]


def test_a_fleet_recovers_the_task_of_a_killed_worker_and_runs_it_once_more(site: Site) -> None:
    site.enqueue("long", FIRST_LONG)
    fleet = site.start(workers=2)
    site.await_lines("survivors")
    [holder] = [pid for pid in fleet.members() if children(pid)]
    os.kill(holder, signal.SIGKILL)
    report = fleet.report()
    assert [line.split()[0] for line in site.lines("attempts")] == ["1", "2"]
    assert site.lines("still_there") == []
    assert site.outcomes("long") == ["lost", "completed"]
    assert (report["done"], report["failed"], report["recovered"]) == (1, 0, 1)
    assert report["exit_code"] == 0
    assert site.faults() == []


def test_a_fleet_of_one_replaces_its_killed_worker(site: Site) -> None:
    site.enqueue("long", FIRST_LONG)
    site.enqueue("other", "true")
    fleet = site.start(workers=1)
    site.await_lines("survivors")
    os.kill(fleet.members()[0], signal.SIGKILL)
    assert fleet.report()["done"] == 2
    assert fleet.events("note", text="worker 0 was killed by signal 9")
    assert fleet.wait() == 0


def test_a_worker_that_is_killed_over_and_over_is_not_replaced_for_ever(site: Site) -> None:
    # Each of its attempts kills its own worker: the fifth loss fails the task.
    site.enqueue("killer", "kill -9 $PPID; sleep 60")
    site.enqueue("z-last", "true")
    report = site.drain()
    assert site.outcomes("killer") == ["lost"] * 5
    assert site.state("killer") == "failed"
    assert site.state("z-last") == "done"
    assert (report["failed"], report["exit_code"]) == (1, 1)


def test_a_killed_worker_is_recovered_by_another_process(site: Site) -> None:
    site.enqueue("long", FIRST_LONG)
    worker = site.start()
    pid = pid_of(site, "long")
    site.await_lines("survivors")
    worker.kill()
    assert lives(pid)
    assert site.counts()["running"] == 1
    assert recover_elsewhere(site) == [1, 0, 0]
    assert not lives(pid)
    line = site.last("long")
    assert (line.outcome, line.to, line.attempt) == ("lost", "pending", 1)
    assert line.closed_by.startswith("recovery on")
    site.work()
    assert site.outcomes("long") == ["lost", "completed"]
    assert site.lines("still_there") == []
    assert site.faults() == []


def test_recovery_finds_a_survivor_that_escaped_and_ignores_term(site: Site) -> None:
    site.enqueue("escapes", f"{escape_to('escaped')}; sleep 60")
    worker = site.start()
    [escaped] = [int(line) for line in site.await_lines("escaped")]
    worker.kill()
    assert recover_elsewhere(site) == [1, 0, 0]
    assert not lives(escaped)


def test_recovery_leaves_the_claims_of_living_workers_alone(site: Site) -> None:
    site.enqueue("busy", "touch begun; until [ -e go ]; do sleep 0.05; done")
    worker = site.start()
    wait_until(site.file("begun").exists, "it runs")
    assert recover_elsewhere(site) == [0, 0, 0]
    site.file("go").touch()
    worker.wait()
    assert site.outcomes("busy") == ["completed"]


def test_a_killed_fleet_takes_its_workers_along_and_puts_its_tasks_back(site: Site) -> None:
    site.enqueue_all({f"long-{n}": "echo $$ >> pids; exec sleep 60" for n in range(2)})
    fleet = site.start(workers=2)
    pids = [int(line) for line in site.await_lines("pids", 2)]
    members = fleet.members()
    assert len(members) == 2
    fleet.kill()
    wait_until(lambda: not any(map(lives, [*members, *pids])), "workers and tasks are gone")
    assert site.counts() == {"waiting": 0, "pending": 2, "running": 0, "done": 0, "failed": 0}
    assert site.outcomes("long-0") == ["interrupted"]
    assert site.faults() == []


def test_a_killed_fleet_with_slots_takes_keepers_and_tasks_along(site: Site) -> None:
    site.enqueue_all({f"long-{n}": "echo $$ >> pids; exec sleep 60" for n in range(4)})
    fleet = site.start(workers=2, slots="2")
    pids = [int(line) for line in site.await_lines("pids", 4)]
    keepers = [pid for member in fleet.members() for pid in children(member)]
    assert len(keepers) == 4
    fleet.kill()
    wait_until(lambda: not any(map(lives, [*keepers, *pids])), "keepers and tasks are gone")
    wait_until(lambda: site.counts()["pending"] == 4, "all were put back")
    assert site.faults() == []


def test_a_fleet_killed_with_its_workers_is_recovered_by_the_next_one(site: Site) -> None:
    site.enqueue_all({f"long-{n}": FIRST_LONG for n in range(2)})
    fleet = site.start(workers=2)
    site.await_lines("survivors", 2)
    members = fleet.members()
    fleet.signal(signal.SIGSTOP)  # or it replaces one before the other is dead
    for pid in members:
        os.kill(pid, signal.SIGKILL)
    fleet.kill()
    report = site.drain(workers=2)
    assert report["done"] == 2
    assert site.lines("still_there") == []
    assert [site.outcomes(f"long-{n}")[-1] for n in range(2)] == ["completed"] * 2
    assert site.faults() == []


def test_a_recoverer_killed_while_it_stops_survivors_is_followed_by_another(site: Site) -> None:
    site.enqueue("escapes", f"{escape_to('escaped')}; sleep 60")
    worker = site.start()
    [escaped] = [int(line) for line in site.await_lines("escaped")]
    worker.kill()
    recoverer = subprocess.Popen(
        [sys.executable, "-c", RECOVER, site.spool.root],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )
    pid = pid_of(site, "escapes")
    wait_until(lambda: not lives(pid), "it has begun to stop what is left")
    recoverer.kill()
    recoverer.wait()
    assert lives(escaped)
    assert site.counts()["running"] == 1
    assert recover_elsewhere(site) == [1, 0, 0]
    assert not lives(escaped)
    assert site.outcomes("escapes") == ["lost"]


def test_two_recoverers_at_once_close_a_claim_once(site: Site) -> None:
    site.enqueue_all({f"long-{n}": "echo $$ >> pids; exec sleep 60" for n in range(4)})
    worker = site.start(slots="4")
    pids = [int(line) for line in site.await_lines("pids", 4)]
    keepers = worker.keepers()
    worker.kill()
    wait_until(lambda: not any(map(lives, [*keepers, *pids])), "keepers and tasks are gone")
    command = [sys.executable, "-c", RECOVER, site.spool.root]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, env=env) for _ in range(2)]
    counted = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    # Both may have written the very same line, and then each takes it for its own.
    assert sum(recovered + forward for recovered, forward, _ in counted) >= 4
    for n in range(4):
        lines = closing_lines(site.record(f"long-{n}"))
        assert [line.outcome for line in lines] == ["lost"]
        assert site.state(f"long-{n}") == "pending"
    assert site.faults() == []


def test_a_finished_task_of_a_killed_worker_is_rolled_forward_not_run_again(site: Site) -> None:
    # Its worker is stopped in its tracks after the history line, before the rename: the place of
    # the rename is taken away for that moment.
    site.enqueue("done", "echo ran >> ran; until [ -e go ]; do sleep 0.02; done")
    worker = site.start(idle_s=60.0)
    site.await_lines("ran")
    done = Path(site.spool.tree.paths.done)
    hidden = done.with_name("hidden")
    done.rename(hidden)
    site.file("go").touch()
    wait_until(
        lambda: any(b'"completed"' in path.read_bytes() for path in _claims(site)), "it is closed"
    )
    worker.kill()
    hidden.rename(done)
    assert recover_elsewhere(site) == [0, 1, 0]
    assert site.state("done") == "done"
    site.work()
    assert site.lines("ran") == ["ran"]
    assert site.faults() == []


def _claims(site: Site) -> list[Path]:
    return list(Path(site.spool.tree.paths.running).iterdir())


# -- verdicts of death that were wrong


def gone(owner: Owner, lease: Lease | None) -> Verdict:
    return Verdict(liveness=Liveness.GONE, reason="a test says so")


def test_a_late_owner_moves_nothing_and_its_second_line_does_not_count(site: Site) -> None:
    # No heartbeat looks after the claim, so the first owner learns of it only at the end.
    site.enqueue("twice", "echo $FLEET_ATTEMPT >> begun; until [ -e go-$FLEET_ATTEMPT ]; do "
                          "sleep 0.05; done; echo end of $FLEET_ATTEMPT")  # fmt: skip
    first = site.start(heartbeat_s=300.0)
    site.await_lines("begun")
    assert site.spool.recover(gone).recovered == 1
    second = site.start(heartbeat_s=300.0)
    site.await_lines("begun", 2)
    site.file("go-1").touch()
    wait_until(lambda: first.events("note"), "the first has noticed")
    assert site.state("twice") == "running"
    assert site.log("twice", 1) == "end of 1\n"
    site.file("go-2").touch()
    first.wait()
    second.wait()
    assert site.outcomes("twice") == ["lost", "completed"]
    assert [line.attempt for line in site.history("twice")] == [1, 2]
    assert first.report()["outcomes"] == {}
    assert "was recovered from this worker" in first.events("note")[0]["text"]
    assert second.report()["outcomes"] == {"completed": 1}
    assert site.faults() == []


def test_a_recovered_task_that_still_runs_is_stopped_at_the_next_heartbeat(site: Site) -> None:
    site.enqueue("long", "echo $$ >> pids; [ $FLEET_ATTEMPT = 2 ] || exec sleep 60")
    worker = site.start(heartbeat_s=0.5)
    pid = int(site.await_lines("pids")[0])
    assert site.spool.recover(gone).recovered == 1
    wait_until(lambda: not lives(pid), "the first attempt was stopped")
    worker.wait()
    # The very worker that lost it may run the second attempt.
    assert site.outcomes("long") == ["lost", "completed"]
    assert site.faults() == []


def test_a_completed_task_that_was_recovered_meanwhile_is_completed_once(site: Site) -> None:
    # The line of the recoverer came first: the owner's result is an orphan, and the task runs
    # again. That is what at-least-once means; the spool still counts one completion.
    site.enqueue("raced", "echo run >> runs; touch begun; until [ -e go ]; do sleep 0.05; done")
    worker = site.start(heartbeat_s=300.0)
    wait_until(site.file("begun").exists, "it runs")
    site.spool.recover(gone)
    site.file("go").touch()
    worker.wait()
    assert site.outcomes("raced") == ["lost", "completed"]
    assert len(site.lines("runs")) == 2
    assert site.counts()["done"] == 1
    assert site.faults() == []


def test_survivors_of_other_owners_are_not_touched(site: Site) -> None:
    site.enqueue_all({f"long-{n}": "echo $$ >> pids; exec sleep 60" for n in range(2)})
    worker = site.start(slots="2")
    site.await_lines("pids", 2)
    claims = {name: owner for name, owner in site.spool.tree.claims()}
    lease = site.spool.status().workers[0][0]
    assert stop_survivors("long-0", claims["long-0"], lease) == ""
    assert processes_with("FLEET_OWNER", str(claims["long-0"])) == []
    assert len(processes_with("FLEET_OWNER", str(claims["long-1"]))) == 1
    worker.signal(signal.SIGTERM)
    worker.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_task_may_be_killed_many_times_and_is_filed_each_time(site: Site, number: int) -> None:
    site.enqueue("victim", "echo $$ >> pids; exec sleep 60", retries=2)
    worker = site.start(idle_s=1.0)
    for count in range(1, 4):
        os.kill(int(site.await_lines("pids", count)[count - 1]), number)
        wait_until(lambda count=count: _ended(site) >= count, f"end {count} is filed")
        time.sleep(0.01)
    worker.wait()
    assert site.outcomes("victim") == ["failed"] * 3
    assert site.state("victim") == "failed"


def _ended(site: Site) -> int:
    return sum(event["event"] == "end" for event in site.journals())


def test_what_an_attempt_submitted_as_another_job_is_none_of_its_survivors(site: Site) -> None:
    # A task submits the job that goes on when this one is over, and Slurm gives that job the
    # task's whole environment. It may run on the same node when the task is recovered.
    site.enqueue("a-chain", 'echo "$FLEET_OWNER" >> owners; exec sleep 60')
    before = site.start(run={"job": "7001"}, env={"SLURM_JOB_ID": "7001"})
    [owner] = site.await_lines("owners")
    [pid] = processes_with("FLEET_OWNER", owner)
    before.kill()
    site.enqueue("b-next", "touch begun; until [ -e go ]; do sleep 0.05; done")
    inherited = {"FLEET_OWNER": owner, "FLEET_ROOT": str(site.root), "SLURM_JOB_ID": "7002"}
    after = site.start(run={"job": "7002"}, env=inherited, slots="2", heartbeat_s=300.0)
    wait_until(site.file("begun").exists, "the next job works")

    site.spool.recover(stop_survivors=stop_survivors)  # unless the next job has done so by now

    wait_until(lambda: not lives(pid), "the attempt is stopped")
    assert after.process.poll() is None
    assert processes_with("FLEET_OUTER_OWNER", owner) == []
    site.file("go").touch()
    site.await_state("b-next", "done")
    assert site.outcomes("b-next") == ["completed"]
    wait_until(lambda: site.outcomes("a-chain") == ["lost"], "the attempt is recovered")
    after.signal(signal.SIGTERM)
    after.wait()
