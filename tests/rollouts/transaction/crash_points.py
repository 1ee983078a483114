"""A warm process that forks one trainer after another and ends or disturbs each at one file
operation.

Run with a folder and one JSON object: which operation, and how it is disturbed. For every k it
prepares a queue, lets a child perform the operation with the k-th file operation disturbed, and
proves, being another process, that one recovery pass repairs what is left. Prints one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from fleetcraft.errors import FleetError
from fleetcraft.locks import Held
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.recovery import recover
from fleetcraft.rollouts.trainer import RolloutTrainer
from fleetcraft.rollouts.transaction import batch as batches
from fleetcraft.rollouts.transaction import settling
from fleetcraft.rollouts.transaction.batch import Transaction
from tests.crash.protocol import Place
from tests.crash.server import DisturbedFS
from tests.crash.serving import attempt, in_child
from tests.quick_fs import QuickFS
from tests.rollouts.filling import (
    commits,
    fill,
    finish,
    held_on,
    new_queue,
    put,
    record,
    reopened,
    sound,
    taken,
)

MAX_STEPS = 400
RECORDS = 5
BATCH = 2
NEVER = -1_000_000
EXPECTED = (OSError, FleetError)


@dataclass(frozen=True)
class Operation:
    """What is cut short.

    Attributes:
        prepare: Makes the start, undisturbed, in a process of its own that then dies.
        act: Is disturbed; it owns the lock, and what it was promised is said.
    """

    prepare: Callable[[RolloutQueue], None]
    act: Callable[[RolloutQueue, Ledger, Held, Callable[..., None]], None]


Say = Callable[..., None]


def _waiting(queue: RolloutQueue) -> None:
    fill(queue, RECORDS)


def _with_bad_ones(queue: RolloutQueue) -> None:
    put(queue, record(0), data=b'{"schema": "torn')
    broken = record(1, values={"log_probs": [1.0]})
    put(queue, broken, data=b'{"schema":"fleetcraft.rollout/1"}\n')
    altered = record(2)
    put(queue, altered, data=_altered(altered))
    fill(queue, RECORDS - 3, first=3)


def _altered(made: Any) -> bytes:
    from fleetcraft.rollouts.records import encode

    return encode(made).replace(b"-2.0", b"-3.0")


def _claim(queue: RolloutQueue, ledger: Ledger, held: Held, say: Say) -> None:
    Transaction.open(queue, ledger, held)


def _roll_back(queue: RolloutQueue, ledger: Ledger, held: Held, say: Say) -> None:
    found = Transaction.open(queue, ledger, held)
    if isinstance(found, Transaction):
        found.undo("it was asked", gpu_s=9309.0)


def _commit(queue: RolloutQueue, ledger: Ledger, held: Held, say: Say) -> None:
    found = Transaction.open(queue, ledger, held)
    if isinstance(found, Transaction):
        say("committed", finish(found).version)


def _recover(queue: RolloutQueue, ledger: Ledger, held: Held, say: Say) -> None:
    recover(queue, ledger, held)


def _committed_not_filed(queue: RolloutQueue) -> None:
    _waiting(queue)
    with mock.patch.object(batches, "redo", side_effect=OSError(13, "no permission")):
        finish(taken(queue))


def _dead_when_prepared(queue: RolloutQueue) -> None:
    _waiting(queue)
    batch = taken(queue)
    batch.computed()
    batch.prepared("step-1", "f" * 64)


OPERATIONS: dict[str, Operation] = {
    "claim": Operation(_waiting, _claim),
    "claim bad ones": Operation(_with_bad_ones, _claim),
    "roll back": Operation(_waiting, _roll_back),
    "commit": Operation(_waiting, _commit),
    "redo": Operation(_committed_not_filed, _recover),
    "undo of a dead one": Operation(_dead_when_prepared, _recover),
}


@contextlib.contextmanager
def nobody_looks_at_the_commits() -> Iterator[None]:
    """A recovery that puts back whatever lies in a claim folder: what the harness must notice."""
    with (
        mock.patch.object(settling, "find_commit", return_value=None),
        mock.patch.object(Ledger, "contains", return_value=False),
    ):
        yield


def disturb(folder: str, name: str, how: list[str], at: int) -> dict[str, Any]:
    """One crash point: prepare, act, prove. The result has ``hit``: whether there was a k-th."""
    operation, said = OPERATIONS[name], f"{folder}/said"
    root = f"{folder}/q"
    place = Place(Path(root), Path(said))
    os.mkdir(root)
    queue = new_queue(root, batch=BATCH, lock_interval_s=0.001, fs=QuickFS())

    def say(*words: object) -> None:
        place.say(*map(str, words))

    def act() -> list[str]:
        fs = DisturbedFS(at, how)
        fs.steps = NEVER
        mine = reopened(queue, fs)
        held, ledger = held_on(mine), Ledger.load(mine)
        fs.steps = 0
        try:
            operation.act(mine, ledger, held, say)
        except EXPECTED as error:
            return [fs.disturbed, type(error).__name__]
        return [fs.disturbed, ""]

    result: dict[str, Any] = {"at": at}
    try:
        prepared = in_child(lambda: operation.prepare(queue))
        if "trouble" in prepared:
            return {**result, "hit": True, **prepared}
        acted = in_child(act)
        result["hit"] = "signal" in acted or "trouble" in acted or bool(acted["returned"][0])
        result["acted"] = acted
        proved = acted if "trouble" in acted else attempt(lambda: prove(queue, place.said()))
        if "trouble" in proved:
            result["trouble"] = proved["trouble"]
            result["listing"] = sorted(_files(root))
        return result
    finally:
        shutil.rmtree(root)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(said)


def prove(queue: RolloutQueue, said: list[list[str]]) -> None:
    """Another trainer comes, repairs, trains on what is left, and nothing is lost or used twice."""
    promised = {int(words[1]) for words in said if words[0] == "committed"}
    assert promised <= {commit.version for commit in commits(queue)}, "a promised commit is lost"
    with RolloutTrainer(reopened(queue)) as trainer:
        assert trainer.recovered.problems == ()
        sound(queue, records=RECORDS)
        assert recover(queue, trainer.ledger, trainer.held).nothing
        for batch in trainer.batches(patience_s=0):
            batch.commit("c", "0" * 64)
    sound(queue, records=RECORDS)
    assert not [file for file in os.listdir(queue.paths.transactions) if "." not in file[:-5]]


def _files(root: str) -> Iterator[str]:
    for folder, _, files in os.walk(root):
        yield from (os.path.relpath(os.path.join(folder, file), root) for file in files)


def measure(folder: str, operation: str, hows: list[list[str]]) -> dict[str, Any]:
    """Every point of one operation, disturbed in every way."""
    points: list[dict[str, Any]] = []
    for how in hows:
        missed = 0
        for at in range(1, MAX_STEPS):
            point = disturb(folder, operation, how, at)
            missed = 0 if point["hit"] else missed + 1
            if point["hit"]:
                points.append({**point, "how": how})
            if missed > 1:  # a close is not made to fail, and is followed by something that is
                break
    troubles = [point for point in points if "trouble" in point]
    return {"points": len(points), "troubles": troubles[:3], "count": len(troubles)}


def main(folder: str, request: str) -> None:
    asked = json.loads(request)
    broken = nobody_looks_at_the_commits() if asked.get("broken") else contextlib.nullcontext()
    with broken:
        json.dump(measure(folder, asked["operation"], asked["how"]), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
