"""Frozen windows of the archives: schema 2 holds its observations, schema 1 holds none.

Reads nothing but the sources that it is pointed to. Invariant: a figure whose rule the archives do
not state is compared with every rule that they can have meant, and others are named as not checked.
"""

from __future__ import annotations

import glob
import hashlib
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.telemetry.intervals import SAME_SAMPLE_S
from fleetcraft.telemetry.windows.verdicts import Difference, Verdict, Verification, compare, same

_MEANS = ("active_fraction", "mean_utilization_percent", "mean_memory_fraction")
_STEPS_OF_SLACK = 2
"""A window is captured a moment after its end, so that its first rows may look a little early."""


class _Observation(msgspec.Struct, frozen=True):
    timestamp: str
    utilization_percent: float | None
    memory_fraction: float | None


class _Source(msgspec.Struct, frozen=True):
    prefix_bytes: int
    prefix_sha256: str


class _Host(msgspec.Struct, frozen=True):
    observations: tuple[_Observation, ...] = ()
    active_fraction: float | None = None
    mean_utilization_percent: float | None = None
    mean_memory_fraction: float | None = None
    samples: int | None = None
    gpus_observed: int | None = None
    source: _Source | None = None


class _Summary(msgspec.Struct, frozen=True):
    active_fraction: float | None = None
    mean_utilization_percent: float | None = None
    mean_memory_fraction: float | None = None
    samples: int | None = None
    gpus_observed: int | None = None
    hosts: int | None = None


class _Window(msgspec.Struct, frozen=True):
    captured_at: str
    window_seconds: float
    hosts: dict[str, _Host]
    summary: _Summary
    active_threshold_percent: float = 5.0


def verify_archived(value: Mapping[str, Any], sources: str | None) -> Verification:
    """Recomputes a window of schema 2 from its observations.

    Args:
        value: The file's JSON.
        sources: Where the files that it was made from may be; None where nobody says.

    Raises:
        DataError: It is no such window.
    """
    version = int(value["schema_version"])
    hosts = value.get("hosts")
    has_rows = isinstance(hosts, Mapping) and any(
        isinstance(host, Mapping) and host.get("observations") for host in hosts.values()
    )
    if not has_rows:
        return Verification(
            verdict=Verdict.UNVERIFIABLE,
            schema_version=version,
            reason=f"schema {version} without observations: nothing can be computed again",
        )
    try:
        window = msgspec.convert(value, _Window)
    except msgspec.ValidationError as error:
        raise _malformed(str(error)) from error
    found = Verification(verdict=Verdict.VERIFIED, schema_version=version, sources="not kept")
    found.observations = sum(len(host.observations) for host in window.hosts.values())
    times = {
        name: sorted(_seconds(row.timestamp) for row in host.observations)
        for name, host in window.hosts.items()
    }
    for name, host in window.hosts.items():
        found.differences += _against_rows(f"hosts.{name}", host, window, times[name])
    found.differences += _against_hosts(window)
    found.differences += _against_span(window, times)
    _name_unchecked(found, value)
    _against_sources(found, window, sources)
    if found.differences:
        found.verdict = Verdict.REFUTED
    return found


def _malformed(reason: str) -> DataError:
    return DataError(
        f"cannot verify this window: {reason}; nothing was concluded",
        hint="it should have the form of an archived window of schema 2",
        reason=reason,
    )


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError) as error:
        raise _malformed(f"not a time: {text!r}") from error


# ------------------------------------------------------------------------------------ figures


def _against_rows(
    where: str, host: _Host, window: _Window, times: Sequence[float]
) -> Iterator[Difference]:
    if host.observations:  # of none there is no mean, whatever stands there
        again = _means(host.observations, window.active_threshold_percent)
        yield from _compare_means(where, host, again)
    yield from compare(f"{where}.samples", host.samples, len(host.observations))
    counts = _rows_of_samples(times)
    if host.gpus_observed is not None and host.gpus_observed not in (
        *(max(counts, default=0), round(median(counts or [0]))),
        round(sum(counts) / max(1, len(counts))),
    ):
        yield Difference(f"{where}.gpus_observed", host.gpus_observed, max(counts, default=0))


