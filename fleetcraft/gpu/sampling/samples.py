"""What the sampler hands out: one reading of one GPU or slice, an event, and what a GPU is called.

Records alone; who fills them is in `sampling`. Invariant: what was not measured is None, and the
cause stands beside it; 0 is a measured 0.
"""

from __future__ import annotations

import msgspec

from fleetcraft.gpu.status import Status

Missing = tuple[str, Status, int]
"""A column whose cell is empty, the cause, and NVML's code (0 where the cause is no code)."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a session.

    Attributes:
        position: Its place in the session, which is how the session knows it.
        index: The driver's number of it; None while the driver does not list it.
        uuid: ``GPU-…``; empty while the driver does not tell it.
        mem_total_mib: Its memory; None where it has none of its own or does not say.
        mig: UUIDs of its slices.
        status: Why it cannot be read, else ``ok``.
    """

    position: int
    index: int | None = None
    uuid: str = ""
    name: str = ""
    pci_bus_id: str = ""
    mem_total_mib: float | None = None
    mig: tuple[str, ...] = ()
    status: Status = Status.OK


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one GPU or slice: a row of telemetry without time and host.

    Attributes:
        index: The driver's number of the GPU, of a slice its GPU's; the last known one.
        util_pct: Mean busy share, 0 to 100, of the time since the sample before (``samples``), or
            of at most the last second (``instant``): see ``util_source``.
        util_max_pct: The greatest sample in that mean, and ``util_samples`` their number; None for
            an instant.
        mem_used_mib: Memory in use; with what the driver reserves where ``mem_source`` is ``v1``.
        power_w: What ``power_source`` says: ``average`` of the last second, ``instant``, ``usage``;
            with ``/module`` behind it where it is the module's.
        energy_j: The GPU's own counter, since the driver was loaded; it can begin anew.
        throttle: The mask of what holds the clocks down.
        ecc: Uncorrected errors since the driver was loaded; read only now and then, and None
            without a cause in between.
        status: The worst cause among utilization, memory and power; ``ok`` when all are there.
        missing: A cause for every cell that is empty for one.
        detail: Words for people, without commas and quotes.
    """

    index: int | None = None
    uuid: str = ""
    pci_bus_id: str = ""
    mig_uuid: str = ""
    name: str = ""
    util_pct: float | None = None
    util_max_pct: float | None = None
    util_samples: int | None = None
    util_source: str = ""
    mem_util_pct: float | None = None
    mem_used_mib: float | None = None
    mem_total_mib: float | None = None
    mem_reserved_mib: float | None = None
    mem_source: str = ""
    power_w: float | None = None
    power_source: str = ""
    energy_j: float | None = None
    temp_c: float | None = None
    sm_clock_mhz: float | None = None
    throttle: int | None = None
    ecc: int | None = None
    status: Status = Status.OK
    missing: tuple[Missing, ...] = ()
    detail: str = ""
    is_slice: bool = False


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the driver reports once, such as an XID.

    Attributes:
        uuid: The GPU, as the session knows it; empty when the driver named none that it knows.
        text: What happened, without commas.
        status: The state of the GPU that it tells of; ``ok`` when it tells of none.
    """

    uuid: str
    index: int | None
    text: str
    status: Status
