"""When and how a worker leaves, and with what code: idle, markers, signals, walltime, bad node."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from fleetcraft.clock import parse_timestamp
from fleetcraft.spool import leases
from tests.worker.harness import Running, Site, children, lives, wait_until

LONG = "touch begun; until [ -e go ]; do sleep 0.05; done"


def at(text: str | None) -> datetime:
    found = parse_timestamp(text or "")
    assert found is not None
    return found


def test_an_idle_worker_leaves_after_its_idle_time_with_code_0(site: Site) -> None:
    report = site.work(idle_s=0.2)
    assert report["exit_code"] == 0
    assert "nothing to claim for 0.2 s" in report["reason"]


def test_idle_time_begins_when_the_last_task_has_ended(site: Site) -> None:
    site.enqueue("long", "sleep 1.2")

    site.work(idle_s=1.0)

    [lease] = leases.read_all(site.spool.tree)
    ended, left = at(site.last("long").ended_at), at(lease.left_at)
    # Counted from the claim it would be over at once; the half is for a machine that halts it
    # between a look at its clock and the end of the task.
    assert (left - ended).total_seconds() > 0.5


def test_an_idle_worker_takes_what_is_enqueued_meanwhile(site: Site) -> None:
    worker = site.start(idle_s=8.0)
    wait_until(lambda: site.spool.status().workers, "it has arrived")
    site.enqueue("late", "true")
    site.await_state("late", "done")
    worker.signal(signal.SIGTERM)
    worker.wait()


# -- markers


def test_drain_finishes_what_runs_and_leaves(site: Site) -> None:
    site.enqueue("a-long", LONG)
    site.enqueue("b-next", "true")
    worker = site.start(idle_s=60.0)
    wait_until(site.file("begun").exists, "it runs")
    site.spool.drain("maintenance at noon")
    wait_until(lambda: worker.events("note"), "it has seen the marker")
    site.file("go").touch()
    report = worker.report()
    assert report["exit_code"] == 0
    assert "DRAIN" in report["reason"]
    assert "maintenance at noon" in report["reason"]
    assert site.state("a-long") == "done"
    assert site.state("b-next") == "pending"


def test_stop_interrupts_what_runs_and_puts_it_back_without_spending_a_retry(site: Site) -> None:
    site.enqueue("a-long", LONG)
    worker = site.start(idle_s=60.0)
    wait_until(site.file("begun").exists, "it runs")
    site.spool.stop()
    report = worker.report()
    assert report["exit_code"] == 0
    assert site.outcomes("a-long") == ["interrupted"]
    assert site.state("a-long") == "pending"
    assert "STOP" in site.last("a-long").reason
    site.spool.resume()
    site.file("go").touch()
    site.work()
    assert site.outcomes("a-long") == ["interrupted", "completed"]


def test_stop_overrules_drain(site: Site) -> None:
    site.enqueue("a-long", LONG)
    worker = site.start(idle_s=60.0)
    wait_until(site.file("begun").exists, "it runs")
    site.spool.drain()
    wait_until(lambda: worker.events("note"), "it drains")
    site.spool.stop()
    assert worker.wait() == 0
    assert site.outcomes("a-long") == ["interrupted"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("marker", ["DRAIN", "STOP"])
def test_no_worker_starts_while_a_marker_stands(site: Site, workers: int, marker: str) -> None:
    site.enqueue("task", "true")
    (site.spool.drain if marker == "DRAIN" else site.spool.stop)("because")
    worker = site.start(workers=workers)
    assert worker.wait() == 5
    [refusal] = worker.events("refused")
    assert marker in refusal["text"]
    assert "written by" in refusal["text"]
    assert "because" in refusal["text"]
    assert "resume" in refusal["hint"]
    assert site.state("task") == "pending"


def test_a_marker_made_by_hand_is_obeyed_too(site: Site) -> None:
    site.enqueue("a-long", LONG)
    worker = site.start(idle_s=60.0)
    wait_until(site.file("begun").exists, "it runs")
    Path(site.spool.tree.paths.stop_marker).touch()
    assert worker.wait() == 0
    assert site.outcomes("a-long") == ["interrupted"]


def test_a_local_fleet_stopped_by_a_marker_says_so_and_is_no_success(site: Site) -> None:
    # One for each worker: an idle one that has not seen the marker yet could take what the other
    # has just put back.
    for name in ("a-long", "b-long"):
        site.enqueue(name, LONG.replace("begun", f"begun-{name}"))
    fleet = site.start(workers=2)
    for name in ("a-long", "b-long"):
        wait_until(site.file(f"begun-{name}").exists, "it runs")
    site.spool.stop("enough")
    report = fleet.report()
    assert (report["exit_code"], report["interrupted"], report["left"]["pending"]) == (1, 2, 2)
    assert any("STOP" in reason for reason in report["stopped"])


# -- signals


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)]
)
def test_a_signal_to_end_interrupts_what_runs(site: Site, number: int, code: int) -> None:
    site.enqueue("a-long", LONG)
    worker = site.start(idle_s=60.0)
    wait_until(site.file("begun").exists, "it runs")
    worker.signal(number)
    report = worker.report()
    assert (worker.wait(), report["exit_code"]) == (code, code)
    assert site.outcomes("a-long") == ["interrupted"]
    assert site.state("a-long") == "pending"
    assert signal.Signals(number).name in site.last("a-long").reason
    assert site.faults() == []


def test_usr1_drains(site: Site) -> None:
    site.enqueue("a-long", LONG)
    site.enqueue("b-next", "true")
    worker = site.start(idle_s=60.0)
    wait_until(site.file("begun").exists, "it runs")
    worker.signal(signal.SIGUSR1)
    wait_until(lambda: worker.events("note"), "it drains")
    site.file("go").touch()
    assert worker.wait() == 0
    assert site.state("a-long") == "done"
    assert site.state("b-next") == "pending"


def test_term_after_usr1_interrupts(site: Site) -> None:
    site.enqueue("a-long", LONG)
    worker = site.start(idle_s=60.0)
    wait_until(site.file("begun").exists, "it runs")
    worker.signal(signal.SIGUSR1)
    wait_until(lambda: worker.events("note"), "it drains")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 143
    assert site.outcomes("a-long") == ["interrupted"]


def test_usr1_right_after_term_does_not_make_the_term_forgotten(site: Site) -> None:
    # Both come while the worker waits for the end of a task that it stops.
    site.enqueue("a", "trap 'touch asked' TERM; while true; do sleep 0.05; done", timeout_s=1)
    worker = site.start(idle_s=60.0, grace_s=3.0)
    wait_until(site.file("asked").exists, "it is being stopped")
    worker.signal(signal.SIGTERM)
    time.sleep(0.3)  # two signals at once would come in the order of their numbers
    worker.signal(signal.SIGUSR1)
    assert worker.wait() == 143
    assert site.outcomes("a") == ["timeout"]


def test_a_worker_started_by_nohup_outlives_the_terminal(site: Site) -> None:
    site.enqueue("a-long", LONG)
    worker = site.start(wrap=["nohup"], idle_s=0.5)
    wait_until(site.file("begun").exists, "it runs")
    worker.signal(signal.SIGHUP)
    site.file("go").touch()
    assert worker.wait() == 0
    assert site.outcomes("a-long") == ["completed"]


def test_many_signals_are_one(site: Site) -> None:
    site.enqueue("a-long", "trap '' TERM; " + LONG)
    worker = site.start(idle_s=60.0, grace_s=0.5)
    wait_until(site.file("begun").exists, "it runs")
    for _ in range(5):
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGINT)
    assert worker.wait() in (130, 143)
    assert site.outcomes("a-long") == ["interrupted"]
    assert site.last("a-long").signal == signal.SIGKILL


def test_a_signal_during_start_up_leaves_nothing_behind(site: Site) -> None:
    site.enqueue_all({f"t{n}": "sleep 0.05" for n in range(5)})

    def has_arrived(_: Running) -> bool:
        return any(not lease.left_at for lease in leases.read_all(site.spool.tree))

    for _ in range(3):
        _end_at_the_first_sight_of(site, lambda worker: bool(children(worker.pid)))
        _end_at_the_first_sight_of(site, has_arrived)
    assert site.spool.recover().unknown == 0
    assert site.counts()["running"] == 0
    assert site.faults() == []


def _end_at_the_first_sight_of(site: Site, sight: Callable[[Running], bool]) -> None:
    worker = site.start(idle_s=60.0, slots="2")
    wait_until(lambda: sight(worker), "it starts up")
    keepers = children(worker.pid)
    worker.signal(signal.SIGTERM)
    assert worker.wait() in (143, -signal.SIGTERM)
    wait_until(lambda: not any(map(lives, keepers)), "its keepers have left")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_a_fleet_interrupts_all_its_workers(site: Site, number: int, code: int) -> None:
    site.enqueue_all({f"t{n}": "echo x >> begun; exec sleep 60" for n in range(4)})
    fleet = site.start(workers=2, slots="2")
    site.await_lines("begun", 4)
    fleet.signal(number)
    report = fleet.report()
    assert (fleet.wait(), report["interrupted"]) == (code, 4)
    assert site.counts()["pending"] == 4


def test_a_signal_to_a_fleet_that_is_just_starting_ends_it(site: Site) -> None:
    site.enqueue_all({f"t{n}": "exec sleep 60" for n in range(4)})
    fleet = site.start(workers=4)
    wait_until(fleet.members, "the first worker was started")
    fleet.signal(signal.SIGTERM)
    assert fleet.wait(30) == 143
    assert site.counts()["pending"] == 4
    assert site.faults() == []


# -- until a marker


def test_with_until_marker_a_worker_stays_until_the_marker_is_there(site: Site) -> None:
    marker = site.file("all-enqueued")
    worker = site.start(idle_s=0.1, until_marker=str(marker))
    wait_until(lambda: site.spool.status().workers, "it has arrived")
    site.enqueue("late", "sleep 1")
    site.await_state("late", "done")
    assert worker.process.poll() is None
    site.enqueue("later", "true")
    marker.touch()
    report = worker.report()
    assert report["exit_code"] == 0
    assert str(marker) in report["reason"]
    assert site.state("later") == "done"


def test_a_task_that_asked_for_another_try_keeps_a_worker_beyond_the_marker(site: Site) -> None:
    marker = site.file("all-enqueued")
    marker.touch()
    site.enqueue("patient", "[ $FLEET_ATTEMPT = 2 ] || exit 75")
    site.work(until_marker=str(marker))
    assert site.outcomes("patient") == ["interrupted", "completed"]


# -- walltime


def test_a_task_that_needs_more_than_what_is_left_is_not_claimed(site: Site) -> None:
    site.enqueue("a-too-long", "true", time_s=3600)
    site.enqueue("b-fits", "true", time_s=60)
    site.enqueue("c-says-nothing", "true")
    site.work(walltime_s=600.0)
    assert site.state("a-too-long") == "pending"
    assert site.counts()["done"] == 2
    assert site.history("a-too-long") == ()


def test_a_worker_drains_at_its_margin(site: Site) -> None:
    # It drains with 20 s left, and would interrupt with 10: nothing depends on how fast this is.
    site.enqueue_all({f"t{n}": LONG for n in range(3)})
    worker = site.start(walltime_s=23.0, drain_margin_s=20.0, idle_s=60.0)
    wait_until(lambda: worker.events("note"), "it drains")
    site.file("go").touch()
    report = worker.report()
    assert "drain margin" in report["reason"]
    assert report["exit_code"] == 0
    assert report["outcomes"] == {"completed": 1}
    assert site.counts()["pending"] == 2


def test_what_still_runs_is_interrupted_before_the_walltime_ends(site: Site) -> None:
    site.enqueue("a-long", "trap '' TERM; " + LONG)
    # It drains after 4 s, so it has that long to begin, and interrupts after 6.
    report = site.work(walltime_s=8.0, drain_margin_s=4.0, heartbeat_s=60.0, grace_s=30.0)
    assert report["exit_code"] == 0
    assert site.outcomes("a-long") == ["interrupted"]
    line = site.last("a-long")
    assert "walltime" in line.reason
    assert line.wall_s is not None
    assert line.wall_s < 8.0  # the grace is cut to what is left
    assert site.state("a-long") == "pending"


# -- a broken node


def test_ten_different_tasks_that_fail_fast_stop_the_worker_not_the_queue(site: Site) -> None:
    site.enqueue_all({f"t{n:02d}": "exit 1" for n in range(30)})
    report = site.work(idle_s=60.0)
    assert report["exit_code"] == 8
    assert "10 tasks" in report["reason"]
    assert site.counts() == {"waiting": 0, "pending": 20, "running": 0, "done": 0, "failed": 10}


def test_one_good_task_among_them_begins_the_count_anew(site: Site) -> None:
    site.enqueue_all({f"t{n:02d}": f"exit {int(n != 9)}" for n in range(30)})
    report = site.work(idle_s=60.0)
    assert report["exit_code"] == 8
    assert site.counts()["failed"] == 19
    assert site.counts()["done"] == 1
    assert site.counts()["pending"] == 10


def test_the_same_task_failing_again_and_again_does_not_condemn_the_node(site: Site) -> None:
    site.enqueue("a-hopeless", "exit 1", retries=20)
    site.enqueue("b-good", "true")
    report = site.work()
    assert report["exit_code"] == 0
    assert len(site.history("a-hopeless")) == 21
    assert site.state("b-good") == "done"


def test_slow_failures_do_not_condemn_the_node(site: Site) -> None:
    site.enqueue_all({f"t{n:02d}": "sleep 0.15; exit 1" for n in range(12)})
    report = site.work(node_failure_s=0.1)
    assert report["exit_code"] == 0
    assert site.counts()["failed"] == 12


def test_a_fleet_on_a_broken_node_ends_and_says_why(site: Site) -> None:
    site.enqueue_all({f"t{n:02d}": "exit 1" for n in range(60)})
    fleet = site.start(workers=2)
    report = fleet.report()
    assert report["exit_code"] == 1
    assert report["failed"] == 20
    assert report["left"]["pending"] == 40
    assert len([reason for reason in report["stopped"] if "may be broken" in reason]) == 2


def test_a_fleet_whose_only_worker_is_told_to_end_ends_too(site: Site) -> None:
    site.enqueue("a-long", LONG)
    fleet = site.start(workers=1)
    wait_until(site.file("begun").exists, "it runs")
    os.kill(fleet.members()[0], signal.SIGTERM)
    report = fleet.report()
    assert report["exit_code"] == 1
    assert report["interrupted"] == 1
    assert site.state("a-long") == "pending"


def test_a_worker_that_is_leaving_says_so_when_it_has_to_leave_a_claim(site: Site) -> None:
    site.enqueue("stuck", LONG)
    worker = site.start(idle_s=60.0)
    wait_until(site.file("begun").exists, "it runs")
    site.spool.drain()
    wait_until(lambda: worker.events("note"), "it drains")
    # Its history can no longer be written.
    claim = Path(site.spool.show("stuck").path)
    aside = claim.rename(site.base / "aside")
    claim.symlink_to(aside)
    site.file("go").touch()
    assert worker.wait() == 9
    [lease] = leases.read_all(site.spool.tree)
    assert lease.left_at is None  # which would say that it holds nothing
    assert any("could not be filed" in note["text"] for note in worker.events("note"))
    claim.unlink()
    aside.rename(claim)
    assert site.spool.recover().recovered == 1


def test_a_marker_that_cannot_be_read_is_obeyed_all_the_same(site: Site) -> None:
    site.enqueue("a-long", LONG)
    worker = site.start(idle_s=60.0)
    wait_until(site.file("begun").exists, "it runs")
    Path(site.spool.tree.paths.stop_marker).symlink_to(site.base / "why.txt")
    assert worker.wait(20.0) == 0
    assert site.outcomes("a-long") == ["interrupted"]
    again = site.start()
    assert again.wait() == 5
    assert "STOP marker, which cannot be read" in again.events("refused")[0]["text"]
    assert site.spool.resume() == ["STOP"]
