"""A window frozen with its evidence: one JSON file from which its summary can be computed again.

Writes it, and reads it back as evidence; whether it holds is `verify`'s to say. Invariant: a frozen
window is never replaced by another, and holds no absolute path.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from fleetcraft import __version__
from fleetcraft.errors import DataError, UsageError
from fleetcraft.files import FileSystem
from fleetcraft.gpu.states import ACTIVE_PCT, RESIDENT_MIB, SILENT_INTERVALS
from fleetcraft.identity import sha256_hex
from fleetcraft.locks.publishing import put_if_absent
from fleetcraft.telemetry.energy import MOST_W, UNDONE_FACTOR
from fleetcraft.telemetry.intervals import GAP_BEYOND_S, SAME_SAMPLE_S
from fleetcraft.telemetry.queue import Depth, Presence, Queue, Run
from fleetcraft.telemetry.windows.family_mfu import Reported
from fleetcraft.telemetry.windows.levels import Summary, value_of
from fleetcraft.telemetry.windows.series import COLUMNS, HostRows, SourceFacts
from fleetcraft.telemetry.windows.span import (
    HOLD_INTERVALS,
    Series,
    Window,
)
from fleetcraft.telemetry.windows.totals import Evidence

KIND = "gpu_telemetry_window"
SCHEMA_VERSION = 3
THRESHOLDS = {
    "active_pct": ACTIVE_PCT,
    "resident_mib": RESIDENT_MIB,
    "silent_intervals": SILENT_INTERVALS,
    "hold_intervals": HOLD_INTERVALS,
    "gap_beyond_interval_s": GAP_BEYOND_S,
    "same_sample_s": SAME_SAMPLE_S,
    "most_w": MOST_W,
    "undone_factor": UNDONE_FACTOR,
}
"""What the figures depend on beside the rows."""
MAX_ROWS = 2_000_000
_WIDE = 90  # what is shorter stands in one line


class Observations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One series; a column whose values are all the same is that value alone.

    Attributes:
        sources: Places in the list of sources.
        t_s: Seconds since 1970, ascending; of files without a zone as if they were UTC.
    """

    host: str
    key: str
    gpu_index: str
    gpu_uuid: str
    mig_uuid: str
    zoned: bool
    sources: tuple[int, ...]
    interval_s: float
    interval_from: str
    from_s: float | None
    until_s: float | None
    t_s: list[float]
    util_pct: list[float | None] | float | None
    mem_used_mib: list[float | None] | float | None
    mem_total_mib: list[float | None] | float | None
    power_w: list[float | None] | float | None
    energy_j: list[float | None] | float | None
    status: list[str] | str


class FrozenQueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the journals told of the window; see `fleetcraft.telemetry.queue.Queue`."""

    runs: list[Run]
    depths: list[Depth]
    workers: list[Presence]
    journals: int
    passed_over: int
    damaged_lines: int
    problems: list[str]


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen window.

    Attributes:
        folder: The way from this file's own folder to the one that was summed up, where they have a
            folder above both; else empty.
        digest: SHA-256 of the rest in a canonical form: whether anything was changed by hand.
    """

    kind: str
    schema_version: int
    fleetcraft: str
    folder: str
    window: Window
    thresholds: dict[str, float]
    summary: dict[str, Any]
    hosts: list[str]
    sources: list[SourceFacts]
    queue: FrozenQueue | None
    reported: list[Reported]
    rejected_reports: int
    passed_over: int
    refused: list[tuple[str, str]]
    observations: list[Observations]
    digest: str = ""


