"""Many workers over many short tasks: each runs exactly once, and no worker grows."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import psutil

from tests.worker.harness import Running, Site, wait_until


def test_eight_workers_run_each_of_two_thousand_tasks_exactly_once(site: Site) -> None:
    # A short append is one write, so no line is torn or lost.
    site.enqueue_all({f"t{n:04d}": "echo $FLEET_TASK >> ran" for n in range(2000)})
    report = site.start(workers=8).report(110)
    ran = Counter(site.lines("ran"))
    assert len(ran) == 2000
    assert [name for name, times in ran.items() if times != 1] == []
    assert (report["done"], report["failed"], report["exit_code"]) == (2000, 0, 0)
    assert site.counts() == {"waiting": 0, "pending": 0, "running": 0, "done": 2000, "failed": 0}
    checked = site.spool.check()
    assert (checked.faults, checked.notices) == ([], [])


def test_workers_that_are_killed_all_the_time_lose_and_repeat_nothing_that_ended(
    site: Site,
) -> None:
    site.enqueue_all({f"t{n:03d}": "echo $FLEET_TASK >> ran" for n in range(300)})
    fleet = site.start(workers=4, slots="2")
    for count in (20, 80, 140, 200):
        wait_until(lambda count=count: len(site.lines("ran")) >= count, f"{count} ran")
        members = fleet.members()
        if members:
            os.kill(members[0], 9)
    report = fleet.report(110)
    assert site.counts()["done"] == 300, fleet.said()[-3000:]
    ran = Counter(site.lines("ran"))
    assert len(ran) == 300
    for name, times in ran.items():
        outcomes = site.outcomes(name)
        assert outcomes.count("completed") == 1
        assert times <= len(outcomes)
    assert report["done"] == 300
    assert site.faults() == []


def ended(worker: Running) -> int:
    return worker.said().count('"event": "end"')


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_worker_neither_grows_nor_leaks_files_over_thousands_of_tasks(site: Site) -> None:
    site.enqueue_all({f"t{n:04d}": ":" for n in range(2400)})
    site.enqueue_all({f"x{n:02d}": "sleep 100 & :" for n in range(5)}, lane="first")
    worker = site.start(idle_s=60.0)
    process = psutil.Process(worker.pid)
    wait_until(lambda: ended(worker) > 600, "it is warm")
    warm_bytes, warm_files = process.memory_info().rss, open_files(worker.pid)
    wait_until(lambda: ended(worker) == 2405, "it is through", limit_s=90)
    assert process.memory_info().rss < 1.15 * warm_bytes
    # A log or a record may be open at the moment of a look.
    assert open_files(worker.pid) <= warm_files + 3
    worker.signal(15)
    worker.wait()


def test_keepers_leak_no_files_either(site: Site) -> None:
    site.enqueue_all({f"t{n:03d}": ":" for n in range(300)})
    worker = site.start(idle_s=60.0, slots="2")
    wait_until(lambda: site.counts()["done"] > 50, "it is warm")
    before = [open_files(pid) for pid in worker.keepers()]
    wait_until(lambda: site.counts()["done"] == 300, "it is through")
    after = [open_files(pid) for pid in worker.keepers()]
    assert max(after) <= max(before) + 2
    worker.signal(15)
    worker.wait()
