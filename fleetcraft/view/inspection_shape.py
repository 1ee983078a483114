"""What is in telemetry files, as the JSON value of ``telemetry inspect``.

Invariant: a number that was not measured is null, never 0.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from fleetcraft.telemetry.energy import JOULES_PER_KWH
from fleetcraft.telemetry.inspection.records import (
    Energy,
    FileReport,
    Inspection,
    Means,
)
from fleetcraft.telemetry.reading.sources import Source

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = 9
_KINDS = ("samples", "single_row", "header_only", "no_samples", "no_rows", "empty")


def inspection_shape(done: Inspection) -> dict[str, Any]:
    """The JSON value of ``telemetry inspect``."""
    counts, means = done.counts, done.means
    kinds = Counter(file.what for file in done.files)
    return {
        "schema": "fleetcraft.telemetry_inspect/1",
        "place": done.place,
        "files": len(done.files),
        "header_only": kinds["header_only"],
        "single_row": kinds["single_row"],
        "files_by_kind": {kind: kinds[kind] for kind in _KINDS},
        "without_header": sum(lacks_header(file) for file in done.files),
        "unfinished": sum(file.unfinished for file in done.files),
        "refused_files": len(done.refused),
        "refused": [{"path": path, "reason": reason} for path, reason in done.refused],
        "hosts": len({file.source.node for file in done.files}),
        "gpus": done.gpus,
        "slices": done.slices,
        "zone": _zone(done.files),
        "first_at": at_text(_least(done.files), _zone(done.files)),
        "last_at": at_text(_most(done.files), _zone(done.files)),
        "rows": sum(file.samples for file in done.files),
        "rows_by_kind": counts.kinds,
        "rows_by_status": counts.statuses,
        "rejected": counts.rejected_total,
        "rejected_kinds": counts.rejected,
        "missing": counts.missing,
        "missing_causes": counts.causes,
        "headers": counts.headers,
        "blank_lines": counts.blank,
        "lines": counts.lines,
        **_means_shape(means),
        "double_logged_rows": sum(file.double_logged for file in done.files),
        "double_logged_across_files": done.across_files,
        "back_steps": sum(file.back_steps for file in done.files),
        "gaps": _gaps_shape(done.files),
        "energy_kwh": _rounded(done.energy.kwh),
        "covered_hours": _rounded(done.energy.hours),
        "energy": _energy_shape(done.energy),
        "dedup": {
            "rows": done.dedup.rows,
            "mean_util_pct": _ratio(done.dedup.util_sum, done.dedup.util_rows),
            "active_fraction": _ratio(done.dedup.active_rows, done.dedup.util_rows),
        },
        "problems": done.problems,
        "by_file": [_file_shape(file) for file in done.files],
    }


def _means_shape(means: Means) -> dict[str, Any]:
    return {
        "mean_util_pct": _ratio(means.util_sum, means.util_rows),
        "active_fraction": _ratio(means.active_rows, means.util_rows),
        "mean_memory_fraction": _ratio(means.memory_sum, means.memory_rows),
        "peak_memory_fraction": _rounded(means.memory_peak),
        "mean_power_w": _ratio(means.power_sum, means.power_rows),
    }


def _gaps_shape(files: list[FileReport]) -> dict[str, Any]:
    worst = max(files, key=lambda file: file.biggest_gap_us)
    return {
        "count": sum(file.gaps for file in files),
        "biggest_s": worst.biggest_gap_us / 1e6 if worst.gaps else None,
        "file": worst.source.name if worst.gaps else None,
    }


def _energy_shape(energy: Energy) -> dict[str, Any]:
    def part(joules: float, seconds: float) -> dict[str, Any]:
        kwh = joules / JOULES_PER_KWH if seconds else None
        return {"kwh": _rounded(kwh), "covered_hours": _rounded(seconds / 3600)}

    counter = part(energy.counter_j, energy.counter_s)
    return {
        "counter": {**counter, "resets": energy.counter_resets},
        "trapezoid": part(energy.trapezoid_j, energy.trapezoid_s),
        "trapezoid_of_all_power": part(energy.power_j, energy.power_s),
    }


def _file_shape(file: FileReport) -> dict[str, Any]:
    source, energy = file.source, file.energy
    return {
        "name": source.name,
        "node": source.node,
        "job": source.job or None,
        "kind": file.what,
        "rows": file.samples,
        "rows_by_kind": file.counts.kinds,
        "rows_by_status": file.counts.statuses,
        "series": len(file.series),
        "rejected": file.counts.rejected_total,
        "rejected_kinds": file.counts.rejected,
        "rejected_examples": file.counts.examples,
        "missing": file.counts.missing,
        "missing_causes": file.counts.causes,
        "headers": file.counts.headers,
        "blank_lines": file.counts.blank,
        "lines": file.counts.lines,
        "bytes": file.bytes_read,
        "shrank": file.shrank,
        "zone": file.zone or None,
        "first_at": at_text(file.first_us, file.zone),
        "last_at": at_text(file.last_us, file.zone),
        "gap_from_s": file.gap_s,
        **_means_shape(file.means),
        "double_logged_rows": file.double_logged,
        "back_steps": file.back_steps,
        "gaps": _gaps_shape([file]),
        "energy_kwh": _rounded(energy.kwh) if energy else None,
        "covered_hours": _rounded(energy.hours) if energy else None,
        "ended": _ended(source),
        "sidecar_problem": source.sidecar_problem or None,
    }


def _ended(source: Source) -> dict[str, Any] | None:
    """How its logger ended; None where no sidecar could say it."""
    if source.sidecar is None:
        return None
    return {"at": source.sidecar.ended_at, "reason": source.sidecar.end_reason or None}


def _ratio(total: float, count: int) -> float | None:
    return round(total / count, _DIGITS) if count else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def lacks_header(file: FileReport) -> bool:
    """Whether its rows were read without one."""
    return not file.counts.headers and file.counts.rows > 0


def _zone(files: list[FileReport]) -> str | None:
    zones = {file.zone for file in files} - {""}
    return zones.pop() if len(zones) == 1 else "mixed" if zones else None


def _least(files: list[FileReport]) -> int | None:
    return min((file.first_us for file in files if file.first_us is not None), default=None)


def _most(files: list[FileReport]) -> int | None:
    return max((file.last_us for file in files if file.last_us is not None), default=None)


def at_text(us: int | None, zone: str | None) -> str | None:
    """A time in microseconds as ISO 8601, with Z only where the data name their zone."""
    if us is None:
        return None
    at = (_EPOCH + timedelta(microseconds=us)).replace(tzinfo=None)
    return at.isoformat(timespec="milliseconds") + ("Z" if zone == "utc" else "")
