"""The loop of a worker: real processes that are killed, told to leave, and started again.

Not here: what happens inside one publication; test_publishing has that.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetcraft.errors import SpoolError, UsageError
from fleetcraft.layout.rollouts import RolloutName
from fleetcraft.locks import LockHeldError, LockLostError
from fleetcraft.rollouts.abort import ask_abort, clear_abort
from fleetcraft.rollouts.producer import Producer
from fleetcraft.rollouts.publishing import Duplicate, Published, published
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Beat, ProducerState, Record, digest_of
from tests.rollouts.producing import (
    LIES,
    SLOT,
    DisturbedFS,
    QuickFS,
    files_in,
    gone,
    lease_of,
    queue_in,
    with_fs,
)

REPO = Path(__file__).resolve().parents[2]
WORKER = """
import signal, sys
from fleetcraft.rollouts.producer import Producer
with Producer(sys.argv[1], sys.argv[2], poll_s=0.01) as producer:
    producer.drain_on(signal.SIGTERM)
    for unit in producer:
        print("unit", unit.sequence, flush=True)
        for sample in unit.samples:
            unit.publish(sample, scalars={"seed": float(unit.seed(sample) % 997)})
            print("published", sample, flush=True)
        if unit.sequence + 1 >= int(sys.argv[3]):
            break
