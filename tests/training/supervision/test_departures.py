"""Which gone ranks have left in order: by their step, by their node's end, or for a while."""

from __future__ import annotations

from fleetcraft.identity import HostId, ProcessId
from fleetcraft.training.plan.records import End, ProgressPlan, RunPlan
from fleetcraft.training.records import NodeEnd, ProcessRecord, RankProgress, RankState
from fleetcraft.training.supervision.departures import Departures


def plan(end: int | None = None) -> RunPlan:
    return RunPlan(
        run="r",
        command=("x",),
        inner_grace_s=30.0,
        progress=ProgressPlan(stall_least_s=120.0),
        end=None if end is None else End(step=end),
    )


def ranks(*steps: int) -> dict[int, RankProgress]:
    return {rank: RankProgress(rank=rank, step=step) for rank, step in enumerate(steps)}


def states(*alive: bool | None, hosts: str = "") -> list[RankState]:
    return [
        RankState(
            rank=rank,
            alive=one,
            process=ProcessRecord(
                place=HostId(
                    host=hosts[rank] if hosts else "a", boot_id="b", pid_namespace="pid:[1]"
                ),
                process=ProcessId(pid=100 + rank, start_ticks=1),
                nonce="n",
            ),
        )
        for rank, one in enumerate(alive)
    ]


def test_a_rank_that_is_gone_before_the_end_while_others_live_has_died() -> None:
    watch = Departures(plan(end=30))

    assert watch.look(ranks(9, 9, 9), states(True, False, False), (), 0.0) == frozenset()


def test_a_rank_that_has_reached_the_declared_end_has_left_while_others_finish() -> None:
    watch = Departures(plan(end=30))

    assert watch.look(ranks(30, 29), states(False, True), (), 0.0) == {0}
    assert watch.look(ranks(30, 29), states(False, True), (), 1e4) == {0}


def test_a_launcher_without_ranks_is_waited_for_but_not_for_ever() -> None:
    for end in (None, 30):
        watch = Departures(plan(end=end))
        told, gone = ranks(30, 30), states(False, False)

        assert watch.look(told, gone, (), 5.0) == {0, 1}
        assert watch.look(told, gone, (), 34.0) == {0, 1}
        assert watch.look(told, gone, (), 35.0) == frozenset()


def test_ranks_that_a_launcher_starts_again_begin_the_wait_anew() -> None:
    watch = Departures(plan())
    watch.look(ranks(5), states(False), (), 0.0)

    watch.look(ranks(5), states(True), (), 20.0)

    assert watch.look(ranks(5), states(False), (), 40.0) == {0}


def test_a_rank_of_which_nothing_is_known_keeps_nobody_waiting_and_is_not_gone() -> None:
    watch = Departures(plan())

    assert watch.look(ranks(5, 5), states(False, None), (), 0.0) == frozenset()


def test_ranks_of_a_node_that_has_ended_have_left_only_if_it_ended_with_0() -> None:
    told, gone = ranks(5, 5), states(False, True, hosts="ab")
    well = (NodeEnd(node="a", nonce="n", exit_code=0),)
    badly = (NodeEnd(node="a", nonce="n", exit_code=1),)

    assert Departures(plan()).look(told, gone, well, 1e4) == {0}
    assert Departures(plan()).look(told, gone, badly, 0.0) == frozenset()


def test_the_bound_is_the_launchers_own_grace_within_that_of_an_alarm() -> None:
    assert Departures(plan()).bound_s == 30.0
    quick = RunPlan(run="r", command=("x",), progress=ProgressPlan(stall_least_s=2.0))
    assert Departures(quick).bound_s == 2.0
