"""Brings the samples of a GPU into the order of time, from one file or several.

Most files are in order and were summed up as they were read. Those that are not are read again, as
often as it takes to hold no more than a bounded number of samples. Invariant: what comes out is
every sample up to where the first pass had read, each once, equal times in the order of the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fleetcraft.errors import DataError
from fleetcraft.telemetry.inspection.records import FileReport
from fleetcraft.telemetry.inspection.steps import FileOrder, TimeOrder
from fleetcraft.telemetry.reading.cells import Floats, Ints
from fleetcraft.telemetry.reading.reader import Chunk, FileReader

MOST_SAMPLES = 2_000_000
"""So many are held at once; each takes about 100 bytes while it is sorted."""
_COLUMNS = ("util_pct", "power_w", "energy_j")
_SAMPLED = 100_000  # times from which the cuts of a larger group are found


class Member:
    """One series of one file, as the first pass saw it.

    Args:
        report: The file.
        number: Which series of it.

    Attributes:
        steps: Its neighbours in the order of the file.
        order: Its samples in the order of time; None once one was earlier than the one before.
    """

    def __init__(self, report: FileReport, number: int) -> None:
        self.report = report
        self.number = number
        self.steps = FileOrder(report.gap_us, report.same_us)
        self.order: TimeOrder | None = TimeOrder(report.gap_us, report.same_us)

    def take(self, chunk: Chunk, which: slice | Ints) -> None:
        """Takes the next samples."""
        t_us = chunk.t_us[which]
        self.steps.take(t_us)
        if self.steps.back_steps:
            self.order = None
        if self.order is not None:
            util, power, energy_j = (chunk.values[column][which] for column in _COLUMNS)
            self.order.take(t_us, util, power, energy_j)

    @property
    def whose(self) -> tuple[str, str]:
        """The same for two files that have the same GPU or slice."""
        one = self.report.series[self.number]
        if one.mig_uuid or one.gpu_uuid:
            return "", one.key
        return (self.report.source.node, one.key) if one.key else ("file", self.report.source.path)

    @property
    def span_us(self) -> tuple[int, int]:
        """Its earliest and latest sample."""
        return self.steps.first_us or 0, self.steps.last_us or 0


class Group(NamedTuple):
    """Members whose samples belong together in one order of time."""

    members: list[Member]

    @property
    def samples(self) -> int:
        """How many there are."""
        return sum(member.steps.rows for member in self.members)

    @property
    def gap_us(self) -> int:
        """The longest of its files' gaps."""
        return max(member.report.gap_us for member in self.members)

    @property
    def same_us(self) -> int:
        """The shortest of its files' distances below which two samples are one."""
        return min(member.report.same_us for member in self.members)


def groups_of(members: list[Member]) -> list[Group]:
    """One group for each GPU and stretch of time in which files overlap."""
    groups: list[Group] = []
    by_gpu: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        by_gpu.setdefault(member.whose, []).append(member)
    for own in by_gpu.values():
        end_us = None
        for member in sorted(own, key=lambda member: member.span_us):
            begin_us, last_us = member.span_us
            if end_us is not None and begin_us <= end_us:
                groups[-1].members.append(member)
                end_us = max(end_us, last_us)
            else:
                groups.append(Group([member]))
                end_us = last_us
    return groups


def put_in_order(groups: list[Group], problems: list[str]) -> Iterator[tuple[Group, TimeOrder]]:
    """Each group with its samples summed up in the order of time.

    Args:
        groups: From the first pass.
        problems: Is added to where a file cannot be read a second time; its group is left out.
    """
    again = []
    for group in groups:
        order = group.members[0].order
        if len(group.members) == 1 and order is not None:
            order.close()
            yield group, order
        else:
            again.append(group)
    for batch in _batches(again):
        orders = [TimeOrder(group.gap_us, group.same_us) for group in batch]
        try:
            for begin_us, end_us in _cuts(batch):
                _take(batch, orders, begin_us, end_us)
        except DataError as error:
            problems.append(f"{error.message}; left out of energy and of what is de-duplicated")
            continue
        for group, order in zip(batch, orders, strict=True):
            order.close()
            yield group, order


def _batches(groups: list[Group]) -> Iterator[list[Group]]:
    """Groups that are read together: a bounded number of samples, or a single group."""
    batch: list[Group] = []
    for group in groups:
        if batch and sum(one.samples for one in batch) + group.samples > MOST_SAMPLES:
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


def _cuts(batch: list[Group]) -> Iterator[tuple[int, int]]:
    """Stretches of time with a bounded number of samples each, begin and end in microseconds."""
    samples = sum(group.samples for group in batch)
    first, last = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    parts = -(-samples // MOST_SAMPLES)
    if parts > 1:
        step = max(1, samples // _SAMPLED)
        times = np.sort(np.concatenate([chunk.t_us[::step] for _, chunk in _chunks(batch, ())]))
        at = np.unique(times[np.arange(1, parts) * len(times) // parts])
        edges = [first, *at.tolist(), last]
    else:
        edges = [first, last]
    yield from pairwise(edges)


def _chunks(batch: list[Group], columns: tuple[str, ...]) -> Iterator[tuple[FileReport, Chunk]]:
    """The samples of all files of a batch, each file once, up to where the first pass had read."""
    files = {id(member.report): member.report for group in batch for member in group.members}
    for report in files.values():
        reader = FileReader(report.source, columns=columns, prefix_bytes=report.bytes_read)
        for chunk in reader.chunks():
            yield report, chunk
        if reader.bytes_read != report.bytes_read or reader.counts.kinds != report.counts.kinds:
            raise DataError(f"{report.source.path} was changed while it was read")


def _take(batch: list[Group], orders: list[TimeOrder], begin_us: int, end_us: int) -> None:
    """Sorts the samples of one stretch of time, and hands them on."""
    members = [(number, member) for number, group in enumerate(batch) for member in group.members]
    place = {(id(member.report), member.number): number for number, member in members}
    files = {id(member.report): number for number, (_, member) in enumerate(members)}
    pieces: list[list[_Piece]] = [[] for _ in batch]
    for report, chunk in _chunks(batch, _COLUMNS):
        inside = (chunk.t_us >= begin_us) & (chunk.t_us < end_us)
        for series in np.unique(chunk.series[inside]).tolist():
            group = place.get((id(report), series))
            if group is not None:
                which = np.flatnonzero(inside & (chunk.series == series))
                values = [chunk.values[column][which] for column in _COLUMNS]
                pieces[group].append(_Piece(chunk.t_us[which], values, files[id(report)]))
    for group, order in enumerate(orders):
        own, pieces[group] = pieces[group], []
        if own:
            _hand_on(own, order, several=len(batch[group].members) > 1)


class _Piece(NamedTuple):
    t_us: Ints
    values: list[Floats]
    file: int


def _hand_on(pieces: list[_Piece], order: TimeOrder, *, several: bool) -> None:
    t_us = np.concatenate([piece.t_us for piece in pieces])
    by_time = np.argsort(t_us, kind="stable")
    # Column by column, each let go as soon as it is copied.
    util, power, energy_j = (
        np.concatenate([piece.values.pop(0) for piece in pieces])[by_time] for _ in _COLUMNS
    )
    file = None
    if several:
        file = np.concatenate([np.full(len(piece.t_us), piece.file) for piece in pieces])[by_time]
    order.take(t_us[by_time], util, power, energy_j, file)
