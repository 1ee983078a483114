"""Which telemetry files there are at a place, and what their names and sidecars say.

Loads neither numpy nor pandas, and reads no row. Invariant: whatever is named like a telemetry
file is either a source or refused with its reason, and looking at it never blocks.
"""

from __future__ import annotations

import math
import os
import stat

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.layout import parse_telemetry_file, sidecar
from fleetcraft.telemetry.columns import SIDECAR_SCHEMA

SUFFIX = ".csv"
NO_SIDECAR = "no sidecar"
"""Said of a file of ours that has none beside it, which is no fault of reading."""
_MAX_SIDECAR_BYTES = 1 << 20


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a sidecar's inventory."""

    index: int | None = None
    uuid: str = ""
    name: str = ""
    pci_bus_id: str = ""
    mem_total_mib: float | None = None


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    """What a logger wrote beside its rows.

    Attributes:
        interval_s: Between samples; None where it says nothing usable.
        ended_at: When the logger stopped; None while it runs, and for ever when it died.
        expected_gpus: What Slurm or the visible devices say; None where nothing says it.
    """

    schema: str = ""
    node: str = ""
    job_id: str = ""
    step_id: str = ""
    cluster: str = ""
    boot_id: str = ""
    interval_s: float | None = None
    started_at: str = ""
    ended_at: str | None = None
    end_reason: str = ""
    gpus: tuple[Gpu, ...] = ()
    expected_gpus: int | None = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One file of rows.

    Attributes:
        path: Where it is.
        name: Its file name.
        node: From the name; of an archive, the name without its suffix.
        job: From the name; empty for an archive.
        started: From the name, as ``YYYYmmddTHHMMSSZ``; empty for an archive.
        sidecar: What lies beside it; None without one.
        sidecar_problem: Why a sidecar that should be there is not used.
    """

    path: str
    name: str
    node: str
    job: str = ""
    started: str = ""
    sidecar: Sidecar | None = None
    sidecar_problem: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a place holds: sources by name, and ``(path, reason)`` of what cannot be one."""

    sources: tuple[Source, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


def find_sources(place: str) -> Found:
    """The telemetry files of a folder, or one file.

    Args:
        place: A folder, of which every ``*.csv`` counts (not those of its folders), or a file.

    Raises:
        DataError: There is no such place, or it cannot be listed.
    """
    try:
        is_folder = stat.S_ISDIR(os.stat(place).st_mode)
        names = sorted(os.listdir(place)) if is_folder else []
    except OSError as error:
        raise DataError(
            f"cannot read telemetry from {place}: {error.strerror}; nothing was read",
            hint="name a folder of telemetry files, or one file",
            place=place,
        ) from error
    paths = [os.path.join(place, name) for name in names if name.endswith(SUFFIX)]
    return _sort_out(paths if is_folder else [place])


def _sort_out(paths: list[str]) -> Found:
    sources, refused = [], []
    for path in paths:
        if reason := _refusal(path):
            refused.append((path, reason))
        else:
            sources.append(_source(path))
    return Found(sources=tuple(sources), refused=tuple(refused))


def _refusal(path: str) -> str:
    """Why this cannot be read; empty if it seems that it can."""
    if os.path.basename(path).startswith("."):
        return "a hidden file"
    try:
        facts = os.stat(path)
    except OSError as error:
        return error.strerror or "cannot be looked at"
    if not stat.S_ISREG(facts.st_mode):
        return "not a regular file"
    return "" if os.access(path, os.R_OK) else "no permission to read it"


def _source(path: str) -> Source:
    name = os.path.basename(path)
    parsed = parse_telemetry_file(name)
    found, problem = _read_sidecar(sidecar(path))
    if parsed is None:
        # A file of that name beside an archive may be anything.
        ours = found is not None and found.schema == SIDECAR_SCHEMA
        stem = name.removesuffix(SUFFIX)
        return Source(path=path, name=name, node=stem, sidecar=found if ours else None)
    return Source(
        path=path,
        name=name,
        node=parsed.node,
        job=parsed.job,
        started=parsed.started,
        sidecar=found,
        sidecar_problem=problem,
    )


def _read_sidecar(path: str) -> tuple[Sidecar | None, str]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, NO_SIDECAR
    except OSError as error:
        return None, f"sidecar not read: {error.strerror}"
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MAX_SIDECAR_BYTES:
            return None, "sidecar not read: no regular file of at most 1 MiB"
        return _decode(os.read(fd, _MAX_SIDECAR_BYTES))
    except OSError as error:
        return None, f"sidecar not read: {error.strerror}"
    finally:
        os.close(fd)


def _decode(data: bytes) -> tuple[Sidecar | None, str]:
    try:
        found = msgspec.json.decode(data, type=Sidecar)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, f"sidecar not understood: {error}"
    interval_s = found.interval_s
    if interval_s is not None and not (math.isfinite(interval_s) and interval_s > 0):
        found = msgspec.structs.replace(found, interval_s=None)
    return found, ""
