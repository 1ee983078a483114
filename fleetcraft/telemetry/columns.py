"""The columns of a telemetry file, and the kinds of its rows.

The first five are those of the archives that came before. Invariant: columns are only ever added,
at the end, and readers go by the header, not by position.
"""

from __future__ import annotations

from enum import StrEnum

SCHEMA_VERSION = 1
SIDECAR_SCHEMA = "fleetcraft.telemetry_file/1"

ARCHIVE_COLUMNS = ("timestamp", "mem_used_mib", "mem_total_mib", "util_pct", "power_w")
COLUMNS = (
    *ARCHIVE_COLUMNS,
    "gpu_index",
    "gpu_uuid",
    "pci_bus_id",
    "mig_uuid",
    "util_max_pct",
    "util_samples",
    "mem_util_pct",
    "energy_j",
    "temp_c",
    "sm_clock_mhz",
    "throttle",
    "ecc",
    "status",
    "host_mem_used_mib",
    "host_mem_total_mib",
    "cgroup_mem_mib",
    "host_load",
    "job_id",
    "step_id",
    "kind",
    "util_source",
    "mem_source",
    "mem_reserved_mib",
    "power_source",
    "missing",
    "detail",
)
"""What the logger writes.

``kind``: see `RowKind`; a file without the column has samples of GPUs alone.
``util_source``: ``samples`` when ``util_pct`` is the mean of the driver's own buffer since the row
before, ``instant`` when it is one reading of at most the last second; empty without a reading.
``mem_source``: ``v2`` (used without what the driver reserves), ``v1`` (with it).
``power_source``: what ``power_w`` means: ``instant``, ``average``, ``usage`` (the plain call, which
averages on newer cards); with ``/module`` behind it where it is the module's, not the GPU's.
``throttle``: the raw mask in hex; its bits in words stand in ``detail``.
``ecc``: uncorrected volatile errors.
``missing``: ``column=cause`` for each empty cell that has one, separated by spaces.
``detail``: words for people, without commas, quotes and line breaks.
"""

DEVICE_COLUMNS = ("mig_uuid", "gpu_uuid", "pci_bus_id", "gpu_index")
"""What tells one GPU's rows from another's: the first of them that is not empty."""


class RowKind(StrEnum):
    """What a row is about.

    ``HEARTBEAT`` says that the logger lives while the driver does not answer, ``EVENT`` tells of
    something that happened at that moment (an XID, a GPU that was lost or came back). Neither is a
    sample.
    """

    GPU = "gpu"
    MIG = "mig"
    HOST = "host"
    EVENT = "event"
    HEARTBEAT = "heartbeat"
