"""What was judged of a task's batch, and how that enters its environment; no batch by hand does.

Judging is in `batches`. Invariant: a task starts with the batch that was judged before its claim,
or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fleetcraft.batch_table.records import (
    ALLOC_VARIABLES,
    BATCH_VARIABLE,
    HASH_VARIABLE,
    TABLE_VARIABLE,
    VARIABLES,
    allocator_settings,
)
from fleetcraft.errors import BatchRefusedError, DataError
from fleetcraft.spool.directives import TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrder:
    """What was judged of one task before its claim; ``batch`` is None where there is no row."""

    family: str = ""
    timed: bool = False
    batch: int | None = None
    hash: str = ""
    table: str = ""
    alloc: str = ""

    def enter(self, env: dict[bytes, bytes], spec: TaskSpec) -> None:
        """Puts the batch into a task's environment, which is whole but for that.

        Raises:
            DataError: It is not the task that was judged.
            BatchRefusedError: Its environment changes what the row was frozen for.
        """
        if (self.family, self.timed) != (spec.family, spec.family != "" and spec.timed):
            raise DataError("its family is not the one that was judged before the claim")
        if self.batch is None:
            return
        names = [name for name in ALLOC_VARIABLES if name.encode() in env]
        here = allocator_settings({name: os.fsdecode(env[name.encode()]) for name in names})
        if here != self.alloc:
            raise BatchRefusedError(
                "stack.alloc",
                f"stack.alloc: its env-file gives {here!r}, frozen for {self.alloc!r}",
            )
        env[BATCH_VARIABLE.encode()] = b"%d" % self.batch
        env[HASH_VARIABLE.encode()] = self.hash.encode()
        env[TABLE_VARIABLE.encode()] = os.fsencode(self.table)


NO_BATCH = BatchOrder()


def refuse_batch_by_hand(names: Mapping[str, str], place: str, not_done: str = "run") -> None:
    """Refuses an environment that sets a batch itself.

    Raises:
        BatchRefusedError: It does; its field is ``batch``.
    """
    given = [name for name in VARIABLES if name in names]
    if given:
        raise BatchRefusedError(
            "batch",
            f"{place} sets the batch by hand ({given[0]}), which only a worker may; "
            f"nothing was {not_done}",
            hint="remove that line; fleetcraft calibrate freeze is how a batch is chosen",
            variable=given[0],
        )
