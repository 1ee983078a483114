"""Which task is next: lanes, names, and what another worker should rather do."""

from __future__ import annotations

import time
from pathlib import Path

from fleetcraft.identity import JobRun
from fleetcraft.spool import leases
from fleetcraft.spool.leases import Lease
from tests.worker.harness import Site, wait_until

SAY = "echo $FLEET_TASK >> order"


def test_lanes_come_in_order_and_names_within_them(site: Site) -> None:
    site.enqueue_all({name: SAY for name in ("c", "a", "b")}, lane="last")
    site.enqueue_all({name: SAY for name in ("f", "d", "e")})
    site.enqueue_all({name: SAY for name in ("i", "g", "h")}, lane="first")
    site.work()
    assert site.lines("order") == list("ghidefabc")


def test_a_first_task_enqueued_meanwhile_is_taken_soon(site: Site) -> None:
    site.enqueue_all({f"t{n:03d}": f"{SAY}; sleep 0.1" for n in range(100)})
    worker = site.start()
    site.await_lines("order", 3)
    site.enqueue("z-urgent", f"{SAY}; touch urgent", lane="first")
    wait_until(site.file("urgent").exists, "it had its turn")
    assert len(site.lines("order")) < 100
    site.spool.stop()
    worker.wait()


def test_a_requeued_task_returns_to_its_lane(site: Site) -> None:
    site.enqueue("a", f"{SAY}; [ $FLEET_ATTEMPT = 2 ]", retries=1, lane="last")
    site.enqueue("b", f"{SAY}; [ $FLEET_ATTEMPT = 2 ]", retries=1, lane="first")
    site.enqueue("c", SAY)
    site.work()
    assert site.lines("order")[0] == "b"
    assert site.lines("order")[-2:] == ["a", "a"]
    assert site.lines("order").index("c") < 3


def test_ranks_do_not_race_for_the_same_names(site: Site) -> None:
    site.enqueue_all({f"t{n}": "echo $FLEET_TASK $FLEET_OWNER >> owners" for n in range(6)})
    site.work(rank=1, ranks=2)
    order = [line.split()[0] for line in site.lines("owners")]
    assert order[:3] == ["t1", "t3", "t5"]  # its own stride first, then what is left
    assert sorted(order[3:]) == ["t0", "t2", "t4"]
    assert all(line.split()[1].split(".")[1] == "1" for line in site.lines("owners"))


# -- a task that failed on this host is left to others, while there are others


def another_host(site: Site, *, left: bool = False, role: str = "worker") -> Lease:
    lease = leases.new_lease(run=JobRun(job="L0"), rank="1", interval_s=60.0, role=role)
    lease.host = "another-host"
    lease.left_at = lease.started_at if left else None
    leases.publish(site.spool.tree, lease)
    return lease


def fail_once(site: Site) -> None:
    site.enqueue("a-flaky", f"{SAY}; [ $FLEET_ATTEMPT = 2 ]", retries=1)


def test_a_task_that_failed_here_is_left_to_another_host_that_lives(site: Site) -> None:
    another_host(site)
    fail_once(site)
    site.enqueue("b-other", SAY)
    site.work(idle_s=1.0)
    assert site.lines("order") == ["a-flaky", "b-other"]
    assert site.state("a-flaky") == "pending"
    # The other host takes it at once.
    site.work(env={"SLURMD_NODENAME": "elsewhere"})
    assert site.state("a-flaky") == "done"
    assert [line.host for line in site.history("a-flaky")][1] == "elsewhere"


def test_without_another_host_it_is_tried_again_here(site: Site) -> None:
    another_host(site, left=True)
    another_host(site, role="command")
    fail_once(site)
    site.work()
    assert site.state("a-flaky") == "done"


def test_a_host_that_fell_silent_does_not_count(site: Site) -> None:
    lease = another_host(site)
    path = Path(site.spool.tree.paths.lease(lease.name))
    past = time.time() - 4 * 60
    import os

    os.utime(path, (past, past))
    fail_once(site)
    site.work()
    assert site.state("a-flaky") == "done"


def test_an_interrupted_task_is_not_held_against_its_host(site: Site) -> None:
    another_host(site)
    site.enqueue("a-long", "touch begun; [ $FLEET_ATTEMPT = 2 ] || exec sleep 60")
    worker = site.start()
    wait_until(site.file("begun").exists, "it runs")
    worker.signal(15)
    worker.wait()
    site.work()
    assert site.outcomes("a-long") == ["interrupted", "completed"]
