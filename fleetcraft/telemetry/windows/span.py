"""Windows of time, and what the samples of one GPU amount to within one.

Arithmetic on arrays; nothing here reads a file. Invariant: a sample stands for no time beyond one
and a half intervals, nothing is integrated over a gap, and what was not measured is in no mean.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fleetcraft.errors import UsageError
from fleetcraft.gpu.states import ACTIVE_PCT, SILENT_INTERVALS, GpuState, Sighting, classify
from fleetcraft.telemetry.energy import integrate
from fleetcraft.telemetry.intervals import (
    DEFAULT_INTERVAL_S,
    SAME_SAMPLE_S,
    STEPS_THAT_TELL,
    gap_of,
)
from fleetcraft.telemetry.reading.times import FIRST_S, LAST_S, date_of

Floats = NDArray[np.float64]

HOLD_INTERVALS = 1.5
NO_SAMPLE = "no_sample"
"""Beside the states: time for which no sample stands, too short to be silence."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A span of time, without its first instant and with its last.

    Attributes:
        seconds: How long it is.
        end_s: Its end in seconds since 1970, for rows that name their zone.
        end_local_s: The same for rows that name none: the clock reading, taken as if it were UTC.
        end_zone: ``given`` when the end was given with a zone, ``none`` when without, ``now`` when
            it was not given.
    """

    seconds: float
    end_s: float
    end_local_s: float
    end_zone: str = "none"

    @property
    def has_dates(self) -> bool:
        """Whether it is a span, and all of it lies in the years from 1 to 9999."""
        ends = (self.end_s, self.end_local_s)
        inside = min(ends) - self.seconds >= FIRST_S and max(ends) <= LAST_S
        return math.isfinite(self.seconds) and self.seconds > 0 and inside

    def bounds_s(self, *, zoned: bool) -> tuple[float, float]:
        """Start and end as rows of a file with or without zone count them."""
        end_s = self.end_s if zoned else self.end_local_s
        return end_s - self.seconds, end_s


def window_at(seconds: float, end: str | None, now_s: float) -> Window:
    """The window of some seconds that ends at a time.

    Args:
        seconds: More than 0.
        end: ISO 8601; without a zone it is UTC for files that name their zone, and the files' own
            clock for those that do not. With a zone, the latter are read as if they were of it.
            None for now, whole seconds.
        now_s: The time, in seconds since 1970.

    Raises:
        UsageError: The text is no time, or there is no span.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"not a usable window: {seconds:g} s", hint="--window 300")
    if end is None:
        whole = float(math.floor(now_s))
        return _dated(Window(seconds=seconds, end_s=whole, end_local_s=whole, end_zone="now"))
    try:
        at = datetime.fromisoformat(end.strip())
        local_s = at.replace(tzinfo=UTC).timestamp()
        end_s = local_s if at.tzinfo is None else at.timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"not a time: {end!r}; expected ISO 8601",
            hint="--end 2026-11-30T02:00:00Z, or --end 2026-11-30T02:00:00",
            text=end,
        ) from error
    zone = "none" if at.tzinfo is None else "given"
    return _dated(Window(seconds=seconds, end_s=end_s, end_local_s=local_s, end_zone=zone))


def _dated(window: Window) -> Window:
    if not window.has_dates:
        raise UsageError(
            f"a window of {window.seconds:g} s begins before year 1", hint="--window 300"
        )
    return window


def iso(t_s: float, *, zoned: bool) -> str:
    """A time as text, as exact as it needs to be; ``Z`` only where the zone is known."""
    at = date_of(round(t_s, 6))
    finest = "microseconds" if at.microsecond % 1000 else "milliseconds"
    text = at.isoformat(timespec=finest if at.microsecond else "seconds")
    return text.replace("+00:00", "Z" if zoned else "")


@dataclass(kw_only=True)
class Series:
    """The rows of one GPU, slice, or file without identities, within a window, in order of time.

    Attributes:
        host: The node, or the archive's name.
        key: What tells it from others on its host; empty where the file does not say.
        sources: Which files it is from, by their place in the list of sources.
        interval_s: Between samples.
        interval_from: ``sidecar``, ``option``, ``rows`` or ``default``.
        energy_j: The driver's counter.
        status: The status column.
        from_s: Since when its loggers run, as far as it is known; before it is not silent.
        until_s: Until when.
    """

    host: str
    key: str
    gpu_index: str = ""
    gpu_uuid: str = ""
    mig_uuid: str = ""
    zoned: bool
    sources: tuple[int, ...]
    interval_s: float = DEFAULT_INTERVAL_S
    interval_from: str = "default"
    t_s: Floats
    util_pct: Floats
    mem_used_mib: Floats
    mem_total_mib: Floats
    power_w: Floats
    energy_j: Floats
    status: list[str]
    from_s: float = -math.inf
    until_s: float = math.inf

    def __len__(self) -> int:
        return len(self.t_s)

    def kept_rows(self) -> NDArray[np.int64]:
        """Indexes of rows that repeat no other.

        Half an interval apart is enough where a file or a caller says how long that is.
        """
        told = self.interval_from in ("sidecar", "option")
        same_s = min(SAME_SAMPLE_S, self.interval_s / 2) if told else SAME_SAMPLE_S
        return kept_rows(self.t_s, same_s)


