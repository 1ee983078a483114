"""The rows of a window as one series a GPU, and the facts of the files that they are from.

Reads through `reader`, one host at a time; what rows amount to is `windows`'s. Invariant: rows of
one GPU are one series, whatever file, job or logger they came from, and every file that was not
read is named with its reason.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from fleetcraft.clock import parse_timestamp
from fleetcraft.errors import DataError
from fleetcraft.telemetry.intervals import DEFAULT_INTERVAL_S
from fleetcraft.telemetry.reading.reader import FileReader, SeriesId
from fleetcraft.telemetry.reading.sources import Gpu, Source
from fleetcraft.telemetry.windows.span import (
    Series,
    Window,
    interval_of,
    iso,
)

COLUMNS = ("util_pct", "mem_used_mib", "mem_total_mib", "power_w", "energy_j")


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One file as it was when it was read.

    Attributes:
        path: Relative to the folder that was read.
        zoned: Whether its rows name their zone; None where it has no row.
        prefix_bytes: Up to the end of its last whole line.
        sha256: Of that prefix; empty if it was not asked for.
        kinds: Its rows by kind.
        rejected: Its rejected lines by kind.
        rows_in_window: Rows of GPUs and slices that lie in the window.
        newest_s: The latest time of such a row, as its own clock counts.
        logging: Whether its logger may have run in the window, as far as its sidecar and the date
            of the file tell; None without a sidecar.
    """

    path: str
    node: str
    job: str = ""
    zoned: bool | None = None
    prefix_bytes: int = 0
    sha256: str = ""
    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    rows_in_window: int = 0
    newest_s: float | None = None
    logging: bool | None = None
    interval_s: float | None = None
    started_at: str = ""
    ended_at: str | None = None
    expected_gpus: int | None = None
    gpus: tuple[Gpu, ...] = ()


@dataclass(kw_only=True)
class HostRows:
    """One host's part of a window."""

    host: str
    series: list[Series] = field(default_factory=list)
    sources: list[SourceFacts] = field(default_factory=list)


def read_host(
    host: str,
    sources: Sequence[Source],
    window: Window,
    *,
    folder: str,
    first_index: int = 0,
    interval_s: float | None = None,
    hash_prefix: bool = False,
    prefixes: Mapping[str, int] | None = None,
    refused: list[tuple[str, str]] | None = None,
) -> HostRows:
    """Reads all files of one host.

    Args:
        host: The node.
        sources: Its files.
        window: What is kept of them.
        folder: What paths are relative to.
        first_index: The place of the first file in the list of all.
        interval_s: Between samples, for files that do not say.
        hash_prefix: Whether to hash what is read.
        prefixes: How many bytes of a file to read, by its path; None for as far as it goes.
        refused: Gets the files that cannot be read, with the reason.
    """
    found = HostRows(host=host)
    pieces: dict[str, list[_Piece]] = {}
    for source in sources:
        index = first_index + len(found.sources)
        reader = FileReader(
            source,
            columns=COLUMNS,
            with_status=True,
            hash_prefix=hash_prefix,
            prefix_bytes=(prefixes or {}).get(source.path),
        )
        try:
            facts, of_file = take_file(reader, source, window, folder, index)
        except DataError as error:
            if refused is not None:
                refused.append((source.path, error.message))
            continue
        found.sources.append(facts)
        for piece in of_file:
            pieces.setdefault(piece.id.key or f"file {index}", []).append(piece)
    _join_unnamed(pieces)
    by_index = dict(enumerate(found.sources, first_index))
    found.series = [_series(host, parts, by_index, interval_s) for parts in pieces.values()]
    found.series.sort(key=_order)
    return found


def _order(series: Series) -> tuple[int, str, str, str]:
    index = int(series.gpu_index) if series.gpu_index.isdecimal() else 1 << 30
    return index, series.gpu_uuid, series.mig_uuid, series.key


# ------------------------------------------------------------------------------------ one file


@dataclass(kw_only=True)
class _Piece:
    """What one file has of one series, in the order of the file."""

    id: SeriesId
    source: int
    zoned: bool
    columns: dict[str, Any]
    status: list[str]


def take_file(
    reader: FileReader, source: Source, window: Window, folder: str, index: int
) -> tuple[SourceFacts, list[_Piece]]:
    """Reads a file to its end: its facts, and what it has of the window.

    Raises:
        DataError: It cannot be read.
    """
    columns: dict[int, list[dict[str, Any]]] = {}
    statuses: dict[int, list[str]] = {}
    newest_s, rows = -math.inf, 0
    for chunk in reader.chunks():
        if not len(chunk.t_s):
            continue
        newest_s = max(newest_s, float(chunk.t_s.max()))
        start_s, end_s = window.bounds_s(zoned=reader.zoned)
        inside = np.flatnonzero((chunk.t_s > start_s) & (chunk.t_s <= end_s))
        rows += len(inside)
        for number in np.unique(chunk.series[inside]).tolist():
            at = inside[chunk.series[inside] == number]
            part = {"t_s": chunk.t_s[at]}
            part.update({name: chunk.values[name][at] for name in COLUMNS})
            columns.setdefault(number, []).append(part)
            words = [""] * len(at) if chunk.status is None else chunk.status[at].tolist()
            statuses.setdefault(number, []).extend(words)
    found_s = None if newest_s == -math.inf else newest_s
    facts = _facts(reader, source, window, folder, found_s)
    facts = msgspec.structs.replace(facts, rows_in_window=rows, newest_s=found_s)
    pieces = [
        _Piece(
            id=reader.series[number],
            source=index,
            zoned=reader.zoned,
            columns={name: np.concatenate([p[name] for p in parts]) for name in parts[0]},
            status=statuses[number],
        )
        for number, parts in sorted(columns.items())
    ]
    return facts, pieces


