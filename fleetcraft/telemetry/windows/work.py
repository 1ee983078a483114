"""What there was to do in a window, and for how many GPUs: journals beside the samples.

Computes from what `queue` has read; reads nothing itself. Invariant: without journals the queue is
not known, which is not an empty queue, and an allocation that nothing tells is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from fleetcraft.telemetry.journals import seconds
from fleetcraft.telemetry.queue import SPOOLS, Depth, Presence, Queue
from fleetcraft.telemetry.windows.series import SourceFacts
from fleetcraft.units import format_seconds

STATES = ("waiting", "pending", "running", "done", "failed")
_STALE_S = 300.0
"""A depth is written every 30 s at the latest while a fleet lives; an older one is called old."""


class Depths(msgspec.Struct, frozen=True, kw_only=True):
    """The depth of one spool over a window.

    Attributes:
        events: How many there were in the window.
        first: By state: the last before the window, else the first in it.
        last: The last one up to the window's end.
        last_age_s: How long before the end that was.
        mean: Over the events of the window, each counted once; of ``running`` over time, from the
            starts and ends of tasks, which depths noted every half minute would miss.
        least: Over the events of the window.
        most: Likewise; of ``running`` at least what ran at the same time.
    """

    events: int = 0
    first: dict[str, int] = msgspec.field(default_factory=dict)
    last: dict[str, int] = msgspec.field(default_factory=dict)
    last_age_s: float | None = None
    mean: dict[str, float] = msgspec.field(default_factory=dict)
    least: dict[str, int] = msgspec.field(default_factory=dict)
    most: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def drained(self) -> bool:
        """Whether nothing waited, was pending or ran when it was last seen."""
        return not any(self.last.get(state) for state in ("waiting", "pending", "running"))


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the journals say of a window.

    Attributes:
        known: Whether there was any journal.
        spools: By spool; those without a depth are not there.
        started: Tasks that started in the window.
        ended: Tasks that ended in it, by outcome.
        running_at_end: Started and not ended at its end, by workers that were still there.
        workers: Workers that were there.
        words: The state of both spools at the end of the window, for a sentence.
    """

    known: bool = False
    spools: dict[str, Depths] = msgspec.field(default_factory=dict)
    started: int = 0
    ended: dict[str, int] = msgspec.field(default_factory=dict)
    running_at_end: int = 0
    workers: int = 0
    journals: int = 0
    damaged_lines: int = 0
    problems: tuple[str, ...] = ()
    words: str = "queue not known"

    @property
    def is_told(self) -> bool:
        """Whether a journal tells of something that was in the window."""
        return bool(
            self.started or self.ended or any(depths.events for depths in self.spools.values())
        )


def work_of(queue: Queue | None, start_s: float, end_s: float) -> Work:
    """The work of a window.

    Args:
        queue: What was read of it; None when nobody says where the spools are.
        start_s: Where it begins, not included.
        end_s: Where it ends, included.
    """
    if queue is None:
        return Work()
    problems = tuple(queue.problems)
    if not queue.journals + queue.passed_over:
        return Work(problems=problems)
    spools = {}
    for spool in SPOOLS:
        of_spool = [depth for depth in queue.depths if depth.spool == spool]
        if depths := _depths(of_spool, start_s, end_s):
            spans = queue.running_spans(spool, start_s, end_s)
            spools[spool] = _with_running(depths, spans, end_s - start_s)
    there = {worker.lease for worker in queue.workers if worker.overlaps(end_s, end_s)}
    running = sum(
        run.start_s <= end_s and (run.end_s > end_s if run.end_s else run.lease in there)
        for run in queue.runs
    )
    return Work(
        known=True,
        spools=spools,
        started=sum(start_s < run.start_s <= end_s for run in queue.runs),
        ended=dict(
            sorted(
                Counter(
                    run.outcome or "unknown"
                    for run in queue.runs
                    if run.end_s is not None and start_s < run.end_s <= end_s
                ).items()
            )
        ),
        running_at_end=running,
        workers=sum(worker.overlaps(start_s, end_s) for worker in queue.workers),
        journals=queue.journals,
        damaged_lines=queue.damaged_lines,
        problems=problems,
        words=_words(spools, running),
    )


def _depths(depths: Sequence[Depth], start_s: float, end_s: float) -> Depths | None:
    known = [depth for depth in depths if depth.t_s <= end_s]
    if not known:
        return None
    within = [depth for depth in known if depth.t_s > start_s]
    before = [depth for depth in known if depth.t_s <= start_s]
    values = {state: [getattr(depth, state) for depth in within] for state in STATES}
    return Depths(
        events=len(within),
        first=_counts(before[-1] if before else within[0]),
        last=_counts(known[-1]),
        last_age_s=round(end_s - known[-1].t_s, 3),
        mean={state: sum(found) / len(found) for state, found in values.items() if found},
        least={state: min(found) for state, found in values.items() if found},
        most={state: max(found) for state, found in values.items() if found},
    )


def _with_running(depths: Depths, spans: Sequence[tuple[float, float]], window_s: float) -> Depths:
    """The same, with what starts and ends of tasks say of those that ran."""
    if not spans:
        return depths
    now = most = 0
    for _, step in sorted([(begun_s, 1) for begun_s, _ in spans] + [(e, -1) for _, e in spans]):
        now += step
        most = max(most, now)
    mean = sum(ended_s - begun_s for begun_s, ended_s in spans) / window_s
    return msgspec.structs.replace(
        depths,
        mean={**depths.mean, "running": mean},
        most={**depths.most, "running": max(most, depths.most.get("running", 0))},
    )


