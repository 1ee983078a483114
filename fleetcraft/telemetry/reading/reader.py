"""Samples of one telemetry file, block by block: whose they are, when, and their numbers.

Sums nothing. Invariant: the order is the file's; a value that was not measured is NaN and counted
with its text; rows about the host, events and heartbeats are counted and are no samples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fleetcraft.telemetry.columns import DEVICE_COLUMNS, RowKind
from fleetcraft.telemetry.reading import counts as counting
from fleetcraft.telemetry.reading.cells import (
    Bools,
    Floats,
    Ints,
    Lines,
    distinct,
    number_or_none,
    numbers,
)
from fleetcraft.telemetry.reading.counts import RowCounts
from fleetcraft.telemetry.reading.lines import Block, WholeLines
from fleetcraft.telemetry.reading.rows import RowFinder, Rows
from fleetcraft.telemetry.reading.sources import Source
from fleetcraft.telemetry.reading.times import SECOND_US

FOUR = ("mem_used_mib", "mem_total_mib", "util_pct", "power_w")
"""The numbers that every file has, those of the archives too."""
_CHUNK_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
_SAMPLES = (RowKind.GPU.value, RowKind.MIG.value)
_PERCENT = (0.0, 100.0)
_ANY = (0.0, 1e15)
_RANGES: Mapping[str, tuple[float, float]] = {
    "util_pct": _PERCENT,
    "util_max_pct": _PERCENT,
    "mem_util_pct": _PERCENT,
    "mem_used_mib": (0.0, 1e9),
    "mem_total_mib": (math.ulp(0.0), 1e9),
    "power_w": (0.0, 1e5),
    "temp_c": (-100.0, 1000.0),
}
"""What a value can be. Beyond: dcgm-exporter issues 216 and 430 show a utilization of 9.2e18
percent, and drivers of cards without memory of their own give a total of 0."""


class SeriesId(msgspec.Struct, frozen=True, kw_only=True):
    """Whose samples they are: one GPU or slice of one file.

    Attributes:
        key: The first of slice UUID, GPU UUID, PCI bus id and index that the rows give; empty for
            a file that names no GPU, whose rows are one series.
    """

    key: str
    gpu_index: str = ""
    gpu_uuid: str = ""
    pci_bus_id: str = ""
    mig_uuid: str = ""


class Chunk(NamedTuple):
    """Samples of GPUs and slices, in the order of the file.

    Attributes:
        t_us: Microseconds since 1970; of rows without a zone as if they were UTC [N].
        series: Places in `FileReader.series` [N].
        values: The numbers asked for, by column, NaN where there is none [N].
        status: The text of the status column where it was asked for, empty where there is none [N].
    """

    t_us: Ints
    series: NDArray[np.int32]
    values: dict[str, Floats]
    status: NDArray[np.object_] | None = None

    @property
    def t_s(self) -> Floats:
        """Seconds since 1970 [N]."""
        return self.t_us / SECOND_US


class FileReader:
    """Reads one file once.

    Args:
        source: The file.
        columns: The numbers to read; a column that the file lacks is NaN and not counted missing.
        with_status: Whether to read the status column.
        kinds: Which rows to read, words of `RowKind`; those of another kind are counted alone.
        prefix_bytes: Where to stop; None for the file's size at opening.
        hash_prefix: Whether to compute the SHA-256 of what was read.
        chunk_bytes: How much is read at a time.

    Attributes:
        series: Whose samples there are, so far.
        counts: What was counted, so far.
        zoned_rows: Rows that name their zone.
        absent: Columns asked for that no layout of the file has.
        interval_s: Between samples, by the sidecar; None if nothing says it.
    """

    def __init__(
        self,
        source: Source,
        *,
        columns: Sequence[str] = FOUR,
        with_status: bool = False,
        kinds: Collection[str] = _SAMPLES,
        prefix_bytes: int | None = None,
        hash_prefix: bool = False,
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        self.source = source
        self.series: list[SeriesId] = []
        self.counts = RowCounts()
        self.zoned_rows = 0
        self.absent = set(columns)
        self.interval_s = source.sidecar.interval_s if source.sidecar else None
        self._columns = tuple(columns)
        self._with_status = with_status
        self._wanted = frozenset(kinds)
        self._places: dict[str, int] = {}
        self._finder = RowFinder(self.counts)
        self._lines = WholeLines(
            source.path,
            chunk_bytes=chunk_bytes,
            prefix_bytes=prefix_bytes,
            hash_prefix=hash_prefix,
        )

    @property
    def zoned(self) -> bool:
        """Whether every row named its zone."""
        return 0 < self.zoned_rows == self.counts.rows

    @property
    def bytes_read(self) -> int:
        """Bytes of whole lines, header included."""
        return self._lines.end

    @property
    def sha256(self) -> str:
        """Of these bytes, in hex; empty unless asked for."""
        return self._lines.sha256

    @property
    def shrank(self) -> bool:
        """Whether the file became shorter while it was read."""
        return self._lines.shrank

    def chunks(self) -> Iterator[Chunk]:
        """The samples; what was counted is complete when they are exhausted.

        Raises:
            DataError: The file is not there, no regular file, or reading failed.
        """
        for block in self._lines.blocks():
            if block.data:
                chunk = self._read(block)
                if chunk is not None:
                    yield chunk
            else:
                self._finder.too_long(block.offset)
        if self._lines.torn:
            self._finder.torn_tail(self._lines.end)

    def _read(self, block: Block) -> Chunk | None:
        data, offset = block
        if offset == 0 and data.startswith(_BOM):
            data, offset = data[len(_BOM) :], len(_BOM)
        lines = Lines(data)
        parts = [self._samples(lines, rows) for rows in self._finder.find(lines, offset)]
        return _in_order([part for part in parts if len(part[0])])

    def _samples(self, lines: Lines, rows: Rows) -> tuple[Ints, Chunk]:
        self.zoned_rows += int(rows.zoned.sum())
        self._statuses(lines, rows)
        codes, ids = self._ids(lines, rows)
        keep = self._kinds(lines, rows, codes, ids)
        rows = Rows(rows.layout, rows.line[keep], rows.t_us[keep], rows.zoned[keep])
        if not len(rows.line):
            return rows.line, Chunk(rows.t_us, np.zeros(0, dtype=np.int32), {})
        values = self._values(lines, rows)
        self._causes(lines, rows, values)
        status = self._status(lines, rows) if self._with_status else None
        return rows.line, Chunk(rows.t_us, self._series_of(codes[keep], ids), values, status)

    # -------------------------------------------------------------------------- whose rows

    def _ids(self, lines: Lines, rows: Rows) -> tuple[Ints, list[SeriesId]]:
        """Whom each row is about, as a place in a list [N], and the list."""
        codes: Ints = np.zeros(len(rows.line), dtype=np.int64)
        parts: list[dict[str, str]] = [{}]
        for column in DEVICE_COLUMNS:
            if column not in rows.layout.columns:
                continue
            own, texts = _texts(lines, rows, column)
            pairs, codes = np.unique(codes * len(texts) + own, return_inverse=True)
            parts = [
                {**parts[pair // len(texts)], column: texts[pair % len(texts)]} for pair in pairs
            ]
        return codes, [_series_id(part) for part in parts]

    def _kinds(self, lines: Lines, rows: Rows, codes: Ints, ids: list[SeriesId]) -> Bools:
        """Counts the rows by kind; which of them are to be read [N]."""
        named = any(column in rows.layout.columns for column in DEVICE_COLUMNS)
        about_host = np.array([named and not one.key for one in ids])[codes]
        unsaid = np.where(about_host, 1, 0)  # a place in the list below
        names = [RowKind.GPU.value, RowKind.HOST.value]
        if "kind" in rows.layout.columns:
            own, texts = _texts(lines, rows, "kind")
            empty = np.array([not text for text in texts])[own]
            unsaid = np.where(empty, unsaid, own + len(names))
            names += texts
        for place, number in enumerate(np.bincount(unsaid, minlength=len(names))):
            if number:
                self.counts.count_kind(names[place], int(number))
        wanted: Bools = np.array([name in self._wanted for name in names])[unsaid]
        return wanted

    def _series_of(self, codes: Ints, ids: list[SeriesId]) -> NDArray[np.int32]:
        places = np.zeros(len(ids), dtype=np.int32)
        there, first = np.unique(codes, return_index=True)
        for code in there[np.argsort(first)]:
            places[code] = self._place(ids[code])
        return places[codes]

    def _place(self, one: SeriesId) -> int:
        place = self._places.setdefault(one.key, len(self.series))
        if place == len(self.series):
            self.series.append(one)
        else:
            self.series[place] = _completed(self.series[place], one)
        return place

    # -------------------------------------------------------------------------- what they say

    def _values(self, lines: Lines, rows: Rows) -> dict[str, Floats]:
        values = {column: self._column(lines, rows, column) for column in self._columns}
        if "mem_used_mib" in values and "mem_total_mib" in values:
            beyond = values["mem_used_mib"] > values["mem_total_mib"]
            if beyond.any():
                values["mem_used_mib"][beyond] = np.nan
                missing = int(beyond.sum())
                self.counts.count_missing("mem_used_mib", counting.MORE_THAN_TOTAL, missing)
        return values

    def _column(self, lines: Lines, rows: Rows, column: str) -> Floats:
        place = rows.layout.columns.get(column)
        if place is None:
            return np.full(len(rows.line), np.nan)
        self.absent.discard(column)
        start, end = lines.bounds(rows.line, place, rows.layout.count)
        values, plain = numbers(lines, start, end)
        odd = np.flatnonzero(~plain)
        if len(odd):
            codes, texts = distinct(lines, start[odd], end[odd])
            found = [number_or_none(text) for text in texts]
            values[odd] = np.array([np.nan if one is None else one for one in found])[codes]
            for text, one, number in zip(texts, found, np.bincount(codes), strict=True):
                if one is None:
                    self.counts.count_missing(column, text.decode("utf-8", "replace"), int(number))
        least, most = _RANGES.get(column, _ANY)
        beyond = (values < least) | (values > most)
        if beyond.any():
            values[beyond] = np.nan
            self.counts.count_missing(column, counting.OUT_OF_RANGE, int(beyond.sum()))
        return values

    def _causes(self, lines: Lines, rows: Rows, values: Mapping[str, Floats]) -> None:
        """Counts why cells have no value, where the rows say it as ``column=cause``."""
        if "missing" not in rows.layout.columns:
            return
        gaps = {name: np.isnan(column) for name, column in values.items()}
        which = np.flatnonzero(np.any(list(gaps.values()), axis=0)) if gaps else rows.line[:0]
        if not len(which):
            return
        some = Rows(rows.layout, rows.line[which], rows.t_us[which], rows.zoned[which])
        codes, texts = _texts(lines, some, "missing")
        said = [dict(part.split("=", 1) for part in t.split() if "=" in part) for t in texts]
        for column, gap in gaps.items():
            for code, number in enumerate(np.bincount(codes[gap[which]], minlength=len(texts))):
                if number and column in said[code]:
                    self.counts.count_cause(column, said[code][column], int(number))

    def _statuses(self, lines: Lines, rows: Rows) -> None:
        if "status" in rows.layout.columns:
            codes, texts = _texts(lines, rows, "status")
            for text, number in zip(texts, np.bincount(codes), strict=True):
                if text:
                    self.counts.count_status(text, int(number))

    def _status(self, lines: Lines, rows: Rows) -> NDArray[np.object_]:
        if "status" not in rows.layout.columns:
            return np.full(len(rows.line), "", dtype=object)
        codes, texts = _texts(lines, rows, "status")
        return np.array(texts, dtype=object)[codes]


def _texts(lines: Lines, rows: Rows, column: str) -> tuple[Ints, list[str]]:
    place = rows.layout.columns[column]
    codes, texts = distinct(lines, *lines.bounds(rows.line, place, rows.layout.count))
    return codes, [text.decode("utf-8", "replace") for text in texts]


def _series_id(parts: Mapping[str, str]) -> SeriesId:
    key = next((parts[column] for column in DEVICE_COLUMNS if parts.get(column)), "")
    return SeriesId(key=key, **parts)


def _completed(one: SeriesId, other: SeriesId) -> SeriesId:
    """One series' names, with those that only later rows give."""
    if one == other:
        return one
    names: dict[str, Any] = {c: getattr(one, c) or getattr(other, c) for c in DEVICE_COLUMNS}
    return SeriesId(key=one.key, **names)


def _in_order(parts: list[tuple[Ints, Chunk]]) -> Chunk | None:
    """The samples of all layouts of a block, in the order of their lines."""
    if len(parts) <= 1:
        return parts[0][1] if parts else None
    order = np.argsort(np.concatenate([line for line, _ in parts]), kind="stable")
    chunks = [chunk for _, chunk in parts]
    status = [chunk.status for chunk in chunks if chunk.status is not None]
    return Chunk(
        np.concatenate([chunk.t_us for chunk in chunks])[order],
        np.concatenate([chunk.series for chunk in chunks])[order],
        {
            name: np.concatenate([chunk.values[name] for chunk in chunks])[order]
            for name in chunks[0].values
        },
        np.concatenate(status)[order] if status else None,
    )