@dataclass(kw_only=True)
class Sums:
    """What samples amount to, such that those of a host and of the fleet are sums of it.

    ``kept`` are samples after near-simultaneous rows were taken for one; ``held`` is weighted by
    the seconds for which samples stand. Each mean has a count or a time of its own, since not every
    row has every value.
    """

    rows: int = 0
    kept: int = 0
    expected: float = 0.0
    seen: float = 0.0
    util_rows: int = 0
    util_sum: float = 0.0
    util_max: float = -math.inf
    active_rows: int = 0
    mem_rows: int = 0
    mem_sum: float = 0.0
    kept_util_rows: int = 0
    kept_util_sum: float = 0.0
    kept_active_rows: int = 0
    kept_mem_rows: int = 0
    kept_mem_sum: float = 0.0
    held_s: float = 0.0
    span_s: float = 0.0
    held_util_s: float = 0.0
    held_util_sum: float = 0.0
    held_active_s: float = 0.0
    held_mem_s: float = 0.0
    held_mem_sum: float = 0.0
    power_rows: int = 0
    power_sum: float = 0.0
    counter_j: float = 0.0
    counter_s: float = 0.0
    trapezoid_j: float = 0.0
    trapezoid_s: float = 0.0
    resets: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    state_s: dict[str, float] = field(default_factory=dict)

    def add(self, other: Sums) -> None:
        """Adds another's."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if each.name == "util_max":
                self.util_max = max(mine, theirs)
            elif isinstance(mine, dict):
                for word, amount in theirs.items():
                    mine[word] = mine.get(word, 0) + amount
            else:
                setattr(self, each.name, mine + theirs)


def kept_rows(t_s: Floats, same_s: float = SAME_SAMPLE_S) -> NDArray[np.int64]:
    """Indexes of rows, in order of time, that repeat no other: so long after the last kept one.

    Args:
        t_s: Ascending times.
        same_s: Rows nearer than this are one sample.
    """
    if len(t_s) == 0 or np.all(np.diff(t_s) >= same_s):
        return np.arange(len(t_s), dtype=np.int64)
    kept, last = [], -math.inf
    for index, at in enumerate(t_s.tolist()):
        if at - last >= same_s:
            kept.append(index)
            last = at
    return np.array(kept, dtype=np.int64)


def interval_of(t_s: Floats) -> float | None:
    """Seconds between samples as the rows show it, whole where it is a second or more.

    None with fewer than three steps: one or two may be gaps.
    """
    steps = np.diff(t_s[kept_rows(t_s)])
    if len(steps) < STEPS_THAT_TELL:
        return None
    return max(1.0, float(np.round(np.median(steps))))


def holds_s(t_s: Floats, end_s: float, interval_s: float) -> Floats:
    """For how long each sample stands: until the next, at most one and a half intervals.

    Args:
        t_s: Ascending times of samples, without repetitions.
        end_s: Where the window ends.
        interval_s: Between samples.
    """
    until = np.append(t_s[1:], end_s)
    return np.clip(until - t_s, 0.0, HOLD_INTERVALS * interval_s)


def measure(series: Series, start_s: float, end_s: float) -> Sums:
    """What one series amounts to in a window.

    Args:
        series: Its rows lie within the window, in order of time.
        start_s: Where the window begins for it.
        end_s: Where it ends.
    """
    sums = Sums(rows=len(series), span_s=end_s - start_s)
    sums.expected = (end_s - start_s) / series.interval_s
    fraction = _memory_fraction(series)
    sums.util_rows, sums.util_sum, sums.active_rows = _utilization(series.util_pct)
    sums.mem_rows, sums.mem_sum = _total(fraction)
    sums.power_rows, sums.power_sum = _total(series.power_w)
    if sums.util_rows:
        sums.util_max = float(np.nanmax(series.util_pct))
    sums.statuses = dict(Counter(status or "ok" for status in series.status))
    kept = series.kept_rows()
    sums.kept = len(kept)
    sums.seen = min(float(len(kept)), sums.expected)
    sums.kept_util_rows, sums.kept_util_sum, sums.kept_active_rows = _utilization(
        series.util_pct[kept]
    )
    sums.kept_mem_rows, sums.kept_mem_sum = _total(fraction[kept])
    if len(kept):
        _hold(sums, series, fraction, kept, end_s)
        _integrate(sums, series)
    _silence(
        sums, series, series.t_s[kept], max(start_s, series.from_s), min(end_s, series.until_s)
    )
    return sums


def _memory_fraction(series: Series) -> Floats:
    total = np.where(series.mem_total_mib > 0, series.mem_total_mib, np.nan)
    return series.mem_used_mib / total


def _total(values: Floats) -> tuple[int, float]:
    measured = values[~np.isnan(values)]
    return len(measured), float(measured.sum())


def _utilization(util_pct: Floats) -> tuple[int, float, int]:
    rows, total = _total(util_pct)
    return rows, total, int(np.count_nonzero(util_pct >= ACTIVE_PCT))


def _hold(
    sums: Sums, series: Series, fraction: Floats, kept: NDArray[np.int64], end_s: float
) -> None:
    """Weighs samples by time; rows that are one sample are averaged first."""
    held = holds_s(series.t_s[kept], end_s, series.interval_s)
    sums.held_s = float(held.sum())
    util = _mean_of_each(series.util_pct, kept)
    active = _mean_of_each(_flag(series.util_pct), kept)
    sums.held_util_s, sums.held_util_sum = _weighted(util, held)
    sums.held_active_s = _weighted(active, held)[1]
    sums.held_mem_s, sums.held_mem_sum = _weighted(_mean_of_each(fraction, kept), held)
    for state, seconds in zip(_states(series, kept), held.tolist(), strict=True):
        sums.state_s[state] = sums.state_s.get(state, 0.0) + seconds


def _flag(util_pct: Floats) -> Floats:
    return np.where(np.isnan(util_pct), np.nan, (util_pct >= ACTIVE_PCT).astype(np.float64))


def _mean_of_each(values: Floats, kept: NDArray[np.int64]) -> Floats:
    if len(kept) == len(values):
        return values
    measured = ~np.isnan(values)
    total = np.add.reduceat(np.where(measured, values, 0.0), kept)
    count = np.add.reduceat(measured.astype(np.float64), kept)
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, total / np.where(count > 0, count, 1.0), np.nan)


def _weighted(values: Floats, held: Floats) -> tuple[float, float]:
    measured = ~np.isnan(values)
    weights = held[measured]
    return float(weights.sum()), float((values[measured] * weights).sum())


def _states(series: Series, kept: NDArray[np.int64]) -> list[str]:
    """The state that each sample shows; the classifier is asked once for each different one."""
    known: dict[tuple[float | None, float | None, str], str] = {}
    found = []
    for index in kept.tolist():
        look = (
            _number(series.util_pct[index]),
            _number(series.mem_used_mib[index]),
            series.status[index],
        )
        if look not in known:
            known[look] = state_at(series, index, age_s=0.0).value
        found.append(known[look])
    return found


def state_at(series: Series, index: int, *, age_s: float) -> GpuState:
    """The state that one row shows, so many seconds later."""
    return classify(
        Sighting(
            source="telemetry",
            age_s=age_s,
            interval_s=series.interval_s,
            util_pct=_number(series.util_pct[index]),
            mem_used_mib=_number(series.mem_used_mib[index]),
            status=series.status[index],
        )
    )[0]


def _number(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _silence(sums: Sums, series: Series, t_s: Floats, start_s: float, end_s: float) -> None:
    """Files the time for which no sample stands: silent where it lasts over three intervals."""
    edges = np.concatenate(([start_s], t_s, [end_s]))
    steps = np.maximum(np.diff(edges), 0.0)
    stands = HOLD_INTERVALS * series.interval_s
    bare = np.append(steps[:1], np.maximum(steps[1:] - stands, 0.0))
    silent = float(bare[steps > SILENT_INTERVALS * series.interval_s].sum())
    rest = float(bare.sum()) - silent
    for state, seconds in ((GpuState.SILENT.value, silent), (NO_SAMPLE, rest)):
        if seconds > 0:
            sums.state_s[state] = sums.state_s.get(state, 0.0) + seconds


def _integrate(sums: Sums, series: Series) -> None:
    """Energy between neighbouring rows; nothing is bridged."""
    found = integrate(series.t_s, series.power_w, series.energy_j, gap_of(series.interval_s))
    for name, value in found._asdict().items():
        setattr(sums, name, value)
