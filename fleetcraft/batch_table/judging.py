"""Comparing: what is found against what is frozen, and one table against another.

No file is touched, nothing is measured. Invariant: what is not known never passes, unless the
caller names who compares it instead; the first field that differs is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Any

import msgspec

from fleetcraft.batch_table.records import FREEZE_AGAIN, Found, Row, Table, content, hash_of
from fleetcraft.errors import BatchRefusedError

STACK_FIELDS = frozenset({"stack.torch", "stack.sdpa", "stack.alloc"})


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference of two tables.

    Attributes:
        family: Whose row.
        field: With dots, such as ``device.name``; empty for a whole row.
        before: None when the row was not there.
        after: None when it is there no more.
    """

    family: str
    field: str
    before: Any
    after: Any


def require(
    table: Table,
    family: str,
    found: Found,
    *,
    batch: int | None = None,
    left_out: Collection[str] = (),
) -> Row:
    """The row of a family, if everything that was found is what was frozen.

    Memory is compared as whole MiB, exactly: another size is another device.

    Args:
        table: As read.
        family: Its key.
        found: What is here; None is unknown, and refused, except for memory where the row has
            null itself.
        batch: One that was given by hand.
        left_out: Fields that are not compared here since somebody else does: of a worker
            ``identity``, which the task alone can know.

    Raises:
        BatchRefusedError: Its ``field`` is, in this order, ``hash``, ``family``, ``identity``,
            ``device.name``, ``device.mem_mib``, ``stack.torch``, ``stack.sdpa``,
            ``stack.alloc`` or ``batch``.
    """
    row = require_row(table, family)
    for field, here, frozen in _pairs(row, found):
        if field not in left_out and here != frozen:
            raise _differs(family, field, here, frozen)
    if batch is not None and batch not in (row.batch, row.timed_batch):
        raise _differs(family, "batch", batch, row.batch)
    return row


def require_row(table: Table, family: str) -> Row:
    """The row of a family, whatever is found here.

    Raises:
        BatchRefusedError: The table is not what its hash says, or has no such row.
    """
    right = hash_of(content(table.families))
    if table.hash != right:
        raise BatchRefusedError(
            "hash",
            f"hash: the batch table says {table.hash}, but its rows have {right}; "
            "nothing of it was used",
            hint=FREEZE_AGAIN,
            found=table.hash,
            frozen=right,
        )
    row = table.families.get(family)
    if row is None:
        raise no_row(family, table)
    return row


def no_row(family: str, table: Table | None) -> BatchRefusedError:
    """The error for a family without a row; None for the table when there is none."""
    near = _near(family, table) if table else []
    where = "no row in the batch table" if table else "no row, since there is no batch table"
    hint = f"fleetcraft calibrate run {family}; fleetcraft calibrate freeze"
    return BatchRefusedError(
        "family",
        f"family {family!r} has {where}; nothing was run",
        hint=f"did you mean {' or '.join(map(repr, near))}? else {hint}" if near else hint,
        family=family,
        near=near,
    )


def _near(family: str, table: Table) -> list[str]:
    longer = [key for key in table.families if key.startswith(f"{family}/")]
    return (longer or get_close_matches(family, table.families, n=3))[:3]


def _pairs(row: Row, found: Found) -> Iterator[tuple[str, object, object]]:
    yield "identity", found.identity, row.identity
    yield "device.name", found.device_name, row.device.name
    yield "device.mem_mib", found.device_mem_mib, row.device.mem_mib
    yield "stack.torch", found.torch, row.stack.torch
    yield "stack.sdpa", found.sdpa, row.stack.sdpa
    yield "stack.alloc", found.alloc, row.stack.alloc


def _differs(family: str, field: str, here: object, frozen: object) -> BatchRefusedError:
    if here is None:
        reason = f"cannot be checked here, frozen for {frozen!r}"
    else:
        reason = f"found {here!r}, frozen for {frozen!r}"
    return BatchRefusedError(
        field,
        f"{field}: {reason} (family {family!r}); nothing was run",
        hint=f"run it where it was calibrated, or: fleetcraft calibrate run {family}; "
        "fleetcraft calibrate freeze",
        family=family,
        found=here,
        frozen=frozen,
    )


def diff(a: Table, b: Table) -> list[Change]:
    """What changed from one table to another, by family and field, in order."""
    changes = []
    for family in sorted(a.families.keys() | b.families.keys()):
        before, after = _plain(a, family), _plain(b, family)
        if before is None or after is None:
            changes.append(Change(family=family, field="", before=before, after=after))
            continue
        one, two = _flat(before), _flat(after)
        changes += [
            Change(family=family, field=field, before=one.get(field), after=two.get(field))
            for field in dict.fromkeys([*one, *two])
            if one.get(field) != two.get(field)
        ]
    return changes


def _plain(table: Table, family: str) -> dict[str, Any] | None:
    row = table.families.get(family)
    return None if row is None else msgspec.to_builtins(row)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            flat[name] = value
    return flat
