"""Telemetry files to measure on: those of the logger, and archives, as large as asked for.

Written row by row, so that this process stays small. Invariant: the same numbers each time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleetcraft.layout import telemetry_file
from fleetcraft.telemetry.columns import ARCHIVE_COLUMNS, COLUMNS, SIDECAR_SCHEMA

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
INTERVAL_S = 30
SHARED_HOSTS = Path(__file__).resolve().parents[3] / "shared/telemetry/hosts"
JOB = "4711"
TOTAL_MIB = 81559
_KINDS = 97  # of rows; a prime, so that hosts and GPUs differ


def gpu_uuid(host: int, gpu: int) -> str:
    """The UUID of one GPU."""
    return f"GPU-{host:04d}{gpu:04d}-1234-5678-9abc-def012345678"


def our_time(at: datetime) -> str:
    """A moment as the logger writes it."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def row_pattern(host: int, gpu: int) -> str:
    """One row of the logger, to be formatted with ``t``, ``mem``, ``util`` and ``energy``."""
    cells = {
        "timestamp": "{t}",
        "mem_used_mib": "{mem}",
        "mem_total_mib": TOTAL_MIB,
        "util_pct": "{util}",
        "power_w": "2{util}",
        "gpu_index": gpu,
        "gpu_uuid": gpu_uuid(host, gpu),
        "pci_bus_id": f"00000000:{gpu + 1:02X}:00.0",
        "util_max_pct": 100,
        "util_samples": 180,
        "mem_util_pct": 41,
        "energy_j": "{energy}.125",
        "temp_c": 61,
        "sm_clock_mhz": 1410,
        "throttle": "0x0",
        "status": "ok",
        "host_mem_used_mib": 123456,
        "host_mem_total_mib": 512000,
        "cgroup_mem_mib": 1234,
        "host_load": 12.1,
        "job_id": JOB,
        "step_id": 0,
        "kind": "gpu",
        "util_source": "samples",
        "mem_source": "v2",
        "mem_reserved_mib": 512,
        "power_source": "average",
    }
    return ",".join(str(cells.get(column, "")) for column in COLUMNS) + "\n"


def sidecar_facts(host: str, number: int, gpus: int) -> dict[str, object]:
    """What a logger that still runs says of its file."""
    return {
        "schema": SIDECAR_SCHEMA,
        "node": host,
        "job_id": JOB,
        "interval_s": float(INTERVAL_S),
        "started_at": our_time(BEGIN),
        "ended_at": None,
        "expected_gpus": gpus,
        "gpus": [
            {"index": gpu, "uuid": gpu_uuid(number, gpu), "name": "NVIDIA A100-SXM4-80GB"}
            for gpu in range(gpus)
        ],
    }


def write_loggers(folder: Path, *, hosts: int, gpus: int, samples: int) -> datetime:
    """One file a host, a sample every 30 s, with its sidecar.

    Returns:
        The moment of the last sample.
    """
    times = [our_time(BEGIN + timedelta(seconds=INTERVAL_S * k)) for k in range(samples)]
    for host in range(hosts):
        name = f"gpu{host:03d}"
        path = folder / telemetry_file(name, JOB, BEGIN.strftime("%Y%m%dT%H%M%SZ"))
        with path.open("w") as file:
            file.write(",".join(COLUMNS) + "\n")
            file.writelines(_rows(host, gpus, times))
        path.with_suffix(".json").write_text(json.dumps(sidecar_facts(name, host, gpus)))
    return BEGIN + timedelta(seconds=INTERVAL_S * (samples - 1))


def _rows(host: int, gpus: int, times: list[str]) -> Iterator[str]:
    patterns = [row_pattern(host, gpu) for gpu in range(gpus)]
    for number, at in enumerate(times):
        busy = (number // 120 + host) % 5 != 0  # an hour in five nothing runs
        for gpu, pattern in enumerate(patterns):
            kind = (number * 7 + host * 3 + gpu) % _KINDS
            yield pattern.format(
                t=at,
                mem=60_000 + kind if busy else 4,
                util=f"{kind:02d}.5" if busy else "00",
                energy=number * 8000 + kind,
            )


def write_archive(path: Path, rows: int, *, step_s: int = 1, back_at: int | None = None) -> None:
    """One archive of the five columns, without a zone.

    Args:
        path: The file.
        rows: How many.
        step_s: Between two rows.
        back_at: Before this row the clock goes back by five minutes, once.
    """
    cells = [f".123,{40_000 + k},{TOTAL_MIB},{k % 101},{80 + 5 * k}.25\n" for k in range(_KINDS)]
    clock = [f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}" for s in range(86_400)]
    with path.open("w", buffering=1 << 20) as file:
        file.write(",".join(ARCHIVE_COLUMNS) + "\n")
        day_of, day = -1, ""
        for number in range(rows):
            at_s = number * step_s
            if back_at is not None and number >= back_at:
                at_s -= 300
            days, second = divmod(at_s, 86_400)
            if days != day_of:
                day_of, day = days, f"{BEGIN + timedelta(days=days):%Y/%m/%d} "
            file.write(day + clock[second] + cells[number % _KINDS])


def size_mib(folder: Path) -> float:
    """What the telemetry files of a folder take together."""
    return sum(os.stat(path).st_size for path in folder.glob("*.csv")) / (1 << 20)


def count_rows(folder: Path) -> int:
    """Lines of the telemetry files of a folder, without their headers."""
    rows = 0
    for path in sorted(folder.glob("*.csv")):
        with path.open("rb") as file:
            rows += sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) - 1
    return rows
