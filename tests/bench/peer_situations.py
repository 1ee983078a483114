"""What a driver can do: the situations in which nvitop, gpustat and our logger are compared.

Not here: how they fare. Invariant: each is lines of the driver rig, so all three meet the same.
Source: the failures that the telemetry format page lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.rig.rig import Value

BAD = 1
"""The GPU that a situation is about, of four."""
RESERVED_MIB = 500
HEALTHY: dict[str, Value] = {
    "gpus": 4,
    **{f"gpu.{n}.util": 20 * n + 10 for n in range(4)},
    **{f"gpu.{n}.mem_used_mib": 1024 * (n + 1) for n in range(4)},
    **{f"gpu.{n}.mem_reserved_mib": RESERVED_MIB for n in range(4)},
    **{f"gpu.{n}.power_mw": 100_000 * (n + 1) for n in range(4)},
}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the driver does, from the start and from some samples on.

    Attributes:
        what: In words.
        lines: Of the rig, from the start.
        then: Of the rig, once the logger has two samples; the other two look after that.
        absent: Symbols that the library lacks.
        library: Whether there is one.
        bad: The GPU that it is about; None when it is all of them.
        after: Samples that the logger goes on for at least, after the change.
    """

    what: str
    lines: Mapping[str, Value] = field(default_factory=dict)
    then: Mapping[str, Value] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    library: bool = True
    bad: int | None = BAD
    after: int = 3


def _bad(**lines: Value) -> dict[str, Value]:
    return {f"gpu.{BAD}.{key.replace('__', '.')}": value for key, value in lines.items()}


_ZERO_MEMORY = _bad(mem_total_mib=0, mem_used_mib=0, mem_reserved_mib=0)
_OLD = (
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)
SITUATIONS = {
    "healthy": Situation(what="healthy", bad=None),
    "no_library": Situation(what="library absent", library=False, bad=None),
    "not_loaded": Situation(what="driver not loaded (9)", lines={"error.init": 9}, bad=None),
    "comes_back": Situation(
        what="driver not loaded, then loaded",
        lines={"error.init": 9},
        then={"error.init": 0},
        bad=None,
        after=10,
    ),
    "mismatch": Situation(
        what="driver/library mismatch (18)",
        lines={"error.init": 18, "nvml": "12.550.54.14"},
        bad=None,
    ),
    "init_forbidden": Situation(
        what="no permission (4) at init", lines={"error.init": 4}, bad=None
    ),
    "handle_forbidden": Situation(
        what="no permission (4) at a handle", lines=_bad(error__handle=4)
    ),
    "field_forbidden": Situation(
        what="no permission (4) at a field: memory", lines=_bad(error__memory=4)
    ),
    "lost": Situation(what="GPU lost (15)", lines=_bad(error__all=15)),
    "lost_later": Situation(what="GPU lost while running", then=_bad(error__all=15)),
    "reset": Situation(what="reset required (16)", lines=_bad(error__all=16)),
    "reset_later": Situation(what="reset required while running", then=_bad(error__all=16)),
    "shrinks": Situation(what="GPU count shrinks", then=_bad(absent=1)),
    "unknown": Situation(what="unknown (999) at a handle", lines=_bad(error__handle=999)),
    "unknown_field": Situation(
        what="unknown (999) at a field: utilization",
        lines=_bad(error__util=999, error__samples=999),
    ),
    "hang": Situation(what="a call hangs: utilization", then=_bad(hang__util="inf")),
    "hang_start": Situation(
        what="a call hangs from the start: memory", lines=_bad(hang__memory="inf")
    ),
    "hang_init": Situation(what="init hangs", lines={"hang.init": "inf"}, bad=None),
    "old_driver": Situation(
        what="functions missing: an older driver's library", absent=_OLD, bad=None
    ),
    "missing": Situation(
        what="functions missing (13): power and temperature",
        lines={
            "missing": "nvmlDeviceGetPowerUsage,nvmlDeviceGetFieldValues,nvmlDeviceGetTemperature"
        },
        bad=None,
    ),
    "unified": Situation(what="unified memory: NotSupported (3)", lines=_bad(error__memory=3)),
    "total_0": Situation(what="memory total 0", lines=_ZERO_MEMORY),
    "v1": Situation(
        what="memory of version 1 only",
        lines={"missing": "nvmlDeviceGetMemoryInfo_v2"},
        bad=None,
    ),
    "mig": Situation(what="MIG, two slices", lines=_bad(mig=2)),
    "zero_util": Situation(
        what="utilization constant 0 at 390 W with a process",
        lines=_bad(util=0, power_mw=390_000, processes=1),
    ),
    "no_power": Situation(what="power unavailable (3)", lines=_bad(error__power=3)),
    "no_util": Situation(
        what="utilization unavailable (3)", lines=_bad(error__util=3, error__samples=3)
    ),
    "counter": Situation(
        what="energy counter starts again at 0",
        lines=_bad(energy_mj=9_000_000, energy_grows=1),
        then=_bad(energy_mj=0),
    ),
    "xid": Situation(what="XID 79", then=_bad(xid=79)),
}
