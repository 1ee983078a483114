"""Telemetry files as one trace a GPU, in order of time, ready to be binned.

Reads through `reader`; what a figure shows of it is `timeline`'s. Invariant: a reading that is
absent is NaN, and rows of one GPU are one trace, whatever file or logger they came from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetcraft.errors import DataError
from fleetcraft.gpu.states import ACTIVE_PCT, RESIDENT_MIB, GpuState
from fleetcraft.gpu.status import Status
from fleetcraft.telemetry.energy import JOULES_PER_KWH, integrate
from fleetcraft.telemetry.figures.host_traces import HostTrace, read_host_traces
from fleetcraft.telemetry.figures.time_axis import Floats
from fleetcraft.telemetry.intervals import DEFAULT_INTERVAL_S, gap_of
from fleetcraft.telemetry.reading.reader import Chunk, FileReader, SeriesId
from fleetcraft.telemetry.reading.sources import Source
from fleetcraft.telemetry.windows.bare_hosts import KINDS
from fleetcraft.telemetry.windows.span import interval_of

Singles = NDArray[np.float32]
States = NDArray[np.int8]

STATES = tuple(GpuState)
_CODE = {state: code for code, state in enumerate(STATES)}
_COLUMNS = ("util_pct", "mem_used_mib", "mem_total_mib", "power_w", "energy_j")
_SHORT = 12


@dataclass(kw_only=True)
class Trace:
    """All that was read of one GPU or slice, [N] each.

    Attributes:
        host: Its node; for an archive the stem of its file.
        key: What tells it from the others of its host; empty where the file has no identity.
        index: The driver's number of it; empty if not known.
        is_slice: Whether it is a slice of a GPU that has rows of its own.
        t_s: Seconds since 1970, in order; local time is taken as if it were UTC.
        util_pct: 0 to 100.
        memory_fraction: 0 to 1.
        power_w: Watts.
        energy_j: The driver's counter.
        state: Number of the state in `STATES`.
        gap_s: A step this long after a sample is a gap.
        unseen: Spans between two samples of one file of ours in which it should have been seen,
            and was not.
    """

    host: str
    key: str
    index: str
    is_slice: bool
    t_s: Floats
    util_pct: Singles
    memory_fraction: Singles
    power_w: Singles
    energy_j: Floats
    state: States
    gap_s: Singles
    unseen: tuple[tuple[float, float], ...] = ()

    @property
    def gpu(self) -> str:
        """The GPU for people: its number, else the head of its key; empty for an archive."""
        by_number = self.index and not self.is_slice
        return f"gpu {self.index}" if by_number else self.key[:_SHORT]

    @property
    def name(self) -> str:
        """Host and GPU for people."""
        return f"{self.host} {self.gpu}".strip()


@dataclass(kw_only=True)
class Traces:
    """What a folder holds.

    Attributes:
        traces: By host, then index, then key.
        hosts: Every node that has a file, in the order of names, also those without a sample.
        files: How many were read.
        header_only: How many of them have no row at all.
        kinds: Rows by kind.
        rejected: Lines that are no rows, by kind.
        unread: Files that were not read, with the reason.
        zoned: Files whose times have a zone.
        zoneless: Files in which a time has none.
        bare: Hosts with rows of their own, where there is no sample of a GPU at all.
        interval_s: Usual seconds between samples, the largest of all.
        since_s: Samples before this were left out.
        until_s: Samples from this on were left out.
    """

    traces: list[Trace] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    files: int = 0
    header_only: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    unread: list[tuple[str, str]] = field(default_factory=list)
    zoned: int = 0
    zoneless: int = 0
    bare: list[HostTrace] = field(default_factory=list)
    interval_s: float = DEFAULT_INTERVAL_S
    since_s: float | None = None
    until_s: float | None = None

    @property
    def samples(self) -> int:
        """Samples of GPUs and slices that were kept."""
        return sum(len(trace.t_s) for trace in self.traces)

    @property
    def gpus(self) -> int:
        """GPUs with a sample; slices are not GPUs."""
        return sum(not trace.is_slice for trace in self.traces)


def read_traces(
    sources: Sequence[Source],
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Traces:
    """Reads files whole, keeping about 40 bytes a sample.

    Args:
        sources: What to read; a file that cannot be read is told of, not raised.
        since_s: Only samples from this on.
        until_s: Only samples before this.
        progress: Called with the files done and the files in all.
    """
    found = Traces(since_s=since_s, until_s=until_s)
    gathered: dict[tuple[str, str], _Gathered] = {}
    of_hosts: list[Source] = []
    for done, source in enumerate(sources):
        if progress:
            progress(done, len(sources))
        try:
            if _read_file(source, found, gathered):
                of_hosts.append(source)
        except DataError as error:
            found.unread.append((source.name, error.message))
    _join_unnamed(gathered)
    found.hosts = sorted({source.node for source in sources})
    found.traces = [one.trace() for one in sorted(gathered.values(), key=lambda g: g.order)]
    if not found.traces:
        found.bare = read_host_traces(of_hosts, since_s=since_s, until_s=until_s)
    intervals = [one.interval_s for one in gathered.values()]
    intervals += [one.interval_s for one in found.bare]
    found.interval_s = max(intervals, default=DEFAULT_INTERVAL_S)
    return found


class _Gathered:
    """The pieces of one GPU's trace while files are read."""

    def __init__(self, host: str, series: SeriesId) -> None:
        self.host = host
        self.series = series
        self.pieces: list[_Piece] = []
        self.unseen: list[tuple[float, float]] = []
        self.interval_s = 0.0

    def take(self, piece: _Piece, interval_s: float, *, owned: bool) -> None:
        """Adds what one file has of it; ``owned`` if it was ours between the file's samples."""
        self.pieces.append(piece)
        self.interval_s = max(self.interval_s, interval_s)
        if owned:
            self.unseen += _unseen(piece.t_s, gap_of(interval_s))

    def join(self, other: _Gathered) -> None:
        self.pieces += other.pieces
        self.unseen += other.unseen

    @property
    def order(self) -> tuple[str, int, str, str]:
        index = self.series.gpu_index
        return (self.host, int(index) if index.isdecimal() else -1, index, self.series.key)

    def trace(self) -> Trace:
        columns: list[Any] = [np.concatenate(parts) for parts in zip(*self.pieces, strict=True)]
        if np.any(np.diff(columns[0]) < 0):
            order = np.argsort(columns[0], kind="stable")
            columns = [column[order] for column in columns]
        return Trace(
            host=self.host,
            key=self.series.key,
            index=self.series.gpu_index,
            is_slice=bool(self.series.mig_uuid),
            unseen=tuple(self.unseen),
            **dict(zip(_Piece._fields, columns, strict=True)),
        )


