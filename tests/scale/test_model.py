"""The model: its queue against formulas, its pauses against the product, a run against counts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import simpy

from tests.scale.counting import asked
from tests.scale.makers import empty_spool, write_pending
from tests.scale.model import (
    SERVERS,
    Costs,
    Desk,
    Fleet,
    by_the_clock,
    idle_rate,
    pauses,
    rate,
    shortest_task_s,
    simulate,
    start_s,
)
from tests.scale.simulated import Fleet as CountedFleet

COSTS = Costs(
    task=Counter(open=3, rename=2, stat=1, create=1, read=4, write=1),
    idle=Counter(list=5, stat=1),
    markers=Counter(stat=2),
    heartbeat=Counter(stat=2, create=1, rename=1),
    recovery=Counter(list=1),
    promotion=Counter(list=1, stat=1),
    recovered=Counter(open=2, stat=1, rename=1),
)
SERVER = SERVERS[1]


def _queue(arrive: Any, load: Any, *, per_s: float, count: int) -> tuple[float, float]:
    """Mean time at a desk with one thread, and its use."""
    env = simpy.Environment()
    desk = Desk(env, per_s, 1)
    stays: list[float] = []

    def customer() -> Generator[Any, Any, None]:
        came = env.now
        yield from desk.ask(load())
        stays.append(env.now - came)

    def door() -> Generator[Any, Any, None]:
        for _ in range(count):
            env.process(customer())
            yield env.timeout(arrive())

    env.process(door())
    env.run()
    return sum(stays) / len(stays), desk.used(env.now)


def test_random_arrivals_wait_as_the_formula_of_one_server_says() -> None:
    chance = random.Random(7)
    stay_s, used = _queue(
        lambda: chance.expovariate(60), lambda: chance.expovariate(1), per_s=100, count=40_000
    )
    assert stay_s == pytest.approx(1 / (100 - 60), rel=0.06)
    assert used == pytest.approx(0.6, rel=0.02)


def test_even_arrivals_never_wait_while_there_is_room() -> None:
    stay_s, used = _queue(lambda: 1 / 80, lambda: 1.0, per_s=100, count=2_000)
    assert stay_s == pytest.approx(0.01)
    assert used == pytest.approx(0.8, rel=0.01)


def test_a_simulated_fleet_asks_for_what_the_formula_says() -> None:
    fleet = Fleet(nodes=300, task_s=5.0)
    seen = simulate(fleet, COSTS, SERVER)
    assert seen.rate == pytest.approx(rate(fleet, COSTS, SERVER), rel=0.12)
    assert seen.used == pytest.approx(seen.rate / SERVER.per_s, rel=0.01)
    assert seen.efficiency > 0.99


def test_a_server_that_is_asked_for_more_than_it_has_is_full_and_claims_wait() -> None:
    fleet = Fleet(nodes=400, task_s=0.05, pending=2_000)
    assert rate(fleet, COSTS, SERVER) > 2 * SERVER.per_s
    seen = simulate(fleet, COSTS, SERVER)
    assert seen.used > 0.98
    assert seen.rate == pytest.approx(SERVER.per_s, rel=0.02)
    assert seen.efficiency < 0.6
    idle = simulate(Fleet(nodes=4, task_s=0.05, pending=2_000), COSTS, SERVER)
    assert seen.claim_s > 2 * idle.claim_s


def test_all_workers_have_their_first_list_when_the_formula_says() -> None:
    fleet = Fleet(nodes=500, task_s=1.0, pending=50_000)
    seen = simulate(fleet, COSTS, SERVER)
    tasks_s = 500 * 11 / SERVER.per_s
    assert start_s(fleet, SERVER) <= seen.started_s <= start_s(fleet, SERVER) + tasks_s + 0.1


def test_the_shortest_task_uses_just_the_share_that_was_asked_for() -> None:
    for nodes in (100, 1_000, 10_000):
        fleet = Fleet(nodes=nodes, task_s=1.0)
        task_s = shortest_task_s(fleet, COSTS, SERVER)
        assert task_s is not None
        used = rate(Fleet(nodes=nodes, task_s=task_s), COSTS, SERVER) / SERVER.per_s
        assert used == pytest.approx(0.7, rel=0.01)


@pytest.mark.parametrize(
    ("what", "task_s"), [("lane first", 1.0), ("listing again", 600.0), ("promotion", 60.0)]
)
def test_a_hundred_times_the_nodes_do_not_list_a_hundred_times_as_much(
    what: str, task_s: float
) -> None:
    few, many = (
        by_the_clock(Fleet(nodes=n, task_s=task_s, waiting=1_000), COSTS, SERVER)[what]
        for n in (100, 10_000)
    )
    assert many < 30 * few


def test_an_idle_fleet_of_any_size_polls_at_most_five_hundred_times_a_second() -> None:
    for nodes in (10, 2_500, 10_000, 100_000):
        fleet = Fleet(nodes=nodes, task_s=1.0, pending=0)
        assert nodes / pauses(fleet).idle_s <= 500
        assert idle_rate(fleet, COSTS, SERVER) < nodes * 2.0


def test_the_model_says_of_a_small_fleet_what_a_run_of_it_has_counted(tmp_path: Path) -> None:
    ranks, pending = 16, 1_600
    tree = empty_spool(tmp_path)
    write_pending(tree, pending)
    run = CountedFleet(tree, ranks)
    run.run(4 * ranks)
    before, began = run.done, run.now
    counts = run.run(20 * ranks)
    done, seconds = run.done - before, run.now - began
    fleet = Fleet(nodes=ranks, task_s=ranks * seconds / done, pending=pending)
    clock = by_the_clock(fleet, COSTS, SERVER)
    # In looks of one operation each: what bash asks for and what changes weigh are not counted.
    said = asked(COSTS.task) + clock["lane first"] * seconds / done
    said += ranks * seconds / done / max(pauses(fleet).plain_s, fleet.task_s)
    assert asked(counts) / done == pytest.approx(said, rel=0.15)