print("left", flush=True)
"""


def producer_of(queue: RolloutQueue, stream: str = "s", **given: Any) -> Producer:
    ways = {"slot": SLOT, "judge": gone, "poll_s": 0.01, "patience_s": 0.0, **given}
    return Producer(queue, stream, **ways)


def make(producer: Producer, units: int) -> list[int]:
    """Publishes so many units whole; returns their numbers."""
    made = []
    while len(made) < units and (unit := producer.next_unit()) is not None:
        for sample in unit.samples:
            assert isinstance(unit.publish(sample), Published)
        made.append(unit.sequence)
    return made


def state_of(queue: RolloutQueue, stream: str = "s") -> ProducerState:
    return msgspec.json.decode(Path(queue.paths.beat(stream)).read_bytes(), type=Beat).state


def pending(queue: RolloutQueue) -> list[Record]:
    paths = [Path(queue.paths.pending, file) for file in files_in(queue.paths.pending)]
    return [msgspec.json.decode(path.read_bytes(), type=Record) for path in paths]


def clear(queue: RolloutQueue) -> None:
    for file in files_in(queue.paths.pending):
        os.unlink(f"{queue.paths.pending}/{file}")


def start(queue: RolloutQueue, stream: str = "s", units: int = 1000) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, queue.paths.folder, stream, str(units)],
        cwd=REPO, text=True, stdout=subprocess.PIPE,
    )  # fmt: skip


def lines_of(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


# ------------------------------------------------------------------------------ one process


def test_units_come_in_order_and_their_records_are_whole(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, group=2)
    with producer_of(queue, shape="81x480x832", logical_device="cuda:0") as producer:
        assert make(producer, 3) == [0, 1, 2]
        assert producer.told.published == 6
    records = pending(queue)
    assert [(r.sequence, r.sample) for r in records] == [(q, s) for q in range(3) for s in range(2)]
    for record in records:
        assert record.digest == digest_of(record)
        assert record.group == f"s.{record.sequence:08d}.000"
        assert (record.shape, record.logical_device, record.slot) == (
            *("81x480x832", "cuda:0"), SLOT,
        )  # fmt: skip
        assert record.started_at <= record.ended_at
    assert files_in(queue.paths.reserved) == files_in(queue.paths.tmp) == []
    assert state_of(queue) is ProducerState.EXITED


def test_seeds_depend_on_run_stream_and_place_and_on_nothing_else(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, group=2, high_water=100)
    seeds: list[int] = []
    for stream in ("s", "t"):
        with producer_of(queue, stream) as producer:
            for _ in range(2):
                unit = producer.next_unit()
                assert unit is not None
                seeds += [unit.prompt_seed, *(unit.seed(sample) for sample in unit.samples)]
                for sample in unit.samples:
                    unit.publish(sample)
    assert len(set(seeds)) == len(seeds) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)
    (tmp_path / "again").mkdir()
    with producer_of(queue_in(tmp_path / "again", group=2)) as producer:
        unit = producer.next_unit()
        assert unit is not None
        assert [unit.prompt_seed, unit.seed(0), unit.seed(1)] == seeds[:3]


def test_a_stream_goes_on_after_what_it_has_published_though_that_was_consumed(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    with producer_of(queue) as producer:
        make(producer, 3)
    clear(queue)
    with producer_of(queue) as producer:
        assert make(producer, 2) == [3, 4]


def test_a_unit_that_was_cut_short_is_finished_while_its_first_samples_wait(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path, group=2)
    with producer_of(queue) as producer:
        unit = producer.next_unit()
        assert unit is not None
        unit.publish(1)
    assert producer.told.abandoned == 1
    assert files_in(queue.paths.reserved) == []
    with producer_of(queue) as producer:
        unit = producer.next_unit()
        assert unit is not None
        assert (unit.sequence, unit.samples) == (0, (0,))
        unit.publish(0)
        assert make(producer, 1) == [1]
    assert Counter(record.group for record in pending(queue)) == {
        "s.00000000.000": 2, "s.00000001.000": 2,
    }  # fmt: skip


def test_a_unit_that_was_cut_short_is_left_where_its_first_samples_are_gone(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path, group=2)
    with producer_of(queue) as producer:
        unit = producer.next_unit()
        assert unit is not None
        unit.publish(1)
    clear(queue)
    with producer_of(queue) as producer:
        assert make(producer, 1) == [1]


def test_samples_that_were_never_published_give_their_room_back_and_are_counted(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path, group=2)
    with producer_of(queue) as producer:
        unit = producer.next_unit()
        assert unit is not None
        unit.publish(0)
        following = producer.next_unit()
        assert following is not None
        assert following.sequence == 1
        assert producer.told.abandoned == 1
        assert len(files_in(queue.paths.reserved)) == 2
        with pytest.raises(UsageError, match="no room is reserved"):
            unit.publish(1)


def test_a_producer_waits_for_room_and_goes_on_below_the_low_water(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    with producer_of(queue) as producer:
        assert make(producer, 10) == list(range(10))
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.extend(make(producer, 1)))
        thread.start()
        try:
            wait_for(lambda: producer.state is ProducerState.THROTTLED)
            for file in files_in(queue.paths.pending)[:6]:
                os.unlink(f"{queue.paths.pending}/{file}")
        finally:
            thread.join(20)
        assert found == [10]
        assert producer.state is ProducerState.RUNNING


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    event = threading.Event()
    for _ in range(int(seconds * 200)):
        if condition():
            return
        event.wait(0.005)
    raise AssertionError("it did not come to pass")


@pytest.mark.parametrize("when", ["before", "starting", "in a unit", "between", "throttled"])
def test_abort_finishes_the_unit_gives_room_back_and_ends_the_loop(
    tmp_path: Path, when: str
) -> None:
    queue = queue_in(tmp_path, group=2)
    if when == "before":
        ask_abort(queue, "why")
    with producer_of(queue) as producer:
        if when == "starting":
            ask_abort(queue, "why")
        units = []
        if when == "throttled":
            make(producer, 5)
            threading.Timer(0.05, ask_abort, (queue, "why")).start()
        for unit in producer:
            if when == "in a unit":
                ask_abort(queue, "why")
            for sample in unit.samples:
                assert isinstance(unit.publish(sample), Published)
            units.append(unit.sequence)
            if when == "between":
                ask_abort(queue, "why")
        assert units == ([0] if when in ("in a unit", "between") else [])
        assert state_of(queue) is ProducerState.DRAINING
    assert files_in(queue.paths.reserved) == files_in(queue.paths.tmp) == []
    clear(queue)
    assert clear_abort(queue) is not None
    with producer_of(queue) as producer:
        assert len(make(producer, 1)) == 1


@pytest.mark.parametrize("how", ["drain", "stop"])
def test_a_producer_that_is_asked_to_drain_begins_no_unit(tmp_path: Path, how: str) -> None:
    asked = threading.Event()
    with producer_of(queue_in(tmp_path), stop=asked.is_set) as producer:
        make(producer, 1)
        producer.drain() if how == "drain" else asked.set()
        assert producer.next_unit() is None


def test_the_version_is_the_newest_commits_or_what_the_caller_has_loaded(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    Path(queue.paths.commit(7)).write_bytes(b"")
    with producer_of(queue) as producer:
        unit = producer.next_unit()
        assert unit is not None
        assert unit.version == 7
        unit.publish()
    with producer_of(queue, version=lambda: 5) as producer:
        unit = producer.next_unit()
        assert unit is not None
        unit.publish(version=6)
    assert [record.version for record in pending(queue)] == [6, 7]


def test_a_duplicate_is_counted_and_the_loop_goes_on(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    with producer_of(queue) as producer:
        unit = producer.next_unit()
        assert unit is not None
        Path(queue.paths.ident_file("s", 0, 0)).write_bytes(b"another's\n")
        assert isinstance(unit.publish(), Duplicate)
        assert make(producer, 1) == [1]
        assert (producer.told.refused, producer.told.published) == (1, 1)


def test_a_file_system_that_fails_for_a_while_is_waited_for(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    fs = DisturbedFS(10**9, "from", errno.ENOSPC)
    with producer_of(with_fs(queue, fs), patience_s=30.0) as producer:
        unit = producer.next_unit()
        assert unit is not None
        fs.at = 1
        threading.Timer(0.1, setattr, (fs, "at", 10**9)).start()
        assert isinstance(unit.publish(), Published)
    assert len(pending(queue)) == 1


class Ghosts(QuickFS):
    """Does what it is told and, now and then, reports an error of it all the same."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._rng = random.Random(7)
        self._share = share
        self.told = 0

    def _lie(self) -> None:
        if self._rng.random() < self._share:
            self.told += 1
            code = self._rng.choice(LIES)
            raise OSError(code, os.strerror(code))

    def rename_new(self, source: str, destination: str) -> None:
        super().rename_new(source, destination)
        self._lie()

    def link(self, source: str, destination: str) -> None:
        super().link(source, destination)
        self._lie()

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._lie()


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_operations_that_are_done_and_reported_as_failed_make_no_second_record(
    tmp_path: Path, share: float
) -> None:
    queue = queue_in(tmp_path, high_water=1000, group=2)
    ghosts = Ghosts(0.0)
    for _ in range(4):
        with producer_of(with_fs(queue, ghosts), patience_s=30.0) as producer:
            ghosts._share = share
            make(producer, 50)
            ghosts._share = 0.0
    assert ghosts.told > 5
    assert published(queue, "s") == {sequence: {0, 1} for sequence in range(200)}
    assert len(files_in(queue.paths.pending)) == 400
    for folder in (queue.paths.tmp, queue.paths.reserved, queue.paths.quarantine):
        assert files_in(folder) == []


