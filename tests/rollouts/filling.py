"""Queues for tests of the trainer's side, filled without a producer, and looked at without the code
under test.

Not here: how producers publish. A record is written as it stands, under any name that a test wants.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from fleetcraft.files import FileSystem
from fleetcraft.layout.rollouts import parse_rollout
from fleetcraft.locks import Held
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Commit, PhysicalSlot, Record, Settings, encode, seal
from fleetcraft.rollouts.trainer import trainer_lock
from fleetcraft.rollouts.transaction.batch import Transaction

SMALL = Settings(
    run="r", batch=4, group=1, high_water=16, low_water=8, max_lag=2, lock_interval_s=0.05
)
SLOT = PhysicalSlot(host="c1", device_uuid="GPU-1")


class QuickFS(FileSystem):
    """The real file system without forced writes: nothing here cuts the power."""

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        super().create(path, data, mode=mode)

    def sync_folder(self, path: str) -> None:
        pass


def new_queue(
    folder: Path | str, settings: Settings = SMALL, fs: FileSystem | None = None, **changes: Any
) -> RolloutQueue:
    """A queue on a quick file system, with some settings changed."""
    settings = msgspec.structs.replace(settings, **changes)
    return RolloutQueue.create(f"{folder}/queue", settings, fs=fs or QuickFS())


def reopened(queue: RolloutQueue, fs: FileSystem | None = None) -> RolloutQueue:
    """The same queue as another process has it."""
    return RolloutQueue(queue.paths, queue.settings, fs or QuickFS())


def record(sequence: int, *, stream: str = "s", sample: int = 0, **fields: Any) -> Record:
    """A valid record."""
    made: dict[str, Any] = {
        "run": "r",
        "stream": stream,
        "sequence": sequence,
        "sample": sample,
        "group": f"{stream}.{sequence}",
        "version": 0,
        "slot": SLOT,
        "lease_generation": 1,
        "lease_nonce": "n",
        "prompt_tokens": 100,
        "values": {"log_probs": [-1.0, -2.0]},
        "scalars": {"reward": 0.5},
        "gpu_s": 10.0,
    }
    return seal(Record(**{**made, **fields}))


def put(queue: RolloutQueue, made: Record, *, name: str = "", data: bytes | None = None) -> str:
    """Puts a record into pending and binds its identity if that is free; returns its name."""
    name = name or str(made.name)
    data = encode(made) if data is None else data
    path = Path(queue.paths.pending, name)
    path.write_bytes(data)
    ident = Path(queue.paths.ident_file(made.stream, made.sequence, made.sample))
    ident.parent.mkdir(exist_ok=True)
    if not ident.exists():
        os.link(path, ident)
    return name


def fill(queue: RolloutQueue, count: int, **fields: Any) -> list[str]:
    """Puts so many records of one stream into pending."""
    first = fields.pop("first", 0)
    return [put(queue, record(sequence, **fields)) for sequence in range(first, first + count)]


def held_on(queue: RolloutQueue) -> Held:
    """The trainer's lock, free or released before."""
    return trainer_lock(queue).acquire()


def taken(
    queue: RolloutQueue, ledger: Ledger | None = None, held: Held | None = None, **options: Any
) -> Transaction:
    """A batch that must be there."""
    found = Transaction.open(queue, ledger or Ledger.load(queue), held or held_on(queue), **options)
    assert isinstance(found, Transaction), found
    return found


def finish(batch: Transaction) -> Commit:
    """The trainer's steps."""
    batch.computed()
    batch.prepared(f"step-{batch.version}", f"{batch.version:064x}")
    return batch.commit({"loss": 1.0}, gpu_s=5.0)


def where(queue: RolloutQueue) -> dict[str, list[str]]:
    """Every record file by the state that it lies in, found without the code under test."""
    found: dict[str, list[str]] = {}
    for state in ("pending", "claimed", "consumed", "quarantine"):
        root = getattr(queue.paths, state)
        found[state] = sorted(
            file
            for _, _, files in os.walk(root)
            for file in files
            if (state == "quarantine" and file.endswith(".json")) or parse_rollout(file)
        )
    return found


def counts(queue: RolloutQueue) -> dict[str, int]:
    """How many record files lie in each state."""
    return {state: len(files) for state, files in where(queue).items()}


def commits(queue: RolloutQueue) -> list[Commit]:
    """Every commit, read without the code under test."""
    folder = Path(queue.paths.commits)
    files = sorted(file for file in folder.iterdir() if not file.name.endswith(".tmp"))
    return [msgspec.json.decode(file.read_bytes(), type=Commit) for file in files]


def sound(queue: RolloutQueue, *, records: int, batches: bool = True) -> None:
    """Nothing is trained on twice, nothing is lost, and nothing is left half done."""
    made = commits(queue)
    assert [commit.version for commit in made] == list(range(1, len(made) + 1))
    assert [commit.parent for commit in made] == list(range(len(made)))
    identities = Counter(member.identity for commit in made for member in commit.members)
    assert not [identity for identity, times in identities.items() if times > 1]
    lies = where(queue)
    assert lies["claimed"] == []
    assert os.listdir(queue.paths.claimed) == []
    assert sorted(lies["consumed"]) == sorted(m.name for c in made for m in c.members)
    for commit in made:
        folder = Path(queue.paths.consumed_folder(commit.version))
        assert {m.name for m in commit.members} == {
            file.name for file in folder.iterdir() if parse_rollout(file.name)
        }
    everywhere = [file for files in lies.values() for file in files]
    assert len(everywhere) == records, lies
