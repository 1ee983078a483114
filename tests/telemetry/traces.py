"""Telemetry files as tests write them: archives, and those of the logger.

Not here: what a reader must find in them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.telemetry.columns import ARCHIVE_COLUMNS, COLUMNS, SIDECAR_SCHEMA

ARCHIVED = Path(__file__).resolve().parents[3] / "shared/telemetry"
BEGIN_S = datetime(2026, 7, 17, 12, tzinfo=UTC).timestamp()
HEADER = ",".join(ARCHIVE_COLUMNS)
OUR_HEADER = ",".join(COLUMNS)
TOTAL_MIB = 40960


def archived() -> Path:
    """The archived traces; skips the test where they are not."""
    if not (ARCHIVED / "hosts").is_dir():
        pytest.skip("the archived traces are not beside this checkout")
    return ARCHIVED


def archive_time(at_s: float) -> str:
    """A timestamp of the archives, so many seconds after the beginning."""
    at = datetime.fromtimestamp(BEGIN_S + at_s, UTC)
    return f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03d}"


def our_time(at_s: float) -> str:
    """A timestamp of the logger, so many seconds after the beginning."""
    return archive_time(at_s).replace("/", "-").replace(" ", "T") + "Z"


def archive_row(at_s: float, **cells: object) -> str:
    """One row of an archive: a GPU at work, unless the cells say otherwise."""
    values = {"mem_used_mib": 30000, "mem_total_mib": TOTAL_MIB, "util_pct": 97, "power_w": 250.5}
    values.update(cells)  # type: ignore[arg-type]
    return ",".join([archive_time(at_s), *(str(values[name]) for name in ARCHIVE_COLUMNS[1:])])


def our_row(at_s: float, gpu: int = 0, node: str = "n1", **cells: object) -> str:
    """One row of the logger: of one GPU at work, unless the cells say otherwise."""
    values: dict[str, object] = {
        "timestamp": our_time(at_s),
        "mem_used_mib": 30000,
        "mem_total_mib": TOTAL_MIB,
        "util_pct": 97,
        "power_w": 250.5,
        "gpu_index": gpu,
        "gpu_uuid": f"GPU-{node}-{gpu}",
        "pci_bus_id": f"00000000:0{gpu}:00.0",
        "status": "ok",
        "job_id": "7",
        "kind": "gpu",
    }
    values.update(cells)
    return ",".join(str(values.get(name, "")) for name in COLUMNS)


def bare_row(at_s: float, kind: str, **cells: object) -> str:
    """One row of the logger that names no GPU."""
    values = {"timestamp": our_time(at_s), "kind": kind, "job_id": "7", **cells}
    return ",".join(str(values.get(name, "")) for name in COLUMNS)


def write_archive(
    folder: Path, name: str, rows: Sequence[str], *, header: str = HEADER, tail: str = ""
) -> Path:
    """One archive; ``tail`` stands at its end without a newline."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in [header, *rows] if line) + tail)
    return path


def write_ours(
    folder: Path,
    rows: Sequence[str],
    *,
    node: str = "n1",
    job: str = "7",
    started: str = "20260717T120000Z",
    header: str = OUR_HEADER,
    sidecar: dict[str, Any] | None = None,
) -> Path:
    """One file of the logger; with a sidecar if its fields are given, be they none."""
    path = folder / f"{node}_job{job}_{started}.csv"
    path.write_text("".join(f"{line}\n" for line in [header, *rows]))
    if sidecar is not None:
        fields = {"schema": SIDECAR_SCHEMA, "node": node, "job_id": job, **sidecar}
        path.with_suffix(".json").write_text(json.dumps(fields))
    return path