def test_patience_has_an_end_and_says_what_failed(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    fs = DisturbedFS(10**9, "from", errno.ENOSPC)
    with producer_of(with_fs(queue, fs)) as producer:
        unit = producer.next_unit()
        assert unit is not None
        fs.at = 1
        with pytest.raises(SpoolError, match="cannot publish record s.0.0: No space left"):
            unit.publish()
        with pytest.raises(SpoolError, match="cannot reserve room"):
            producer.next_unit()
    assert pending(queue) == []


def test_an_abort_that_cannot_be_looked_for_begins_no_unit(tmp_path: Path) -> None:
    class Blind(QuickFS):
        blind = False

        def exists(self, path: str) -> bool:
            if self.blind and path.endswith("/ABORT"):
                raise OSError(errno.EACCES, "not allowed")
            return super().exists(path)

    fs = Blind()
    with producer_of(with_fs(queue_in(tmp_path), fs)) as producer:
        fs.blind = True
        with pytest.raises(SpoolError, match="cannot go on with stream s"):
            producer.next_unit()


def test_a_producer_that_was_followed_stops_at_its_next_unit_or_record(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    with producer_of(queue) as producer:
        unit = producer.next_unit()
        assert unit is not None
        lease_of(queue)
        with pytest.raises(LockLostError):
            unit.publish()
        with pytest.raises(LockLostError):
            producer.next_unit()
    assert pending(queue) == []


@pytest.mark.parametrize(
    ("samples", "word"), [(3, "whole groups"), (0, "whole groups"), (8, "1 to 6")]
)
def test_a_unit_that_is_no_whole_number_of_groups_or_too_large_is_a_mistake(
    tmp_path: Path, samples: int, word: str
) -> None:
    with pytest.raises(UsageError, match=word):
        producer_of(queue_in(tmp_path, group=2), samples=samples)


def test_a_unit_of_several_groups_names_each_of_them(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, group=2)
    with producer_of(queue, samples=4) as producer:
        make(producer, 1)
    groups = Counter(record.group for record in pending(queue))
    assert groups == {"s.00000000.000": 2, "s.00000000.001": 2}


# ------------------------------------------------------------------------------ real processes


def test_a_worker_that_is_killed_again_and_again_makes_every_identity_once(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, group=2, high_water=100)
    rng = random.Random(5)
    for _ in range(5):
        with start(queue) as process:
            lines_of(process, rng.randint(1, 6))
            process.kill()
    with start(queue, units=25) as last:
        assert last.wait(60) == 0
    done = published(queue, "s")
    records = pending(queue)
    assert sorted(done) == list(range(max(done) + 1))
    assert {(r.sequence, r.sample) for r in records} == {
        (sequence, sample) for sequence, samples in done.items() for sample in samples
    }
    assert len(records) == len({record.identity for record in records})
    assert all(samples == {0, 1} for samples in done.values())
    assert len({record.lease_generation for record in records}) > 1
    assert files_in(queue.paths.tmp) == files_in(queue.paths.reserved) == []
    assert files_in(queue.paths.quarantine) == []


def test_a_worker_that_is_terminated_finishes_its_unit_and_ends_well(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, group=2)
    with start(queue) as process:
        assert lines_of(process, 1) == ["unit 0"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    done = published(queue, "s")
    assert all(samples == {0, 1} for samples in done.values())
    assert files_in(queue.paths.reserved) == []
    assert state_of(queue) is ProducerState.EXITED


def test_two_workers_of_one_stream_on_two_devices_are_one_before_the_first_prompt(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    with start(queue) as process:
        lines_of(process, 1)
        try:
            with pytest.raises(LockHeldError), producer_of(queue, judge=lambda holder: None):
                raise AssertionError("it got in")
        finally:
            process.kill()


def test_several_workers_at_once_never_exceed_the_high_water(tmp_path: Path) -> None:
    """Counted from outside by identity, while one reader takes records away."""
    queue = queue_in(tmp_path, high_water=10, low_water=5)
    workers = [start(queue, f"s{n}") for n in range(4)]
    most = taken = 0
    try:
        while taken < 60:
            held = {tuple(name.split(".")[:3]) for name in files_in(queue.paths.reserved)
                    if not name.endswith(".asked")}  # fmt: skip
            names = queue.names(queue.paths.pending)
            there = {(n.stream, f"{n.sequence:08d}", f"{n.sample:03d}") for n in names}
            most = max(most, len(held | there))
            if len(names) >= 4:
                for name in names[:4]:
                    os.unlink(f"{queue.paths.pending}/{name}")
                    taken += 1
            elif any(worker.poll() is not None for worker in workers):
                raise AssertionError("a worker has ended")
    finally:
        for worker in workers:
            worker.terminate()
        codes = [worker.wait(60) for worker in workers]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.close()
    assert codes == [0] * 4
    assert 4 <= most <= 10
    everything = [ident for n in range(4) for ident in files_in(queue.paths.ident_folder(f"s{n}"))]
    assert len(everything) == taken + len(files_in(queue.paths.pending))
    assert files_in(queue.paths.reserved) == []


def test_a_worker_loads_neither_torch_nor_the_driver_unless_it_asks_for_devices() -> None:
    code = (
        "import sys, fleetcraft.rollouts.producer\n"
        "heavy = {'torch', 'pynvml', 'pandas', 'numpy', 'matplotlib', 'rich', 'click'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, text=True, capture_output=True, check=True
    )
    assert said.stdout.strip() == "[]"


def test_a_name_is_what_a_record_of_a_unit_is_called(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    with producer_of(queue, version=lambda: 12) as producer:
        make(producer, 1)
    assert files_in(queue.paths.pending) == [str(RolloutName(12, "s", 0, 0))]


def test_a_sample_that_was_bound_and_not_moved_is_completed_by_the_second_call(
    tmp_path: Path,
) -> None:
    class Stuck(QuickFS):
        stuck = False

        def rename_new(self, source: str, destination: str) -> None:
            if self.stuck and "/pending/" in destination:
                raise OSError(errno.EIO, os.strerror(errno.EIO), destination)
            super().rename_new(source, destination)

    queue, fs = queue_in(tmp_path), Stuck()
    with producer_of(with_fs(queue, fs)) as producer:
        unit = producer.next_unit()
        assert unit is not None
        fs.stuck = True
        with pytest.raises(SpoolError):
            unit.publish()
        fs.stuck = False
        time.sleep(0.01)  # another millisecond by the wall clock
        assert isinstance(unit.publish(), Published)
    assert len(pending(queue)) == 1
    assert files_in(queue.paths.quarantine) == []
