"""What tasks leave behind is gone before the slot is given on, and the right slot is told."""

from __future__ import annotations

import os
import signal

import pytest

from tests.worker.harness import Site, escape_to, lives, processes_with, wait_until


@pytest.mark.parametrize("slots", ["1", "3"])
def test_an_escaped_process_that_ignores_term_is_gone_before_the_next_task(
    site: Site, slots: str
) -> None:
    site.enqueue("a-escapes", escape_to("escaped"))
    site.enqueue("b-next", "[ -e /proc/$(cat escaped) ] && echo alive >> seen; echo looked >> seen",
                 after=("a-escapes",))  # fmt: skip
    site.work(slots=slots, grace_s=0.3, idle_s=1.5)
    assert site.lines("seen") == ["looked"]
    line = site.last("a-escapes")
    assert (line.outcome, line.exit_code) == ("completed", 0)
    assert "1 process that it left behind was stopped" in line.reason
    assert not lives(int(site.lines("escaped")[0]))


def test_with_several_slots_the_slot_that_left_a_process_behind_is_blamed(site: Site) -> None:
    wait = "until [ -e go ]; do sleep 0.05; done"
    site.enqueue("a-long", f"sleep 100 & {wait}; kill %1; wait")
    site.enqueue("b-escapes", f"{escape_to('escaped')}; sleep 0.2")
    site.enqueue("c-long", wait)
    worker = site.start(slots="3", grace_s=0.3)
    site.await_state("b-escapes", "done")
    assert not lives(int(site.lines("escaped")[0]))
    assert site.state("a-long") == site.state("c-long") == "running"
    site.file("go").touch()
    worker.wait()
    assert "left behind" in site.last("b-escapes").reason
    assert site.last("a-long").reason == site.last("c-long").reason == ""


def test_a_background_child_is_stopped_and_noted(site: Site) -> None:
    site.enqueue("parent", "sleep 100 & sleep 100 & echo $! > child; exit 0")
    site.work()
    assert not lives(int(site.lines("child")[0]))
    assert site.last("parent").outcome == "completed"
    assert "2 processes that it left behind were stopped" in site.last("parent").reason


def test_leftovers_may_tidy_up_within_the_grace(site: Site) -> None:
    site.enqueue("parent", "(trap 'touch tidied; exit' TERM; touch ready; sleep 100 & wait) & "
                           "until [ -e ready ]; do sleep 0.02; done")  # fmt: skip
    site.work(grace_s=30.0)
    assert site.file("tidied").exists()


def test_a_failed_task_is_filed_with_its_exit_code_and_its_leftovers(site: Site) -> None:
    site.enqueue("parent", "sleep 100 & exit 5")
    site.work()
    line = site.last("parent")
    assert (line.outcome, line.exit_code) == ("failed", 5)
    assert "left behind" in line.reason


def test_processes_that_keep_forking_are_stopped_too(site: Site) -> None:
    # Each child forks the next one before it ends, in a new session, and ignores TERM.
    code = (
        "trap '' TERM HUP; hop() { setsid bash -c \"$(declare -f hop); trap '' TERM HUP; "
        'sleep 0.02; hop" & }; hop; sleep 0.2'
    )
    site.enqueue("hopper", code)
    site.work(grace_s=0.3)
    assert site.state("hopper") == "done"
    assert processes_with("FLEET_TASK", "hopper") == []


def test_the_exit_of_a_grandchild_is_not_taken_for_that_of_the_task(site: Site) -> None:
    site.enqueue("steady", "(exit 7) & (setsid bash -c 'sleep 0.1; exit 9' &) ; sleep 0.5; exit 0")
    site.work()
    assert (site.last("steady").outcome, site.last("steady").reason) == ("completed", "")


def test_cpu_seconds_include_those_of_every_child(site: Site) -> None:
    burn = "bash -c 'for ((i = 0; i < 100000; i++)); do :; done'"
    site.enqueue("light", "true")
    site.enqueue("heavy", f"{burn}; {burn} & wait")
    site.work()
    light, heavy = site.last("light").cpu_s, site.last("heavy").cpu_s
    assert light is not None
    assert heavy is not None
    assert heavy > 5 * light


def test_a_task_in_the_stopped_state_is_stopped_by_its_timeout(site: Site) -> None:
    site.enqueue("frozen", "kill -STOP $$; touch thawed", timeout_s=1)
    site.work(grace_s=0.3, idle_s=1.0)
    line = site.last("frozen")
    assert line.outcome == "timeout"
    assert line.signal == signal.SIGKILL
    assert not site.file("thawed").exists()


def test_a_worker_told_to_stop_while_it_stops_leftovers_obeys_afterwards(site: Site) -> None:
    site.enqueue("a-escapes", escape_to("escaped"))
    site.enqueue("b-next", "touch ran")
    worker = site.start(grace_s=2.0, idle_s=30.0)
    pid = int(site.await_lines("escaped")[0])
    claims = site.spool.tree.claims()
    assert [name for name, _ in claims] == ["a-escapes"]
    owner = str(claims[0][1])
    wait_until(lambda: processes_with("FLEET_OWNER", owner) == [pid], "the task has ended")
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait() == 143
    assert not lives(pid)
    assert site.outcomes("a-escapes") == ["completed"]
    assert site.state("b-next") == "pending"
    assert not site.file("ran").exists()


def test_what_the_worker_had_as_children_before_is_not_taken_for_a_tasks(site: Site) -> None:
    # As in a batch script that starts something beside the worker, and then execs the worker.
    script = 'sleep 600 & echo $! > "$0"; exec "$@"'
    helper = site.base / "helper"
    site.enqueue("task", "sleep 600 & true")
    site.work(wrap=["bash", "-c", script, str(helper)])
    assert "1 process that it left behind was stopped" in site.last("task").reason
    pid = int(helper.read_text())
    assert lives(pid)
    os.kill(pid, signal.SIGKILL)