def _means(rows: Sequence[_Observation], active_pct: float) -> dict[str, float | None]:
    util = [row.utilization_percent for row in rows if row.utilization_percent is not None]
    memory = [row.memory_fraction for row in rows if row.memory_fraction is not None]
    return {
        "active_fraction": _mean([float(value >= active_pct) for value in util]),
        "mean_utilization_percent": _mean(util),
        "mean_memory_fraction": _mean(memory),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _compare_means(
    where: str, said: _Host | _Summary, again: Mapping[str, float | None]
) -> Iterator[Difference]:
    for name in _MEANS:
        mine, computed = getattr(said, name), again[name]
        if not same(mine, computed):
            yield Difference(f"{where}.{name}", mine, computed)


def _rows_of_samples(times: Sequence[float]) -> list[int]:
    """How many rows each sample has: rows of several GPUs of one file are milliseconds apart."""
    counts: list[int] = []
    first = -math.inf
    for at in times:
        if at - first >= SAME_SAMPLE_S:
            counts.append(0)
            first = at
        counts[-1] += 1
    return counts


def _against_hosts(window: _Window) -> Iterator[Difference]:
    said = window.summary
    rows = [row for host in window.hosts.values() for row in host.observations]
    yield from _compare_means("summary", said, _means(rows, window.active_threshold_percent))
    yield from compare("summary.samples", said.samples, len(rows))
    yield from compare("summary.hosts", said.hosts, len(window.hosts))
    gpus = [host.gpus_observed for host in window.hosts.values()]
    if None not in gpus:
        total = sum(number or 0 for number in gpus)
        yield from compare("summary.gpus_observed", said.gpus_observed, total)


# --------------------------------------------------------------------------------- span of time


def _against_span(window: _Window, times: Mapping[str, Sequence[float]]) -> Iterator[Difference]:
    """Whether the observations can be those of a window so long that was captured then.

    The archives note when a window was captured and how long it is, not where it begins. With
    samples a known step apart, as many as fit in must be there, give or take one.
    """
    every = sorted(at for rows in times.values() for at in rows)
    steps = [
        step
        for rows in times.values()
        for one, other in pairwise(rows)
        if (step := other - one) >= SAME_SAMPLE_S
    ]
    captured_s = _seconds(window.captured_at)  # in the zone of the observations
    step_s = median(steps) if steps else 0.0
    slack_s = _STEPS_OF_SLACK * step_s
    first_s, last_s = every[0], every[-1]
    too_early = steps and first_s <= captured_s - window.window_seconds - slack_s
    too_late = steps and captured_s - last_s > slack_s
    if last_s > captured_s or too_early or too_late:
        span = f"{_text(first_s)} to {_text(last_s)}"
        yield Difference("captured_at", window.captured_at, f"just after observations of {span}")
    if not steps:
        return
    most = max(len(_rows_of_samples(rows)) for rows in times.values())
    if abs(window.window_seconds / step_s - most) >= 1:
        yield Difference("window_seconds", window.window_seconds, round(most * step_s))


def _text(t_s: float) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=t_s)
    return at.isoformat(timespec="seconds").removesuffix("+00:00")


# ------------------------------------------------------------------------------------- the rest


def _name_unchecked(found: Verification, value: Mapping[str, Any]) -> None:
    known = {"schema_version", "kind", *_Window.__struct_fields__}
    others = sorted(set(value) - known)
    if others:
        found.not_checked.append(f"{', '.join(others)}: nothing here depends on them")
    found.not_checked.append(
        "times of single observations: only that they lie in one window of that length"
    )


def _against_sources(found: Verification, window: _Window, folder: str | None) -> None:
    kept = {name: host.source for name, host in window.hosts.items() if host.source}
    if folder is None or not kept:
        found.not_checked.append("sources: not found; the window names hosts, no files")
        return
    missing = 0
    for name, source in kept.items():
        paths = _candidates(folder, name)
        hashes = [_hash(path, source.prefix_bytes) for path in paths]
        if not paths:
            missing += 1
        elif source.prefix_sha256 in hashes:
            found.sources_checked += 1
        else:
            where = f"hosts.{name}.source.prefix_sha256"
            found.differences.append(Difference(where, source.prefix_sha256, hashes[0]))
    found.sources = "not found" if missing == len(kept) else "checked"
    if missing:
        found.sources = "not found" if missing == len(kept) else "checked in part"
        found.not_checked.append(f"sources: not found for {missing} of {len(kept)} hosts")


def _candidates(folder: str, host: str) -> list[str]:
    """Files that can be a host's: its name with .csv, or with a job behind it."""
    if host != os.path.basename(host):
        return []
    base = os.path.join(glob.escape(folder), glob.escape(host))
    return sorted(glob.glob(f"{base}.csv") + glob.glob(f"{base}_*.csv"))


def _hash(path: str, count: int) -> str:
    """SHA-256 of a file's beginning; empty where there is no such beginning."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        digest = hashlib.sha256()
        while count > 0 and (data := file.read(min(count, 1 << 20))):
            digest.update(data)
            count -= len(data)
    return digest.hexdigest() if count == 0 else ""
