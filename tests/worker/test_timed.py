"""Timed tasks run alone on their node, whichever worker and slot has them; the others share it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.worker.harness import DRIVER, Site, command_line, lives, wait_until

# Notes when it ran, by the clock that all processes share.
SPAN = """
from=$(cat /proc/uptime); sleep {seconds}; echo "$FLEET_TASK $from $(cat /proc/uptime)" >> spans
"""


def spans(site: Site) -> dict[str, tuple[float, float]]:
    found = {}
    for line in site.lines("spans"):
        name, begin, _, end, _ = line.split()
        found[name] = (float(begin), float(end))
    return found


def overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    # A hundredth is what /proc/uptime counts in.
    return one[0] < other[1] - 0.011 and other[0] < one[1] - 0.011


def overlapping(site: Site) -> list[tuple[str, str]]:
    pairs = itertools.combinations(sorted(spans(site).items()), 2)
    return [(a, b) for (a, span_a), (b, span_b) in pairs if overlap(span_a, span_b)]


@pytest.mark.parametrize(("workers", "slots"), [(2, "1"), (1, "3"), (2, "2")])
def test_a_timed_task_overlaps_nothing_while_untimed_ones_share(
    site: Site, workers: int, slots: str
) -> None:
    # Named so that timed and untimed ones meet in the middle of the queue.
    for n in range(12):
        site.enqueue(f"t{n:02d}", SPAN.format(seconds=0.25), timed=n % 4 == 2)
    report = site.drain(workers=workers, slots=slots)
    assert report["done"] == 12
    assert len(spans(site)) == 12
    timed = {"t02", "t06", "t10"}
    pairs = overlapping(site)
    assert [pair for pair in pairs if timed & set(pair)] == []
    assert [pair for pair in pairs if not timed & set(pair)] != []


def test_a_timed_task_gets_its_turn_although_another_slot_frees_up_first(site: Site) -> None:
    # The slot that asked for the turnstile is not the first one to become free.
    site.enqueue("a-long", "touch a; until [ -e go ]; do sleep 0.02; done")
    site.enqueue("b-short", "touch b; sleep 0.2")
    site.enqueue("c-timed", SPAN.format(seconds=0.1), timed=True)
    site.enqueue("d-plain", SPAN.format(seconds=0.1))
    worker = site.start(slots="2")
    site.await_state("b-short", "done")
    # By now the second slot waits for the first one, alone; nothing else gets in.
    assert site.state("a-long") == "running"
    assert site.state("d-plain") == "pending"
    site.file("go").touch()
    worker.wait()
    assert site.counts()["done"] == 4
    assert overlapping(site) == []


def test_a_waiting_timed_task_that_is_cancelled_lets_the_others_in_again(site: Site) -> None:
    site.enqueue("a-long", "touch a; until [ -e go ]; do sleep 0.02; done")
    site.enqueue("b-short", "sleep 0.1")
    site.enqueue("c-timed", "true", timed=True)
    site.enqueue("d-plain", "touch d")
    worker = site.start(slots="2")
    site.await_state("b-short", "done")
    site.spool.cancel("c-timed")
    wait_until(site.file("d").exists, "the untimed one got in beside the long one")
    site.file("go").touch()
    worker.wait()
    assert site.counts()["done"] == 3


def test_a_timed_task_does_not_starve_under_a_stream_of_untimed_ones(site: Site) -> None:
    numbers = itertools.count()
    site.enqueue("n-timed", "touch timed", timed=True)

    def keep_it_flowing() -> bool:
        # Names before and after it; while it waits there is always something else to claim.
        if site.counts()["pending"] < 12:
            stream = (f"{'mo'[n % 2]}{n:05d}" for n in itertools.islice(numbers, 12))
            site.enqueue_all({name: "sleep 0.1" for name in stream})
        return site.file("timed").exists()

    keep_it_flowing()
    fleet = site.start(workers=2, slots="2")
    wait_until(keep_it_flowing, "the timed one has its turn")
    assert fleet.report()["failed"] == 0


def test_the_gate_stays_shut_while_the_timed_task_of_a_killed_worker_lives(site: Site) -> None:
    # Recovered, it may run once more, and must then not keep the other one out.
    held = "[ $FLEET_ATTEMPT = 1 ] || exit 0; echo $$ > pid; exec sleep 60"
    site.enqueue("a-timed", held, timed=True)
    first = site.start()
    pid = int(site.await_lines("pid")[0])
    first.kill()
    site.enqueue("b-plain", "touch ran")
    second = site.start(idle_s=60.0)
    until = time.monotonic() + 1.0
    while lives(pid) and time.monotonic() < until:
        # It opens when the task's files are closed, which is a moment before it is a zombie.
        assert not (site.file("ran").exists() and command_line(pid)), "something got in"
        time.sleep(0.01)
    # The second worker's first recovery pass may have stopped it within that second.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(site.file("ran").exists, "the gate is open again")
    second.signal(signal.SIGTERM)
    second.wait()


def test_a_killed_waiter_at_the_turnstile_does_not_keep_others_out(site: Site) -> None:
    site.enqueue("a-long", "touch a; until [ -e go ]; do sleep 0.02; done")
    holder = site.start()
    wait_until(site.file("a").exists, "it runs")
    site.enqueue("b-timed", "true", timed=True)
    waiter = site.start(idle_s=60.0)
    site.enqueue("c-plain", "touch c", lane="last")
    with pytest.raises(AssertionError, match="in vain"):
        wait_until(site.file("c").exists, "the timed one is first", limit_s=1.0)
    waiter.kill()
    site.spool.cancel("b-timed")
    other = site.start()
    wait_until(site.file("c").exists, "the other one got in")
    site.file("go").touch()
    holder.wait()
    other.wait()


def test_a_worker_inside_a_task_leaves_timed_tasks_to_whole_nodes(site: Site) -> None:
    site.enqueue("a-timed", "touch timed", timed=True)
    site.enqueue("b-plain", "touch plain")
    site.work(env={"FLEET_OWNER": "L0.0.0.outer-1", "FLEET_ROOT": str(site.root)})
    assert site.file("plain").exists()
    assert not site.file("timed").exists()
    assert site.state("a-timed") == "pending"


def test_two_roots_on_one_node_have_two_gates(site: Site, tmp_path: Path) -> None:
    other_base = tmp_path / "other"
    other_base.mkdir()
    other = Site(other_base)
    try:
        site.enqueue("timed", "touch begun; until [ -e go ]; do sleep 0.02; done", timed=True)
        worker = site.start()
        wait_until(site.file("begun").exists, "it runs")
        other.enqueue("plain", "true")
        assert other.work()["outcomes"] == {"completed": 1}
        site.file("go").touch()
        worker.wait()
    finally:
        assert other.close() == []


def test_a_pack_passes_the_gate_that_its_outer_task_holds_alone(site: Site) -> None:
    # The outer task is timed: it has the node, and what it starts must not wait for it.
    inner_base = site.base / "inner"
    inner_base.mkdir()
    inner = Site(inner_base)
    settings = json.dumps(
        {"workers": 0, "settings": {**inner.settings(slots="2"), "root": str(site.root)}}
    )
    inner.enqueue_all({f"t{n}": "echo $FLEET_OUTER_OWNER >> outers" for n in range(3)})
    pack = f"exec {shlex.quote(sys.executable)} {shlex.quote(str(DRIVER))} {shlex.quote(settings)}"
    site.enqueue("pack", pack, timed=True)
    site.work(idle_s=1.0)
    assert site.outcomes("pack") == ["completed"], site.log("pack")
    assert inner.counts()["done"] == 3
    assert set(inner.lines("outers")) == {site.last("pack").owner}