def freeze(path: str, summary: Summary, evidence: Evidence, folder: str) -> int:
    """Writes a window with its evidence, under a name that no other window has.

    The very same window that is there already counts as written.

    Args:
        path: The file; its folder must be there.
        summary: Computed from the evidence.
        evidence: Kept with every row.
        folder: What was summed up.

    Returns:
        Its size in bytes.

    Raises:
        DataError: Something else has that name, or it cannot be written.
        UsageError: The window has more rows than a frozen one may have.
    """
    rows = summary.fleet.figures.samples
    if rows > MAX_ROWS:
        raise UsageError(
            f"a window of {rows} rows is too large to freeze (at most {MAX_ROWS}); "
            "nothing was written",
            hint="freeze shorter windows with --window",
            rows=rows,
        )
    data = _encoded(path, frozen_of(path, summary, evidence, folder))
    try:
        if put_if_absent(FileSystem(), os.path.abspath(path), data):
            return len(data)
    except OSError as error:
        raise DataError(
            f"cannot freeze the window to {path}: {error.strerror}; it is not known to be there",
            hint="name a file in a folder that can be written",
            path=path,
        ) from error
    raise DataError(
        f"cannot freeze the window to {path}: another file has that name; it was left as it is",
        hint="name another file, or fleetcraft telemetry verify that one",
        path=path,
    )


def _encoded(path: str, frozen: Frozen) -> bytes:
    try:
        return encode(frozen)
    except UnicodeEncodeError as error:
        raise DataError(
            f"cannot freeze the window to {path}: a file's name is no text: {error.object!r:.200}; "
            "nothing was written",
            hint="give the file a name in UTF-8",
            path=path,
        ) from error


def frozen_of(path: str, summary: Summary, evidence: Evidence, folder: str) -> Frozen:
    """A window and its evidence as the record that is written."""
    hosts = list(evidence.hosts)
    queue = evidence.queue
    return Frozen(
        kind=KIND,
        schema_version=SCHEMA_VERSION,
        fleetcraft=__version__,
        folder=_way(folder, os.path.dirname(os.path.abspath(path))),
        window=evidence.window,
        thresholds=dict(THRESHOLDS),
        summary=value_of(summary),
        hosts=[rows.host for rows in hosts],
        sources=[facts for rows in hosts for facts in rows.sources],
        queue=None
        if queue is None
        else FrozenQueue(**{f: getattr(queue, f) for f in FrozenQueue.__struct_fields__}),
        reported=list(evidence.reported),
        rejected_reports=evidence.rejected_reports,
        passed_over=evidence.passed_over,
        refused=evidence.refused,
        observations=[_observed(series) for rows in hosts for series in rows.series],
    )


def _way(folder: str, base: str) -> str:
    folder, base = os.path.realpath(folder), os.path.realpath(base)
    return "" if os.path.commonpath([folder, base]) == "/" else os.path.relpath(folder, base)


