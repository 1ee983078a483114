"""Tasks that wait for others flow to the end of a run without another hand."""

from __future__ import annotations

import pytest

from tests.worker.harness import Site

SAY = "echo $FLEET_TASK >> order"


@pytest.mark.parametrize("workers", [1, 3])
def test_a_chain_runs_to_its_end_in_order(site: Site, workers: int) -> None:
    # Enqueued against the order of their names.
    names = [f"t{9 - n}" for n in range(10)]
    specs = [
        site.spool.spec(name, SAY, after=(names[n - 1],) if n else ())
        for n, name in enumerate(names)
    ]
    site.spool.enqueue_many(specs)
    report = site.drain(workers=workers)
    assert (report["done"], report["exit_code"]) == (10, 0)
    assert site.lines("order") == names


@pytest.mark.parametrize(("workers", "slots"), [(1, "1"), (2, "1"), (2, "2")])
def test_what_waits_for_a_whole_glob_runs_after_the_last_of_it(
    site: Site, workers: int, slots: str
) -> None:
    # Ends in an order that no single worker sees: which one frees the summary is open.
    make = [site.spool.spec(f"gen-{n:02d}", f"sleep 0.0{n % 5}; {SAY}") for n in range(16)]
    score = [site.spool.spec(f"score-{n:02d}", SAY, after=(f"gen-{n:02d}",)) for n in range(16)]
    site.spool.enqueue_many(
        [*make, *score, site.spool.spec("summary", SAY, after=("score-*", "gen-*"))]
    )
    report = site.drain(workers=workers, slots=slots)
    assert (report["done"], report["left"]) == (33, {"waiting": 0, "pending": 0, "running": 0})
    order = site.lines("order")
    assert order[-1] == "summary"
    assert all(order.index(f"gen-{n:02d}") < order.index(f"score-{n:02d}") for n in range(16))


def test_a_file_that_the_last_task_makes_frees_what_waits_for_it(site: Site) -> None:
    site.enqueue("maker", "touch ready.marker")
    site.enqueue("user", SAY, after_files=("ready.marker",))
    assert site.drain(workers=2)["done"] == 2


def test_dependents_that_a_task_enqueues_itself_are_part_of_the_run(site: Site) -> None:
    from tests.worker.harness import python

    enqueue = python(
        "import os; from fleetcraft import Spool; "
        "Spool(os.environ['FLEET_SPOOL']).enqueue('child', 'touch child', after=('parent',))"
    )
    site.enqueue("parent", enqueue)
    report = site.drain(workers=2)
    assert report["done"] == 2, site.log("parent")
    assert site.file("child").exists()


def test_dependents_of_a_failed_task_stay_waiting_and_the_run_ends(site: Site) -> None:
    site.enqueue("bad", "exit 1", retries=1)
    site.enqueue("child", "touch child", after=("bad",))
    site.enqueue("grandchild", "touch child", after=("child",))
    site.enqueue("free", "true")
    report = site.drain(workers=2)
    assert (report["done"], report["failed"], report["retried"]) == (1, 1, 1)
    assert report["exit_code"] == 1
    assert report["left"] == {"waiting": 2, "pending": 0, "running": 0}
    assert not site.file("child").exists()
    assert {blocked.task: blocked.blocker for blocked in site.spool.status().blocked} == {
        "child": "bad",
        "grandchild": "child",
    }
    # A retry by hand lets the rest flow.
    site.spool.retry("bad")
    site.spool.cancel("grandchild")
    assert site.drain()["failed"] == 1
    assert site.state("child") == "waiting"


def test_a_retry_that_succeeds_frees_its_dependents(site: Site) -> None:
    site.enqueue("flaky", "[ $FLEET_ATTEMPT = 3 ]", retries=2)
    site.enqueue("child", SAY, after=("flaky",))
    assert site.drain(workers=2)["done"] == 2


def test_an_empty_spool_is_a_run_of_nothing(site: Site) -> None:
    report = site.drain(workers=2)
    assert (report["done"], report["failed"], report["exit_code"]) == (0, 0, 0)
    assert report["stopped"] == []


def test_of_many_workers_none_leaves_what_their_last_tasks_free(site: Site) -> None:
    # Above sixteen each looks after a share of what waits, and knows only what it met itself.
    site.enqueue("a", "sleep 0.6")
    site.enqueue("b", "sleep 1.2")
    site.enqueue("c", SAY, after=("a", "b"))
    report = site.drain(workers=17)
    assert (report["done"], report["left"]["waiting"]) == (3, 0)
