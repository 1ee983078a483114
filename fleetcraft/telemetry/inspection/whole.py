"""Goes through telemetry files and finds what they hold and what is wrong with them.

One pass over every file; samples that are not in the order of time, or whose GPU other files have
at the same time, are read again (`sorting`). What is in memory does not grow with the files.
Invariant: every file is read or refused with its reason, and a GPU counts once however many files
have it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import numpy as np

from fleetcraft.errors import DataError
from fleetcraft.telemetry.inspection.records import Energy, FileReport, Inspection, Means
from fleetcraft.telemetry.inspection.sorting import Group, Member, groups_of, put_in_order
from fleetcraft.telemetry.inspection.steps import FileOrder
from fleetcraft.telemetry.intervals import DEFAULT_INTERVAL_S, gap_of
from fleetcraft.telemetry.reading.cells import Ints
from fleetcraft.telemetry.reading.reader import FOUR, Chunk, FileReader, SeriesId
from fleetcraft.telemetry.reading.sources import Found, Source, find_sources

GAP_S = gap_of(DEFAULT_INTERVAL_S)
"""A step from this on is a gap where the interval is 30 s, less, or not known. Source: the archived
traces, whose definition of a gap it is."""
COLUMNS = (*FOUR, "energy_j")

Progress = Callable[[int, int], None]
"""Is told how many bytes were read, and how many there are."""


def inspect(
    place: str, *, gap_s: float | None = None, progress: Progress | None = None
) -> Inspection:
    """Reads every telemetry file of a place.

    Args:
        place: A folder or a file.
        gap_s: From which step on there is a gap; by default 35 s, or the interval that a sidecar
            names and 5 s where that is more.
        progress: Is told how far it is.

    Raises:
        DataError: There is no such place, or none of its files can be read.
    """
    found = find_sources(place)
    shown = _Shown(found, progress)
    done = Inspection(place=place, files=[], refused=list(found.refused))
    members: list[Member] = []
    for source in found.sources:
        try:
            report, own = _read(source, gap_s, shown)
        except DataError as error:
            done.refused.append((source.path, str(error.facts.get("reason", error.message))))
        else:
            done.files.append(report)
            members += own
        shown.file_done()
    if not done.files:
        raise _nothing(place, done.refused)
    _count_gpus(done)
    _add_up(done, groups_of(members))
    return done


def _nothing(place: str, refused: list[tuple[str, str]]) -> DataError:
    if not refused:
        return DataError(
            f"no telemetry in {place}: no file there ends in .csv; nothing was read",
            hint="name the folder that a logger writes, or --root",
            place=place,
            refused=[],
        )
    path, reason = refused[0]
    more = f", and {len(refused) - 1} more like it" if len(refused) > 1 else ""
    return DataError(
        f"none of the telemetry files in {place} can be read: {path}: {reason}{more}",
        hint=f"ls -l {place}",
        place=place,
        refused=refused,
    )


class _Shown:
    """Tells how far it is, by bytes of the first pass."""

    def __init__(self, found: Found, progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0
        sizes = {}
        for source in found.sources if progress else ():
            try:
                sizes[source.path] = os.stat(source.path).st_size
            except OSError:
                continue
        self._total = sum(sizes.values())
        self._bytes = 0

    def at(self, bytes_of_file: int) -> None:
        self._bytes = bytes_of_file
        if self._progress:
            self._progress(min(self._done + bytes_of_file, self._total), self._total)

    def file_done(self) -> None:
        self._done += self._bytes
        self._bytes = 0


# --------------------------------------------------------------------------------- first pass


def _gap_s(source: Source, given_s: float | None) -> float:
    interval_s = source.sidecar.interval_s if source.sidecar else None
    usual_s = GAP_S if interval_s is None else max(GAP_S, gap_of(interval_s))
    return usual_s if given_s is None else given_s


def _read(source: Source, gap_s: float | None, shown: _Shown) -> tuple[FileReport, list[Member]]:
    reader = FileReader(source, columns=COLUMNS)
    report = FileReport(
        source=source,
        counts=reader.counts,
        series=reader.series,
        means=Means(),
        gap_s=_gap_s(source, gap_s),
    )
    members: list[Member] = []
    for chunk in reader.chunks():
        report.means.take(chunk)
        for number, which in _by_series(chunk):
            while number >= len(members):
                members.append(Member(report, len(members)))
            members[number].take(chunk, which)
        shown.at(reader.bytes_read)
    report.zoned_rows, report.shrank = reader.zoned_rows, reader.shrank
    report.bytes_read = reader.bytes_read
    for member in members:
        _add_steps(report, member.steps)
    return report, members


def _by_series(chunk: Chunk) -> Iterable[tuple[int, slice | Ints]]:
    """Which samples belong to each series, in the order of the file."""
    if (chunk.series == chunk.series[0]).all():
        return [(int(chunk.series[0]), slice(None))]
    order = np.argsort(chunk.series, kind="stable")
    numbers, begins = np.unique(chunk.series[order], return_index=True)
    return zip(numbers.tolist(), np.split(order, begins[1:]), strict=True)


def _add_steps(report: FileReport, steps: FileOrder) -> None:
    if steps.first_us is None or steps.last_us is None:
        return
    firsts = [us for us in (report.first_us, steps.first_us) if us is not None]
    lasts = [us for us in (report.last_us, steps.last_us) if us is not None]
    report.first_us, report.last_us = min(firsts), max(lasts)
    report.double_logged += steps.double_logged
    report.back_steps += steps.back_steps
    report.gaps += steps.gaps
    report.biggest_gap_us = max(report.biggest_gap_us, steps.biggest_gap_us)


# ------------------------------------------------------------------------------------- all files


def _count_gpus(done: Inspection) -> None:
    gpus, slices = set(), set()
    for file in done.files:
        uuids = {}
        for one in file.series:
            if one.gpu_uuid:
                uuids.update(
                    {("pci", one.pci_bus_id): one.gpu_uuid, ("", one.gpu_index): one.gpu_uuid}
                )
        for one in file.series:
            gpus.add(_gpu(file.source, one, uuids))
            if one.mig_uuid:
                slices.add(one.mig_uuid)
    done.gpus, done.slices = len(gpus), len(slices)


def _gpu(source: Source, one: SeriesId, uuids: dict[tuple[str, str], str]) -> tuple[str, ...]:
    """What tells one GPU from all others.

    A driver that has lost a GPU may not tell its UUID any more; its place is then known from the
    other rows of the file.
    """
    if uuid := one.gpu_uuid or uuids.get(
        ("pci", one.pci_bus_id) if one.pci_bus_id else ("", one.gpu_index)
    ):
        return ("uuid", uuid)
    if one.key:
        return (source.node, one.key)
    return ("file", source.path)


def _add_up(done: Inspection, groups: list[Group]) -> None:
    """Adds what needs the order of time."""
    for file in done.files:
        file.energy = Energy()
    for group in groups:
        if len(group.members) > 1:
            for member in group.members:
                member.report.energy = None
    for group, order in put_in_order(groups, done.problems):
        done.dedup.take(order)
        done.energy.take(order)
        done.across_files += order.across_files
        for member in group.members:
            if member.report.energy is not None:
                member.report.energy.take(order)
