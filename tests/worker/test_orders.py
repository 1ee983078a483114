"""A worker of an allocation: words on its input, a readiness marker, and Slurm's TERM to all."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from fleetcraft.spool import barrier
from tests.worker.harness import Running, Site, wait_until

HOLD = "echo $$ >> began; until [ -e go ]; do sleep 0.02; done"


@pytest.fixture
def ordered(site: Site) -> Iterator[Callable[[], Running]]:
    """Starts a worker that takes orders; at most one a test."""
    started: list[Running] = []

    def start() -> Running:
        started.append(site.start(stdin=subprocess.PIPE, orders=True, idle_s=60.0))
        return started[0]

    yield start
    for worker in started:
        hush(worker)


def say(worker: Running, text: str) -> None:
    assert worker.process.stdin is not None
    worker.process.stdin.write(text.encode())
    worker.process.stdin.flush()


def hush(worker: Running) -> None:
    """The end of its input."""
    assert worker.process.stdin is not None
    worker.process.stdin.close()


def test_drain_lets_the_task_finish_and_claims_no_other(
    site: Site, ordered: Callable[[], Running]
) -> None:
    site.enqueue_all({"a": HOLD, "b": HOLD})
    worker = ordered()
    site.await_lines("began")
    say(worker, "dra")
    say(worker, "in\n")
    wait_until(lambda: worker.events("note"), "it notes the order")
    site.file("go").touch()
    report = worker.report()
    assert (report["exit_code"], report["outcomes"]) == (0, {"completed": 1})
    assert site.state("b") == "pending"


def test_interrupt_puts_the_task_back(site: Site, ordered: Callable[[], Running]) -> None:
    site.enqueue("a", HOLD)
    worker = ordered()
    site.await_lines("began")
    say(worker, "an order of later versions\ninterrupt\n")
    assert worker.report()["exit_code"] == 143
    assert site.outcomes("a") == ["interrupted"]
    assert site.state("a") == "pending"


def test_a_walltime_that_is_told_later_is_gone_by(
    site: Site, ordered: Callable[[], Running]
) -> None:
    site.enqueue("first", "true")
    worker = ordered()
    say(worker, "walltime 300\n")
    site.await_state("first", "done")  # it has waited, and so has heard that
    site.enqueue("too-long", "echo >> begun", time_s=3600)
    site.enqueue("z", HOLD)
    site.await_lines("began")
    say(worker, "walltime 2\n")
    report = worker.report()
    assert "walltime" in report["reason"]
    assert site.outcomes("z") == ["interrupted"]
    assert site.lines("begun") == []


def test_the_end_of_the_input_ends_nothing(site: Site, ordered: Callable[[], Running]) -> None:
    site.enqueue("a", HOLD)
    worker = ordered()
    site.await_lines("began")
    hush(worker)
    site.file("go").touch()
    site.await_state("a", "done")
    assert worker.process.poll() is None
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 143


def test_nothing_is_claimed_before_the_readiness_marker_verifies(site: Site) -> None:
    site.enqueue("a", "true")
    payload = site.file("weights")
    payload.write_text("new")
    marker = str(site.file("ready.json"))
    made = barrier.write(marker, [str(payload)])
    payload.write_text("old")  # it says more than is true
    worker = site.start(idle_s=0.3, after_marker=marker)
    wait_until(lambda: list(site.root.glob("taskq/workers/*.json")), "its lease")
    time.sleep(1.0)  # three times its idle time: waiting is not idling
    assert worker.process.poll() is None
    assert site.state("a") == "pending"
    payload.write_text("new")
    assert worker.report()["outcomes"] == {"completed": 1}
    assert made.payload[0].bytes == 3


def test_a_worker_that_waits_behind_a_marker_still_obeys(site: Site) -> None:
    worker = site.start(idle_s=0.3, after_marker=str(site.file("never.json")))
    wait_until(lambda: list(site.root.glob("taskq/workers/*.json")), "its lease")
    worker.signal(signal.SIGUSR1)
    assert worker.report()["exit_code"] == 0


def end_both(site: Site, slots: str, number: int) -> tuple[str, Running]:
    """Ends a task and a moment later its worker, as Slurm does; gives the task's name too.

    The worker listens for a quarter of a second after such an end. Where this process was held up
    for about as long, it is done again with another task.
    """
    for n in range(10):
        name = f"a{n}"
        site.enqueue(name, f"[ $FLEET_ATTEMPT = 1 ] || exit 0\n{HOLD}")
        worker = site.start(slots=slots, run={"job": "4711"}, idle_s=60.0)
        pid = int(site.await_lines("began", n + 1)[n])
        began = time.monotonic()
        os.kill(pid, number)
        time.sleep(0.05)
        worker.signal(number)
        if time.monotonic() - began < 0.2:
            return name, worker
        worker.wait()
    raise AssertionError("this machine held up every try")


@pytest.mark.parametrize("slots", ["1", "2"])
def test_a_task_that_gets_slurms_term_before_its_worker_was_interrupted(
    site: Site, slots: str
) -> None:
    name, worker = end_both(site, slots, signal.SIGTERM)

    assert worker.report()["exit_code"] == 143
    assert site.outcomes(name) == ["interrupted"]


@pytest.mark.parametrize("slots", ["1", "2"])
def test_a_task_that_is_killed_a_moment_before_its_worker_is_left_to_recovery(
    site: Site, slots: str
) -> None:
    name, worker = end_both(site, slots, signal.SIGKILL)

    assert worker.wait() == -signal.SIGKILL
    assert site.state(name) == "running"
    assert site.outcomes(name) == []


def test_a_task_that_somebody_else_ended_by_term_has_failed(site: Site) -> None:
    site.enqueue("a", "kill -TERM $$")
    worker = site.start(run={"job": "4711"})
    assert worker.report()["outcomes"] == {"failed": 1}
