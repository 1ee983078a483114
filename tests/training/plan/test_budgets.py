"""Budgets: what is spent, what a newer validated checkpoint gives back, what is not known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.training.plan.budgets import Budgets, Restart
from fleetcraft.training.plan.records import Budget, BudgetPlan
from fleetcraft.training.records import Crash

NETWORK = Crash.DIST_NETWORK
PLAN = BudgetPlan(
    total=Budget(restarts=4, within_s=100.0),
    classes={"CUDA_OOM": 6},
    each=2,
    backoff_s=(5.0, 15.0, 60.0),
)
BUDGETS = Budgets(PLAN)


def restarts(*at_s: float, crash: Crash = NETWORK, step: int | None = None) -> list[Restart]:
    return [Restart(at_s=at, crash=crash, checkpoint_step=step) for at in at_s]


def test_a_run_without_restarts_may_be_started_again_after_the_first_pause() -> None:
    spend = BUDGETS.spend([], 10.0, NETWORK)

    assert (spend.allowed, spend.pause_s) == (True, 5.0)
    assert spend.why == "0 of 4 restarts in 1 min 40 s; 0 of 2 restarts after DIST_NETWORK"


def test_pauses_grow_and_the_last_one_repeats() -> None:
    wide = Budgets(BudgetPlan(total=Budget(restarts=99), each=99, backoff_s=(5.0, 15.0)))

    pauses = [wide.spend(restarts(*range(n)), 50.0, NETWORK).pause_s for n in range(4)]

    assert pauses == [5.0, 15.0, 15.0, 15.0]


def test_a_class_that_is_spent_ends_it_however_long_ago_that_was() -> None:
    spend = BUDGETS.spend(restarts(0.0, 1.0), 1e6, NETWORK)

    assert spend.allowed is False
    assert "2 of 2 restarts after DIST_NETWORK are spent" in spend.why
    assert BUDGETS.spend(restarts(0.0, 1.0), 1e6, Crash.RENDEZVOUS).allowed is True


def test_the_window_counts_all_classes_and_forgets_by_time() -> None:
    mixed = [
        Restart(at_s=float(at), crash=crash)
        for at, crash in enumerate([NETWORK, Crash.RENDEZVOUS, Crash.UNKNOWN, Crash.CUDA_OOM])
    ]

    assert BUDGETS.spend(mixed, 50.0, Crash.CUDA_OOM).allowed is False
    assert BUDGETS.spend(mixed, 100.0, Crash.CUDA_OOM).allowed is True


def test_a_window_without_an_end_never_forgets() -> None:
    forever = Budgets(BudgetPlan(total=Budget(restarts=1), each=9))

    assert forever.spend(restarts(0.0), 1e9, Crash.UNKNOWN).allowed is False


def test_only_a_newer_checkpoint_gives_restarts_back() -> None:
    history = restarts(0.0, 1.0, step=690)

    assert BUDGETS.spend(history, 5.0, NETWORK, checkpoint_step=690).allowed is False
    reset = BUDGETS.spend(history, 5.0, NETWORK, checkpoint_step=700)
    assert (reset.allowed, reset.pause_s, reset.since_progress) == (True, 5.0, 0)


def test_the_first_checkpoint_gives_back_what_was_spent_before_it() -> None:
    assert BUDGETS.spend(restarts(0.0, 1.0), 5.0, NETWORK, checkpoint_step=1).allowed is True


def test_restarts_that_cannot_be_read_are_unknown_and_not_none() -> None:
    spend = BUDGETS.spend(None, 5.0, NETWORK)

    assert spend.allowed is None
    assert "cannot be read" in spend.why


def test_a_checkpoint_that_cannot_be_read_decides_nothing_it_would_have_decided() -> None:
    history = restarts(0.0, 1.0, step=690)

    assert BUDGETS.spend(history, 5.0, NETWORK, checkpoint_known=False).allowed is None
    assert BUDGETS.spend(history[:1], 5.0, NETWORK, checkpoint_known=False).allowed is True
    unread = [Restart(at_s=0.0, crash=NETWORK, checkpoint_known=False)] * 2
    assert BUDGETS.spend(unread, 5.0, NETWORK, checkpoint_step=9).allowed is None
    assert BUDGETS.spend(unread, 5.0, NETWORK).allowed is False  # no checkpoint was ever there


def test_a_clock_that_was_set_back_resets_nothing() -> None:
    assert BUDGETS.spend(restarts(3600.0, 3601.0), 5.0, NETWORK).allowed is False


@given(
    st.lists(
        st.builds(
            Restart,
            at_s=st.floats(0, 1000),
            crash=st.sampled_from([NETWORK, Crash.CUDA_OOM]),
            checkpoint_step=st.one_of(st.none(), st.integers(0, 3)),
            checkpoint_known=st.booleans(),
        ),
        max_size=8,
    ),
    st.one_of(st.none(), st.integers(0, 3)),
)
def test_what_is_unknown_lies_between_what_it_could_be(
    history: list[Restart], step: int | None
) -> None:
    def allowed(known: bool) -> bool | None:
        return BUDGETS.spend(
            history, 500.0, NETWORK, checkpoint_step=step, checkpoint_known=known
        ).allowed

    unknown = allowed(False)
    if unknown is True:  # nothing that the checkpoint could be would have refused
        assert allowed(True) is True
    assert unknown is not False  # it might be newer than every restart
