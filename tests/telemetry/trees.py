"""Telemetry folders as loggers leave them, made by tests row by row.

Times are seconds since 1970; cells that are not given are empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fleetcraft.telemetry.columns import COLUMNS
from tests.telemetry.journals import iso

TOTAL_MIB = 81559
A100 = "NVIDIA A100-SXM4-80GB"


def line(t_s: float, **cells: object) -> str:
    """One row of GPU 0, at work unless the cells say otherwise."""
    index = cells.get("gpu_index", 0)
    values = {
        "timestamp": iso(t_s),
        "mem_used_mib": 60000,
        "mem_total_mib": TOTAL_MIB,
        "util_pct": 90,
        "power_w": 300,
        "gpu_index": index,
        "gpu_uuid": f"GPU-{index}",
        "status": "ok",
        "kind": "gpu",
        **cells,
    }
    return ",".join(str(values.get(column, "")) for column in COLUMNS) + "\n"


def lines(start_s: float, count: int, step_s: float = 30.0, **cells: object) -> list[str]:
    """So many rows of one GPU, a step apart."""
    return [line(start_s + n * step_s, **cells) for n in range(count)]


def inventory(*indexes: int, name: str = A100, host: str = "") -> list[dict[str, object]]:
    """GPUs for a sidecar."""
    return [{"index": i, "uuid": f"GPU-{host}{i}", "name": name} for i in indexes]


def write_file(
    folder: Path,
    node: str,
    rows: Iterable[str],
    *,
    job: str = "7",
    started: str = "20270115T070000Z",
    sidecar: Mapping[str, object] | None = None,
) -> Path:
    """One CSV with its sidecar, if there is to be one."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{node}_job{job}_{started}.csv"
    path.write_text(",".join(COLUMNS) + "\n" + "".join(rows))
    path.chmod(0o600)
    if sidecar is not None:
        value = {"schema": "fleetcraft.telemetry_file/1", "node": node, "job_id": job, **sidecar}
        path.with_suffix(".json").write_text(json.dumps(value))
    return path
