"""How attempts end: by themselves, by a signal, too late, without their outputs, out of memory."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

from tests.worker.harness import Site, wait_until


def test_a_task_that_succeeds_is_done_with_what_was_measured(site: Site) -> None:
    site.enqueue("good", "echo hello; echo trouble >&2")
    report = site.work()
    assert report["outcomes"] == {"completed": 1}
    line = site.last("good")
    assert (line.outcome, line.to, line.attempt, line.exit_code) == ("completed", "done", 1, 0)
    assert line.signal is None
    assert line.wall_s is not None
    assert line.wall_s > 0
    assert line.cpu_s is not None
    assert line.max_rss_bytes is not None
    assert line.max_rss_bytes > 100_000
    assert line.host
    assert line.job.startswith("L")
    assert line.log == "logs/good.1.log"
    assert site.log("good") == "hello\ntrouble\n"
    assert site.faults() == []


def test_the_exit_code_of_a_failed_task_is_kept(site: Site) -> None:
    site.enqueue("bad", "exit 3")
    site.work()
    assert site.state("bad") == "failed"
    assert (site.last("bad").outcome, site.last("bad").exit_code) == ("failed", 3)


def test_each_failure_spends_one_retry_and_has_a_log_of_its_own(site: Site) -> None:
    site.enqueue("flaky", "echo attempt $FLEET_ATTEMPT; [ $FLEET_ATTEMPT = 3 ]", retries=2)
    site.enqueue("hopeless", "echo attempt $FLEET_ATTEMPT; exit 1", retries=2)
    site.work()
    assert site.outcomes("flaky") == ["failed", "failed", "completed"]
    assert [line.to for line in site.history("flaky")] == ["pending", "pending", "done"]
    assert site.outcomes("hopeless") == ["failed", "failed", "failed"]
    assert site.state("hopeless") == "failed"
    assert [site.log("flaky", n) for n in (1, 2, 3)] == [f"attempt {n}\n" for n in (1, 2, 3)]


def test_a_retry_by_hand_grants_one_more_attempt_only(site: Site) -> None:
    site.enqueue("bad", "exit 1", retries=1)
    site.work()
    site.spool.retry("bad")
    site.work()
    assert site.outcomes("bad") == ["failed"] * 3
    assert [line.attempt for line in site.history("bad")] == [1, 2, 3]
    assert site.faults() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_task_that_dies_by_a_signal_has_failed_by_that_signal(site: Site, number: int) -> None:
    site.enqueue("dies", f"kill -{int(number)} $$; sleep 60")
    site.work()
    line = site.last("dies")
    assert (line.outcome, line.exit_code, line.signal) == ("failed", None, number)
    assert signal.Signals(number).name in line.reason


def test_a_task_killed_from_outside_has_failed_by_signal_nine(site: Site) -> None:
    site.enqueue("victim", "echo $$ > pid; exec sleep 60")
    worker = site.start()
    os.kill(int(site.await_lines("pid")[0]), signal.SIGKILL)
    worker.wait()
    assert (site.last("victim").outcome, site.last("victim").signal) == ("failed", 9)
    assert site.faults() == []


def test_a_task_that_closes_its_output_and_goes_on_is_waited_for(site: Site) -> None:
    site.enqueue("quiet", "echo last words; exec >&- 2>&-; sleep 0.5; touch finished")
    site.work()
    assert site.state("quiet") == "done"
    assert site.file("finished").exists()
    assert site.log("quiet") == "last words\n"


def test_two_hundred_megabytes_of_output_go_to_the_log_not_through_the_worker(site: Site) -> None:
    size = 200 * 1024 * 1024
    site.enqueue("talker", f"head -c {size} /dev/zero")
    site.work()
    assert site.state("talker") == "done"
    log = Path(site.spool.tree.paths.log("talker", 1))
    assert log.stat().st_size == size
    log.unlink()


# -- timeouts


def test_a_task_is_stopped_after_its_timeout_and_spends_a_retry(site: Site) -> None:
    site.enqueue("slow", "echo begun >> begun; exec sleep 60", timeout_s=1, retries=1)
    site.work(idle_s=1.0)
    assert site.outcomes("slow") == ["timeout", "timeout"]
    assert site.state("slow") == "failed"
    assert len(site.lines("begun")) == 2
    assert site.last("slow").signal == signal.SIGTERM
    assert "timeout of 1 s" in site.last("slow").reason
    assert "left behind" not in site.last("slow").reason


def test_a_task_may_tidy_up_within_the_grace_of_its_timeout(site: Site) -> None:
    site.enqueue("tidy", "trap 'touch tidied; exit 9' TERM; sleep 60 & wait", timeout_s=1)
    site.work(idle_s=1.0, grace_s=30.0)
    assert site.file("tidied").exists()
    assert (site.last("tidy").outcome, site.last("tidy").exit_code) == ("timeout", 9)


def test_a_task_that_ignores_term_is_killed_after_the_grace(site: Site) -> None:
    # Ignored from the shell's first word on: another Python may take longer to start than a second.
    site.enqueue("stubborn", "trap '' TERM; exec sleep 60", timeout_s=1)
    site.work(idle_s=1.0, grace_s=0.5)
    assert (site.last("stubborn").outcome, site.last("stubborn").signal) == ("timeout", 9)


def test_every_process_of_a_stopped_task_is_gone(site: Site) -> None:
    site.enqueue("tree", "(sleep 61 & echo $! >> pids; wait) & sleep 62 & echo $! >> pids; wait",
                 timeout_s=1)  # fmt: skip
    site.work(idle_s=1.0)
    pids = [int(line) for line in site.lines("pids")]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_task_that_ends_well_although_it_was_being_stopped_is_done(site: Site) -> None:
    site.enqueue("punctual", "trap 'exit 0' TERM; sleep 60 & wait", timeout_s=1)
    site.work(idle_s=1.0, grace_s=30.0)
    assert site.outcomes("punctual") == ["completed"]


# -- declared outputs


def test_outputs_are_recorded_with_size_and_hash(site: Site) -> None:
    site.enqueue("maker", "mkdir d; printf hello > 'd/a b.txt'; printf x > c",
                 outputs=("d/a b.txt", "c", "d"))  # fmt: skip
    site.work()
    assert site.state("maker") == "done"
    first, second, folder = site.last("maker").outputs
    assert (first.path, first.size_bytes) == ("d/a b.txt", 5)
    assert first.sha256 == hashlib.sha256(b"hello").hexdigest()
    assert second.size_bytes == 1
    assert (folder.path, folder.sha256) == ("d", None)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("true", "is missing"),
        (": > out", "is empty"),
        ("rm -f out; mkdir -p out", "is empty"),
        ("touch -d '1 hour ago' out; echo x >> /dev/null; true", "is empty"),
        ("echo old > out; touch -d '1 hour ago' out", "is older than"),
    ],
)
def test_a_done_marker_without_its_output_is_incomplete(
    site: Site, command: str, problem: str
) -> None:
    site.enqueue("liar", command, outputs=("out",), retries=1)
    site.work()
    assert site.outcomes("liar") == ["incomplete", "incomplete"]
    assert site.state("liar") == "failed"
    assert problem in site.last("liar").reason
    assert problem in site.last("liar").outputs[0].problem
    assert site.last("liar").exit_code == 0


def test_an_output_of_an_earlier_attempt_does_not_count_for_this_one(site: Site) -> None:
    site.file("out").write_text("from before")
    time.sleep(0.05)  # more than a tick of the file system's clock
    site.enqueue("lazy", "true", outputs=("out",))
    site.work()
    assert site.outcomes("lazy") == ["incomplete"]
    assert "older than the attempt's start" in site.last("lazy").reason


# -- try again later


def test_exit_75_is_tried_again_after_a_pause_and_spends_no_retry(site: Site) -> None:
    site.enqueue("patient", "[ $FLEET_ATTEMPT -ge 2 ] || exit 75")
    report = site.drain()
    assert site.outcomes("patient") == ["interrupted", "completed"]
    assert site.history("patient")[0].to == "pending"
    first, second = site.history("patient")
    assert first.ended_at is not None
    assert second.started_at is not None
    assert second.started_at > first.ended_at
    assert (report["done"], report["failed"], report["interrupted"]) == (1, 0, 1)
    assert report["exit_code"] == 0


def test_a_fleet_of_two_ends_although_one_of_them_passed_a_task_over(site: Site) -> None:
    # The one that passed it over never meets it again: the other one has run it meanwhile.
    site.enqueue("patient", "[ $FLEET_ATTEMPT -ge 2 ] || exit 75")
    report = site.drain(workers=2)
    assert (report["done"], report["exit_code"], report["stopped"]) == (1, 0, [])


def test_other_tasks_go_on_while_one_waits_to_be_tried_again(site: Site) -> None:
    site.enqueue("a-later", "echo $FLEET_TASK >> order; [ $FLEET_ATTEMPT -ge 2 ] || exit 75")
    site.enqueue("b-now", "echo $FLEET_TASK >> order")
    site.drain()
    assert site.lines("order") == ["a-later", "b-now", "a-later"]


# -- cancelled


def test_a_running_task_is_cancelled_at_the_next_heartbeat(site: Site) -> None:
    site.enqueue("running", "touch begun; exec sleep 60", retries=5)
    worker = site.start(heartbeat_s=0.3)
    wait_until(site.file("begun").exists, "it runs")
    assert site.spool.cancel("running").requested
    worker.wait()
    assert site.outcomes("running") == ["cancelled"]
    assert site.state("running") == "failed"


def test_a_cancelled_task_that_exits_with_0_is_cancelled_all_the_same(site: Site) -> None:
    site.enqueue("running", "trap 'exit 0' TERM; touch begun; sleep 60 & wait")
    worker = site.start(heartbeat_s=0.3)
    wait_until(site.file("begun").exists, "it runs")
    site.spool.cancel("running")
    worker.wait()
    assert site.outcomes("running") == ["cancelled"]


def test_a_task_that_fails_after_its_cancel_was_asked_for_is_not_tried_again(site: Site) -> None:
    site.enqueue("running", "touch begun; until [ -e go ]; do sleep 0.05; done; exit 1", retries=5)
    worker = site.start(heartbeat_s=60.0)
    wait_until(site.file("begun").exists, "it runs")
    site.spool.cancel("running")
    site.file("go").touch()
    worker.wait()
    assert site.outcomes("running") == ["failed"]
    assert "cancelled instead of tried again" in site.last("running").reason
    assert site.state("running") == "failed"


def test_a_task_that_is_claimed_with_a_cancel_request_is_never_started(site: Site) -> None:
    site.enqueue("early", "touch ran")
    Path(site.spool.tree.paths.cancel_marker("early")).touch()
    site.work()
    assert site.outcomes("early") == ["cancelled"]
    assert site.last("early").attempt == 0
    assert not site.file("ran").exists()
    site.spool.retry("early")
    site.work()
    assert site.state("early") == "done"


# -- out of memory

DEVICE_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.74 GiB. GPU 5 has a total "
    "capacity of 94.97 GiB of which 4.57 GiB is free. Of the allocated memory 90.29 GiB is "
    "allocated by PyTorch. Consider PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)


def test_a_cuda_out_of_memory_in_the_log_is_told_apart_and_spends_a_retry(site: Site) -> None:
    site.enqueue("big", f"echo '{DEVICE_OOM}'; echo bye; exit 1", retries=1)
    site.work()
    assert site.outcomes("big") == ["out_of_memory"] * 2
    assert "device" in site.last("big").reason


def test_a_task_that_survives_its_out_of_memory_is_done(site: Site) -> None:
    site.enqueue("recovers", f"echo '{DEVICE_OOM}'; exit 0")
    site.work()
    assert site.outcomes("recovers") == ["completed"]
