"""Rows and tables for tests: one good row, and changed copies of it."""

from __future__ import annotations

from typing import Any

import msgspec

from fleetcraft.batch_table import Device, Found, Next, Peak, Row, Stack, Table, make_table

FAMILY = "wan21-1.3b/480p/81f"
HASH_A = f"sha256:{'a' * 64}"
HASH_B = f"sha256:{'b' * 64}"
ROW = Row(
    identity=HASH_A,
    device=Device(name="NVIDIA GH200 480GB", mem_mib=97871),
    stack=Stack(torch="2.13.0", sdpa="flash", alloc="expandable_segments:True"),
    batch=4,
    timed_batch=1,
    reason="compute_saturated",
    peak=Peak(phase="decode", owner="pixels", device_mib=30120, host_mib=20480),
    next=Next(batch=8, verdict="ok", throughput_gain=-0.02),
    evidence=(HASH_A, HASH_B),
)
FOUND = Found(
    identity=HASH_A,
    device_name="NVIDIA GH200 480GB",
    device_mem_mib=97871,
    torch="2.13.0",
    sdpa="flash",
    alloc="expandable_segments:True",
)


def changed(record: Any, **changes: Any) -> Any:
    """A copy with other values; ``device__name`` is a field of a field."""
    for name, value in changes.items():
        outer, _, inner = name.partition("__")
        new = msgspec.structs.replace(getattr(record, outer), **{inner: value}) if inner else value
        record = msgspec.structs.replace(record, **{outer: new})
    return record


def table(**changes: Any) -> Table:
    """A table of one row."""
    return make_table({FAMILY: changed(ROW, **changes)})