class _Piece(NamedTuple):
    """What one file has of one series, [N] each; see `Trace`."""

    t_s: Floats
    util_pct: Singles
    memory_fraction: Singles
    power_w: Singles
    energy_j: Floats
    state: States
    gap_s: Singles


def _read_file(source: Source, found: Traces, gathered: dict[tuple[str, str], _Gathered]) -> bool:
    """Reads one file; whether it has rows of its host itself."""
    reader = FileReader(source, columns=_COLUMNS, with_status=True)
    chunks = list(reader.chunks())
    found.files += 1
    found.kinds.update(reader.counts.kinds)
    found.rejected.update(reader.counts.rejected)
    if not reader.counts.rows:
        found.header_only += 1
    elif reader.zoned:
        found.zoned += 1
    else:
        found.zoneless += 1
    for number, series in enumerate(reader.series):
        columns = _columns(chunks, number, found)
        if columns is None:
            continue
        interval_s = reader.interval_s or interval_of(np.sort(columns[0])) or DEFAULT_INTERVAL_S
        gap_s = np.full(len(columns[0]), gap_of(interval_s), np.float32)
        # What names no GPU is one series a file, as archives have one GPU a file.
        place = (source.node, series.key or f"\0{source.name}")
        one = gathered.setdefault(place, _Gathered(source.node, series))
        one.series = series if series.gpu_uuid else one.series
        # Nothing says that the GPU of an archive was still ours in a gap.
        one.take(_Piece._make([*columns, gap_s]), interval_s, owned=bool(source.job))
    return any(reader.counts.kinds.get(kind) for kind in KINDS)


