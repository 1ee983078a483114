"""The batch that a task or a script may run with: asked for inside it, checked against all of it.

The worker has compared what it can see; only here are the identity, and the stack as the task
really has it, compared too. Invariant: a number that is returned is the frozen one, for this very
family, device and stack; there is no fallback.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fleetcraft.batch_table import Found, Table, read_table, require, require_row
from fleetcraft.batch_table.records import BATCH_VARIABLE, HASH_VARIABLE, Row, hash_of
from fleetcraft.calibration.family import BUILT_IN, Family, find_family
from fleetcraft.calibration.records import Environment
from fleetcraft.errors import BatchRefusedError

_WORKER_HINT = "it has to come from the worker: fleetcraft enqueue --family KEY"


def frozen_batch(
    family: Family | str,
    *,
    identity: Family | Mapping[str, Any] | str | None = None,
    batch: int | None = None,
    table: str | Table | None = None,
    device: str = "auto",
) -> int:
    """The frozen batch of a family, after everything was compared. Imports torch.

    Call it where attention is pinned as it was when the family was calibrated.

    Args:
        family: The family, its key, or how it is named on the command line (``FILE.py:NAME``).
        identity: With a bare key: the family, its ``identity_fields``, or its identity hash.
        batch: One that was given by hand; refused unless it is the frozen one.
        table: The table or its path; in a task the one that the worker names, else the setting
            ``batch.table``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Returns:
        The batch; in a timed task the ``timed_batch``, as ``FLEET_BATCH`` says.

    Raises:
        BatchRefusedError: Its ``field`` is ``hash``, ``family``, ``identity``, ``device.name``,
            ``device.mem_mib``, ``stack.torch``, ``stack.sdpa``, ``stack.alloc`` or ``batch``.
        DataError: The table cannot be read.
    """
    from fleetcraft.calibration.stack import describe_stack

    key, wanted = _key_and_identity(family, identity)
    frozen = _table(table)
    _compare_with_worker(key, frozen)
    row = require_row(frozen, key)
    found = found_in(describe_stack(device), identity=wanted)
    given = _of_worker(key, row)
    require(frozen, key, found, batch=batch)
    if batch is not None and batch != given:
        raise _batch(f"{batch} was given by hand, and this task is to run with {given}")
    return given


def found_in(environment: Environment, *, identity: str | None = None) -> Found:
    """What a description of a stack says, to be compared with a row."""
    mem_mib = environment.device_mem_mib
    return Found(
        identity=identity,
        device_name=environment.device or None,
        device_mem_mib=None if mem_mib is None else int(mem_mib),
        torch=environment.torch or None,
        sdpa=environment.sdpa or None,
        alloc=environment.alloc,
    )


def _key_and_identity(
    family: Family | str, identity: Family | Mapping[str, Any] | str | None
) -> tuple[str, str | None]:
    if isinstance(family, str) and (family in BUILT_IN or ":" in family):
        family = find_family(family)
    if isinstance(family, Family):
        identity = family if identity is None else identity
        family = family.key
    if identity is None or isinstance(identity, str):
        return family, identity
    return family, identity.identity_hash if isinstance(identity, Family) else hash_of(identity)


def _table(table: str | Table | None) -> Table:
    if isinstance(table, Table):
        return table
    if table is None:
        from fleetcraft.config import load

        # FLEET_BATCH_TABLE, by which a worker names its table, is this setting's own variable.
        table = load().text("batch.table")
    if not table:
        raise BatchRefusedError(
            "hash", "hash: nothing says where the batch table is", hint="set FLEET_BATCH_TABLE"
        )
    return read_table(table)


def _compare_with_worker(key: str, table: Table) -> None:
    """Compares the table and the family with what the worker of this task went by."""
    told = os.environ.get(HASH_VARIABLE)
    if told is not None and told != table.hash:
        raise BatchRefusedError(
            "hash",
            f"hash: the worker read {told}, and the batch table here is {table.hash}; "
            "nothing was run",
            hint="the table was written after this task was claimed: fleetcraft retry NAME",
            found=table.hash,
            frozen=told,
        )
    of_task = os.environ.get("FLEET_FAMILY")
    if of_task is not None and of_task != key:
        raise BatchRefusedError(
            "family",
            f"family: this task is of family {of_task!r}, and asks for the batch of {key!r}",
            hint=f"fleetcraft enqueue --family {key}",
            found=key,
            frozen=of_task,
        )


def _of_worker(key: str, row: Row) -> int:
    """What ``FLEET_BATCH`` says, if that is one of the row's; the row's own outside of tasks."""
    text = os.environ.get(BATCH_VARIABLE)
    if text is None:
        if os.environ.get("FLEET_FAMILY") == key:
            raise _batch("this task was claimed when the table had no row for its family")
        return row.batch
    if HASH_VARIABLE not in os.environ:
        raise _batch(f"{BATCH_VARIABLE} is {text!r}, but no worker set it")
    if text not in (str(row.batch), str(row.timed_batch)):
        raise _batch(f"{BATCH_VARIABLE} is {text!r}, frozen for {row.batch}")
    return int(text)


def _batch(reason: str) -> BatchRefusedError:
    return BatchRefusedError("batch", f"batch: {reason}; nothing was run", hint=_WORKER_HINT)
