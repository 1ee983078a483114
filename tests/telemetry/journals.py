"""Leases and journals as workers write them, made by tests in a real spool.

Source of the form: the pages on the spool format; the events are those of the worker's diary.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from fleetcraft.spool.leases import Lease, publish
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.tree import SpoolTree


def iso(t_s: float) -> str:
    """As workers write times."""
    text = datetime.fromtimestamp(t_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class Launch:
    """One worker's lease and journal.

    Args:
        tree: Its spool.
        at_s: When it started.
        with_lease: Whether it has a lease.
    """

    def __init__(
        self,
        tree: SpoolTree,
        at_s: float,
        *,
        launch: str = "aaaaaaaa",
        job: str = "7",
        host: str = "n1",
        slots: int = 1,
        gpus: int = 0,
        with_lease: bool = True,
        role: str = "worker",
        left_s: float | None = None,
    ) -> None:
        self.name = f"{job}.0.{launch}"
        self.token = launch
        self.path = Path(tree.paths.journal(self.name))
        if with_lease:
            lease = Lease(
                job=job,
                rank="0",
                launch=launch,
                host=host,
                boot_id="b",
                pid_namespace="p",
                pid=1,
                start_ticks=1,
                started_at=iso(at_s),
                interval_s=30.0,
                slots=slots,
                gpus=gpus,
                role=role,
                left_at=None if left_s is None else iso(left_s),
            )
            publish(tree, lease)

    def write(self, event: str, t_s: float, **fields: object) -> Launch:
        """One event."""
        line = json.dumps({"event": event, "at": iso(t_s), **fields})
        return self.raw(line + "\n")

    def raw(self, text: str | bytes) -> Launch:
        """Any bytes."""
        self.path.touch(mode=0o600)
        with self.path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        return self

    def run(
        self,
        task: str,
        start_s: float,
        end_s: float | None = None,
        *,
        outcome: str = "completed",
        number: int = 1,
        **fields: object,
    ) -> str:
        """A start, and an end where there is one; returns the claim."""
        claim = f"{self.token}-{number}"
        self.write("start", start_s, task=task, attempt=1, claim=claim, **{"slot": 0, **fields})
        if end_s is not None:
            self.write(
                "end",
                end_s,
                task=task,
                attempt=1,
                claim=claim,
                outcome=outcome,
                to="done",
                wall_s=end_s - start_s,
            )
        return claim


def depth(**counts: int) -> dict[str, int]:
    """The counts of a depth event; states that are not named have none."""
    return {**dict.fromkeys(("waiting", "pending", "running", "done", "failed"), 0), **counts}


def make_spool(folder: Path) -> SpoolTree:
    """An empty spool."""
    tree = SpoolTree(str(folder))
    set_up(tree)
    return tree
