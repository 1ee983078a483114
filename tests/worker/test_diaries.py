"""What a worker leaves written: its lease, its journal, and the events that it tells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.identity import Owner, process_id
from fleetcraft.spool import leases
from fleetcraft.worker.chores import Chores
from fleetcraft.worker.depth import DepthNotes
from fleetcraft.worker.diary import Diary
from fleetcraft.worker.limits import Walltime
from fleetcraft.worker.settings import WorkerSettings
from tests.worker.harness import Site, wait_until


def test_the_lease_says_who_and_where_and_its_counter_grows(site: Site) -> None:
    worker = site.start(
        idle_s=60.0,
        heartbeat_s=0.2,
        slots="2",
        rank=3,
        ranks=4,
        run={"job": "8812", "step": "0", "cluster": "big", "start_s": 1790000000, "restarts": 1},
    )
    lease = wait_until(lambda: leases.read_all(site.spool.tree), "it has arrived")[0]
    me = process_id(worker.pid)
    assert me is not None
    assert (lease.job, lease.rank, lease.step) == ("8812", "3", "0")
    assert (lease.cluster, lease.job_start_s, lease.restarts) == ("big", 1790000000, 1)
    assert (lease.pid, lease.start_ticks) == (me.pid, me.start_ticks)
    assert lease.host == os.uname().nodename
    assert (lease.slots, lease.interval_s, lease.role) == (2, 0.2, "worker")
    assert lease.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert lease.name == f"8812.3.{lease.launch}"
    assert lease.left_at is None
    wait_until(lambda: leases.read_all(site.spool.tree)[0].counter > lease.counter + 1, "it beats")
    site.spool.drain("enough")
    worker.wait()
    last = leases.read_all(site.spool.tree)[0]
    assert last.left_at is not None
    assert "enough" in last.reason
    assert oct(Path(site.spool.tree.paths.lease(last.name)).stat().st_mode)[-3:] == "600"


def test_the_journal_has_arrival_starts_ends_and_leave(site: Site) -> None:
    site.enqueue("a-good", "echo x")
    site.enqueue("b-bad", "exit 3", retries=1)
    worker = site.start()
    worker.wait()
    journal = site.journals()
    kinds = [event["event"] for event in journal if event["event"] != "depth"]
    assert kinds == ["arrive", *["start", "end"] * 3, "note", "leave"]
    start, end = (event for event in journal if event.get("task") == "a-good")
    assert (start["task"], start["attempt"], start["slot"]) == ("a-good", 1, 0)
    assert start["claim"] == end["claim"] == site.last("a-good").claim
    assert (end["outcome"], end["to"], end["exit_code"]) == ("completed", "done", 0)
    assert Path(end["log"]).read_text() == "x\n"
    assert [event["to"] for event in journal if event["event"] == "end"] == [
        "done", "pending", "failed",
    ]  # fmt: skip
    assert all(event.get("at") for event in journal)
    told = [event for event in worker.events() if event["event"] in ("start", "end", "note")]
    assert told == [event for event in journal if event["event"] in ("start", "end", "note")]


def test_two_launches_have_two_journals_and_tokens_that_never_repeat(site: Site) -> None:
    for round_number in range(2):
        site.enqueue_all({f"t{round_number}{n}": "true" for n in range(3)})
        site.work()
    names = [lease.name for lease in leases.read_all(site.spool.tree)]
    assert len(set(names)) == 2
    claims = [event["claim"] for event in site.journals() if event["event"] == "end"]
    assert len(set(claims)) == 6


def test_a_journal_that_cannot_be_written_does_not_stop_the_work(site: Site) -> None:
    # /dev/full: every write fails as on a full disk.
    site.enqueue("task", "touch begun; until [ -e go ]; do sleep 0.02; done")
    worker = site.start()
    wait_until(site.file("begun").exists, "it runs")
    lease = leases.read_all(site.spool.tree)[0]
    journal = site.spool.tree.paths.journal(lease.name)
    for fd in Path(f"/proc/{worker.pid}/fd").iterdir():
        if os.readlink(fd) == journal:
            break
    else:
        pytest.fail("the worker has no journal open")
    Path(journal).unlink()
    site.file("go").touch()
    assert worker.wait() == 0
    assert site.state("task") == "done"


def test_a_listener_that_goes_away_does_not_stop_the_work(site: Site) -> None:
    site.enqueue_all({f"t{n}": "true" for n in range(3)})
    worker = site.start(wrap=["bash", "-c", '"$@" | true', "bash"])
    worker.wait()
    assert site.counts()["done"] == 3


def test_a_fleet_whose_listener_goes_away_puts_its_tasks_back_before_it_ends(site: Site) -> None:
    # Nobody reads what the fleet says: its end by that is an orderly one.
    site.enqueue_all({f"t{n}": "touch begun-$FLEET_TASK; exec sleep 60" for n in range(2)})
    fleet = site.start(workers=2, wrap=["bash", "-c", '"$@" | true', "bash"])
    fleet.wait()
    assert site.counts()["pending"] == 2
    assert site.faults() == []


def test_a_spool_that_is_not_there_is_refused_in_a_sentence(site: Site) -> None:
    worker = site.start(spool_dir=str(site.base / "nowhere"))
    assert worker.wait() == 5
    assert "no spool at" in worker.events("refused")[0]["text"]
    fleet = site.start(spool_dir=str(site.base / "nowhere"), workers=2)
    assert fleet.wait() == 5
    assert worker.errors() == fleet.errors() == ""


def test_a_spool_that_goes_away_for_a_while_is_ridden_out(site: Site) -> None:
    pending = Path(site.spool.tree.paths.pending)
    hidden = pending.with_name("hidden")
    worker = site.start(idle_s=60.0)
    site.enqueue("before", "true")
    site.await_state("before", "done")
    pending.rename(hidden)
    wait_until(lambda: worker.events("note"), "it has noticed")
    assert "cannot be used now" in worker.events("note")[0]["text"]
    hidden.rename(pending)
    site.enqueue("after", "true")
    site.await_state("after", "done")
    site.spool.drain()
    assert worker.wait() == 0


def test_a_spool_that_stays_away_is_not_taken_for_an_empty_one(site: Site) -> None:
    pending = Path(site.spool.tree.paths.pending)
    worker = site.start(idle_s=1.5)
    wait_until(lambda: site.spool.status().workers, "it has arrived")
    pending.rename(pending.with_name("hidden"))
    assert worker.wait() == 9
    assert "could not be used" in worker.report()["reason"]


def test_an_own_claim_that_no_slot_runs_is_put_back_by_the_worker_itself(site: Site) -> None:
    # As after a rename that was reported as failed although it happened.
    tree = site.spool.tree
    lease = leases.new_lease(rank="0", interval_s=30.0)
    leases.publish(tree, lease)
    for number, name in enumerate(("held", "stray")):
        site.enqueue(name, "true")
        owner = Owner(lease.job, lease.rank, "0", f"{lease.launch}-{number}")
        Path(site.spool.show(name).path).rename(tree.paths.claim(name, owner))
    quiet = DepthNotes(
        tree,
        Diary(tree, lease.name, lambda event: None),
        WorkerSettings(spool_dir=tree.paths.root, root=str(site.root)),
        in_pack=False,
    )
    chores = Chores(
        tree,
        depth=quiet,
        lease=lease,
        held=lambda: {f"{lease.launch}-0"},
        markers_every_s=1.0,
        walltime=Walltime(None, None),
        note=lambda text: None,
    )

    def is_put_back() -> bool:
        chores.tend_the_spool()
        return site.state("stray") == "pending"

    wait_until(is_put_back, "its first pass over running/")
    assert (site.outcomes("stray"), site.last("stray").attempt) == (["lost"], 0)
    assert site.state("held") == "running"
    assert site.history("held") == ()
