"""Phases of several passes and cycles, put together into one record a phase.

Reading lines is `reading`'s. Invariant: wall times come from the time pass alone and bytes from a
tracked pass alone; what an interrupted phase left is used only where no whole one is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fleetcraft.calibration.records import OwnerBytes, PhaseRecord
from fleetcraft.calibration.trial.journal import Event
from fleetcraft.calibration.trial.orders import Pass

_WHOLE_CYCLES = frozenset({Pass.MEMORY, Pass.TIME, Pass.SOAK, Pass.OVERHEAD})


class _Where(msgspec.Struct, frozen=True, kw_only=True):
    """What every line of a cycle has."""

    phase: str = ""
    pass_name: Pass | None = msgspec.field(name="pass", default=None)
    cycle: int = 0


class PhaseEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of one phase of one cycle, as its line has them; None where not taken."""

    wall_s: float | None = None
    peak_bytes: int | None = None
    live_end_bytes: int | None = None
    autograd_bytes: int | None = None
    owners: tuple[OwnerBytes, ...] = ()
    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    residual_bytes: int | None = None
    rss_peak_bytes: int | None = None
    cgroup_peak_bytes: int | None = None
    held_bytes: dict[str, int] = {}
    interrupted: bool = False


class _CycleEdge(msgspec.Struct, frozen=True, kw_only=True):
    wall_s: float | None = None
    live_bytes: int | None = None
    live_end_bytes: int | None = None
    cached_bytes: int | None = None
    start_live_bytes: int | None = None


class Cycles:
    """Takes the lines of cycles one after another; each either whole or not at all."""

    def __init__(self) -> None:
        self.last_phase = ""
        self.open_phase = ""
        self._ran: set[str] = set()
        self.walls_s: list[float] = []
        self.soak_live_bytes: list[int] = []
        self.soak_cached_bytes: list[int] = []
        self.start_live_bytes: int | None = None
        self._order: dict[str, None] = {}
        self._walls: dict[str, dict[int, float]] = {}
        self._tracked: dict[str, dict[Pass, PhaseEnd]] = {}

    def take(self, event: Event, fields: dict[str, Any]) -> None:
        """Takes one line.

        Raises:
            msgspec.ValidationError: A field has another type.
        """
        where = msgspec.convert(fields, _Where)
        match event:
            case Event.PHASE_BEGIN:
                self.last_phase = self.open_phase = where.phase
                if where.pass_name in _WHOLE_CYCLES:
                    self._order.setdefault(where.phase)
            case Event.PHASE_END:
                end = msgspec.convert(fields, PhaseEnd)
                if self.open_phase == where.phase:
                    self.open_phase = ""
                if where.pass_name in _WHOLE_CYCLES:
                    self._take_end(where, end)
            case Event.CYCLE_BEGIN | Event.CYCLE_END:
                self._take_edge(event, where, msgspec.convert(fields, _CycleEdge))

    @property
    def ran(self) -> frozenset[str]:
        """Phases that have ended, not by an exception."""
        return frozenset(self._ran)

    def phases(self) -> tuple[PhaseRecord, ...]:
        """One record a phase, in the order in which they first began."""
        return tuple(self._record(name) for name in self._order)

    def _take_end(self, where: _Where, end: PhaseEnd) -> None:
        name = where.phase
        self._order.setdefault(name)
        if not end.interrupted:
            self._ran.add(name)
        if where.pass_name is Pass.TIME:
            if end.wall_s is not None:
                walls = self._walls.setdefault(name, {})
                walls[where.cycle] = walls.get(where.cycle, 0.0) + end.wall_s
        elif where.pass_name in (Pass.MEMORY, Pass.SOAK):
            by_pass = self._tracked.setdefault(name, {})
            by_pass[where.pass_name] = _merged(by_pass.get(where.pass_name), end)

    def _take_edge(self, event: Event, where: _Where, edge: _CycleEdge) -> None:
        if self.start_live_bytes is None:
            self.start_live_bytes = edge.start_live_bytes
        if event is not Event.CYCLE_END:
            return
        if where.pass_name is Pass.TIME and edge.wall_s is not None:
            self.walls_s.append(edge.wall_s)
        if where.pass_name is Pass.SOAK and edge.live_end_bytes is not None:
            self.soak_live_bytes.append(edge.live_end_bytes)
        if where.pass_name is Pass.SOAK and edge.cached_bytes is not None:
            self.soak_cached_bytes.append(edge.cached_bytes)

    def _record(self, name: str) -> PhaseRecord:
        walls = self._walls.get(name, {})
        ends = self._tracked.get(name, {})
        tracked = [ends[one] for one in (Pass.MEMORY, Pass.SOAK) if one in ends]
        whole = [end for end in tracked if not end.interrupted]
        end = next(iter(whole or tracked), PhaseEnd())
        return PhaseRecord(
            name=name,
            walls_s=tuple(walls[cycle] for cycle in sorted(walls)),
            peak_bytes=end.peak_bytes,
            live_end_bytes=end.live_end_bytes,
            autograd_bytes=end.autograd_bytes,
            owners=end.owners,
            allocated_peak_bytes=end.allocated_peak_bytes,
            reserved_peak_bytes=end.reserved_peak_bytes,
            residual_bytes=end.residual_bytes,
            rss_peak_bytes=end.rss_peak_bytes,
            cgroup_peak_bytes=end.cgroup_peak_bytes,
            held_bytes=end.held_bytes,
        )


