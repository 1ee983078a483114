"""Advice on one more node: the seed's arithmetic, what suppresses it, and one task a pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.errors import UsageError
from fleetcraft.identity import Owner
from fleetcraft.rollouts.abort import AbortRequest
from fleetcraft.rollouts.queue import Counts
from fleetcraft.rollouts.records import Settings
from fleetcraft.rollouts.replenish import (
    Advice,
    Outstanding,
    Replenished,
    Workers,
    advise,
    enqueue_producer,
    find_outstanding,
    require_workers,
    task_name,
    workers_of,
)
from fleetcraft.rollouts.status import QueueStatus, Rates, Standing, Watcher
from fleetcraft.spool import claims, setup
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.tree import SpoolTree
from tests.rollouts.producing import OwnClock, QuickFS, lease_of, queue_in, unknown
from tests.rollouts.test_beats import beater_of

SEED = Rates(consumed_per_h=96, produced_per_worker_h=154 / 3)
ALIVE = Standing(alive=True, generation=1, who="process 1", why="its process lives")
THREE = Workers(fresh=("a", "b", "c"))


def status(waiting: int | None = 79, **given_: Any) -> QueueStatus:
    counts = Counts(
        pending=waiting or 0, reserved=0, claimed=0, quarantined=0, consumed=0, version=0
    )
    facts: dict[str, Any] = {
        "folder": "/q", "settings": Settings(run="wan"), "counts": counts, "waiting": waiting,
        "ready": waiting,
        "coming_back": 0, "half_published": 0, "lags": {}, "refused": {}, "abort": None,
        "trainer": ALIVE, "streams": (), "rates": Rates(), "watched_s": 0.0,
    }  # fmt: skip
    return QueueStatus(**{**facts, **given_})


def advice(waiting: int | None = 79, workers: Workers | None = None, **given_: Any) -> Advice:
    rates = given_.pop("rates", SEED)
    outstanding = given_.pop("outstanding", None)
    return advise(
        status(waiting, **given_), workers or Workers(), rates=rates, workers_per_node=3,
        outstanding=outstanding,
    )  # fmt: skip


# ------------------------------------------------------------------------------ arithmetic


def test_the_seeds_node_of_three_gains_58_an_hour_and_fills_80_to_160_in_83_minutes() -> None:
    said = advice(80, THREE)
    assert said.nodes == 0
    assert said.deficit == 80
    assert said.minutes_to_fill == pytest.approx(82.76, abs=0.01)


def test_a_second_node_would_overshoot_and_is_not_asked_for() -> None:
    said = advice(79, THREE)
    assert said.nodes == 0
    assert "3 at work gain 58 an hour and fill it in about 84 min" in said.why


def test_below_the_low_water_with_nobody_at_work_one_node_is_asked_for() -> None:
    said = advice(79)
    assert (said.nodes, said.deficit, said.settled) == (1, 81, True)
    assert said.minutes_to_fill == pytest.approx(83.8, abs=0.1)
    assert "one node more gains 58 an hour and fills it in about 84 min" in said.why


def test_workers_that_make_less_than_is_consumed_do_not_suppress_the_node_that_is_missing() -> None:
    said = advice(40, Workers(fresh=("a",)))
    assert said.nodes == 1
    assert "1 at work lose 45 an hour" in said.why
    hopeless = advice(
        40, Workers(fresh=("a",)), rates=Rates(consumed_per_h=500, produced_per_worker_h=50)
    )
    assert (hopeless.nodes, hopeless.minutes_to_fill) == (1, None)
    assert "still loses 300 an hour" in hopeless.why


def test_workers_whose_rate_is_not_known_yet_suppress_it() -> None:
    said = advice(10, Workers(fresh=("a",)), rates=Rates(consumed_per_h=96))
    assert (said.nodes, said.minutes_to_fill) == (0, None)
    assert "not known yet" in said.why


@pytest.mark.parametrize(
    ("given_", "word"),
    [
        ({"waiting": 80}, "80 pending, low water 80"),
        ({"trainer": msgspec.structs.replace(ALIVE, alive=False, why="it left")}, "no trainer"),
        (
            {"abort": AbortRequest(reason="stop it", requester="", nonce="", at="")},
            "ABORT stands: stop it",
        ),
        (
            {"ready": 20, "waiting": 160},
            "leaves no room (160 in all)",
        ),
        ({"outstanding": Outstanding(waiting=("t",))}, "task t waits to be run"),
        ({"outstanding": Outstanding(starting=("t",))}, "task t runs"),
    ],
)
def test_what_makes_a_node_needless_says_so_and_needs_no_watching(
    given_: dict[str, Any], word: str
) -> None:
    said = advice(**{"waiting": 10, "workers": Workers(unknown=("x",)), **given_})
    assert (said.nodes, said.settled) == (0, True)
    assert word in said.why


@pytest.mark.parametrize(
    ("given_", "word"),
    [
        ({"waiting": None}, "how many wait is not known"),
        ({"trainer": msgspec.structs.replace(ALIVE, alive=None, why="no beat")}, "no beat"),
        ({"workers": Workers(unknown=("x", "y"))}, "whether x, y produce is not known yet"),
    ],
)
def test_what_is_not_known_asks_for_nothing_and_is_not_settled(
    given_: dict[str, Any], word: str
) -> None:
    said = advice(**{"waiting": 10, **given_})
    assert (said.nodes, said.settled) == (0, False)
    assert word in said.why


@given(
    waiting=st.one_of(st.none(), st.integers(0, 400)),
    alive=st.sampled_from([True, False, None]),
    fresh=st.integers(0, 9),
    unclear=st.integers(0, 3),
    consumed=st.one_of(st.none(), st.floats(0, 1e4)),
    produced=st.one_of(st.none(), st.floats(0, 1e4)),
)
def test_a_node_is_only_ever_asked_for_on_what_is_known(
    *, waiting: int | None, alive: bool | None, fresh: int, unclear: int,
    consumed: float | None, produced: float | None,
) -> None:  # fmt: skip
    workers = Workers(
        fresh=tuple(f"f{n}" for n in range(fresh)), unknown=tuple(f"u{n}" for n in range(unclear))
    )
    said = advice(
        waiting, workers, trainer=msgspec.structs.replace(ALIVE, alive=alive),
        rates=Rates(consumed_per_h=consumed, produced_per_worker_h=produced),
    )  # fmt: skip
    assert said.nodes in (0, 1)
    assert said.minutes_to_fill is None or said.minutes_to_fill >= 0
    if said.nodes:
        assert waiting is not None
        assert waiting < 80
        assert alive is True
        assert not unclear
        assert said.settled
        assert not fresh or (
            consumed is not None and produced is not None and fresh * produced <= consumed
        )


def test_a_node_runs_at_least_one_worker() -> None:
    assert require_workers(3) == 3
    with pytest.raises(UsageError, match="found 0"):
        require_workers(0)


# ------------------------------------------------------------------------------ who produces


def test_workers_are_judged_by_beats_lease_and_shape(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    clock = OwnClock()
    watcher = Watcher(queue, judge=unknown, clock=clock)
    beaters = {name: beater_of(queue, name, shape="a") for name in ("fresh", "silent", "left")}
    other = beater_of(queue, "other", shape="b")
    lease_of(queue, "never-beaten")
    for beater in (*beaters.values(), other):
        beater.beat()
    assert workers_of(watcher.look(), "a").unknown == ("fresh", "left", "silent")
    for beater in (beaters["fresh"], beaters["left"], other):
        beater.beat()
    beaters["left"]._lease.release()
    now = watcher.look()
    assert workers_of(now, "a") == Workers(fresh=("fresh",), unknown=("silent",))
    assert workers_of(now).fresh == ("fresh", "other")
    clock.now_s = 0.19
    beaters["fresh"].beat()
    watcher.look()
    clock.now_s = 0.21
    assert workers_of(watcher.look(), "a") == Workers(fresh=("fresh",))


# ------------------------------------------------------------------------------ the spool


@pytest.fixture
def tree(tmp_path: Path) -> SpoolTree:
    made = SpoolTree(f"{tmp_path}/spool", QuickFS())
    setup.set_up(made)
    return made


def outstanding(tree: SpoolTree, *, fresh: int = 0, starting_s: float = 900.0) -> Outstanding:
    return find_outstanding(
        tree, "wan", fresh_workers=fresh, workers_per_node=3, starting_s=starting_s
    )


SPEC = TaskSpec(name="x", command="produce --stream s{n}", project_dir="/")


def claim(tree: SpoolTree, name: str) -> claims.Claim:
    location = tree.find(name)
    held = claims.claim(tree, name, location.path, Owner("L1", "0", "0", "abc-1"))
    assert held is not None
    return held


def test_a_pass_enqueues_one_task_whose_number_is_in_its_name_and_command(tree: SpoolTree) -> None:
    assert outstanding(tree) == Outstanding()
    assert enqueue_producer(tree, "wan", SPEC, after=0) is Replenished.ENQUEUED
    name = task_name("wan", 1)
    assert tree.read(tree.find(name).path).spec.command == "produce --stream s1"
    assert outstanding(tree) == Outstanding(waiting=(name,), last=1)


def test_of_passes_that_saw_the_same_spool_one_enqueues(tree: SpoolTree) -> None:
    seen = outstanding(tree).last
    with ThreadPoolExecutor(8) as pool:
        results = list(
            pool.map(lambda _: enqueue_producer(tree, "wan", SPEC, after=seen), range(8))
        )
    assert sorted(results) == [Replenished.ENQUEUED] + [Replenished.OTHER_PASS] * 7
    assert tree.fs.listdir(tree.paths.names) == [task_name("wan", 1)]


def test_tasks_of_other_runs_and_other_names_are_no_passes(tree: SpoolTree) -> None:
    enqueue_producer(tree, "wan-2", SPEC, after=4)
    for name in ("rollouts.wan.x", "rollouts.wan", "rollouts.wan.12"):
        Path(tree.paths.names, name).touch()
    assert outstanding(tree) == Outstanding()


def test_a_running_task_is_starting_until_its_workers_beat_or_its_time_is_over(
    tree: SpoolTree,
) -> None:
    enqueue_producer(tree, "wan", SPEC, after=0)
    name = task_name("wan", 1)
    claim(tree, name)
    assert outstanding(tree).starting == (name,)
    assert outstanding(tree, fresh=3) == Outstanding(running=(name,), last=1)
    assert outstanding(tree, starting_s=0.0).starting == ()
    assert tree.fs.listdir(tree.paths.tmp) == []


def test_a_task_that_is_done_or_failed_is_not_outstanding_and_its_number_is_not_used_again(
    tree: SpoolTree,
) -> None:
    from fleetcraft.spool.record import HistoryLine, Outcome

    enqueue_producer(tree, "wan", SPEC, after=0)
    held = claim(tree, task_name("wan", 1))
    line = HistoryLine(claim=held.owner.token, outcome=Outcome.COMPLETED, to="done", attempt=1)
    assert claims.close_own(tree, held, line) is not None
    assert outstanding(tree) == Outstanding(last=1)


def test_a_name_whose_record_is_not_to_be_seen_counts_as_waiting(tree: SpoolTree) -> None:
    Path(tree.paths.names, task_name("wan", 3)).touch()
    assert outstanding(tree).waiting == (task_name("wan", 3),)
