"""Several slots: a keeper for each, all of them busy, and what happens when a keeper is killed."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.worker.harness import Site, children, escape_to, lives, wait_until


def together(count: int) -> str:
    """A command that ends when so many of its kind have begun."""
    return (
        f"touch begun-$FLEET_TASK; until [ $(ls begun-* | wc -l) = {count} ]; do sleep 0.02; done"
    )


def test_all_slots_are_used_at_the_same_time(site: Site) -> None:
    site.enqueue_all({f"t{n}": together(5) for n in range(5)})
    site.work(slots="5")
    assert site.counts()["done"] == 5


def test_a_slot_that_is_free_takes_the_next_task_while_a_sibling_is_long(site: Site) -> None:
    site.enqueue("a-long", "until [ $(ls short-* | wc -l) = 6 ]; do sleep 0.02; done")
    site.enqueue_all({f"b{n}": "touch short-$FLEET_TASK" for n in range(6)})
    site.work(slots="2")
    assert site.counts()["done"] == 7


def test_timeouts_of_several_slots_do_not_wait_for_one_another(site: Site) -> None:
    # Each ignores TERM; one after the other would take the sum of their graces.
    ignores = "trap '' TERM; touch begun-$FLEET_TASK; while true; do sleep 0.1; done"
    site.enqueue_all({f"t{n}": ignores for n in range(6)}, timeout_s=1)
    started = time.monotonic()
    site.work(slots="6", grace_s=5.0)
    assert time.monotonic() - started < 6 * 5.0
    assert all(site.outcomes(f"t{n}") == ["timeout"] for n in range(6))


def test_a_worker_rests_while_a_keeper_stops_a_task(site: Site) -> None:
    command = "trap 'touch asked' TERM; until [ -e go ]; do sleep 0.1; done; exit 1"
    site.enqueue("stubborn", command, timeout_s=1)
    worker = site.start(slots="2", grace_s=30.0)
    wait_until(site.file("asked").exists, "it is being stopped")
    process = psutil.Process(worker.pid)
    before = process.cpu_times()
    time.sleep(1.5)
    after = process.cpu_times()
    assert site.state("stubborn") == "running"
    # A fifth of the time would be a busy wait on a busy machine; at rest it is next to nothing.
    assert after.user + after.system - before.user - before.system < 0.3
    site.file("go").touch()
    worker.wait()
    assert site.outcomes("stubborn") == ["timeout"]


def test_the_task_of_a_killed_keeper_is_lost_and_runs_again(site: Site) -> None:
    site.enqueue("a-long", "echo $$ >> pids; [ $FLEET_ATTEMPT = 2 ] || exec sleep 60")
    site.enqueue("b-other", "until [ -e go ]; do sleep 0.02; done")
    worker = site.start(slots="2")
    first = int(site.await_lines("pids")[0])
    [keeper] = [pid for pid in worker.keepers() if first in children(pid)]
    os.kill(keeper, signal.SIGKILL)
    site.await_state("a-long", "done")
    assert not lives(first)
    # Its sibling has noticed nothing.
    assert site.state("b-other") == "running"
    site.file("go").touch()
    assert worker.wait() == 0
    assert site.outcomes("a-long") == ["lost", "completed"]
    assert "keeper" in site.history("a-long")[0].reason
    assert site.history("a-long")[0].attempt == 1
    assert site.outcomes("b-other") == ["completed"]
    assert site.faults() == []


def test_what_escaped_from_a_killed_keeper_is_stopped_before_the_slot_is_given_on(
    site: Site,
) -> None:
    site.enqueue("escapes", f"[ $FLEET_ATTEMPT = 2 ] || {{ {escape_to('escaped')}; sleep 60; }}")
    worker = site.start(slots="2")
    escaped = int(site.await_lines("escaped")[0])
    for keeper in worker.keepers():
        if children(keeper):
            os.kill(keeper, signal.SIGKILL)
    site.await_state("escapes", "done")
    assert not lives(escaped)
    worker.wait()
    assert site.outcomes("escapes") == ["lost", "completed"]


def test_keepers_that_are_killed_while_they_have_nothing_to_do_are_replaced(site: Site) -> None:
    worker = site.start(slots="3", idle_s=60.0)
    keepers = wait_until(lambda: worker.keepers() if len(worker.keepers()) == 3 else [], "keepers")
    for pid in keepers:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(worker.events("note")) == 3, "it has noticed")
    site.enqueue_all({f"t{n}": together(3) for n in range(3)})
    wait_until(lambda: site.counts()["done"] == 3, "new keepers run the tasks")
    assert all(site.outcomes(f"t{n}") == ["completed"] for n in range(3))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 143


def test_a_task_that_kills_its_keeper_each_time_fails_at_the_fifth_loss(site: Site) -> None:
    site.enqueue("killer", "kill -9 $PPID; sleep 60")
    site.enqueue("z-last", "true", lane="last")
    report = site.work(slots="2")
    assert site.outcomes("killer") == ["lost"] * 5
    assert site.state("killer") == "failed"
    assert site.state("z-last") == "done"
    assert report["exit_code"] == 0
    assert site.faults() == []


def test_a_cancelled_task_whose_keeper_was_killed_is_not_tried_again(site: Site) -> None:
    site.enqueue("long", "echo $$ >> pids; exec sleep 60")
    worker = site.start(slots="2", heartbeat_s=300.0)
    site.await_lines("pids")
    site.spool.cancel("long")
    for keeper in worker.keepers():
        if children(keeper):
            os.kill(keeper, signal.SIGKILL)
    worker.wait()
    assert site.state("long") == "failed"
    assert len(site.lines("pids")) == 1
    assert "cancelled instead of tried again" in site.last("long").reason


def test_keepers_of_a_killed_worker_stop_their_tasks_and_leave(site: Site) -> None:
    site.enqueue_all({f"t{n}": f"{escape_to(f'escaped-{n}')}; sleep 60" for n in range(2)})
    worker = site.start(slots="3", grace_s=0.3)
    escaped = [int(site.await_lines(f"escaped-{n}")[0]) for n in range(2)]
    keepers = worker.keepers()
    assert len(keepers) == 3
    worker.kill()
    wait_until(lambda: not any(map(lives, [*keepers, *escaped])), "nothing of it is left")
    assert site.spool.recover().recovered == 2
    assert site.faults() == []


def test_signals_to_a_keeper_that_only_ask_do_not_disturb_its_task(site: Site) -> None:
    # Slurm signals every process of a step; the worker alone decides what ends.
    site.enqueue("steady", "touch begun; until [ -e go ]; do sleep 0.02; done")
    worker = site.start(slots="2")
    wait_until(site.file("begun").exists, "it runs")
    for keeper in worker.keepers():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(keeper, number)
    time.sleep(0.2)
    site.file("go").touch()
    worker.wait()
    assert site.outcomes("steady") == ["completed"]


def test_what_cannot_be_started_fails_the_task_not_the_keeper(site: Site) -> None:
    # An environment that is larger than the kernel takes.
    site.file("env").write_text("".join(f"V{n}={'x' * 100_000}\n" for n in range(40)))
    site.file("env").chmod(0o600)
    site.enqueue("a-heavy", "true", env_file="env")
    site.enqueue("b-light", "true")
    site.work(slots="2")
    assert site.outcomes("a-heavy") == ["launch_failed"]
    assert "could not be started" in site.last("a-heavy").reason
    assert "xxxx" not in site.last("a-heavy").reason
    assert site.outcomes("b-light") == ["completed"]


def test_a_keeper_whose_worker_died_with_a_word_unread_stops_its_task_and_says_nothing(
    tmp_path: Path,
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    keeper = subprocess.Popen(
        [sys.executable, "-m", "fleetcraft.worker.keeper", str(theirs.fileno())],
        pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    theirs.close()
    pid = tmp_path / "pid"
    command = f"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 600"
    start = {"do": "start", "argv": ["/bin/bash", "-c", command], "env": {}, "grace_s": 0.2}
    with open(tmp_path / "log", "wb") as log:
        socket.send_fds(ours, [b"!"], [log.fileno()])
    ours.sendall(json.dumps(start).encode() + b"\n")
    wait_until(pid.exists, "the task runs")
    assert select.select([ours], [], [], 30.0)[0], "the keeper has told its pid"

    ours.close()  # unread, so that the kernel resets what a kill would have closed

    said = keeper.communicate(timeout=30.0)[1]
    assert (keeper.returncode, said) == (0, "")
    assert not psutil.pid_exists(int(pid.read_text()))
