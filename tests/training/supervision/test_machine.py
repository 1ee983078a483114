"""The supervisor's states: what follows what, and that what is not known acts on nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.training.records import TERMINAL, Standing, State, StopResult
from fleetcraft.training.supervision.machine import (
    WATCHED,
    Leave,
    Live,
    Look,
    Move,
    Run,
    Suspicion,
    Trouble,
    after_lock,
    after_pause,
    after_stop,
    following,
    watch,
)

ANSWERS = st.sampled_from([True, False, None])
STEPS = st.none() | st.integers(0, 5)
RANKS = st.lists(st.integers(0, 3), max_size=3).map(tuple)
LOOKS = st.builds(
    Look,
    now_s=st.floats(0, 100),
    run=st.sampled_from(list(Run)),
    clean=st.booleans(),
    exit_zero=st.booleans(),
    end=ANSWERS,
    abort=ANSWERS,
    standing=st.sampled_from(list(Standing)),
    step=STEPS,
    dead=RANKS,
    excused=st.frozensets(st.integers(0, 3)),
    in_phase=st.booleans(),
    episode=st.sampled_from(["", "CUDA_OOM in a.log, line 3"]),
    warm=st.booleans(),
    verified=st.booleans(),
)
SUSPICIONS = st.builds(
    Suspicion,
    origin=st.sampled_from([State.WARMUP, State.VERIFYING, State.HEALTHY]),
    trouble=st.sampled_from(list(Trouble)),
    step=STEPS,
    since_s=st.floats(0, 100),
    dead=RANKS,
)
LEAVES = st.builds(
    Leave, end=ANSWERS, abort=ANSWERS, allowed=ANSWERS, refusal=st.sampled_from(["", "no rung"])
)
CALM = Look(now_s=10.0, step=7, end_why="step 37 is declared and step 30 is there")


def suspect(trouble: Trouble, *, step: int | None = 7, since_s: float = 0.0) -> Suspicion:
    return Suspicion(origin=State.HEALTHY, trouble=trouble, step=step, since_s=since_s)


def look(**facts: object) -> Look:
    return Look(**{**{f: getattr(CALM, f) for f in Look.__dataclass_fields__}, **facts})


@pytest.mark.parametrize("state", State)
def test_nothing_follows_a_terminal_state_and_every_other_one_can_lose_the_lock(
    state: State,
) -> None:
    if state in TERMINAL:
        assert not following(state)
    else:
        assert State.LOCK_LOST in following(state)


@given(st.sampled_from(sorted(WATCHED)), SUSPICIONS, LOOKS)
def test_every_look_leads_to_a_state_that_may_follow(
    state: State, suspicion: Suspicion, seen: Look
) -> None:
    before = suspicion if state is State.SUSPECT else None

    move = watch(state, before, seen)

    assert move.to is state or move.to in following(state)
    assert (move.suspicion is not None) == (move.to is State.SUSPECT)


@given(st.sampled_from(sorted(WATCHED)), SUSPICIONS, LOOKS)
def test_what_is_not_known_of_a_run_neither_stops_it_nor_ends_it(
    state: State, suspicion: Suspicion, seen: Look
) -> None:
    unknown = look(
        **{f: getattr(seen, f) for f in Look.__dataclass_fields__} | {"run": Run.UNKNOWN}
    )

    move = watch(state, suspicion if state is State.SUSPECT else None, unknown)

    assert move.to in WATCHED


@given(st.sampled_from(sorted(WATCHED)), SUSPICIONS, LOOKS)
def test_done_needs_a_clean_end_with_zero_and_the_declared_end(
    state: State, suspicion: Suspicion, seen: Look
) -> None:
    move = watch(state, suspicion if state is State.SUSPECT else None, seen)

    if move.to is State.DONE:
        assert seen.run is Run.ENDED
        assert seen.clean
        assert seen.exit_zero
        assert seen.end is True


@given(st.sampled_from(list(StopResult)), LEAVES, st.booleans())
def test_a_launch_follows_a_stop_only_when_every_one_who_has_a_say_allows_it(
    result: StopResult, leave: Leave, ordered: bool
) -> None:
    move = after_stop(result, "", leave, ordered=ordered)

    assert move.to in following(State.STOPPING)
    if move.to is State.BACKOFF:
        assert result is StopResult.REAPED
        assert (leave.end, leave.abort, leave.allowed, leave.refusal) == (False, False, True, "")
        assert not ordered


@given(st.sampled_from(list(Live)), LEAVES, st.booleans())
def test_a_fresh_supervisor_launches_only_when_nothing_is_unknown(
    live: Live, leave: Leave, unrecorded: bool
) -> None:
    move = after_lock(live, leave, unrecorded=unrecorded, why="")

    assert move.to in following(State.LOCKED)
    if move.to is State.LAUNCHING:
        assert live in (Live.NONE, Live.DEAD)
        assert (leave.end, leave.abort, leave.allowed, leave.refusal) == (False, False, True, "")
    if live is Live.UNKNOWN:
        assert move.to is State.BLOCKED


def test_a_crash_line_alone_is_suspected_and_never_acted_on() -> None:
    move = watch(State.HEALTHY, None, look(episode="CHILD_FAILED in a.log, line 3"))
    assert move.to is State.SUSPECT

    for now_s in (20.0, 1000.0, 100_000.0):
        seen = look(now_s=now_s, episode="CHILD_FAILED in a.log, line 3")
        move = watch(State.SUSPECT, move.suspicion, seen)
        assert move.to is State.SUSPECT


def test_a_step_after_a_crash_line_clears_it() -> None:
    suspicion = suspect(Trouble.EVIDENCE)

    move = watch(State.SUSPECT, suspicion, look(step=8, episode="CUDA_OOM in a.log, line 3"))

    assert move == Move(to=State.HEALTHY, why="step 8 was completed since")


def test_a_crash_line_with_a_stall_is_diagnosed() -> None:
    suspicion = suspect(Trouble.EVIDENCE)
    stalled = look(standing=Standing.STALLED, why="22.1 steps were due", episode="CUDA_OOM")

    worse = watch(State.SUSPECT, suspicion, stalled)
    then = watch(State.SUSPECT, worse.suspicion, stalled)

    assert worse.to is State.SUSPECT
    assert worse.suspicion is not None
    assert worse.suspicion.trouble is Trouble.STALL
    assert then == Move(to=State.DIAGNOSING, why="22.1 steps were due")


def test_a_dead_rank_is_given_time_to_end_the_run_by_itself() -> None:
    dead = {"dead": (1, 2), "standing": Standing.DEAD_RANK, "settle_s": 10.0}
    move = watch(State.HEALTHY, None, look(now_s=100.0, **dead))
    assert move.suspicion is not None

    soon = watch(State.SUSPECT, move.suspicion, look(now_s=109.0, **dead))
    later = watch(State.SUSPECT, move.suspicion, look(now_s=110.0, **dead))

    assert soon.to is State.SUSPECT
    assert later.to is State.DIAGNOSING


def test_a_rank_that_is_gone_while_another_saves_is_waited_for() -> None:
    suspicion = suspect(Trouble.DEAD_RANK)
    dead = look(now_s=500.0, dead=(1,), standing=Standing.DEAD_RANK, in_phase=True)

    assert watch(State.SUSPECT, suspicion, dead).to is State.SUSPECT


def test_a_run_that_goes_on_without_a_dead_rank_is_not_suspected_of_it_again() -> None:
    dead = {"dead": (2,), "standing": Standing.DEAD_RANK}

    back = watch(State.SUSPECT, suspect(Trouble.DEAD_RANK), look(step=8, **dead))
    again = watch(State.HEALTHY, None, look(step=8, excused=frozenset({2}), **dead))

    assert back.to is State.HEALTHY
    assert again.to is State.HEALTHY


def test_an_exit_with_zero_before_the_declared_end_is_no_end() -> None:
    ended = look(run=Run.ENDED, exit_zero=True, end=False)

    first = watch(State.HEALTHY, None, ended)
    then = watch(State.SUSPECT, first.suspicion, ended)

    assert first.to is State.SUSPECT
    assert then.to is State.DIAGNOSING
    assert then.why == "it ended with 0, but step 37 is declared and step 30 is there"


def test_an_exit_with_zero_whose_end_cannot_be_read_blocks() -> None:
    ended = look(run=Run.ENDED, exit_zero=True, end=None, end_why="EIO")

    assert watch(State.HEALTHY, None, ended) == Move(to=State.BLOCKED, why="EIO")


@pytest.mark.parametrize(("abort", "state"), [(True, State.ABORTED), (False, State.SUSPECT)])
def test_an_end_means_abort_only_while_the_marker_stands(abort: bool, state: State) -> None:
    assert watch(State.HEALTHY, None, look(run=Run.ENDED, abort=abort)).to is state


def test_what_a_stop_left_alive_blocks_whatever_else_is_so() -> None:
    leave = Leave(end=True, abort=True)

    assert after_stop(StopResult.UNREAPED, "pid 7", leave, ordered=True).to is State.BLOCKED


def test_a_run_that_hangs_after_its_declared_end_is_done_once_it_is_stopped() -> None:
    leave = Leave(end=True, end_why="step 37 is there")

    move = after_stop(StopResult.REAPED, "", leave, ordered=False)

    assert move == Move(to=State.DONE, why="step 37 is there")


@pytest.mark.parametrize(
    ("leave", "state"),
    [
        (Leave(allowed=None, allowed_why="EIO"), State.BLOCKED),
        (Leave(allowed=False, allowed_why="8 of 8"), State.EXHAUSTED),
        (Leave(refusal="at its floor"), State.EXHAUSTED),
        (Leave(abort=True), State.ABORTED),
        (Leave(abort=None), State.BLOCKED),
        (Leave(end=None), State.BLOCKED),
        (Leave(), State.BACKOFF),
    ],
)
def test_who_has_a_say_about_another_launch(leave: Leave, state: State) -> None:
    assert after_stop(StopResult.REAPED, "", leave, ordered=False).to is state


def test_a_pause_ends_in_a_launch_unless_abort_stands_or_cannot_be_read() -> None:
    assert after_pause(False, ordered=False).to is State.LAUNCHING
    assert after_pause(True, ordered=False).to is State.ABORTED
    assert after_pause(None, ordered=False).to is State.BACKOFF
    assert after_pause(False, ordered=True).to is State.IDLE