def _facts(
    reader: FileReader, source: Source, window: Window, folder: str, newest_s: float | None
) -> SourceFacts:
    sidecar = source.sidecar
    facts = SourceFacts(
        path=os.path.relpath(source.path, folder),
        node=source.node,
        job=source.job,
        zoned=reader.zoned if sum(reader.counts.kinds.values()) else None,
        prefix_bytes=reader.bytes_read,
        sha256=reader.sha256,
        kinds=dict(reader.counts.kinds),
        rejected=dict(reader.counts.rejected),
        interval_s=reader.interval_s,
    )
    if sidecar is None:
        return facts
    return msgspec.structs.replace(
        facts,
        started_at=sidecar.started_at,
        ended_at=sidecar.ended_at,
        expected_gpus=sidecar.expected_gpus,
        gpus=sidecar.gpus,
        logging=_was_logging(source, window, newest_s),
    )


def _was_logging(source: Source, window: Window, newest_s: float | None) -> bool:
    assert source.sidecar is not None
    start_s, end_s = window.bounds_s(zoned=True)
    started_s = _seconds(source.sidecar.started_at)
    ended_s = _seconds(source.sidecar.ended_at or "")
    if ended_s is None:  # it runs, or it died: then its last row tells until when, or the file
        ended_s = max(newest_s or 0.0, _written_s(source.path))
    return (started_s is None or started_s <= end_s) and ended_s > start_s


def _written_s(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


# ---------------------------------------------------------------------------------- one series


def _join_unnamed(pieces: dict[str, list[_Piece]]) -> None:
    """Gives rows that name a GPU by its index alone to the only GPU of that index.

    A driver that has lost a GPU may not tell its UUID any more.
    """
    named: dict[str, set[str]] = {}
    for key, parts in pieces.items():
        for piece in parts:
            if piece.id.gpu_uuid and not piece.id.mig_uuid and piece.id.gpu_index:
                named.setdefault(piece.id.gpu_index, set()).add(key)
    for key in list(pieces):
        first = pieces[key][0].id
        candidates = named.get(first.gpu_index, set())
        if not first.gpu_uuid and not first.mig_uuid and len(candidates) == 1:
            (other,) = candidates
            if other != key:
                pieces[other] += pieces.pop(key)


def _series(
    host: str, parts: list[_Piece], sources: dict[int, SourceFacts], option_s: float | None
) -> Series:
    joined = {name: np.concatenate([p.columns[name] for p in parts]) for name in parts[0].columns}
    status = [word for piece in parts for word in piece.status]
    order = np.argsort(joined["t_s"], kind="stable")
    best = max(parts, key=lambda piece: bool(piece.id.gpu_uuid)).id
    indexes = sorted({piece.source for piece in parts})
    series = Series(
        host=host,
        key=best.key,
        gpu_index=best.gpu_index,
        gpu_uuid=best.gpu_uuid,
        mig_uuid=best.mig_uuid,
        zoned=parts[0].zoned,
        sources=tuple(indexes),
        t_s=joined["t_s"][order],
        util_pct=joined["util_pct"][order],
        mem_used_mib=joined["mem_used_mib"][order],
        mem_total_mib=joined["mem_total_mib"][order],
        power_w=joined["power_w"][order],
        energy_j=joined["energy_j"][order],
        status=[status[at] for at in order.tolist()],
    )
    return with_interval(series, [sources[index] for index in indexes], option_s)


def with_interval(series: Series, sources: Sequence[SourceFacts], option_s: float | None) -> Series:
    """Says how far apart samples should be, and since when and until when its loggers ran.

    The interval is what sidecars say, the largest of several; else the option; else what the rows
    show; else 30 s.
    """
    said = [facts.interval_s for facts in sources if facts.interval_s is not None]
    shown = interval_of(series.t_s)
    choices = (
        ("sidecar", max(said, default=None)),
        ("option", option_s),
        ("rows", shown),
        ("default", DEFAULT_INTERVAL_S),
    )
    source, interval_s = next((w, s) for w, s in choices if s is not None)
    begun = [_seconds(facts.started_at) for facts in sources]
    ended = [_seconds(facts.ended_at or "") for facts in sources]
    return replace(
        series,
        interval_s=interval_s,
        interval_from=source,
        from_s=min((at for at in begun if at is not None), default=-math.inf)
        if None not in begun
        else -math.inf,
        until_s=max((at for at in ended if at is not None), default=math.inf)
        if None not in ended
        else math.inf,
    )


def _seconds(text: str) -> float | None:
    at = parse_timestamp(text)
    return None if at is None or at.tzinfo is None else at.timestamp()


def newest_of(sources: Iterable[SourceFacts]) -> str:
    """The time of the newest row of some files as text; empty if there is none."""
    times = [(facts.newest_s, bool(facts.zoned)) for facts in sources if facts.newest_s is not None]
    if not times:
        return ""
    newest_s, zoned = max(times)
    return iso(newest_s, zoned=zoned)
