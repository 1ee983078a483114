"""Whether a frozen window holds: its summary computed again, and its sources read again.

Invariant: a file's own paths never lead out of the folder of sources, and what could not be checked
is said; "verified" means that everything that was checked agrees.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from fleetcraft.errors import DataError
from fleetcraft.files import FileSystem
from fleetcraft.telemetry.reading.sources import Source, find_sources
from fleetcraft.telemetry.windows.archived import verify_archived
from fleetcraft.telemetry.windows.freeze import (
    KIND,
    SCHEMA_VERSION,
    THRESHOLDS,
    Frozen,
    digest_of,
    evidence_of,
)
from fleetcraft.telemetry.windows.levels import value_of
from fleetcraft.telemetry.windows.series import (
    COLUMNS,
    HostRows,
    SourceFacts,
    read_host,
    with_interval,
)
from fleetcraft.telemetry.windows.span import Series
from fleetcraft.telemetry.windows.totals import sum_up
from fleetcraft.telemetry.windows.verdicts import Difference, Verdict, Verification, compare

_MAX_BYTES = 1 << 30
_ROW_COLUMNS = ("t_s", *COLUMNS)
_SERIES_NAMES = ("key", "gpu_index", "gpu_uuid", "mig_uuid", "zoned", "sources")


def verify(path: str, *, sources: str | None = None, elsewhere: Sequence[str] = ()) -> Verification:
    """Recomputes a frozen window, of ours or of the archives.

    Args:
        path: The file.
        sources: The folder that was summed up; None to look for it.
        elsewhere: Where it may be, beside this file's own folder, when it is not given.

    Raises:
        DataError: The file cannot be read, or is no frozen window although nobody changed it.
    """
    value = _read(path)
    version = value.get("schema_version")
    if version in (1, 2):
        return verify_archived(value, sources)
    if version != SCHEMA_VERSION or value.get("kind") != KIND:
        return Verification(
            verdict=Verdict.UNVERIFIABLE,
            schema_version=version if isinstance(version, int) else None,
            reason=f"its schema_version {version!r} is not known to this version",
        )
    if not value.get("observations"):
        return Verification(
            verdict=Verdict.UNVERIFIABLE,
            schema_version=version,
            reason="without observations: nothing can be computed again",
        )
    found = Verification(verdict=Verdict.VERIFIED, schema_version=SCHEMA_VERSION)
    digest = digest_of(value)
    if digest != value.get("digest"):
        found.differences.append(Difference("digest", value.get("digest"), digest))
    try:
        return _verify(found, path, _frozen(path, value), sources, elsewhere)
    except DataError as error:
        if not found.differences:
            raise
        # Whoever changed it by hand left something that no window can be: it does not hold.
        found.verdict = Verdict.REFUTED
        found.not_checked.append(f"everything else: {error.facts.get('reason', error.message)}")
        return found


def _verify(
    found: Verification,
    path: str,
    frozen: Frozen,
    sources: str | None,
    elsewhere: Sequence[str],
) -> Verification:
    if not found.differences and frozen.thresholds != THRESHOLDS:
        found.verdict = Verdict.UNVERIFIABLE
        found.reason = "it was frozen with other thresholds than this version's"
        return found
    try:
        with np.errstate(all="ignore"):
            hosts = _recompute(found, frozen)
    except (ValueError, OverflowError) as error:  # values that no window can have
        raise _malformed(path, str(error)) from error
    _against_sources(found, frozen, hosts, _places(path, frozen, sources, elsewhere))
    if found.differences:
        found.verdict = Verdict.REFUTED
    return found


def _recompute(found: Verification, frozen: Frozen) -> list[HostRows]:
    evidence = evidence_of(frozen)
    hosts = list(evidence.hosts)
    evidence.hosts = hosts
    found.observations = sum(len(series) for rows in hosts for series in rows.series)
    found.differences += _against_window(frozen, hosts)
    found.differences += compare("summary", frozen.summary, value_of(sum_up(evidence)))
    return hosts


# -------------------------------------------------------------------------------------- reading


def _read(path: str) -> dict[str, Any]:
    try:
        with open(FileSystem().open_read(path), "rb") as file:
            # So much memory is set aside at once, however little the file holds.
            data = file.read(min(os.fstat(file.fileno()).st_size, _MAX_BYTES) + 1)
    except OSError as error:
        raise DataError(
            f"cannot verify {path}: {error.strerror}; nothing was checked",
            hint="name a file that fleetcraft telemetry summary --freeze has written",
            path=path,
        ) from error
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError("it has more than 1 GiB")
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _malformed(path, str(error)) from error
    if not isinstance(value, dict):
        raise _malformed(path, "it is no JSON object")
    return value


def _frozen(path: str, value: Mapping[str, Any]) -> Frozen:
    try:
        frozen = msgspec.convert(value, Frozen)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise _malformed(path, str(error)) from error
    for facts in frozen.sources:
        if facts.path != os.path.basename(facts.path) or facts.path in ("", ".", ".."):
            raise _malformed(path, f"it names a source outside its folder: {facts.path!r}")
    if os.path.isabs(frozen.folder):
        raise _malformed(
            path, f"it names a folder that is not told from its own: {frozen.folder!r}"
        )
    if not frozen.window.has_dates:
        raise _malformed(path, "its window is no span of time")
    return frozen


def _malformed(path: str, reason: str) -> DataError:
    return DataError(
        f"cannot verify {path}: {reason}; nothing was concluded",
        hint="name a file that fleetcraft telemetry summary --freeze has written",
        path=path,
        reason=reason,
    )


# ------------------------------------------------------------------------- the file by itself


def _against_window(frozen: Frozen, hosts: Sequence[HostRows]) -> Iterator[Difference]:
    """Rows outside the window, counts of rows, and what a series says of its interval."""
    first = 0
    for rows in hosts:
        number = sum(len(series) for series in rows.series)
        said = sum(facts.rows_in_window for facts in rows.sources)
        if number != said:
            yield Difference(f"sources of {rows.host}: rows_in_window", said, number)
        for series in rows.series:
            start_s, end_s = frozen.window.bounds_s(zoned=series.zoned)
            outside = int(np.count_nonzero((series.t_s <= start_s) | (series.t_s > end_s)))
            if outside:
                yield Difference(f"{_name(series)}: rows outside the window", outside, 0)
            yield from _against_interval(series, rows.sources, first)
        first += len(rows.sources)


def _against_interval(
    series: Series, facts: Sequence[SourceFacts], first: int
) -> Iterator[Difference]:
    if not all(0 <= index - first < len(facts) for index in series.sources):
        yield Difference(f"{_name(series)}: sources", list(series.sources), "of its own host")
        return
    own = [facts[index - first] for index in series.sources]
    option_s = series.interval_s if series.interval_from == "option" else None
    again = with_interval(series, own, option_s)
    for name in ("interval_s", "interval_from", "from_s", "until_s"):
        said, computed = getattr(series, name), getattr(again, name)
        if said != computed:
            yield Difference(f"{_name(series)}: {name}", said, computed)


def _name(series: Series) -> str:
    return f"observations of {series.host} {series.key}".rstrip()


# --------------------------------------------------------------------------------- the sources


@dataclass
class _Place:
    folder: str
    paths: dict[str, str] = field(default_factory=dict)


def _places(
    path: str, frozen: Frozen, given: str | None, elsewhere: Sequence[str]
) -> Iterator[str]:
    if given is not None:
        yield given
        return
    base = os.path.dirname(os.path.abspath(path))
    if frozen.folder:
        yield os.path.join(base, frozen.folder)
    yield base
    yield from elsewhere


def _against_sources(
    found: Verification, frozen: Frozen, hosts: Sequence[HostRows], places: Iterable[str]
) -> None:
    """Reads the sources again, as far as they are there."""
    place = _find(frozen.sources, places)
    if place is None:
        found.sources = "none" if not frozen.sources else "not found"
        if frozen.sources:
            found.not_checked.append(
                f"sources: not found; that {found.observations} observations are those of "
                f"{len(frozen.sources)} files was not checked; --sources names their folder"
            )
        _say_what_is_never_checked(found, frozen)
        return
    missing = [facts.path for facts in frozen.sources if facts.path not in place.paths]
    found.sources = "checked in part" if missing else "checked"
    found.not_checked += [f"source {name}: not found" for name in missing]
    first = 0
    for rows in hosts:
        _against_files(found, frozen, rows, first, place)
        first += len(rows.sources)
    _say_what_is_never_checked(found, frozen)


def _say_what_is_never_checked(found: Verification, frozen: Frozen) -> None:
    if any(facts.logging is not None for facts in frozen.sources):
        found.not_checked.append("what sidecars said was not read again; it may have changed since")
    if frozen.queue is not None and frozen.queue.journals:
        found.not_checked.append("journals were not read again; they have no hash")


def _find(sources: Sequence[SourceFacts], places: Iterable[str]) -> _Place | None:
    """The first place that has any of the sources."""
    for folder in places:
        paths = {facts.path: os.path.join(folder, facts.path) for facts in sources}
        there = {name: path for name, path in paths.items() if os.path.isfile(path)}
        if there:
            return _Place(folder, there)
    return None


def _against_files(
    found: Verification, frozen: Frozen, rows: HostRows, first: int, place: _Place
) -> None:
    """One host's files: their prefixes, what was counted in them, and the rows of the window."""
    there = [facts for facts in rows.sources if facts.path in place.paths]
    sources: list[Source] = []
    for facts in there:
        one = find_sources(place.paths[facts.path]).sources
        sources += [msgspec.structs.replace(source, node=facts.node) for source in one]
    refused: list[tuple[str, str]] = []
    again = read_host(
        rows.host,
        sources,
        frozen.window,
        folder=place.folder,
        first_index=first,
        hash_prefix=True,
        prefixes={place.paths[facts.path]: facts.prefix_bytes for facts in there},
        refused=refused,
    )
    now = {facts.path: facts for facts in again.sources}
    whole = len(there) == len(rows.sources)
    for facts in there:
        if facts.path not in now:
            found.not_checked.append(f"source {facts.path}: it could not be read")
            whole = False
            continue
        differences = list(_against_file(facts, now[facts.path]))
        found.differences += differences
        found.sources_checked += not differences
    if whole:
        found.differences += _against_rows(rows, again)
    elif rows.series:
        found.not_checked.append(f"observations of {rows.host}: not all of its files are there")


