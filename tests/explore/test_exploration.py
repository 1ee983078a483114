"""The protocol explored over the real code, and the exploration itself shown to find broken rules.

What is exhausted here takes seconds; `python -m tests.explore` goes further.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.explore import determinism, mutations, scenarios
from tests.explore.explorer import Explorer, Scenario, explore, shortest
from tests.explore.model_fs import ROOT, DirectFS, World
from tests.explore.mutations import Mutation

CALM = {"crashes": 0, "lies": 0, "verdicts": 0}
CRASH = {**CALM, "crashes": 1}
CRASH_LIE = {"crashes": 1, "lies": 1, "verdicts": 0}
CRASH_VERDICT = {"crashes": 1, "lies": 0, "verdicts": 1}
ALL_THREE = {"crashes": 1, "lies": 1, "verdicts": 1}

EXHAUSTED: list[tuple[Callable[..., Scenario], dict[str, int]]] = [
    (scenarios.same_enqueuers, ALL_THREE),
    (scenarios.rival_enqueuers, ALL_THREE),
    (scenarios.folders_for_names, ALL_THREE),
    (scenarios.worker_and_restart, CRASH_VERDICT),
    (scenarios.two_workers, CRASH_VERDICT),
    (scenarios.put_back, CRASH_VERDICT),
    (scenarios.two_recoverers, CRASH_VERDICT),
    (scenarios.two_recoverers_of_a_closed_claim, ALL_THREE),
    (scenarios.cancel_beside_worker, {**CRASH_VERDICT, "preemptions": 1}),
    (scenarios.retry_and_cancel, CRASH_VERDICT),
    (scenarios.retry_beside_worker, ALL_THREE),
    (scenarios.waiting_task, {**CRASH, "preemptions": 0}),
    (scenarios.waiting_task, {**CALM, "preemptions": 1}),
    (scenarios.lost_canceller, {**CRASH_VERDICT, "preemptions": 1}),
    (scenarios.cut_short_batch, {**CRASH, "preemptions": 1}),
]
WITHOUT_FLAGS = [
    (scenarios.rival_enqueuers, CRASH_LIE),
    (scenarios.two_workers, {**CRASH_VERDICT, "preemptions": 2}),
    (scenarios.retry_beside_worker, CRASH_LIE),
]
BROKEN: list[tuple[Callable[[], Mutation], Callable[..., Scenario], dict[str, int]]] = [
    (mutations.finish_without_reading_back, scenarios.two_workers, CRASH_VERDICT),
    (mutations.last_line_counts, scenarios.two_workers, CRASH_VERDICT),
    (mutations.retry_before_removing_the_marker, scenarios.retry_beside_worker, CALM),
    (mutations.recover_without_a_line, scenarios.two_workers, CRASH_VERDICT),
    (mutations.append_creates, scenarios.two_workers, CRASH_VERDICT),
    (mutations.one_claim_name_for_all, scenarios.two_workers, CALM),
    (mutations.publish_before_naming, scenarios.same_enqueuers, CALM),
    (mutations.publish_from_names, scenarios.same_enqueuers, CALM),
    (mutations.publish_what_was_begun_at_once, scenarios.cut_short_batch, CRASH),
    (mutations.every_lost_claim_was_an_attempt, scenarios.lost_canceller, CRASH_VERDICT),
    (mutations.withdraw_the_lease_of_an_open_claim, scenarios.lost_canceller, CRASH_VERDICT),
    (mutations.run_without_a_last_look, scenarios.two_recoverers_of_a_closed_claim, CALM),
]
MUTANT_STATES = 150_000
WALKS = 60


@pytest.fixture(autouse=True)
def same_every_time() -> Iterator[None]:
    with determinism.deterministic():
        yield


def name_of(value: Any) -> str:
    return value.__name__ if callable(value) else ""


@pytest.mark.parametrize(("build", "budget"), EXHAUSTED, ids=name_of)
def test_no_schedule_breaks_the_protocol(
    build: Callable[..., Scenario], budget: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    report = explore(build(**budget))
    with capsys.disabled():
        print(f"\n{report}", end="")
    assert report.exhausted
    assert report.ends > 1


@pytest.mark.parametrize(("build", "budget"), WITHOUT_FLAGS, ids=name_of)
def test_no_schedule_breaks_the_protocol_where_a_rename_is_a_look_and_a_rename(
    build: Callable[..., Scenario], budget: dict[str, int]
) -> None:
    report = explore(scenarios.where_rename_has_no_flags(build(**budget)))
    assert report.exhausted
    assert report.ends > 1


@pytest.mark.parametrize("build", scenarios.ALL.values(), ids=name_of)
def test_long_random_schedules_with_many_mishaps_break_nothing(
    build: Callable[..., Scenario],
) -> None:
    found = build(crashes=2, lies=2, verdicts=1, faults=1)
    explored = Explorer(found).walk(random.Random(found.name), walks=WALKS)
    assert explored.walks == WALKS


@pytest.mark.parametrize(("mutation", "build", "budget"), BROKEN, ids=name_of)
def test_a_broken_rule_has_a_schedule_that_shows_it(
    mutation: Callable[[], Mutation], build: Callable[..., Scenario], budget: dict[str, int]
) -> None:
    with mutation():
        found = shortest(build(**budget), up_to=2, max_states=MUTANT_STATES)
    assert found is not None
    assert found.schedule


def test_exploring_twice_meets_the_same_states() -> None:
    first = explore(scenarios.retry_beside_worker(**CRASH))
    second = explore(scenarios.retry_beside_worker(**CRASH))
    assert (first.states, first.steps) == (second.states, second.steps)


def test_a_random_walk_can_be_walked_again_from_its_seed() -> None:
    found = scenarios.two_workers(**ALL_THREE)
    first = Explorer(found).walk(random.Random(7), walks=20)
    second = Explorer(replace(found)).walk(random.Random(7), walks=20)
    assert first.steps == second.steps


@pytest.mark.parametrize("operation", ["link", "rename_new", "replace"])
def test_nothing_moves_into_a_folder_that_is_gone(operation: str) -> None:
    fs = DirectFS(World(), 0)
    fs.create(f"{ROOT}/tmp/a", b"a")

    with pytest.raises(FileNotFoundError):
        getattr(fs, operation)(f"{ROOT}/tmp/a", f"{ROOT}/gone/a")
    with pytest.raises(FileNotFoundError):
        getattr(fs, operation)(f"{ROOT}/tmp/a", f"{ROOT}/tmp/a/b")

    assert fs.read(f"{ROOT}/tmp/a") == b"a"
