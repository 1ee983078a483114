"""Enqueuing a plan's tasks: in batches and by single calls, several at a time, some killed.

Not here: when. Invariant: a name counts as enqueued once a call that had it ended with 0; it is
then written down outside the spool, which is what the judge goes by.
"""

from __future__ import annotations

import json
import random
import signal
import time

from tests.soak.ground import FLEETCRAFT, Call, Ground
from tests.soak.plan import INNER, OUTER, Plan, Task

PACK_IDLE = "5"
MOST_PACKS = 4


class Feeder:
    """Feeds one plan.

    Attributes:
        fed: How many tasks of the plan have been enqueued.
        packs: How many packs.
        killed: How many calls were killed and repeated.
    """

    def __init__(self, ground: Ground, plan: Plan, rng: random.Random) -> None:
        self._ground = ground
        self._plan = plan
        self._rng = rng
        self._file = (ground.base / "enqueued").open("a", buffering=1)
        self._batches = 0
        self._begun: list[tuple[Call, list[Task]]] = []
        self.fed = 0
        self.packs = 0
        self.killed = 0

    def feed(self, upto: int, *, kill: bool = False) -> None:
        """Begins to enqueue the tasks up to a place in the plan; `reap` writes down what is there.

        Args:
            upto: How many are to be there then.
            kill: Kills a batch's call at some moment, and enqueues the same again.
        """
        upto = min(upto, len(self._plan.tasks))
        places = range(self.fed, upto)
        for spool in (OUTER, INNER):
            chosen = [self._plan.tasks[place] for place in places]
            singles = [t for p, t in zip(places, chosen, strict=True) if p in self._plan.singles]
            rows = [t for t in chosen if t.spool == spool and t not in singles]
            if rows:
                self._batch(spool, rows, kill=kill)
            for task in singles:
                if task.spool == spool:
                    self._single(task)
        self.fed = max(self.fed, upto)

    def _batch(self, spool: str, tasks: list[Task], *, kill: bool = False) -> None:
        self._batches += 1
        file = self._ground.base / f"batch-{self._batches:03d}.jsonl"
        file.write_text("".join(json.dumps(task.row) + "\n" for task in tasks))
        if kill:
            self._begin_and_kill(spool, str(file))
        words = ("enqueue", "--from", str(file), "--if-absent")
        self._begun.append((self._ground.fleetcraft(*words, spool=spool), tasks))

    def _begin_and_kill(self, spool: str, file: str) -> None:
        call = self._ground.fleetcraft("enqueue", "--from", file, spool=spool)
        time.sleep(self._rng.uniform(0.15, 0.6))
        call.process.send_signal(signal.SIGKILL)
        call.process.wait()
        self.killed += 1

    def _single(self, task: Task) -> None:
        row = dict(task.row)
        words = ["enqueue", "-n", str(row.pop("name"))]
        command = str(row.pop("command"))
        for key, value in row.items():
            for item in value if isinstance(value, list) else [value]:
                words += [f"--{key}"] if item is True else [f"--{key}", str(item)]
        self._begun.append((self._ground.fleetcraft(*words, command, spool=task.spool), [task]))

    def reap(self) -> None:
        """Writes down what has been enqueued by now.

        Raises:
            AssertionError: A call failed.
        """
        open_calls = []
        for call, tasks in self._begun:
            if not call.over:
                open_calls.append((call, tasks))
                continue
            assert call.code == 0, call.said()
            self._file.write("".join(f"{t.spool} {t.kind} {t.name}\n" for t in tasks))
        self._begun = open_calls

    def close(self) -> None:
        """Closes the list of what was enqueued."""
        self._file.close()

    @property
    def busy(self) -> bool:
        """Whether calls are under way."""
        return bool(self._begun)

    def add_packs(self, count: int) -> None:
        """Enqueues packs: outer tasks that serve the inner spool."""
        packs = []
        for _ in range(count):
            self.packs += 1
            worker = [*FLEETCRAFT, "--spool", "gpu", "worker", "--slots", "2", "--idle", PACK_IDLE]
            worker += ["--heartbeat", "2", "--grace", "2"]
            command = f". {self._ground.prelude}; {' '.join(worker)}; end $?"
            row: dict[str, object] = {"name": f"pack-{self.packs:04d}", "command": command}
            row |= {"retries": 3, "lane": "first"}
            packs.append(Task(spool=OUTER, kind="pack", row=row))
        self._batch(OUTER, packs)
