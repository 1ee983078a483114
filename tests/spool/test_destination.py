"""Where an ended claim sends its record: retries, losses, interruptions, what a retry grants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.record import (
    INTERRUPTED_LIMIT,
    LOST_LIMIT,
    SPENDING,
    Destination,
    HistoryLine,
    Outcome,
    Record,
    compose,
    destination,
    parse,
    write_history,
)

SPENDERS = sorted(SPENDING)
BOUNDED = [(Outcome.LOST, LOST_LIMIT), (Outcome.INTERRUPTED, INTERRUPTED_LIMIT)]


class Life:
    """A record whose attempts end one after another, each sent where `destination` says."""

    def __init__(self, retries: int = 0) -> None:
        self.text = compose(TaskSpec(name="t", command="true", retries=retries), "1")
        self.count = 0

    @property
    def record(self) -> Record:
        return parse(self.text)

    def ends(self, outcome: Outcome, *, claim: str = "", to: Destination | None = None) -> str:
        to = to or destination(self.record, outcome)
        self.count += 1
        line = HistoryLine(
            claim=claim or f"c-{self.count}", outcome=outcome, to=to, attempt=self.count
        )
        self.text += write_history(line)
        return to


@pytest.mark.parametrize("outcome", SPENDERS)
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_failure_is_tried_again_as_often_as_the_task_allows(
    outcome: Outcome, retries: int
) -> None:
    life = Life(retries)
    assert [life.ends(outcome) for _ in range(retries + 1)] == ["pending"] * retries + ["failed"]


@given(st.lists(st.sampled_from(SPENDERS), min_size=4, max_size=4))
def test_failures_of_every_kind_spend_from_the_same_retries(outcomes: list[Outcome]) -> None:
    life = Life(retries=3)
    assert [life.ends(outcome) for outcome in outcomes] == ["pending"] * 3 + ["failed"]


@pytest.mark.parametrize("outcome", SPENDERS)
def test_a_retry_by_hand_grants_one_more_attempt_each_time(outcome: Outcome) -> None:
    life = Life(retries=1)
    ends = [life.ends(outcome) for _ in range(4)]
    assert ends == ["pending", "failed", "failed", "failed"]


@pytest.mark.parametrize(("outcome", "limit"), BOUNDED)
def test_what_is_nobodys_fault_spends_no_retry_and_has_a_limit_of_its_own(
    outcome: Outcome, limit: int
) -> None:
    life = Life(retries=0)
    assert [life.ends(outcome) for _ in range(limit)] == ["pending"] * (limit - 1) + ["failed"]
    assert destination(Life(1).record, Outcome.FAILED) == "pending"


@pytest.mark.parametrize(("outcome", "limit"), BOUNDED)
def test_a_retry_after_such_a_limit_grants_one_more(outcome: Outcome, limit: int) -> None:
    life = Life()
    for _ in range(limit):
        life.ends(outcome)
    assert life.ends(outcome) == "failed"


@pytest.mark.parametrize(
    ("outcome", "retries"), [(Outcome.FAILED, 1), (Outcome.LOST, 0), (Outcome.INTERRUPTED, 0)]
)
def test_an_end_that_a_cancel_made_final_is_given_back_by_a_retry(
    outcome: Outcome, retries: int
) -> None:
    plain, cancelled = Life(retries), Life(retries)
    cancelled.ends(outcome, to="failed")
    ends = [plain.ends(outcome) for _ in range(INTERRUPTED_LIMIT)]
    assert [cancelled.ends(outcome) for _ in range(INTERRUPTED_LIMIT)] == ends


def test_losses_interruptions_and_failures_do_not_spend_from_one_another() -> None:
    life = Life(retries=1)
    for _ in range(LOST_LIMIT - 1):
        assert life.ends(Outcome.LOST) == "pending"
        assert life.ends(Outcome.INTERRUPTED) == "pending"
    assert life.ends(Outcome.FAILED) == "pending"
    assert life.ends(Outcome.FAILED) == "failed"


def test_completed_is_done_and_cancelled_is_failed_whatever_came_before() -> None:
    life = Life(retries=5)
    assert life.ends(Outcome.COMPLETED) == "done"
    assert life.ends(Outcome.CANCELLED) == "failed"


def test_a_late_second_line_of_a_claim_spends_nothing() -> None:
    life = Life(retries=1)
    life.ends(Outcome.LOST, claim="c-1")
    life.ends(Outcome.FAILED, claim="c-1")
    assert life.ends(Outcome.FAILED, claim="c-2") == "pending"


def test_a_cancelled_task_that_is_retried_has_all_its_retries() -> None:
    life = Life(retries=1)
    life.ends(Outcome.CANCELLED)
    assert [life.ends(Outcome.FAILED), life.ends(Outcome.FAILED)] == ["pending", "failed"]
