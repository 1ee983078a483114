"""Estimated MFU of each family in a window: what its tasks reported over what their GPUs could do.

Joins reported forward calls with runs and devices; reads nothing. Invariant: no number without the
exact peak of every GPU it counts, and GPU time without reports is stated, never folded in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fleetcraft.gpu.peaks import find_peak
from fleetcraft.telemetry.forwards import Call
from fleetcraft.telemetry.queue import Presence, Run, last_seen_s
from fleetcraft.telemetry.windows.series import SourceFacts

ASSUMPTIONS = (
    "FLOPs are what tasks reported of forward calls that ended in the window",
    "time is that of the reporting tasks within the window, all of it, times their GPUs",
    "peak is the dense BF16 rate of the exact part",
)


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one claim in a window, added up by family and GPUs.

    Attributes:
        owner: Whose claim it was.
        family: What the lines themselves name.
        gpus: What the lines themselves name.
        training: Whether a backward belonged to them; None where it is not known of all.
    """

    owner: str
    family: str = ""
    gpus: tuple[str, ...] = ()
    calls: int
    forwards: int
    flop: float
    training: bool | None = None

    @property
    def claim(self) -> str:
        """The token of the claim."""
        return self.owner.rpartition(".")[2]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of one name that a family used, with the peak that is counted for them."""

    name: str
    gpu_s: float
    peak_flop_per_s: float | None = None
    peak_source: str = ""


class FamilyMfu(msgspec.Struct, frozen=True, kw_only=True):
    """One family in a window.

    Attributes:
        family: Empty for tasks without one.
        mfu: Achieved over peak; None when it is not known.
        reason: Why it is None.
        flop: Of all its reported calls.
        runs: Runs of it that overlap the window.
        runs_reporting: Those that reported in it.
        gpu_s: GPU time of the latter; None when the GPUs of one of them are not known.
        gpu_s_without_reports: GPU time of the others, as far as it is known.
        training: Whether its calls are of training, inference or, None, of both or unknown.
    """

    family: str
    mfu: float | None
    reason: str = ""
    flop: float
    forwards: int
    runs: int
    runs_reporting: int
    gpu_s: float | None
    gpu_s_without_reports: float
    runs_of_unknown_gpus: int = 0
    training: bool | None = None
    devices: tuple[Device, ...] = ()


class Mfu(msgspec.Struct, frozen=True, kw_only=True):
    """All families that reported.

    Attributes:
        unmatched_calls: Calls whose claim is in no journal that was read; their FLOPs count for no
            family.
    """

    families: tuple[FamilyMfu, ...] = ()
    unmatched_calls: int = 0
    unmatched_flop: float = 0.0
    rejected_lines: int = 0
    assumptions: tuple[str, ...] = ASSUMPTIONS


def add_up(calls: Iterable[Call], start_s: float, end_s: float) -> list[Reported]:
    """The calls of a window, by claim.

    Args:
        calls: What was read, in any order.
        start_s: Where it begins, not included.
        end_s: Where it ends, included.
    """
    found: dict[tuple[str, str, tuple[str, ...]], Reported] = {}
    for call in calls:
        if not start_s < call.at_s <= end_s:
            continue
        place = (str(call.owner), call.family, tuple(call.gpus))
        before = found.get(place)
        found[place] = Reported(
            owner=place[0],
            family=place[1],
            gpus=place[2],
            calls=1 + (before.calls if before else 0),
            forwards=call.forwards + (before.forwards if before else 0),
            flop=call.flop + (before.flop if before else 0.0),
            training=call.training if before is None or before.training == call.training else None,
        )
    return [found[place] for place in sorted(found)]


class _Used:
    """What one run used in the window."""

    def __init__(self, run: Run, seconds: float, names: list[str] | None) -> None:
        self.run = run
        self.seconds = seconds
        self.names = names

    @property
    def gpu_s(self) -> float | None:
        return None if self.names is None else self.seconds * len(self.names)


class _Family:
    def __init__(self) -> None:
        self.reports: list[Reported] = []
        self.reporting: list[_Used] = []
        self.others: list[_Used] = []


def mfu_of(
    reported: Sequence[Reported],
    runs: Sequence[Run],
    workers: Sequence[Presence],
    sources: Iterable[SourceFacts],
    span: tuple[float, float],
    *,
    rejected_lines: int = 0,
) -> Mfu:
    """The families that reported forward calls in a window.

    Args:
        reported: See `add_up`.
        runs: Those that overlap the window.
        workers: Where tasks ran that had a whole node.
        sources: Whose sidecars name the GPUs.
        span: Start and end of the window in seconds since 1970.
        rejected_lines: Lines of reports that could not be used.
    """
    by_claim: dict[str, list[Reported]] = {}
    for report in reported:
        by_claim.setdefault(report.claim, []).append(report)
    names = _Names(workers, sources)
    last_s = last_seen_s(workers)
    families: dict[str, _Family] = {}
    known = set()
    for run in runs:
        reports = by_claim.get(run.claim, [])
        known.add(run.claim)
        family = next((r.family for r in reports if r.family), "") or run.family
        mine = families.setdefault(family, _Family())
        seconds = _seconds_within(run, span, run.until_s(last_s))
        gpus = next((r.gpus for r in reports if r.gpus), ()) or run.gpus
        used = _Used(run, seconds, names.of(run, gpus))
        (mine.reporting if reports else mine.others).append(used)
        mine.reports += reports
    lost = [report for report in reported if report.claim not in known]
    return Mfu(
        families=tuple(
            _family(name, families[name]) for name in sorted(families) if families[name].reports
        ),
        unmatched_calls=sum(report.calls for report in lost),
        unmatched_flop=sum(report.flop for report in lost),
        rejected_lines=rejected_lines,
    )


def _seconds_within(run: Run, span: tuple[float, float], until_s: float | None) -> float:
    until = span[1] if until_s is None else min(span[1], until_s)
    return max(0.0, until - max(span[0], run.start_s))


class _Names:
    """Which GPUs a run had, by the names that the driver gives them; empty if not named."""

    def __init__(self, workers: Iterable[Presence], sources: Iterable[SourceFacts]) -> None:
        self._workers = {worker.lease: worker for worker in workers}
        self._by_uuid: dict[str, str] = {}
        self._of_host: dict[str, set[str]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        for facts in sources:
            place = facts.node, facts.job
            count = facts.expected_gpus or len(facts.gpus)
            self._counts[place] = max(count, self._counts.get(place, 0))
            for gpu in facts.gpus:
                self._by_uuid[gpu.uuid] = gpu.name
                self._of_host.setdefault(facts.node, set()).add(gpu.name)

    def of(self, run: Run, gpus: Sequence[str]) -> list[str] | None:
        """None when it is not known how many there were."""
        of_host = self._of_host.get(run.host, set())
        only = next(iter(of_host)) if len(of_host) == 1 else ""
        if gpus:
            return [self._by_uuid.get(uuid) or only for uuid in gpus]
        worker = self._workers.get(run.lease)
        if worker is None or worker.slots != 1:
            return None
        # A worker outside Slurm cannot count them; the logger of its job has looked.
        count = worker.gpus or self._counts.get((run.host, run.job), 0)
        return [only] * count or None


def _family(name: str, family: _Family) -> FamilyMfu:
    times: dict[str, float] = {}
    for used in family.reporting:
        for device in used.names or ():
            times[device] = times.get(device, 0.0) + used.seconds
    devices = [_device(device, gpu_s) for device, gpu_s in sorted(times.items())]
    flop = sum(report.flop for report in family.reports)
    known = all(used.names is not None for used in family.reporting)
    mfu, reason = _ratio(flop, devices, known=known)
    kinds = {report.training for report in family.reports}
    return FamilyMfu(
        family=name,
        mfu=mfu,
        reason=reason,
        flop=flop,
        forwards=sum(report.forwards for report in family.reports),
        runs=len(family.reporting) + len(family.others),
        runs_reporting=len(family.reporting),
        gpu_s=sum(device.gpu_s for device in devices) if known else None,
        gpu_s_without_reports=sum(used.gpu_s or 0.0 for used in family.others),
        runs_of_unknown_gpus=sum(
            used.names is None for used in (*family.reporting, *family.others)
        ),
        training=kinds.pop() if len(kinds) == 1 else None,
        devices=tuple(devices),
    )


def _device(name: str, gpu_s: float) -> Device:
    peak = find_peak(name) if name else None
    if peak is None:
        return Device(name=name, gpu_s=gpu_s)
    return Device(
        name=name, gpu_s=gpu_s, peak_flop_per_s=peak.dense_bf16_flop_per_s, peak_source=peak.source
    )


def _ratio(flop: float, devices: Sequence[Device], *, known: bool) -> tuple[float | None, str]:
    if not known:
        return None, "how many GPUs a reporting task had is not known"
    nameless = [device for device in devices if not device.name]
    if nameless:
        return None, "no sidecar names the GPUs that a reporting task had"
    without = [device.name for device in devices if device.peak_flop_per_s is None]
    if without:
        return None, f"no exact peak for {', '.join(without)}"
    most = _most(devices)
    if most <= 0:
        return None, "its tasks ran for no time in the window"
    return flop / most, ""


def _most(devices: Iterable[Device]) -> float:
    """What the GPUs could have done at their peaks, in FLOPs."""
    return sum(device.gpu_s * (device.peak_flop_per_s or 0.0) for device in devices)