def _observed(series: Series) -> Observations:
    names = ("host", "key", "gpu_index", "gpu_uuid", "mig_uuid", "zoned", "sources")
    return Observations(
        **{name: getattr(series, name) for name in names},
        interval_s=series.interval_s,
        interval_from=series.interval_from,
        from_s=_finite(series.from_s),
        until_s=_finite(series.until_s),
        t_s=series.t_s.tolist(),
        **{name: _column(getattr(series, name)) for name in COLUMNS},
        status=_same(series.status),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _column(values: Any) -> Any:
    return _same([None if math.isnan(value) else value for value in values.tolist()])


def _same(values: Sequence[Any]) -> Any:
    return values[0] if values and all(value == values[0] for value in values) else values


# --------------------------------------------------------------------------------- as a file


def encode(frozen: Frozen) -> bytes:
    """A frozen window as JSON text for people, with its digest."""
    value = msgspec.to_builtins(frozen)
    value["digest"] = digest_of(value)
    return (_lines(value, 0) + "\n").encode()


def digest_of(value: Mapping[str, Any]) -> str:
    """SHA-256 over everything but the digest itself, in a canonical form."""
    rest = {key: item for key, item in value.items() if key != "digest"}
    return sha256_hex(msgspec.json.encode(rest, order="deterministic"))


def _lines(value: Any, level: int) -> str:
    """JSON with a line for each entry, where they do not all fit in one; a column is one line."""
    if isinstance(value, Mapping) and value:
        items = [f"{_text(key)}: {_lines(item, level + 1)}" for key, item in value.items()]
        ends = "{}"
    elif isinstance(value, list | tuple) and not _flat(value):
        items = [_lines(item, level + 1) for item in value]
        ends = "[]"
    else:
        return _text(value)
    if sum(map(len, items)) + 2 * len(items) <= _WIDE and not any("\n" in item for item in items):
        return f"{ends[0]}{', '.join(items)}{ends[1]}"
    pad = "\n" + " " * (level + 1)
    return f"{ends[0]}{pad}{f',{pad}'.join(items)}{pad[:-1]}{ends[1]}"


def _flat(value: Sequence[Any]) -> bool:
    return not any(isinstance(item, Mapping | list | tuple) for item in value)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# ------------------------------------------------------------------------------------ back again


def evidence_of(frozen: Frozen) -> Evidence:
    """What a frozen window holds, as it was when it was summed up.

    Raises:
        DataError: Its columns do not fit together, or it names what is not there.
    """
    by_host: dict[str, HostRows] = {host: HostRows(host=host) for host in frozen.hosts}
    for facts in frozen.sources:
        if facts.node not in by_host:
            raise _unfit(f"a source of {facts.node!r}, which is none of its hosts")
        by_host[facts.node].sources.append(facts)
    for observed in frozen.observations:
        if observed.host not in by_host:
            raise _unfit(f"observations of {observed.host!r}, which is none of its hosts")
        by_host[observed.host].series.append(_series(observed, len(frozen.sources)))
    queue = frozen.queue
    return Evidence(
        window=frozen.window,
        hosts=list(by_host.values()),
        queue=None
        if queue is None
        else Queue(**{f: getattr(queue, f) for f in FrozenQueue.__struct_fields__}),
        reported=frozen.reported,
        rejected_reports=frozen.rejected_reports,
        passed_over=frozen.passed_over,
        refused=frozen.refused,
    )


def _series(observed: Observations, sources: int) -> Series:
    count = len(observed.t_s)
    where = f"{observed.host} {observed.key}".strip()
    if not count or not observed.sources or not all(0 <= n < sources for n in observed.sources):
        raise _unfit(f"a series of {where} without rows or without its sources")
    if not (math.isfinite(observed.interval_s) and observed.interval_s > 0):
        raise _unfit(f"an interval of {observed.interval_s} s for {where}")
    columns = {name: _array(getattr(observed, name), count, name, where) for name in COLUMNS}
    t_s = np.array(observed.t_s, dtype=np.float64)
    if np.any(np.diff(t_s) < 0):
        raise _unfit(f"times of {where} that are not in order")
    status = observed.status
    return Series(
        host=observed.host,
        key=observed.key,
        gpu_index=observed.gpu_index,
        gpu_uuid=observed.gpu_uuid,
        mig_uuid=observed.mig_uuid,
        zoned=observed.zoned,
        sources=observed.sources,
        interval_s=observed.interval_s,
        interval_from=observed.interval_from,
        t_s=t_s,
        util_pct=columns["util_pct"],
        mem_used_mib=columns["mem_used_mib"],
        mem_total_mib=columns["mem_total_mib"],
        power_w=columns["power_w"],
        energy_j=columns["energy_j"],
        status=[status] * count if isinstance(status, str) else _list(status, count, where),
        from_s=-math.inf if observed.from_s is None else observed.from_s,
        until_s=math.inf if observed.until_s is None else observed.until_s,
    )


def _array(values: Any, count: int, name: str, where: str) -> Any:
    if not isinstance(values, list):
        return np.full(count, math.nan if values is None else values, dtype=np.float64)
    listed = _list(values, count, f"{where} ({name})")
    return np.array([math.nan if v is None else v for v in listed], dtype=np.float64)


def _list(values: list[Any], count: int, where: str) -> list[Any]:
    if len(values) != count:
        raise _unfit(f"{len(values)} values and {count} times for {where}")
    return values


def _unfit(what: str) -> DataError:
    return DataError(f"no frozen window: it has {what}", hint="freeze the window again")
