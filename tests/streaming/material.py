"""Runs to follow, as their writers leave them, and what W&B's own files hold of them.

Not here: a service; none is ever asked in a test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import RunPaths
from fleetcraft.streaming.offline_files import records
from fleetcraft.training.launching.epochs import Epochs
from fleetcraft.training.records import EPOCH_SCHEMA, Epoch, EpochKind, Knob, State
from fleetcraft.training.supervision.entry import make_folders
from fleetcraft.training.supervision.journal import Event, Journal
from fleetcraft.training.supervision.status_file import Status, StatusFile

T = 1_700_000_000.0
SECRET = "hunter2-is-the-secret"


def at(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).isoformat().replace("+00:00", "Z")


class Run:
    """One run in a scratch tree."""

    def __init__(self, root: Path, name: str = "distill") -> None:
        self.paths = RunPaths(str(root / "runs" / name))
        (root / "runs").mkdir(parents=True, exist_ok=True)
        make_folders(self.paths, FileSystem())
        self.journal = Journal(self.paths.events, run=name)

    def launch(self, number: int = 1) -> None:
        epoch = Epoch(
            schema=EPOCH_SCHEMA,
            number=number,
            generation=1,
            run=self.paths.name,
            kind=EpochKind.LAUNCHED,
            attempt=number,
            nonce=f"n{number}",
            at=at(T),
            why="first",
            command=("python", "train.py", f"--token={SECRET}"),
            command_sha256="c" * 64,
            environment_sha256="e" * 64,
            nodes=2,
            world_size=3,
            knobs=(Knob(name="micro_batch", value=8, floor=1),),
            stack={"torch": "2.13.0"},
            data={"samples": 5, "digest": "d" * 64},
            cache_roots={"HF_HOME": f"/home/{SECRET}"},
        )
        assert Epochs(self.paths).publish(epoch)
        for folder in self.paths.attempt(number).folders():
            os.mkdir(folder)

    def report(self, rank: int, *lines: dict[str, Any], attempt: int = 1) -> None:
        path = self.paths.attempt(attempt).rank_progress(rank)
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def steps(self, first: int, count: int, *, rank: int = 0, attempt: int = 1) -> None:
        self.report(
            rank,
            *(
                {"step": n, "tokens": 1000, "loss": 3.0 / n, "at": at(T + 10 * n)}
                for n in range(first, first + count)
            ),
            attempt=attempt,
        )

    def tell(self, event: Event, **facts: Any) -> None:
        self.journal.write(event, **facts)

    def status(self, state: State) -> None:
        status = Status(run=self.paths.name, state=state, step=7, restarts=1)
        assert StatusFile(self.paths.status, nonce="n").write(status)


def stored(folder: Path) -> list[Any]:
    """Every record of W&B's files below a folder, file after file."""
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")
    found = []
    for path in sorted(folder.rglob("run-*.wandb")):
        for data in records(path):
            record = messages.Record()
            record.ParseFromString(data)
            found.append(record)
    return found


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows that W&B's files hold."""
    rows = []
    for record in stored(folder):
        if record.WhichOneof("record_type") == "history":
            rows.append(_values(record.history.item))
    return rows


def config_of(folder: Path) -> dict[str, Any]:
    """The newest configuration that they hold."""
    found: dict[str, Any] = {}
    for record in stored(folder):
        kind = record.WhichOneof("record_type")
        if kind in ("run", "config"):
            change = record.run.config if kind == "run" else record.config
            found.update(_values(change.update))
    return found


def _values(items: Iterable[Any]) -> dict[str, Any]:
    return {
        "/".join(item.nested_key) if item.nested_key else item.key: json.loads(item.value_json)
        for item in items
    }


def numbers(rows: Iterable[dict[str, Any]]) -> list[int]:
    return [row["_step"] for row in rows]


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)
