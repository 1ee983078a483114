"""Telemetry files as the logger will write them, made by tests.

Source of the form: the first columns of the archives, then those that name the GPU and the cause
of an empty cell.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

COLUMNS = (
    "timestamp,mem_used_mib,mem_total_mib,util_pct,power_w,gpu_index,gpu_uuid,pci_bus_id,mig_uuid,"
    "util_max_pct,util_samples,mem_util_pct,energy_j,temp_c,sm_clock_mhz,throttle,ecc,status,"
    "host_mem_used_mib,host_mem_total_mib,cgroup_mem_mib,host_load,job_id,step_id"
)
TOTAL_MIB = 81559


def row(age_s: float = 5.0, **cells: object) -> str:
    """One row, so many seconds old: of GPU 0, at work, unless the cells say otherwise."""
    at = datetime.fromtimestamp(time.time() - age_s, UTC)
    index = cells.get("gpu_index", 0)
    values = {
        "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "mem_used_mib": 60000,
        "mem_total_mib": TOTAL_MIB,
        "util_pct": 97,
        "gpu_index": index,
        "gpu_uuid": f"GPU-{index}",
        "status": "ok",
        **cells,
    }
    return ",".join(str(values.get(column, "")) for column in COLUMNS.split(","))


class Telemetry:
    """The telemetry folder of a scratch tree.

    Args:
        root: The tree.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "telemetry"
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(
        self,
        node: str,
        *rows: str,
        job: str = "7",
        started: str = "20261129T200000Z",
        header: str = COLUMNS,
        tail: str = "",
        age_s: float = 0.0,
        interval_s: float | None = None,
    ) -> Path:
        """One file; ``age_s`` is how long ago it was last written."""
        path = self.folder / f"{node}_job{job}_{started}.csv"
        path.write_text("\n".join([header, *rows]) + "\n" + tail)
        path.chmod(0o600)
        if interval_s is not None:
            path.with_suffix(".json").write_text(json.dumps({"interval_s": interval_s}))
        if age_s:
            at = time.time() - age_s
            os.utime(path, (at, at))
        return path
