"""The audit finds what is wrong, each fault by itself, and says yes only of what it has read."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from fleetcraft.rollouts.attachments import describe_file
from fleetcraft.rollouts.audit import audit
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Refusal, encode
from fleetcraft.rollouts.transaction import batch as batches
from tests.rollouts.filling import (
    QuickFS,
    fill,
    finish,
    held_on,
    new_queue,
    put,
    record,
    reopened,
    taken,
)


def trained(folder: Path, *, versions: int = 2) -> RolloutQueue:
    """A queue with some versions, one record that waits, and one that was refused."""
    queue = new_queue(folder)
    held, ledger = held_on(queue), Ledger.load(queue)
    for version in range(versions):
        fill(queue, 4, first=4 * version, version=version)
        finish(taken(queue, ledger, held))
    put(queue, record(50, version=versions), data=b"torn")
    fill(queue, 3, first=60, version=versions)
    batches.Transaction.open(queue, ledger, held)  # refuses the torn one
    return queue


def consumed(queue: RolloutQueue, version: int = 1, number: int = 0) -> Path:
    folder = Path(queue.paths.consumed_folder(version))
    return sorted(path for path in folder.iterdir() if path.name.startswith("v"))[number]


def test_a_sound_queue_is_proved_with_its_accounts(tmp_path: Path) -> None:
    found = audit(trained(tmp_path))
    assert (found.ok, found.problems, found.unknown) == (True, (), ())
    assert (found.version, found.committed, found.verified, found.pending) == (2, 8, 8, 3)
    assert found.quarantined == {Refusal.UNREADABLE: 1}
    assert found.gpu_s == 2 * (4 * 10.0 + 5.0)
    assert (found.quarantined_gpu_s, found.quarantined_unmeasured) == (0.0, 1)
    assert (found.duplicates, found.missing) == (0, 0)


def test_names_alone_prove_less_and_read_no_record(tmp_path: Path) -> None:
    found = audit(trained(tmp_path), records=False)
    assert (found.ok, found.committed, found.verified) == (True, 8, 0)


def spoil_bytes(queue: RolloutQueue) -> None:
    path = consumed(queue)
    data = path.read_bytes()
    path.unlink()  # the identity keeps the old bytes
    path.write_bytes(data.replace(b"-2.0", b"-2.5"))


def train_twice(queue: RolloutQueue) -> None:
    old = Path(queue.paths.commit(1)).read_bytes()
    members = old.partition(b'"members":')[2].partition(b"]}")[0]
    assert members
    path = Path(queue.paths.commit(2))
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"s",4,0]', b'"s",0,0]'))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (spoil_bytes, "digest"),
        (train_twice, "s.0.0 was trained on again by v2"),
        (lambda q: consumed(q).unlink(), "of v1 is not filed"),
        (lambda q: shutil.copy(consumed(q), f"{q.paths.consumed}/v000002/"), "no such member"),
        (lambda q: os.unlink(q.paths.commit(1)), "v1 is missing"),
        (lambda q: Path(q.paths.commit(2)).write_bytes(b"{"), "v2 cannot be read"),
        (lambda q: os.unlink(q.paths.ident_file("s", 0, 0)), "never bound"),
        (
            lambda q: os.unlink(f"{q.paths.pending}/v000002.s.00000060.000.json"),
            "s.60.0 was published, and its record is nowhere",
        ),
        (lambda q: put(q, record(0, version=2)), "waits, and was trained on already"),
    ],
)
def test_each_fault_is_found(
    tmp_path: Path, spoil: Callable[[RolloutQueue], object], says: str
) -> None:
    queue = trained(tmp_path)
    spoil(queue)
    found = audit(queue)
    assert found.ok is False
    assert any(says in problem for problem in found.problems), found.problems


def test_an_identity_that_waits_twice_is_a_duplicate(tmp_path: Path) -> None:
    queue = trained(tmp_path)
    twin = record(60, version=2, scalars={"reward": 9.0})
    put(queue, twin, name="v000002.other.00000060.000.json")
    found = audit(queue)
    assert (found.ok, found.duplicates, found.trained_twice) == (False, 1, 0)


def test_records_of_a_commit_that_are_not_filed_yet_are_no_fault(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    with mock.patch.object(batches, "redo", side_effect=OSError(13, "no permission")):
        finish(taken(queue))
    found = audit(queue)
    assert (found.ok, found.unfiled, found.claimed, found.committed) == (True, 4, 0, 4)


def test_an_open_transaction_is_no_fault(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 5)
    taken(queue)
    found = audit(queue)
    assert (found.ok, found.claimed, found.pending) == (True, 4, 1)


def test_a_record_that_is_half_published_is_not_lost(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    made = record(0)
    half = Path(queue.paths.tmp, f"{made.name}.1.{made.digest[:12]}")
    half.write_bytes(encode(made))
    Path(queue.paths.ident_folder("s")).mkdir()
    os.link(half, queue.paths.ident_file("s", 0, 0))
    found = audit(queue)
    assert (found.ok, found.half_published, found.missing) == (True, 1, 0)


@pytest.mark.parametrize("place", ["commits/v000002.json", "consumed/v000001/v", "quarantine/"])
def test_what_cannot_be_read_is_never_proved(tmp_path: Path, place: str) -> None:
    class Failing(QuickFS):
        def read_with_facts(self, path: str) -> tuple[bytes, os.stat_result]:
            if f"/queue/{place}" in path:
                raise OSError(errno.EIO, "Input/output error", path)
            return super().read_with_facts(path)

    queue = trained(tmp_path)
    found = audit(reopened(queue, Failing()))
    assert found.ok is None
    assert found.unknown


def test_a_thousand_faults_are_counted_and_not_all_listed(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    folder = Path(queue.paths.ident_folder("s"))
    folder.mkdir()
    for sequence in range(1000):
        (folder / f"{sequence:08d}.000").touch()
    found = audit(queue)
    assert (found.missing, len(found.problems)) == (1000, 201)
    assert found.problems[-1] == "and 800 more like these"


def test_it_tells_how_far_it_is(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    audit(trained(tmp_path), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def with_file(folder: Path) -> tuple[RolloutQueue, Path, Path]:
    """A queue with one version, and files beside a consumed record and one that waits."""
    queue, files = new_queue(folder), []
    for sequence in range(5):
        path = folder / f"video-{sequence}.mp4"
        path.write_bytes(b"frames")
        files.append(path)
        put(queue, record(sequence, files=(describe_file(str(path)),)))
    finish(taken(queue))
    return queue, files[0], files[4]


def test_files_are_read_to_the_last_byte_only_where_that_is_asked(tmp_path: Path) -> None:
    queue, _, _ = with_file(tmp_path)
    assert audit(queue).files_verified == 0
    found = audit(queue, files=True)
    assert (found.ok, found.files_verified) == (True, 5)


@pytest.mark.parametrize("which", [1, 2])
def test_a_file_with_another_content_of_the_same_size_is_found(tmp_path: Path, which: int) -> None:
    made = with_file(tmp_path)
    path = made[which]
    assert isinstance(path, Path)
    path.write_bytes(b"FRAMES")
    assert audit(made[0]).ok
    found = audit(made[0], files=True)
    assert found.ok is False
    assert len(found.problems) == 1
    assert "SHA-256" in found.problems[0]


def test_a_file_that_is_gone_is_a_problem_where_files_are_asked_for(tmp_path: Path) -> None:
    queue, consumed_file, _ = with_file(tmp_path)
    consumed_file.unlink()
    assert audit(queue).ok
    found = audit(queue, files=True)
    assert found.ok is False
    assert found.problems[0].endswith(f"its file {consumed_file} is not there")


def test_a_link_to_a_file_is_described_as_the_file_itself(tmp_path: Path) -> None:
    real, link = tmp_path / "real.mp4", tmp_path / "link.mp4"
    real.write_bytes(b"frames" * 100)
    link.symlink_to(real)
    queue = new_queue(tmp_path)
    put(queue, record(0, files=(describe_file(str(link)),)))
    fill(queue, 3, first=1)
    assert not taken(queue).refused
