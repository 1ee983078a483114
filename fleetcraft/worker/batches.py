"""Obeying the batch table: which batch a task of a family gets, or why this worker leaves it alone.

Judged before the claim, from the table as it is then and from what this node is; what a task gets
is what was judged. Loaded for the first task that names a family. Invariant: a row that does
not fit this node, or a table that cannot be trusted, gives no task a batch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from fleetcraft.batch_table.judging import no_row, require
from fleetcraft.batch_table.records import Row, Table
from fleetcraft.batch_table.watching import TableWatch
from fleetcraft.errors import BatchRefusedError, DataError
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.worker.batch_order import BatchOrder
from fleetcraft.worker.node_probe import NodeProbe
from fleetcraft.worker.settings import WorkerSettings

_LOOK_EVERY_S = 1.0
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a task is left alone, and for how long; infinite until the table changes."""

    why: str
    wait_s: float = _FOREVER


class Batches:
    """Judges tasks that name a family, for one worker.

    Args:
        settings: The worker's.
        note: Told of what is passed over, once for each family, field and state of the table.
    """

    def __init__(self, settings: WorkerSettings, note: Callable[[str], None]) -> None:
        self._require = settings.batch_require
        self._watch = TableWatch(settings.batch_table)
        self._probe = NodeProbe(settings.batch_python)
        self._note = note
        self._told: set[tuple[str, str, int]] = set()
        self._passed: dict[str, int] = {}
        self._look_at = 0.0

    def judge(self, spec: TaskSpec, *, gpu: str) -> BatchOrder | Refused | None:
        """What a task gets; None when it must be asked first what this node is (`ask`)."""
        try:
            table = self._watch.look()
            row = table.families.get(spec.family) if table else None
            if row is None or table is None:
                if self._require:
                    raise no_row(spec.family, table)
                return BatchOrder(family=spec.family, timed=spec.timed)
            return self._judge_row(spec, table, row, gpu)
        except BatchRefusedError as error:
            return self._refuse(spec, str(error.facts.get("field", "")), error.message)
        except DataError as error:
            return self._refuse(spec, "table", error.message)

    def _judge_row(
        self, spec: TaskSpec, table: Table, row: Row, gpu: str
    ) -> BatchOrder | Refused | None:
        facts = self._probe.facts()
        if facts is None:
            return None
        # The identity is in the task's code: `fleetcraft.calibration.frozen_batch` compares it.
        left_out = {"identity"}
        if facts.lacks_torch and not self._require:
            left_out |= {"stack.torch", "stack.sdpa"}
            self._tell(spec, "left to tasks", _LEFT_TO_TASKS)
        found = facts.found_for(gpu)
        try:
            require(table, spec.family, found, left_out=left_out)
        except BatchRefusedError as error:
            if error.facts.get("found") is not None:
                raise
            why = f"{error.message} ({facts.problem or 'no torch answered'})"
            wait_s = self._probe.retry_s() if facts.problem else _FOREVER
            return self._refuse(spec, str(error.facts["field"]), why, wait_s)
        return BatchOrder(
            family=spec.family,
            timed=spec.timed,
            batch=row.timed_batch if spec.timed else row.batch,
            hash=table.hash,
            table=self._watch.path,
            alloc=row.stack.alloc,
        )

    def _refuse(self, spec: TaskSpec, field: str, why: str, wait_s: float = _FOREVER) -> Refused:
        self._passed[spec.name] = self._watch.version
        self._tell(spec, field, f"{spec.name!r} is passed over, and so are its like: {why}")
        return Refused(why, wait_s)

    def _tell(self, spec: TaskSpec, field: str, text: str) -> None:
        key = (spec.family, field, self._watch.version)
        if key not in self._told:
            self._told.add(key)
            self._note(text)

    # -- what this node is

    def ask(self) -> None:
        """Begins to ask what this node is."""
        self._probe.ask()

    def asks(self) -> bool:
        """Whether that is still being asked: nothing is to be claimed meanwhile.

        What is asked would disturb a timed task, and the end of another would end it.
        """
        return not self._probe.listen()

    def close(self) -> None:
        """Stops asking."""
        self._probe.close()

    # -- a table that changes

    def released(self) -> list[str]:
        """Tasks that were passed over for the table's sake, once it is another one."""
        now = time.monotonic()
        if not self._passed or now < self._look_at:
            return []
        self._look_at = now + _LOOK_EVERY_S
        with contextlib.suppress(DataError):  # which is judged when a task asks for it
            self._watch.look()
        version = self._watch.version
        names = [name for name, seen in self._passed.items() if seen != version]
        for name in names:
            del self._passed[name]
        if names:
            self._probe.forget()
        return names


_LEFT_TO_TASKS = (
    "the Python of the tasks has no torch that could be asked: torch and attention backend are "
    "compared by the tasks alone (frozen_batch); the setting batch.python names another Python"
)
