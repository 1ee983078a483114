"""Standings of queues, each alone and all together."""

from __future__ import annotations

import pytest

from fleetcraft.training.records import QueueDepth, QueueStanding, RankProgress
from fleetcraft.training.watching.queues import QueueWatch, judge_queues

ORDER = ("q_pre", "q_hs")


def look(
    queues: dict[str, tuple[int, int | None]], order: tuple[str, ...] = ORDER
) -> tuple[QueueDepth, ...]:
    ranks = {0: RankProgress(rank=0, queues=queues)}
    return QueueWatch().look(ranks, 0.0, frozen_after_s=None, order=order)


def test_the_seeds_full_first_queue_before_a_half_full_one_is_balanced_as_a_whole() -> None:
    queues = look({"q_pre": (50, 50), "q_hs": (26, 50)})
    assert [queue.standing for queue in queues] == [
        QueueStanding.SATURATED,
        QueueStanding.BALANCED,
    ]
    assert judge_queues(queues, ORDER) == (
        QueueStanding.BALANCED,
        "q_hs is neither near empty nor near full: q_pre 50 of 50, q_hs 26 of 50",
    )
    assert judge_queues(queues)[0] is QueueStanding.BALANCED


@pytest.mark.parametrize(
    ("depth", "capacity", "standing"),
    [
        (0, 50, QueueStanding.STARVED),
        (5, 50, QueueStanding.STARVED),
        (6, 50, QueueStanding.BALANCED),
        (45, 50, QueueStanding.SATURATED),
        (0, 1, QueueStanding.STARVED),
        (1, 1, QueueStanding.SATURATED),
        (0, None, None),
        (0, 0, None),
    ],
)
def test_a_depth_means_something_only_against_a_capacity(
    depth: int, capacity: int | None, standing: QueueStanding | None
) -> None:
    (queue,) = look({"q": (depth, capacity)})
    assert queue.standing is standing


def test_a_starved_step_loop_is_told_where_it_is_held_up() -> None:
    standing, why = judge_queues(look({"q_pre": (49, 50), "q_hs": (1, 50)}), ORDER)
    assert standing is QueueStanding.STARVED
    assert why == (
        "the step loop waits for q_hs: q_pre 49 of 50, q_hs 1 of 50;"
        " what takes from q_pre does not keep pace"
    )
    standing, why = judge_queues(look({"q_pre": (0, 50), "q_hs": (1, 50)}), ORDER)
    assert (standing, why.rpartition("; ")[2]) == (
        QueueStanding.STARVED,
        "its first stage does not keep pace",
    )


def test_a_saturated_last_queue_means_that_the_step_loop_is_the_slowest() -> None:
    standing, why = judge_queues(look({"q_pre": (50, 50), "q_hs": (50, 50)}), ORDER)
    assert standing is QueueStanding.SATURATED
    assert why.startswith("q_hs waits for the step loop")


def test_queues_come_in_the_declared_order_also_when_told_in_another() -> None:
    assert [queue.name for queue in look({"q_hs": (1, 9), "q_pre": (2, 9)})] == ["q_pre", "q_hs"]


def test_a_depth_is_frozen_only_when_it_has_not_changed_while_steps_were_due() -> None:
    watch = QueueWatch()

    def standing(depth: int, now_s: float, frozen_after_s: float | None) -> QueueStanding | None:
        ranks = {0: RankProgress(rank=0, queues={"q": (depth, 50)})}
        return watch.look(ranks, now_s, frozen_after_s=frozen_after_s)[0].standing

    assert standing(50, 0.0, None) is QueueStanding.SATURATED
    assert standing(50, 500.0, None) is QueueStanding.SATURATED  # steps come
    assert standing(50, 500.0, 40.0) is QueueStanding.FROZEN
    assert standing(49, 501.0, 40.0) is QueueStanding.SATURATED
    assert standing(49, 540.0, 40.0) is QueueStanding.SATURATED
    assert standing(49, 541.0, 40.0) is QueueStanding.FROZEN
    assert judge_queues(
        [QueueDepth(name="q", depth=49, capacity=50, standing=QueueStanding.FROZEN)]
    ) == (QueueStanding.FROZEN, "no depth changes: q 49 of 50")


def test_a_queue_that_several_ranks_know_is_taken_from_the_newest_report() -> None:
    ranks = {
        0: RankProgress(rank=0, queues={"q": (1, 50)}, changed_s=5.0),
        1: RankProgress(rank=1, queues={"q": (30, 50)}, changed_s=4.0),
        2: RankProgress(rank=2, queues={"q": (40, 50)}),
    }
    (queue,) = QueueWatch().look(ranks, 6.0, frozen_after_s=None)
    assert queue.depth == 1


def test_without_queues_or_capacities_nothing_is_said() -> None:
    assert judge_queues([]) == (None, "")
    assert judge_queues(look({"q": (3, None)})) == (None, "no queue with a capacity was told")
