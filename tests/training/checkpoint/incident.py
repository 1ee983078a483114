"""The incident of the first seed document: a task is done at version 30, and 37 was declared.

Not here: what becomes of it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from fleetcraft.identity import Owner
from fleetcraft.layout.runs import RunPaths
from fleetcraft.spool import claims as spool_claims
from fleetcraft.spool.record import HistoryLine, Outcome
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.store import Spool
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.training.checkpoint.claims import declare_end
from fleetcraft.training.checkpoint.resuming import RunClaim, look_at_run
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.plan.records import End

TASK = "wan-3204"
RESUME = "wan-3204.resume-30-37"


class Incident:
    """A run whose task says that it is done."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = RunPaths(str(root / "runs" / TASK))
        for folder in self.paths.folders():
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self.spool_dir = str(root / "taskq")
        set_up(SpoolTree(self.spool_dir))
        self.spool = Spool(self.spool_dir, project_dir="/")
        self.store = CheckpointStore(self.paths.checkpoints)
        self.spool.enqueue(TASK, "python train.py", retries=2, outputs=("out.txt",))

    def end_task(self, name: str, to: str = "done") -> None:
        tree = self.spool.tree
        location = tree.find(name)
        owner = Owner("L0", "0", "0", f"abcdefgh-{abs(hash(name)) % 1000}")
        held = spool_claims.claim(tree, name, location.path, owner)
        assert held is not None
        outcome = Outcome.COMPLETED if to == "done" else Outcome.FAILED
        line = HistoryLine(claim=owner.token, outcome=outcome, to=to, attempt=1)
        spool_claims.close_own(tree, held, line)

    def declare(self, **end: object) -> None:
        declare_end(self.paths, msgspec.convert({"step": 37, **end}, End))

    def look(self, **words: bool) -> RunClaim:
        return look_at_run(self.paths, self.spool.tree, **words)  # type: ignore[arg-type]
