"""The summary of a window as records: of a GPU, a host, the fleet, and all of it.

Computes nothing but the sentence. Invariant: what a level does not know is None, and the sentence
never names a state without how much work there was.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fleetcraft.gpu.states import GpuState
from fleetcraft.telemetry.windows.family_mfu import Mfu
from fleetcraft.telemetry.windows.figures import Figures
from fleetcraft.telemetry.windows.work import Work


class GpuSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, slice, or file whose rows name no GPU.

    Attributes:
        key: What tells it from others on its host; empty where the file does not say.
        state: At the end of the window; None for a GPU whose logger had stopped by then.
        interval_s: Between samples.
        interval_from: ``sidecar``, ``option``, ``rows`` or ``default``.
        is_slice: Whether it is a slice of a GPU that is listed too.
        figures: None for a GPU that a sidecar names and that has no row in the window.
    """

    host: str
    key: str
    gpu_index: str = ""
    gpu_uuid: str = ""
    mig_uuid: str = ""
    name: str = ""
    is_slice: bool = False
    state: GpuState | None
    interval_s: float | None = None
    interval_from: str = ""
    figures: Figures | None = None


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One host.

    Attributes:
        gpus: GPUs that have rows or that a running logger's sidecar names; slices are not counted,
            and a file whose rows name no GPU is one.
        gpus_reporting: Those with a utilization or memory reading, or slices.
        gpus_allocated: At the same time, at most; None when nothing tells.
        allocated_source: See `work.Allocation`.
        states: GPUs by state at the end of the window, those that are allocated and were never
            seen among the silent.
    """

    host: str
    jobs: tuple[str, ...]
    gpus: int
    slices: int
    gpus_reporting: int
    gpus_allocated: int | None
    gpus_allocated_at_end: int | None
    allocated_source: str
    states: dict[str, int]
    figures: Figures


class FleetSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts; see `HostSummary`.

    Attributes:
        reporting_fraction: GPUs reporting over allocated, on hosts whose allocation is known.
    """

    hosts: int
    hosts_reporting: int
    gpus: int
    slices: int
    gpus_reporting: int
    gpus_allocated: int | None
    gpus_allocated_at_end: int | None
    hosts_of_unknown_allocation: int
    allocated_sources: tuple[str, ...]
    reporting_fraction: float | None
    states: dict[str, int]
    figures: Figures


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A window.

    Attributes:
        start: As text; ``Z`` where rows name their zone.
        zone: ``UTC``, ``file-local``, ``mixed``, or empty without rows.
        sentence: How many GPUs did what at the end, and how much work there was.
        files: How many were read.
        files_passed_over: How many were not, since they lie far from the window.
        files_refused: How many could not be read.
        newest: The time of the newest row of a GPU in all files that were read.
        rows: Rows of the files by kind, over the whole of each file.
        rejected: Lines of the files that are no rows, by kind, over the whole of each file.
    """

    start: str
    end: str
    window_s: float
    zone: str
    sentence: str
    fleet: FleetSummary
    hosts: tuple[HostSummary, ...]
    gpus: tuple[GpuSummary, ...]
    queue: Work
    mfu: Mfu
    files: int
    files_passed_over: int
    files_refused: int
    rows: dict[str, int]
    rejected: dict[str, int]
    newest: str


def sentence(fleet: FleetSummary, work: Work) -> str:
    """How many GPUs did what at the end of the window, and how much work there was.

    Such as "47 GPUs allocated, 12 working, 35 free idle; both spools drained".
    """
    states = [
        f"{fleet.states[state.value]} {state.value.replace('_', ' ')}"
        for state in GpuState
        if fleet.states.get(state.value)
    ]
    at_end = fleet.gpus_allocated_at_end
    if at_end is None:
        seen = sum(fleet.states.values())
        head = f"{seen} GPU{'s' * (seen != 1)} seen, allocation not known"
    else:
        head = f"{at_end} GPU{'s' * (at_end != 1)} allocated"
        if (fleet.gpus_allocated or 0) > at_end:
            head += f" at the end ({fleet.gpus_allocated} at most)"
        if fleet.hosts_of_unknown_allocation:
            head += f" (not known for {fleet.hosts_of_unknown_allocation} hosts)"
    return f"{', '.join([head, *states])}; {work.words}"


def value_of(summary: Summary) -> dict[str, Any]:
    """A summary as plain values, the figures of each level beside its counts."""
    value: dict[str, Any] = msgspec.to_builtins(summary)
    for level in (value["fleet"], *value["hosts"], *value["gpus"]):
        level.update(level.pop("figures") or {})
    return value