def _counts(depth: Depth) -> dict[str, int]:
    return {state: getattr(depth, state) for state in STATES}


def _words(spools: Mapping[str, Depths], running: int) -> str:
    if not spools:
        tasks = f"{running} task{'s' * (running != 1)} running"
        return f"{tasks}, queue depth not known"
    fresh = [(d.last_age_s or 0.0) <= _STALE_S for d in spools.values()]
    if len(spools) == len(SPOOLS) and all(d.drained for d in spools.values()) and all(fresh):
        return "both spools drained"
    return "; ".join(_spool_words(spool, depths) for spool, depths in spools.items())


def _spool_words(spool: str, depths: Depths) -> str:
    counts = [
        f"{depths.last[state]} {state}"
        for state in ("waiting", "pending", "running")
        if depths.last[state]
    ]
    said = f"{spool} spool {', '.join(counts) or 'drained'}"
    age_s = depths.last_age_s or 0.0
    return said if age_s <= _STALE_S else f"{said} {format_seconds(age_s)} before the end"


# ---------------------------------------------------------------------------------- allocation


class Claimed(msgspec.Struct, frozen=True):
    """GPUs of one job for some time, in seconds since 1970."""

    start_s: float
    end_s: float
    gpus: int


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """How many GPUs of a host were ours.

    Attributes:
        most: At the same time, at most; None when nothing tells.
        at_end: At the end of the window.
        spans: From when until when how many were, within the window.
        source: ``workers``, ``expected`` (what Slurm or the visible devices told the logger),
            ``inventory`` (what the logger saw), ``mixed``, or empty.
    """

    most: int | None = None
    at_end: int | None = None
    spans: tuple[Claimed, ...] = ()
    source: str = ""

    def gpu_s_beyond(self, gpus: int) -> float:
        """GPU seconds of what was allocated at one time beyond so many."""
        edges = sorted({edge for span in self.spans for edge in (span.start_s, span.end_s)})
        beyond_s = 0.0
        for start_s, end_s in pairwise(edges):
            held = sum(s.gpus for s in self.spans if s.start_s <= start_s and s.end_s >= end_s)
            beyond_s += max(0, held - gpus) * (end_s - start_s)
        return beyond_s


def allocation_of(
    workers: Iterable[Presence], sources: Iterable[SourceFacts], start_s: float, end_s: float
) -> Allocation:
    """How many GPUs of one host were allocated in a window.

    A job is counted by its workers, those of the outer spool before those of the inner one, whose
    GPUs are among them; without workers that could count, by the logger's sidecar.

    Args:
        workers: Those of this host.
        sources: Telemetry files of this host.
        start_s: Where the window begins.
        end_s: Where it ends.
    """
    by_job: dict[str, list[Presence]] = {}
    for worker in workers:
        if worker.gpus and worker.overlaps(start_s, end_s):
            by_job.setdefault(worker.job, []).append(worker)
    spans: list[Claimed] = []
    kinds: set[str] = set()
    for present in by_job.values():
        spans += _spans_of_workers(present, start_s, end_s)
        kinds.add("workers")
    told: dict[str, list[Claimed]] = {}
    for facts in sources:
        if facts.job in by_job or not facts.logging:
            continue
        gpus = facts.expected_gpus or len(facts.gpus)
        if gpus:
            kinds.add("expected" if facts.expected_gpus else "inventory")
            begun_s, ended_s = seconds(facts.started_at), seconds(facts.ended_at or "")
            until_s = end_s if ended_s is None else min(end_s, ended_s)
            span = Claimed(max(start_s, begun_s or start_s), until_s, gpus)
            told.setdefault(facts.job, []).append(span)
    # A second file of the same job is about the same GPUs: its logger was started again.
    spans += [_joined(of_job) for of_job in told.values()]
    if not spans:
        return Allocation()
    edges = {start_s, end_s, *(span.start_s for span in spans)}
    return Allocation(
        most=max(_at(spans, edge) for edge in edges),
        at_end=_at(spans, end_s),
        spans=tuple(spans),
        source=kinds.pop() if len(kinds) == 1 else "mixed",
    )


def _at(spans: Iterable[Claimed], t_s: float) -> int:
    return sum(span.gpus for span in spans if span.start_s <= t_s <= span.end_s)


def _spans_of_workers(present: Sequence[Presence], start_s: float, end_s: float) -> list[Claimed]:
    outer = [worker for worker in present if worker.spool == "outer"]
    spans = [
        Claimed(max(start_s, worker.start_s), _until(worker, end_s), worker.gpus)
        for worker in outer or present
    ]
    return [_joined(spans)] if outer else spans  # one worker a node, started again if it died


def _joined(spans: Sequence[Claimed]) -> Claimed:
    """One after the other for the same GPUs: the largest count holds throughout."""
    return Claimed(
        min(span.start_s for span in spans),
        max(span.end_s for span in spans),
        max(span.gpus for span in spans),
    )


def _until(worker: Presence, end_s: float) -> float:
    last_s = worker.last_s
    return end_s if last_s is None else min(end_s, last_s)