def highest_peak(phases: Sequence[PhaseRecord]) -> PhaseRecord | None:
    """The phase with the highest tracked peak; None when no peak is known."""
    known = [phase for phase in phases if phase.peak_bytes is not None]
    return max(known, key=lambda phase: phase.peak_bytes or 0, default=None)


def with_higher_peaks(
    phases: Sequence[PhaseRecord], later: Sequence[PhaseRecord]
) -> tuple[PhaseRecord, ...]:
    """The same phases, with the peaks that they had in later cycles where those are higher.

    Args:
        phases: Of the trial; times, and what lives at the end, stay theirs.
        later: Of more cycles of the same batch in one process.
    """
    others = {phase.name: phase for phase in later}
    return tuple(_with_higher(phase, others.get(phase.name)) for phase in phases)


def _with_higher(one: PhaseRecord, other: PhaseRecord | None) -> PhaseRecord:
    if other is None:
        return one
    higher = other if (other.peak_bytes or 0) > (one.peak_bytes or 0) else one
    return msgspec.structs.replace(
        one,
        peak_bytes=higher.peak_bytes,
        owners=higher.owners,
        residual_bytes=higher.residual_bytes,
        allocated_peak_bytes=_largest(one.allocated_peak_bytes, other.allocated_peak_bytes),
        reserved_peak_bytes=_largest(one.reserved_peak_bytes, other.reserved_peak_bytes),
        rss_peak_bytes=_largest(one.rss_peak_bytes, other.rss_peak_bytes),
        cgroup_peak_bytes=_largest(one.cgroup_peak_bytes, other.cgroup_peak_bytes),
    )


def _merged(one: PhaseEnd | None, other: PhaseEnd) -> PhaseEnd:
    """Two runs of a phase in one pass: the higher peak with its owners, the later end."""
    if one is None or (one.interrupted and not other.interrupted):
        return other
    if other.interrupted and not one.interrupted:
        return one
    higher = other if (other.peak_bytes or 0) >= (one.peak_bytes or 0) else one
    return PhaseEnd(
        peak_bytes=higher.peak_bytes,
        owners=higher.owners,
        residual_bytes=higher.residual_bytes,
        live_end_bytes=other.live_end_bytes,
        autograd_bytes=_largest(one.autograd_bytes, other.autograd_bytes),
        allocated_peak_bytes=_largest(one.allocated_peak_bytes, other.allocated_peak_bytes),
        reserved_peak_bytes=_largest(one.reserved_peak_bytes, other.reserved_peak_bytes),
        rss_peak_bytes=_largest(one.rss_peak_bytes, other.rss_peak_bytes),
        cgroup_peak_bytes=_largest(one.cgroup_peak_bytes, other.cgroup_peak_bytes),
        held_bytes={**one.held_bytes, **other.held_bytes},
        interrupted=other.interrupted,
    )


def _largest(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)
