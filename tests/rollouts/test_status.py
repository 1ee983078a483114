"""A queue at one look: levels, lags, who lives, and rates by the clock of the file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fleetcraft.errors import SpoolError
from fleetcraft.layout.rollouts import RolloutName
from fleetcraft.locks import GenerationLock
from fleetcraft.rollouts.abort import ask_abort
from fleetcraft.rollouts.publishing import published
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.status import LockWatch, Watcher, measure_rates
from tests.rollouts.producing import (
    DisturbedFS,
    OwnClock,
    gone,
    lease_of,
    queue_in,
    room_for,
    unknown,
    with_fs,
)
from tests.rollouts.test_beats import beater_of


def trainer_lock(queue: RolloutQueue) -> GenerationLock:
    return GenerationLock(
        queue.paths.trainer_lock, purpose="training of wan", interval_s=5.0, fs=queue.fs
    )


def identities(queue: RolloutQueue, stream: str, times_s: list[float], samples: int = 1) -> None:
    folder = Path(queue.paths.ident_folder(stream))
    folder.mkdir(exist_ok=True)
    for sequence, at_s in enumerate(times_s):
        for sample in range(samples):
            path = folder / f"{sequence:08d}.{sample:03d}"
            path.touch()
            os.utime(path, (at_s, at_s))


def test_an_empty_queue_is_shown_as_it_is(tmp_path: Path) -> None:
    status = Watcher(queue_in(tmp_path)).look()
    assert (status.waiting, status.coming_back, status.half_published) == (0, 0, 0)
    assert (status.streams, status.lags, status.refused, status.abort) == ((), {}, {}, None)
    assert (status.trainer.alive, status.trainer.why) == (False, "nobody ever held it")
    assert (status.rates.consumed_per_h, status.rates.produced_per_worker_h) == (None, None)


def test_levels_lags_and_reservations_are_counted_by_stream(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    Path(queue.paths.commit(3)).touch()
    for version, sequence in ((1, 0), (3, 1), (3, 2)):
        Path(queue.paths.pending, str(RolloutName(version, "s", sequence, 0))).touch()
    identities(queue, "s", [100.0, 200.0, 300.0])
    room_for(queue, lease_of(queue), 3)
    room_for(queue, lease_of(queue), 3)
    Path(queue.paths.tmp, "v000003.s.00000004.000.json.1.0123456789ab").touch()
    ask_abort(queue, "why")
    status = Watcher(queue).look()
    assert status.waiting == 4  # both reservations are for one identity
    assert status.lags == {0: 2, 2: 1}
    assert status.half_published == 1
    assert status.abort is not None
    (stream,) = status.streams
    assert (stream.identities, stream.sequence) == (3, 2)
    assert (stream.reserved, stream.stale_reserved) == (1, 1)
    assert stream.lease.alive is True


def test_a_trainer_is_alive_gone_or_unknown(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    held = trainer_lock(queue).acquire()
    assert Watcher(queue).look().trainer.alive is True
    assert Watcher(queue, judge=gone).look().trainer.alive is False
    clock = OwnClock()
    watch = LockWatch(queue, queue.paths.trainer_lock, judge=unknown, clock=clock)
    assert watch.look().alive is None
    held.beat()
    assert watch.look().alive is True
    clock.now_s = 14
    assert watch.look().alive is True
    clock.now_s = 16
    assert watch.look().alive is None  # silence proves nothing
    held.release()
    assert (watch.look().alive, watch.look().why) == (False, "it left")


def test_a_holder_that_cannot_be_understood_is_unknown(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    Path(queue.paths.trainer_lock, "gen.1").write_bytes(b"{")
    trainer = Watcher(queue).look().trainer
    assert (trainer.alive, trainer.who) == (None, "an unreadable owner")


def test_watching_goes_on_until_enough_is_known_or_the_time_is_over(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, beat_s=30.0, fresh_s=180.0, lock_interval_s=5.0)
    beater = beater_of(queue)
    beater.beat()
    clock = OwnClock()
    watcher = Watcher(queue, judge=unknown, clock=clock)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if 30 < clock.now_s < 33:
            beater.beat()

    status = watcher.watch(
        180, enough=lambda status: bool(status.streams[0].produces("wan", "")), sleep=sleep
    )
    assert status.streams[0].produces("wan", "") is True
    assert 30 < status.watched_s < 40
    silent = Watcher(queue, judge=unknown, clock=clock)
    status = silent.watch(20, sleep=clock.sleep)
    assert status.streams[0].produces("wan", "") is None
    assert status.watched_s == 20


def test_rates_are_those_of_the_last_commits_and_of_units_without_the_waiting(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path, group=2)  # batches of 4
    for version in range(1, 12):
        path = Path(queue.paths.commit(version))
        path.touch()
        at_s = 1000.0 + 100 * version if version > 2 else 1.0
        os.utime(path, (at_s, at_s))
    identities(queue, "s", [0.0, 60.0, 120.0, 9000.0, 9060.0], samples=2)
    rates = measure_rates(queue, {name: published(queue, name) for name in ("s", "nobody")})
    assert rates.consumed_per_h == pytest.approx(4 * 36)
    assert rates.produced_per_worker_h == pytest.approx(2 * 60)


def test_a_folder_that_cannot_be_read_is_an_error_and_no_zero(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    lease_of(queue)
    counted = DisturbedFS(0, "before")
    Watcher(with_fs(queue, counted)).look()
    for at in range(1, counted.steps + 1):
        with pytest.raises(SpoolError, match="cannot look at"):
            Watcher(with_fs(queue, DisturbedFS(at, errno.EIO))).look()


def test_looking_writes_nothing(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    beater_of(queue).beat()

    def everything() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    before = everything()
    Watcher(queue).look()
    assert everything() == before
