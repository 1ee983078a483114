"""What hosts without a GPU say of themselves, as one trace a host, in order of time.

Reads rows of hosts and heartbeats alone; which files to read is `traces`'s to say. Invariant: what
a row does not say is NaN, and a row that says nothing is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleetcraft.errors import DataError
from fleetcraft.telemetry.figures.time_axis import Floats
from fleetcraft.telemetry.intervals import DEFAULT_INTERVAL_S, gap_of
from fleetcraft.telemetry.reading.reader import FileReader
from fleetcraft.telemetry.reading.sources import Source
from fleetcraft.telemetry.windows.bare_hosts import KINDS
from fleetcraft.telemetry.windows.span import interval_of

_COLUMNS = ("host_mem_used_mib", "host_mem_total_mib", "host_load")


@dataclass(frozen=True, kw_only=True)
class HostTrace:
    """One host, [N] each.

    Attributes:
        t_s: Seconds since 1970, in order.
        memory_fraction: 0 to 1.
        load: Threads that run or wait for a disk, mean over a minute.
        gap_s: A step this long after a row is a gap.
        interval_s: Between rows, the largest of its files.
        statuses: What its rows say of the driver.
    """

    host: str
    t_s: Floats
    memory_fraction: Floats
    load: Floats
    gap_s: Floats
    interval_s: float
    statuses: tuple[str, ...]


def read_host_traces(
    sources: Sequence[Source], *, since_s: float | None, until_s: float | None
) -> list[HostTrace]:
    """Reads the rows of hosts in some files, by host.

    Args:
        sources: Files that have such rows; one that cannot be read any more is left out.
        since_s: Only rows from this on.
        until_s: Only rows before this.
    """
    by_host: dict[str, list[_Part]] = {}
    for source in sources:
        part = _part(source, since_s, until_s)
        if part is not None:
            by_host.setdefault(source.node, []).append(part)
    return [_trace(host, parts) for host, parts in sorted(by_host.items())]


@dataclass
class _Part:
    columns: list[Floats]
    statuses: set[str]
    interval_s: float


def _part(source: Source, since_s: float | None, until_s: float | None) -> _Part | None:
    reader = FileReader(source, columns=_COLUMNS, with_status=True, kinds=KINDS)
    try:
        chunks = list(reader.chunks())
    except DataError:
        return None
    if not chunks:
        return None
    t_s = np.concatenate([chunk.t_s for chunk in chunks])
    used, total, load = (np.concatenate([c.values[name] for c in chunks]) for name in _COLUMNS)
    kept = np.isfinite(used / total) | np.isfinite(load)
    kept &= (t_s >= (-np.inf if since_s is None else since_s)) & (
        t_s < (np.inf if until_s is None else until_s)
    )
    if not kept.any():
        return None
    words = {str(word) for chunk in chunks if chunk.status is not None for word in chunk.status}
    interval_s = reader.interval_s or interval_of(np.sort(t_s)) or DEFAULT_INTERVAL_S
    gap_s = np.full(int(kept.sum()), gap_of(interval_s))
    columns = [t_s[kept], (used / total)[kept], load[kept], gap_s]
    return _Part(columns, words - {""}, interval_s)


def _trace(host: str, parts: Sequence[_Part]) -> HostTrace:
    columns = [np.concatenate(of) for of in zip(*(part.columns for part in parts), strict=True)]
    order = np.argsort(columns[0], kind="stable")
    t_s, memory_fraction, load, gap_s = (column[order] for column in columns)
    return HostTrace(
        host=host,
        t_s=t_s,
        memory_fraction=memory_fraction,
        load=load,
        gap_s=gap_s,
        interval_s=max(part.interval_s for part in parts),
        statuses=tuple(sorted(set().union(*(part.statuses for part in parts)))),
    )