def _columns(chunks: Sequence[Chunk], number: int, found: Traces) -> list[Any] | None:
    """One series of a file up to its state, [N] each; None if nothing of it is wanted."""
    parts = [_of_chunk(chunk, number, found) for chunk in chunks]
    parts = [part for part in parts if len(part[0])]
    return [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else None


def _of_chunk(
    chunk: Chunk, number: int, found: Traces
) -> tuple[Floats, Singles, Singles, Singles, Floats, States]:
    t_s = chunk.t_s
    mask = chunk.series == number
    if found.since_s is not None:
        mask &= t_s >= found.since_s
    if found.until_s is not None:
        mask &= t_s < found.until_s
    util, used, total, power, energy = (chunk.values[column][mask] for column in _COLUMNS)
    status = None if chunk.status is None else chunk.status[mask]
    return (
        t_s[mask],
        util.astype(np.float32),
        (used / total).astype(np.float32),  # a total of 0 is no reading, and NaN already
        power.astype(np.float32),
        energy,
        classify_all(util, used, status),
    )


def _join_unnamed(gathered: dict[tuple[str, str], _Gathered]) -> None:
    """Gives rows that name a GPU by its number alone to the only GPU of that number.

    A driver that has lost a GPU may not tell its UUID any more.
    """
    named: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for place, one in gathered.items():
        if one.series.gpu_uuid and not one.series.mig_uuid and one.series.gpu_index:
            named.setdefault((one.host, one.series.gpu_index), []).append(place)
    for place in list(gathered):
        series = gathered[place].series
        others = named.get((place[0], series.gpu_index), [])
        if not series.gpu_uuid and not series.mig_uuid and len(others) == 1:
            gathered[others[0]].join(gathered.pop(place))


def classify_all(util_pct: Floats, mem_used_mib: Floats, status: object) -> States:
    """The state of each sample by the rules of `fleetcraft.gpu.states.classify`, [N].

    Args:
        util_pct: [N], NaN where absent.
        mem_used_mib: [N], NaN where absent.
        status: Words of the status column [N], or None where there is no such column.
    """
    state = np.full(len(util_pct), _CODE[GpuState.UNKNOWN], np.int8)
    idle = util_pct < ACTIVE_PCT
    state[util_pct >= ACTIVE_PCT] = _CODE[GpuState.WORKING]
    state[idle & (mem_used_mib >= RESIDENT_MIB)] = _CODE[GpuState.RESIDENT_IDLE]
    state[idle & (mem_used_mib < RESIDENT_MIB)] = _CODE[GpuState.FREE_IDLE]
    if status is not None:
        words = np.asarray(status, dtype=object)
        gone = (words == Status.LOST.value) | (words == Status.ABSENT.value)
        state[gone.astype(bool)] = _CODE[GpuState.LOST]
    return state


def _unseen(t_s: Floats, gap_s: float) -> Iterable[tuple[float, float]]:
    ordered = np.sort(t_s)
    for place in np.flatnonzero(np.diff(ordered) >= gap_s):
        yield float(ordered[place]), float(ordered[place + 1])


# ------------------------------------------------------------------------------ numbers for texts


@dataclass(frozen=True, kw_only=True)
class Energy:
    """What GPUs used, gaps left out.

    Attributes:
        kwh: Over the covered time.
        covered_hours: GPU hours that it covers.
        by_counter_fraction: Share of these hours measured by the driver's counter; the others are
            the trapezoid of power readings.
    """

    kwh: float
    covered_hours: float
    by_counter_fraction: float


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What all samples amount to.

    Attributes:
        mean_util_pct: Over all samples that have it; None without one.
        active_fraction: Share of them at or above 5 percent.
        gaps: Steps of a GPU that are gaps.
        biggest_gap_s: The longest of them, 0 without one.
        energy: None where there is neither counter nor power.
    """

    mean_util_pct: float | None
    active_fraction: float | None
    gaps: int
    biggest_gap_s: float
    energy: Energy | None


def measure(found: Traces) -> Facts:
    """Sums up traces, without counting what slices use for a second time."""
    util = np.concatenate([trace.util_pct for trace in found.traces] or [np.zeros(0, np.float32)])
    util = util[np.isfinite(util)].astype(np.float64)
    gaps = [
        steps[steps >= trace.gap_s[:-1]] for trace in found.traces for steps in [np.diff(trace.t_s)]
    ]
    sizes = np.concatenate(gaps or [np.zeros(0)])
    return Facts(
        mean_util_pct=float(util.mean()) if len(util) else None,
        active_fraction=float((util >= ACTIVE_PCT).mean()) if len(util) else None,
        gaps=len(sizes),
        biggest_gap_s=float(sizes.max()) if len(sizes) else 0.0,
        energy=_energy([trace for trace in found.traces if not trace.is_slice]),
    )


def _energy(traces: Sequence[Trace]) -> Energy | None:
    """By counter between neighbours where both have it and it grew, else by power."""
    joule = counted_s = drawn_s = 0.0
    for trace in traces:
        power_w, gap_s = trace.power_w.astype(np.float64), trace.gap_s[:-1].astype(np.float64)
        found = integrate(trace.t_s, power_w, trace.energy_j, gap_s)
        joule += found.counter_j + found.trapezoid_j
        counted_s += found.counter_s
        drawn_s += found.trapezoid_s
    covered_s = counted_s + drawn_s
    if not covered_s:
        return None
    return Energy(
        kwh=joule / JOULES_PER_KWH,
        covered_hours=covered_s / 3600.0,
        by_counter_fraction=counted_s / covered_s,
    )
