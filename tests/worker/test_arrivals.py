"""A waiting worker hears at once of what is published on its machine, and can afford each look."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.worker.wakeup import Arrivals

FOREVER = float("inf")


@pytest.fixture
def lane(tmp_path: Path) -> Path:
    folder = tmp_path / "pending"
    folder.mkdir()
    return folder


@pytest.fixture
def arrivals(lane: Path) -> Iterator[Arrivals]:
    listening = Arrivals([str(lane)])
    listening.rest(12.0)
    yield listening
    listening.close()


def publish(lane: Path) -> None:
    fresh = lane.parent / "fresh"
    fresh.touch()
    fresh.rename(lane / "task.sh")


def readable(arrivals: Arrivals) -> list[int]:
    return select.select(arrivals.fds(FOREVER), [], [], 0)[0]


def test_a_rename_into_a_lane_is_heard_once_with_the_time_of_the_next_look(
    lane: Path, arrivals: Arrivals
) -> None:
    assert readable(arrivals) == []

    publish(lane)

    ready = readable(arrivals)
    assert ready
    assert arrivals.heard(ready) == 12.0
    assert readable(arrivals) == []
    assert arrivals.heard([]) is None


def test_what_leaves_a_lane_is_not_heard(lane: Path, arrivals: Arrivals) -> None:
    publish(lane)
    arrivals.heard(readable(arrivals))

    (lane / "task.sh").rename(lane.parent / "claimed")

    assert readable(arrivals) == []


def test_nobody_listens_while_busy_or_when_the_next_look_is_due_anyhow(arrivals: Arrivals) -> None:
    assert arrivals.fds(next_look=11.0) == []
    assert arrivals.fds(next_look=13.0) != []

    arrivals.rest()

    assert arrivals.fds(FOREVER) == []


def test_without_a_watch_there_is_nothing_to_listen_to(tmp_path: Path) -> None:
    deaf = Arrivals([str(tmp_path / "missing")])
    deaf.rest(0.0)

    assert readable(deaf) == []

    deaf.close()
    assert deaf.fds(FOREVER) == []
