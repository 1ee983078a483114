"""Heartbeats: fresh by the reader's clock and the writer's counter, whatever a wall clock says."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from fleetcraft.rollouts import beats
from fleetcraft.rollouts.beats import Beater, BeatReader
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Beat, ProducerState, encode
from tests.rollouts.producing import DisturbedFS, OwnClock, lease_of, queue_in, with_fs


def beater_of(queue: RolloutQueue, stream: str = "s", shape: str = "a") -> Beater:
    return Beater(queue, lease_of(queue, stream), shape=shape)


def read(queue: RolloutQueue, stream: str = "s") -> Beat:
    return msgspec.json.decode(Path(queue.paths.beat(stream)).read_bytes(), type=Beat)


def test_a_counter_that_changes_is_fresh_and_one_that_stands_is_not(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, beat_s=30.0, fresh_s=180.0)
    beater, clock = beater_of(queue), OwnClock()
    reader = BeatReader(queue, clock=clock)
    beater.beat()
    assert reader.look()["s"].fresh is None  # it may be years old
    beater.beat()
    clock.now_s = 30
    assert reader.look()["s"].fresh is True
    clock.now_s = 209
    assert reader.look()["s"].fresh is True
    clock.now_s = 210
    sight = reader.look()["s"]
    assert (sight.fresh, sight.quiet_s) == (False, 180)
    beater.beat()
    clock.now_s = 300
    assert reader.look()["s"].fresh is True


def test_one_that_never_changes_is_not_fresh_once_it_was_watched_for_long_enough(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path, beat_s=30.0, fresh_s=180.0)
    beater_of(queue).beat()
    clock = OwnClock()
    reader = BeatReader(queue, clock=clock)
    reader.look()
    clock.now_s = 179
    assert reader.look()["s"].fresh is None
    clock.now_s = 180
    assert reader.look()["s"].fresh is False


@pytest.mark.parametrize("at", ["1999-01-01T00:00:00.000Z", "2999-01-01T00:00:00.000Z", "", "x"])
def test_a_wall_clock_that_is_off_by_any_amount_changes_nothing(
    tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_in(tmp_path)
    monkeypatch.setattr(beats, "timestamp", lambda: at)
    beater, reader = beater_of(queue), BeatReader(queue, clock=OwnClock())
    for expected in (None, True):
        beater.beat()
        os.utime(queue.paths.beat("s"), (0, 0))
        assert reader.look()["s"].fresh is expected


def test_a_new_holder_whose_counter_begins_anew_is_a_change(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    reader = BeatReader(queue, clock=OwnClock())
    beater_of(queue).beat()
    reader.look()
    beater_of(queue).beat()
    assert read(queue).counter == 1
    assert reader.look()["s"].fresh is True


def test_only_fresh_workers_of_the_same_run_and_shape_count(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    reader = BeatReader(queue, clock=OwnClock())
    beater = beater_of(queue, shape="81x480x832")
    beater.beat()
    assert reader.look()["s"].counts_for("wan", "81x480x832") is None
    for state in (ProducerState.RUNNING, ProducerState.THROTTLED):  # throttled is healthy
        beater.set(state)
        sight = reader.look()["s"]
        assert sight.counts_for("wan", "81x480x832") is True
        assert sight.counts_for("wan", "") is True
        assert sight.counts_for("wan", "33x480x832") is False
        assert sight.counts_for("other", "") is False
    beater.set(ProducerState.DRAINING)
    assert reader.look()["s"].counts_for("wan", "") is False


def test_a_worker_that_said_that_it_leaves_is_not_fresh_however_lately_it_said_so(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    reader = BeatReader(queue, clock=OwnClock())
    with beater_of(queue):
        assert read(queue).state is ProducerState.STARTING
        reader.look()
    assert read(queue).state is ProducerState.EXITED
    assert reader.look()["s"].fresh is False


def test_a_thread_beats_while_the_worker_does_something_else(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, beat_s=0.01, fresh_s=1.0)
    beater = beater_of(queue)
    written = beater.beat
    count = 0

    import threading

    enough = threading.Event()

    def counted() -> bool:
        nonlocal count
        count += 1
        if count == 5:
            enough.set()
        return written()

    beater.beat = counted  # type: ignore[method-assign]
    with beater:
        assert enough.wait(20)
    assert read(queue).counter >= 5


def test_a_beat_says_what_was_published_and_from_which_version(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    beater = beater_of(queue)
    beater.set(ProducerState.RUNNING, version=12)
    beater.set(published=2)
    beater.set(published=1)
    beater.beat()
    beat = read(queue)
    assert (beat.published, beat.version, beat.shape, beat.slot.device_uuid) == (
        3,
        12,
        "a",
        "GPU-1",
    )
    assert (beat.run, beat.stream, beat.lease_generation) == ("wan", "s", 1)


def test_a_full_disk_misses_beats_and_leaves_the_last_one_whole(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    assert Beater(queue, lease).beat()
    before = read(queue)
    full = with_fs(queue, DisturbedFS(1, "from", errno.ENOSPC))
    assert not Beater(full, lease).beat()
    assert read(queue) == before
    assert os.listdir(queue.paths.beats) == ["s.json"]


def test_a_beat_that_cannot_be_understood_is_neither_fresh_nor_dead_at_once(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    clock = OwnClock()
    reader = BeatReader(queue, clock=clock)
    Path(queue.paths.beat("s")).write_bytes(b'{"run":')
    sight = reader.look()["s"]
    assert (sight.beat, sight.fresh, sight.counts_for("wan", "")) == (None, None, None)
    clock.now_s = 10
    assert reader.look()["s"].counts_for("wan", "") is False


def test_beats_that_cannot_be_listed_are_an_error_and_no_silence(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    with pytest.raises(OSError, match="Input/output"):
        BeatReader(with_fs(queue, DisturbedFS(1, errno.EIO))).look()


def test_half_written_temporaries_are_no_workers_and_the_next_holder_removes_its_own(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    beater_of(queue).beat()
    for name in ("s.abc.tmp", "s2.abc.tmp"):
        Path(queue.paths.beats, name).write_bytes(encode(read(queue)))
    assert list(BeatReader(queue).look()) == ["s"]
    with beater_of(queue):
        assert sorted(os.listdir(queue.paths.beats)) == ["s.json", "s2.abc.tmp"]


def test_a_holder_that_was_followed_does_not_speak_for_the_one_that_followed_it(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    first = beater_of(queue)
    with first:
        second = beater_of(queue)
        second.beat()
        assert not first.beat()
    assert read(queue).lease_generation == 2
    assert read(queue).state is ProducerState.STARTING
