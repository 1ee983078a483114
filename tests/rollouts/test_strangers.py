"""What others put into a queue, or what no producer would: refused with a reason, never trained on.

Not here: records that a producer published and that are no training data (`test_judging`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.errors import DataError
from fleetcraft.rollouts.abort import read_abort
from fleetcraft.rollouts.attachments import check_file
from fleetcraft.rollouts.audit import audit
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.quarantine import list_refused
from fleetcraft.rollouts.queue import RolloutQueue, UnsafeQueueError
from fleetcraft.rollouts.records import MOST_BYTES, FileRef, Refusal, encode
from fleetcraft.rollouts.requeue import requeue
from fleetcraft.rollouts.status import Watcher
from tests.rollouts.filling import QuickFS, commits, fill, finish, new_queue, put, record, taken

DEEP = b'{"schema":"fleetcraft.rollout/1","x":' + b"[" * 200_000
BAD = "v000000.bad.00000000.000.json"


def open_to_others(path: str) -> None:
    os.chmod(path, 0o777)


def a_link(path: str) -> None:
    os.rename(path, f"{path}-elsewhere")
    os.symlink(f"{path}-elsewhere", path)


def of_another_user(path: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize("spoil", [open_to_others, a_link, of_another_user])
@pytest.mark.parametrize("name", ["", "/pending", "/commits", "/quarantine", "/control"])
def test_a_queue_that_others_could_write_is_refused(
    tmp_path: Path, spoil: Callable[[str], None], name: str
) -> None:
    queue = new_queue(tmp_path)
    spoil(queue.paths.folder + name)

    with pytest.raises(UnsafeQueueError) as raised:
        RolloutQueue.open(queue.paths.folder)

    assert raised.value.exit_code == 5
    assert queue.paths.folder + name in raised.value.message
    with pytest.raises(UnsafeQueueError):
        RolloutQueue.create(queue.paths.folder, queue.settings)


def test_a_queue_that_everybody_could_exchange_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "open"
    queue = new_queue(parent)
    parent.chmod(0o777)
    with pytest.raises(UnsafeQueueError, match="in its place"):
        RolloutQueue.open(queue.paths.folder)
    parent.chmod(0o1777)
    assert RolloutQueue.open(queue.paths.folder).settings == queue.settings


@pytest.mark.parametrize("run", ["a\x1b[31mb", "x" * 65, "../x"])
def test_settings_that_nobody_could_have_made_are_refused(tmp_path: Path, run: str) -> None:
    queue = new_queue(tmp_path)
    path = Path(queue.paths.settings)
    path.write_bytes(path.read_bytes().replace(b'"run":"r"', b'"run":' + encode_text(run)))
    with pytest.raises(DataError):
        RolloutQueue.open(queue.paths.folder)


def encode_text(text: str) -> bytes:
    import json

    return json.dumps(text).encode()


def link_to_a_record(path: Path) -> None:
    other = path.parent.parent / "other.json"
    other.write_bytes(encode(record(0, stream="bad")))
    path.symlink_to(other)


def writable_by_others(path: Path) -> None:
    path.write_bytes(encode(record(0, stream="bad")))
    path.chmod(0o666)


def owned_by_another(path: Path) -> None:
    path.write_bytes(encode(record(0, stream="bad")))
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, 65534)


def enormous(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)


def a_sparse_terabyte(path: Path) -> None:
    with path.open("wb") as file:
        try:
            file.truncate(1 << 40)
        except OSError:
            pytest.skip("no file can be so long here")


STRANGE: list[Callable[[Path], object]] = [
    link_to_a_record, writable_by_others, owned_by_another, enormous, a_sparse_terabyte,
    lambda path: path.symlink_to("/nowhere"),
    os.mkfifo,
    lambda path: path.mkdir(),
    lambda path: path.write_bytes(DEEP),
    lambda path: path.write_bytes(b"[" * 100_000),
    lambda path: path.write_bytes(b"\x00" * 100),
]  # fmt: skip


@pytest.mark.parametrize("make", STRANGE)
def test_what_is_no_record_is_put_aside_and_the_batch_goes_on(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    make(Path(queue.paths.pending, BAD))
    assert audit(queue).pending == 5

    batch = taken(queue)
    finish(batch)

    assert [each.refusal for each in batch.refused] == [Refusal.UNREADABLE]
    assert os.listdir(queue.paths.pending) == []
    assert {m.name for m in commits(queue)[0].members}.isdisjoint({BAD})
    found = audit(queue)
    assert (found.ok, found.quarantined) == (True, {Refusal.UNREADABLE: 1})
    put_back = requeue(queue, [list_refused(queue)[0].name])
    assert put_back.requeued == ()


@pytest.mark.parametrize(
    "name", ["v0000000.s.00000009.000.json", "v00000٣.s.00000009.000.json", "v000000.s.9.0.json",
             "v000000.s\n.00000009.000.json", "v000000.\x1b[2J.00000009.000.json"],
)  # fmt: skip
def test_a_name_in_another_spelling_is_no_record_and_takes_no_room(
    tmp_path: Path, name: str
) -> None:
    queue = new_queue(tmp_path)
    Path(queue.paths.pending, name).write_bytes(encode(record(9)))
    assert queue.counts().pending == 0
    assert Watcher(queue).look().waiting == 0


@pytest.mark.parametrize("where", ["hb/s.json", "control/ABORT", "commits/v000001.json"])
def test_deep_json_elsewhere_ends_nothing(tmp_path: Path, where: str) -> None:
    queue = new_queue(tmp_path)
    Path(queue.paths.folder, where).write_bytes(b'{"x":' + b"[" * 200_000)
    assert audit(queue).ok is (not where.startswith("commits"))
    Watcher(queue).look()
    if where.startswith("control"):
        found = read_abort(queue)
        assert found is not None
        assert "cannot be understood" in found.reason


@pytest.mark.parametrize("path", ["a\x00b", "x" * 5000, "queue.json/x", "nowhere"])
def test_a_file_that_can_be_nowhere_is_missing_and_stops_no_trainer(
    tmp_path: Path, path: str
) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    put(queue, record(0, stream="a", files=(FileRef(path=path, size_bytes=1, sha256="0"),)))
    ledger = Ledger.load(queue)
    from fleetcraft.rollouts.transaction.batch import Transaction
    from fleetcraft.rollouts.transaction.selection import NotEnough
    from tests.rollouts.filling import held_on

    held = held_on(queue)
    found = Transaction.open(queue, ledger, held)

    assert isinstance(found, NotEnough)
    assert [each.refusal for each in found.refused] == [Refusal.FILE_MISSING]
    assert taken(queue, ledger, held).records


def test_a_pipe_beside_a_record_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = FileRef(path=str(tmp_path / "pipe"), size_bytes=0, sha256="0")
    found = check_file(QuickFS(), str(tmp_path), file, content=True)
    assert found is not None
    assert found[0] is Refusal.FILE_CHANGED
