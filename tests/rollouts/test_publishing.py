"""Publishing: cut short at every operation, lied to about every rename, and done twice.

Not here: the loop around it; test_producer has that.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from fleetcraft.errors import DataError, FleetError, SpoolError, UsageError
from fleetcraft.files import FileSystem
from fleetcraft.layout.rollouts import RolloutName, parse_rollout
from fleetcraft.locks import LockLostError
from fleetcraft.rollouts.admission import Admission, release_older
from fleetcraft.rollouts.attachments import describe_file
from fleetcraft.rollouts.publishing import (
    Completed,
    Duplicate,
    Published,
    finish_half_published,
    publish,
    published,
)
from fleetcraft.rollouts.quarantine import list_refused, read_reason
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Record, Refusal, digest_of, encode, seal
from tests.rollouts.producing import (
    DisturbedFS,
    Killed,
    QuickFS,
    disturbances,
    files_in,
    lease_of,
    queue_in,
    record_of,
    room_for,
    with_fs,
)

NAME = str(RolloutName(0, "s", 0, 0))


def pending(queue: RolloutQueue) -> list[Record]:
    found = []
    for file in files_in(queue.paths.pending):
        record = msgspec.json.decode(Path(queue.paths.pending, file).read_bytes(), type=Record)
        assert file == str(record.name)
        assert record.digest == digest_of(record)
        found.append(record)
    return found


def take_over(queue: RolloutQueue, stream: str = "s") -> Completed:
    """What the next holder of a stream does first."""
    lease = lease_of(queue, stream)
    done = finish_half_published(queue, lease, Admission(queue, lease))
    release_older(queue, lease)
    lease.release()
    return done


def test_a_record_becomes_pending_with_its_identity_and_gives_its_room_back(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    room = room_for(queue, lease)
    outcome = publish(queue, record_of(lease), room)
    assert isinstance(outcome, Published)
    (record,) = pending(queue)
    assert record == outcome.record
    ident = queue.paths.ident_file("s", 0, 0)
    assert os.path.samefile(ident, f"{queue.paths.pending}/{NAME}")
    assert files_in(queue.paths.reserved) == files_in(queue.paths.tmp) == []
    assert room.samples == ()
    assert published(queue, "s") == {0: {0}}


def test_the_same_identity_with_another_content_is_refused_and_kept_as_evidence(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    publish(queue, record_of(lease), room_for(queue, lease))
    second = record_of(lease, scalars={"reward": 9.0})
    outcome = publish(queue, second, room_for(queue, lease))
    assert isinstance(outcome, Duplicate)
    assert outcome.refusal is Refusal.DUPLICATE_IDENTITY
    assert [record.scalars for record in pending(queue)] == [{"reward": 0.5}]
    (refused,) = list_refused(queue)
    kept = Path(queue.paths.quarantine, refused.name)
    assert msgspec.json.decode(kept.read_bytes(), type=Record) == seal(second)
    reason = read_reason(queue, refused)
    assert reason is not None
    assert "was published before" in reason.why
    assert reason.by == "stream s, generation 1"
    assert files_in(queue.paths.reserved) == files_in(queue.paths.tmp) == []


def test_an_identity_stays_taken_after_its_record_was_consumed(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    publish(queue, record_of(lease), room_for(queue, lease))
    os.unlink(f"{queue.paths.pending}/{NAME}")
    outcome = publish(queue, record_of(lease, version=3), room_for(queue, lease))
    assert isinstance(outcome, Duplicate)
    assert pending(queue) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"values": {"log_probs": [-1.0, float("nan")]}},
        {"scalars": {"reward": float("inf")}},
        {"gpu_s": float("nan")},
    ],
)
def test_a_number_that_is_not_finite_is_kept_out_and_its_identity_is_spent(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    outcome = publish(queue, record_of(lease, **fields), room_for(queue, lease))
    assert isinstance(outcome, Duplicate)
    assert outcome.refusal is Refusal.NOT_FINITE
    assert "is not finite" in outcome.why
    assert pending(queue) == []
    assert published(queue, "s") == {0: {0}}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"run": "other"}, "found run 'other'"),
        ({"stream": "t"}, "found stream 't'"),
        ({"sequence": 5}, "found sequence 5"),
        ({"sample": 1}, "no room is reserved for sample 1"),
        ({"lease_generation": 7}, "found lease_generation 7"),
        ({"lease_nonce": "x"}, "found lease_nonce"),
    ],
)
def test_a_record_that_is_not_of_this_lease_and_room_is_a_mistake(
    tmp_path: Path, fields: dict[str, object], word: str
) -> None:
    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    room = room_for(queue, lease)
    record = msgspec.structs.replace(record_of(lease), **fields)
    with pytest.raises(UsageError, match=word):
        publish(queue, record, room)
    assert files_in(queue.paths.tmp) == files_in(queue.paths.pending) == []


def test_a_record_without_a_value_that_the_queue_requires_is_refused_at_the_door(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path, required_values=("log_probs", "entropy"))
    lease = lease_of(queue)
    with pytest.raises(DataError, match="it lacks entropy"):
        publish(queue, record_of(lease), room_for(queue, lease))


def test_a_call_that_is_repeated_after_the_record_was_consumed_does_not_publish_it_again(
    tmp_path: Path,
) -> None:
    """All was done but the last operation failed, and a trainer was quick."""
    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    room, record = room_for(queue, lease), record_of(lease)

    class Unforced(QuickFS):
        def sync_folder(self, path: str) -> None:
            if path == queue.paths.pending:
                raise OSError(errno.EIO, "cannot be forced to disk")

    with pytest.raises(SpoolError):
        publish(with_fs(queue, Unforced()), record, room)
    os.unlink(f"{queue.paths.pending}/{NAME}")
    assert isinstance(publish(queue, record, room), Published)
    assert pending(queue) == []
    assert files_in(queue.paths.tmp) == files_in(queue.paths.reserved) == []


def test_a_holder_that_was_followed_publishes_nothing(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    first = lease_of(queue)
    room = room_for(queue, first)
    lease_of(queue)
    with pytest.raises(LockLostError):
        publish(queue, record_of(first), room)
    assert files_in(queue.paths.tmp) == files_in(queue.paths.pending) == []


def test_two_holders_of_one_stream_forced_past_the_lease_publish_an_identity_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_in(tmp_path)
    first = lease_of(queue)
    first_room = room_for(queue, first)
    second = lease_of(queue)
    second_room = room_for(queue, second)
    monkeypatch.setattr(first, "check", lambda: None)  # paused right after it looked
    assert isinstance(publish(queue, record_of(second), second_room), Published)
    outcome = publish(queue, record_of(first), first_room)
    assert isinstance(outcome, Duplicate)
    assert [record.lease_generation for record in pending(queue)] == [2]
    assert len(list_refused(queue)) == 1


def test_a_kill_a_fault_or_a_lie_at_every_operation_leaves_one_record_or_none(
    tmp_path: Path,
) -> None:
    """The next holder completes or removes what is left; a call that is repeated publishes once."""
    count = 0

    def attempt(fs: FileSystem) -> tuple[RolloutQueue, bool, bool]:
        """A queue, whether publishing was reported, and whether the process was killed."""
        nonlocal count
        count += 1
        (tmp_path / str(count)).mkdir()
        queue = queue_in(tmp_path / str(count))
        lease = lease_of(queue)
        room, record = room_for(queue, lease), record_of(lease)
        disturbed = with_fs(queue, fs)
        lease._held._lock.fs = room._queue.fs = fs
        undisturbed = with_fs(queue, QuickFS())
        try:
            publish(disturbed, record, room)
            return undisturbed, True, False
        except Killed:
            return undisturbed, False, True
        except (OSError, FleetError):
            pass
        # The very same call once more, by the same process.
        assert isinstance(publish(disturbed, record, room), Published)
        return undisturbed, True, False

    seen = set()
    for fs in disturbances(attempt):
        queue, reported, killed = attempt(fs)
        seen.add(fs.hit)
        where = f"{fs.how} {errno.errorcode.get(fs.code, '')} at {fs.at}, a {fs.hit}"
        done = take_over(queue)
        records = pending(queue)
        assert len(records) == (1 if reported else len(published(queue, "s"))), where
        assert len(records) == 1 or killed, where
        assert files_in(queue.paths.tmp) == [], where
        assert files_in(queue.paths.reserved) == [], where
        assert files_in(queue.paths.quarantine) == [], where
        assert done.waiting == 0, where
    assert {"create", "link", "rename_new", "unlink", "sync_folder"} <= seen


def half_published(queue: RolloutQueue, sequence: int = 0, *, bound: bool = False) -> Record:
    """What a holder leaves that dies right before, or right after, its identity is bound."""
    lease = lease_of(queue)
    record = seal(record_of(lease, sequence))
    path = f"{queue.paths.tmp}/{record.name}.{lease.generation}.{record.digest[:12]}"
    Path(path).write_bytes(encode(record))
    if bound:
        os.link(path, queue.paths.ident_file("s", sequence, 0))
    return record


@pytest.mark.parametrize("bound", [False, True])
def test_the_next_holder_completes_what_lies_whole_in_tmp(tmp_path: Path, bound: bool) -> None:
    queue = queue_in(tmp_path)
    record = half_published(queue, bound=bound)
    assert take_over(queue) == Completed(published=1)
    assert pending(queue) == [record]
    assert take_over(queue) == Completed()


def test_only_the_holder_of_a_stream_completes_it(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    half_published(queue)
    assert take_over(queue, "other") == Completed()
    assert len(files_in(queue.paths.tmp)) == 1


def test_half_a_write_is_removed_and_counted(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    half_published(queue)
    (file,) = files_in(queue.paths.tmp)
    path = Path(queue.paths.tmp, file)
    path.write_bytes(path.read_bytes()[:100])
    assert take_over(queue) == Completed(torn=1)
    assert published(queue, "s") == {}
    assert files_in(queue.paths.tmp) == files_in(queue.paths.quarantine) == []


def test_a_flipped_bit_in_a_record_that_was_whole_is_evidence(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    half_published(queue, bound=True)
    (file,) = files_in(queue.paths.tmp)
    path = Path(queue.paths.tmp, file)
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.7"))
    assert take_over(queue) == Completed(refused=1)
    assert [refused.refusal for refused in list_refused(queue)] == [Refusal.WRONG_DIGEST]
    assert pending(queue) == []


def test_what_was_left_waits_in_tmp_while_there_is_no_room_and_keeps_its_identity(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    half_published(queue)
    full = [Path(queue.paths.pending, str(RolloutName(0, "t", n, 0))) for n in range(10)]
    for path in full:
        path.touch()
    assert take_over(queue) == Completed(waiting=1)
    assert published(queue, "s") == {0: {0}}
    for path in full:
        path.unlink()
    assert take_over(queue) == Completed(published=1)


def test_a_record_whose_name_was_forced_into_pending_is_kept_out(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    Path(queue.paths.pending, NAME).write_bytes(b"someone else's\n")
    outcome = publish(queue, record_of(lease), room_for(queue, lease))
    assert isinstance(outcome, Duplicate)
    assert "another record is called" in outcome.why
    assert Path(queue.paths.pending, NAME).read_bytes() == b"someone else's\n"


def test_a_mount_without_hard_links_publishes_once_all_the_same(tmp_path: Path) -> None:
    class Linkless(FileSystem):
        def link(self, source: str, destination: str) -> None:
            raise OSError(errno.EPERM, "no hard links here")

    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    linkless = with_fs(queue, Linkless())
    assert isinstance(publish(linkless, record_of(lease), room_for(queue, lease)), Published)
    again = publish(linkless, record_of(lease, version=2), room_for(queue, lease))
    assert isinstance(again, Duplicate)
    assert len(pending(queue)) == 1


def test_a_full_disk_publishes_nothing_and_says_that_the_call_may_be_repeated(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    room = room_for(queue, lease)
    full = with_fs(queue, DisturbedFS(1, "from", errno.ENOSPC))
    with pytest.raises(SpoolError, match="cannot publish record s.0.0") as raised:
        publish(full, record_of(lease), room)
    assert raised.value.exit_code == 5
    assert pending(queue) == []
    assert room.samples == (0,)
    assert isinstance(publish(queue, record_of(lease), room), Published)


def test_a_file_beside_a_record_is_named_with_size_and_digest(tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(b"abc")
    ref = describe_file(str(path))
    assert (ref.path, ref.size_bytes) == (str(path), 3)
    assert ref.sha256.startswith("ba7816bf")


def test_files_of_others_in_the_folder_of_identities_are_passed_over(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    lease_of(queue)
    for name in ("00000002.001", ".nfs0001", "00000002.001.abc.tmp", "x.y"):
        Path(queue.paths.ident_folder("s"), name).touch()
    assert published(queue, "s") == {2: {1}}
    assert parse_rollout(NAME) == RolloutName(0, "s", 0, 0)


@pytest.mark.parametrize("bound", [False, True])
def test_a_take_over_that_is_disturbed_at_every_operation_is_completed_by_the_next(
    tmp_path: Path, bound: bool
) -> None:
    count = 0

    def attempt(fs: FileSystem) -> RolloutQueue:
        nonlocal count
        count += 1
        (tmp_path / str(count)).mkdir()
        queue = queue_in(tmp_path / str(count))
        half_published(queue, bound=bound)
        lease = lease_of(queue)
        disturbed = with_fs(queue, fs)
        lease._held._lock.fs = fs
        try:
            finish_half_published(disturbed, lease, Admission(disturbed, lease))
            release_older(disturbed, lease)
        except (Killed, OSError, FleetError):
            pass
        return queue

    for fs in disturbances(attempt):
        queue = attempt(fs)
        where = f"{fs.how} {fs.code} at {fs.at}, a {fs.hit}"
        take_over(queue)
        assert len(pending(queue)) == 1, where
        for folder in (queue.paths.tmp, queue.paths.reserved, queue.paths.quarantine):
            assert files_in(folder) == [], where


@pytest.mark.parametrize("torn", [0, 40])
def test_an_identity_without_hard_links_that_was_cut_short_binds_nothing(
    tmp_path: Path, torn: int
) -> None:
    class Linkless(QuickFS):
        kills = True

        def link(self, source: str, destination: str) -> None:
            raise OSError(errno.EPERM, "no hard links here")

        def create(
            self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False
        ) -> None:
            if self.kills and "/ident/" in path and not path.endswith(".tmp"):
                super().create(path, data[:torn])
                raise Killed
            super().create(path, data, mode=mode)

    queue, fs = queue_in(tmp_path), Linkless()
    lease = lease_of(queue)
    with pytest.raises(Killed):
        publish(with_fs(queue, fs), record_of(lease), room_for(queue, lease))
    lease.release()
    fs.kills = False
    heir, mine = lease_of(queue), with_fs(queue, fs)

    done = finish_half_published(mine, heir, Admission(mine, heir))

    assert (done.published, done.refused) == (1, 0)
    assert len(pending(queue)) == 1
