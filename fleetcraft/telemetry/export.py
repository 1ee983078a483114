"""Copies of telemetry that can be given away: only what is known to be harmless is carried over.

A cell is copied when it is of the form that its column has; everything else is left out and
counted. Invariant: with pseudonyms, no text of the source but numbers, times and our own words
reaches the copy.
"""

from __future__ import annotations

import hashlib
import os
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from fleetcraft.errors import DataError, UsageError
from fleetcraft.files import FileSystem
from fleetcraft.gpu.peaks import find_peak
from fleetcraft.gpu.status import Status
from fleetcraft.layout import sidecar, telemetry_file
from fleetcraft.locks.publishing import publish_new
from fleetcraft.telemetry.columns import COLUMNS, SIDECAR_SCHEMA, RowKind
from fleetcraft.telemetry.reading.headers import Layout, read_header
from fleetcraft.telemetry.reading.sources import Source, find_sources
from fleetcraft.trust import make_folders

MANIFEST = "MANIFEST.json"
_CHUNK_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 1 << 16
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,9})?(?:[eE][+-]?\d{1,3})?")
_TIME = re.compile(r"\d{4}([-/])\d\d\1\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?")
_ABSENT = frozenset(
    {"[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "ERR!"}
)
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_CLOSED: dict[str, frozenset[str]] = {
    "status": frozenset(Status),
    "kind": frozenset(RowKind),
    "util_source": frozenset({"samples", "instant"}),
    "mem_source": frozenset({"v1", "v2"}),
    "power_source": frozenset({"average", "instant", "usage", "average/module", "instant/module"}),
}
_FORMS = {"throttle": _HEX}
_IDENTITIES = {"gpu_uuid": "GPU", "mig_uuid": "MIG"}
_DROPPED = frozenset({"pci_bus_id", "step_id", "detail"})
"""Where a GPU sits, and what was told of it in words, which may name paths."""
_FORMULA = frozenset("=+-@")
"""A spreadsheet takes text that begins so for a formula, and runs it."""


class Pseudonyms:
    """New names for old ones, in the order in which they are first met.

    Args:
        on: Whether names are changed at all.
    """

    def __init__(self, on: bool) -> None:
        self.on = on
        self._names: dict[str, dict[str, str]] = {}

    def __call__(self, kind: str, name: str) -> str:
        """What stands for a name: ``host01``, ``GPU-0003``; a job gets a number, ``02``."""
        if not self.on or not name:
            return name
        names = self._names.setdefault(kind, {})
        number = len(names) + 1
        if kind == "job":
            return names.setdefault(name, f"{number:02d}")
        return names.setdefault(
            name, f"{kind}-{number:04d}" if kind.isupper() else f"{kind}{number:02d}"
        )

    def count(self, kind: str) -> int:
        """How many of a kind were met."""
        return len(self._names.get(kind, {}))


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """One copy.

    Attributes:
        name: Its file name.
        rows: Rows that were copied.
        left_out: Lines and cells that were not, by reason.
        sha256: Of the copy.
    """

    name: str
    rows: int
    left_out: dict[str, int]
    sha256: str


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What was written.

    Attributes:
        out: The folder.
        files: The copies, in the order of their sources.
        hosts: How many different hosts there were; None where their names were kept.
        refused: Sources that were not read, each with the reason.
    """

    out: str
    files: tuple[Exported, ...]
    hosts: int | None
    refused: tuple[tuple[str, str], ...]


def export(place: str, out: str, *, anonymize: bool) -> Export:
    """Copies every telemetry file of a folder, cell by cell, into a new one.

    Costs one reading of each file; memory does not grow with it.

    Args:
        place: A folder of telemetry files, or one file.
        out: The folder to make; what is in it already must not be there.
        anonymize: Whether hosts, jobs and GPUs get new names.

    Raises:
        DataError: There is nothing to read.
        UsageError: The folder holds something already.
    """
    found = find_sources(place)
    if not found.sources:
        raise DataError(f"no telemetry file in {place}; nothing was written", place=place)
    _make_empty(out)
    names = Pseudonyms(anonymize)
    files = tuple(_copy(source, out, names) for source in found.sources)
    result = Export(
        out=os.path.abspath(out),
        files=files,
        hosts=names.count("host") if anonymize else None,
        refused=tuple(
            (os.path.basename(path) if anonymize else path, why) for path, why in found.refused
        ),
    )
    manifest = {
        "schema": "fleetcraft.telemetry_export/1",
        "anonymized": anonymize,
        "files": [msgspec.to_builtins(file) for file in files],
    }
    publish_new(FileSystem(), os.path.join(out, MANIFEST), msgspec.json.encode(manifest) + b"\n")
    return result


def _make_empty(out: str) -> None:
    make_folders(out)
    if os.listdir(out):
        raise UsageError(
            f"{out} is not empty; nothing was written", hint="name a new folder with --out"
        )


# ------------------------------------------------------------------------------- one file


def _copy(source: Source, out: str, names: Pseudonyms) -> Exported:
    host = names("host", source.node)
    job = names("job", source.job)
    name = telemetry_file(host, job, source.started) if source.job else f"{host}.csv"
    target = os.path.join(out, name)
    rows = 0
    left_out: Counter[str] = Counter()
    digest = hashlib.sha256()
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        for text in _rewritten(source.path, names, left_out):
            data = text.encode()
            digest.update(data)
            file.write(data)
            rows += 1
    if source.sidecar is not None:
        _copy_sidecar(source, target, names)
    return Exported(
        name=name,
        rows=max(0, rows - 1),
        left_out={why: count for why, count in sorted(left_out.items()) if count},
        sha256=digest.hexdigest(),
    )


def _rewritten(path: str, names: Pseudonyms, left_out: Counter[str]) -> Iterator[str]:
    """The lines of the copy, the header first."""
    known: list[str] = []
    layouts: dict[int, Layout] = {}
    for line in _lines(path, left_out):
        if header := read_header(line.encode()):
            if known:
                left_out["header_again"] += 1
            else:
                known = [column for column in COLUMNS if column in header.columns]
                yield ",".join(known) + "\n"
            if header != layouts.get(header.count):  # rows go by the newest one of their width
                layouts[header.count] = header
                left_out["unknown_column"] += header.count - len(set(known) & set(header.columns))
            continue
        cells = [cell.strip() for cell in line.split(",")]
        layout = layouts.get(len(cells))
        if not known:
            left_out["line_before_the_header"] += 1
        elif layout is None:
            left_out["wrong_columns"] += 1
        elif not _TIME.fullmatch(cells[layout.columns["timestamp"]]):
            left_out["bad_time"] += 1
        else:
            yield _row(known, cells, layout, names, left_out)


def _row(
    known: list[str],
    cells: list[str],
    layout: Layout,
    names: Pseudonyms,
    left_out: Counter[str],
) -> str:
    kept = (
        _cell(column, cells[layout.columns[column]], names, left_out)
        if column in layout.columns
        else ""
        for column in known
    )
    return ",".join(kept) + "\n"


def _lines(path: str, left_out: Counter[str]) -> Iterator[str]:
    """Whole lines, up to the size that the file has now; one that is not whole is counted."""
    with open(path, "rb") as file:
        left = os.fstat(file.fileno()).st_size
        rest = b""
        if file.read(len(BOM_UTF8)) == BOM_UTF8:
            left -= len(BOM_UTF8)
        else:
            file.seek(0)
        while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    yield line.decode("utf-8", "replace")
            if len(rest) > _LONGEST_LINE_BYTES:
                rest = b"?" * _LONGEST_LINE_BYTES  # no row is so long, whatever follows
        left_out["torn_tail"] += bool(rest)


def _cell(column: str, cell: str, names: Pseudonyms, left_out: Counter[str]) -> str:
    if not cell:
        return ""
    kept = _kept(column, cell, names)
    if kept is None:
        left_out[f"cell_of_{column}"] += 1
        return ""
    if column == "missing":
        left_out["word_of_missing"] += len(cell.split()) - len(kept.split())
    return kept


def _kept(column: str, cell: str, names: Pseudonyms) -> str | None:
    """What a cell becomes; None when it is not of its column's form."""
    if column == "timestamp":
        return cell
    if cell[0] in _FORMULA and not _NUMBER.fullmatch(cell):
        return None
    if kind := _IDENTITIES.get(column):
        return names(kind, cell)
    if column == "job_id":
        return names("job", cell)
    if column in _DROPPED and names.on:
        return ""
    if column == "missing":
        return " ".join(pair for pair in cell.split() if _is_cause(pair))
    if column in _CLOSED:
        return cell if cell in _CLOSED[column] else None
    if column in _FORMS:
        return cell if _FORMS[column].fullmatch(cell) else None
    if column in _DROPPED:
        return cell
    return cell if cell in _ABSENT or _NUMBER.fullmatch(cell) else None


def _is_cause(pair: str) -> bool:
    column, _, cause = pair.partition("=")
    return column in COLUMNS and cause in frozenset(Status)


# -------------------------------------------------------------------------------- sidecar


def _copy_sidecar(source: Source, target: str, names: Pseudonyms) -> None:
    said = source.sidecar
    assert said is not None
    value: dict[str, Any] = {
        "schema": SIDECAR_SCHEMA,
        "node": names("host", said.node),
        "job_id": names("job", said.job_id),
        "interval_s": said.interval_s,
        "started_at": _time(said.started_at),
        "ended_at": None if said.ended_at is None else _time(said.ended_at),
        "end_reason": "" if names.on else said.end_reason,
        "expected_gpus": said.expected_gpus,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": names("GPU", gpu.uuid),
                "name": _model(gpu.name) if names.on else gpu.name,
                "mem_total_mib": gpu.mem_total_mib,
            }
            for gpu in said.gpus
        ],
    }
    publish_new(FileSystem(), sidecar(target), msgspec.json.encode(value) + b"\n")


def _time(text: str) -> str:
    return text if _TIME.fullmatch(text) else ""


def _model(name: str) -> str:
    """The driver's name where it is that of a known part; a name may be anything."""
    return name if find_peak(name) else ""
