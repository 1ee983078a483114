"""What a batch table holds, what of it is hashed, and what was found to compare with it.

Plain values; no file is touched. Invariant: the hash depends on the content alone, never on key
order, spacing, comments or machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from fleetcraft.identity import sha256_hex

SCHEMA = "fleetcraft.batch-table/1"
FREEZE_AGAIN = "fleetcraft calibrate run FAMILY; fleetcraft calibrate freeze"
BATCH_VARIABLE = "FLEET_BATCH"
"""The batch of a task of a family that has a row; ``timed_batch`` for a timed task."""
TABLE_VARIABLE = "FLEET_BATCH_TABLE"
"""The table's path; also the environment name of the setting ``batch.table``."""
HASH_VARIABLE = "FLEET_BATCH_HASH"
"""The hash of the table that the worker read."""
VARIABLES = (BATCH_VARIABLE, TABLE_VARIABLE, HASH_VARIABLE)
ALLOC_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The first that is set counts. Source: torch 2.9 and later read the second, the older name, only
where the first is not set; earlier ones know the second alone."""


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the batch was measured.

    Attributes:
        name: As the driver calls it; of a CPU ``cpu`` and its model.
        mem_mib: The driver's total, in whole MiB rounded down; null for a CPU, whose limit is that
            of the job and not of the device.
    """

    name: str
    mem_mib: int | None = None


class Stack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ran there: torch's version, the attention backend, and the allocator's settings."""

    torch: str
    sdpa: str
    alloc: str = ""


class Peak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest use of memory: in which phase, whose, and how much, in MiB rounded up."""

    phase: str = ""
    owner: str = ""
    device_mib: int | None = None
    host_mib: int | None = None


class Next(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next larger batch that was looked at, and why it was not taken."""

    batch: int
    verdict: str
    throughput_gain: int | float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One family.

    Attributes:
        identity: ``sha256:`` and the family's identity hash.
        device: Where the batch was measured.
        stack: What ran there.
        batch: What its tasks run with.
        timed_batch: What its timed tasks run with.
        reason: Why not more; see `fleetcraft.calibration.records.Choice`.
        peak: The highest use of memory at that batch.
        next: The next larger one; null when none was looked at.
        evidence: Hashes of the calibration's record and of its journals.
    """

    identity: str
    device: Device
    stack: Stack
    batch: int
    timed_batch: int = 1
    reason: str
    peak: Peak
    next: Next | None = None
    evidence: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A whole table; make one with `make_table`."""

    hash: str
    families: dict[str, Row]
    schema: str = SCHEMA


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What is here, to be compared with a row; None where it is not known.

    Attributes:
        identity: The family's identity hash.
        device_name: As in `Device`.
        device_mem_mib: As in `Device`; None is right where the row has null.
        torch: Its version.
        sdpa: The attention backend that runs.
        alloc: The allocator's settings; empty when there are none.
    """

    identity: str | None = None
    device_name: str | None = None
    device_mem_mib: int | None = None
    torch: str | None = None
    sdpa: str | None = None
    alloc: str | None = None


def allocator_settings(environ: Mapping[str, str]) -> str:
    """What torch's allocator is told by an environment; empty when nothing."""
    return next((environ[name] for name in ALLOC_VARIABLES if name in environ), "")


def make_table(families: Mapping[str, Row]) -> Table:
    """A table of these rows, with its hash."""
    rows = {key: families[key] for key in sorted(families)}
    return Table(hash=hash_of(content(rows)), families=rows)


def content(families: Mapping[str, Row]) -> dict[str, Any]:
    """What the hash is over: the document without its keys ``schema`` and ``hash``."""
    return {"families": {key: msgspec.to_builtins(row) for key, row in families.items()}}


def hash_of(document: Any) -> str:
    """``sha256:`` and the hash of the canonical JSON: sorted keys, no spaces, UTF-8.

    Raises:
        TypeError: A value or key that JSON has no word for.
        ValueError: A number that is not finite, or text that is no Unicode.
    """
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return f"sha256:{sha256_hex(text.encode())}"