def _against_file(said: SourceFacts, now: SourceFacts) -> Iterator[Difference]:
    if now.sha256 != said.sha256:
        short = now.prefix_bytes < said.prefix_bytes
        yield Difference(
            f"source {said.path}: {'prefix_bytes' if short else 'sha256'}",
            said.prefix_bytes if short else said.sha256,
            now.prefix_bytes if short else now.sha256,
        )
    for name in ("prefix_bytes", "zoned", "kinds", "rows_in_window", "newest_s"):
        if now.sha256 == said.sha256 and getattr(said, name) != getattr(now, name):
            yield Difference(f"source {said.path}: {name}", getattr(said, name), getattr(now, name))
    # Behind the last whole line, where the prefix ends, there may have been half a line.
    rejected = {kind: n for kind, n in said.rejected.items() if kind != "torn_tail"}
    if now.sha256 == said.sha256 and rejected != now.rejected:
        yield Difference(f"source {said.path}: rejected", rejected, now.rejected)


def _against_rows(said: HostRows, now: HostRows) -> Iterator[Difference]:
    if len(said.series) != len(now.series):
        yield Difference(f"observations of {said.host}: series", len(said.series), len(now.series))
        return
    for mine, theirs in zip(said.series, now.series, strict=True):
        for name in _SERIES_NAMES:
            if getattr(mine, name) != getattr(theirs, name):
                yield Difference(
                    f"{_name(mine)}: {name}", getattr(mine, name), getattr(theirs, name)
                )
        if len(mine) != len(theirs):
            yield Difference(f"{_name(mine)}: rows", len(mine), len(theirs))
            continue
        yield from _against_columns(mine, theirs)


def _against_columns(mine: Series, theirs: Series) -> Iterator[Difference]:
    for name in _ROW_COLUMNS:
        said, read = getattr(mine, name), getattr(theirs, name)
        other = np.flatnonzero(~((said == read) | (np.isnan(said) & np.isnan(read))))
        if len(other):
            at = int(other[0])
            where = f"{_name(mine)}: {name}[{at}]"
            yield Difference(where, _plain(said[at]), _plain(read[at]))
    if mine.status != theirs.status:
        yield Difference(f"{_name(mine)}: status", "as stored", "as in the sources")


def _plain(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)
