"""One trial from its order to its record: started, watched, judged.

Each of these is a module of its own; here they meet. No torch in this process. Invariant: when
`run_order` returns or raises, no process of the trial is alive and its groups are removed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from fleetcraft.calibration.family import Family
from fleetcraft.calibration.records import Failure, Trial, Verdict, median
from fleetcraft.calibration.trial import cgroup, starting
from fleetcraft.calibration.trial.classify import (
    Evidence,
    Facts,
    classify,
    ended_well,
    signal_name,
)
from fleetcraft.calibration.trial.entering import PROGRAM, REFUSED, Entry
from fleetcraft.calibration.trial.keeper import STOPPED
from fleetcraft.calibration.trial.merging import highest_peak
from fleetcraft.calibration.trial.orders import Order
from fleetcraft.calibration.trial.reading import Journal, read_journal
from fleetcraft.calibration.trial.stall import Stall
from fleetcraft.calibration.trial.telling import tell
from fleetcraft.calibration.trial.watching import (
    LOOK_S,
    JournalTail,
    OnEvent,
    Sampler,
    Seen,
    Silence,
    listen,
)
from fleetcraft.clock import timestamp
from fleetcraft.errors import ConfigError, UsageError
from fleetcraft.process import Ended
from fleetcraft.trust import make_folders

_TAIL_BYTES = 16 << 10


class RawTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one trial, unjudged.

    Attributes:
        ended: How its first process ended.
        journal: What it told.
        counters_before: The kernel's counts when it began.
        counters_after: When it had ended.
        own_group: Whether the memory counts are those of a group of its own.
        own_pids_group: Whether the pids counts are.
        seen: What was sampled from outside.
        stall: The silence for which it was stopped; None when it was not.
        log_tail: The end of what it printed.
        notes: Which limits are weaker than asked.
        started_at: UTC.
        wall_s: From its start to its end.
    """

    ended: Ended
    journal: Journal
    counters_before: cgroup.Counters
    counters_after: cgroup.Counters
    own_group: bool = False
    own_pids_group: bool = False
    seen: Seen = Seen()
    stall: Stall | None = None
    log_tail: str = ""
    notes: tuple[str, ...] = ()
    started_at: str = ""
    wall_s: float = 0.0


def run_trial(
    order: Order,
    family: Family,
    *,
    expected_s: float | None = None,
    on_event: OnEvent | None = None,
    program: str = PROGRAM,
) -> Trial:
    """Runs a trial in a process of its own and judges it. A trial that fails is no error.

    Args:
        order: What to do; its folder is made, and must not hold a journal yet.
        family: The same family as the order names.
        expected_s: The longest silence to expect, from the batch before; None for the first batch,
            which may be silent for the family's ``patience_s``.
        on_event: Told each line of the journal as it comes, within 50 ms.
        program: Module whose ``main(order)`` is the trial's process.

    Raises:
        UsageError: The folder has been used.
        ConfigError: A limit cannot be set here, or the trial's program cannot be loaded.
        KeeperLostError: What holds the trial's process died.
        OSError: The folder cannot be written.
    """
    raw = run_order(order, family, expected_s=expected_s, on_event=on_event, program=program)
    return judge(order, family, raw)


def run_order(
    order: Order,
    family: Family,
    *,
    expected_s: float | None = None,
    on_event: OnEvent | None = None,
    program: str = PROGRAM,
) -> RawTrial:
    """Runs an order in a process of its own and judges nothing; arguments as `run_trial`."""
    _prepare(order)
    keeper = starting.keeper_for(order.device, program)
    group, limits = starting.confine(order)
    try:
        places = {**cgroup.own_places(), **group.places}
        before = cgroup.read_counters(places)
        entry = starting.entry_of(order, starting.order_path(order), group, limits, program)
        silence = Silence(expected_s, _patience_s(order, family))
        started_at, began = timestamp(), time.monotonic()
        with Sampler(order.device) as sampler, _following(order.journal) as tail:
            hear = partial(listen, tail, silence, on_event)
            ended, stall = _watch(keeper, entry, sampler, hear)
        wall_s = time.monotonic() - began
        after = cgroup.read_counters(places)
    finally:
        group.remove()
    raw = RawTrial(
        ended=ended,
        journal=read_journal(order.journal, family.required_phases),
        counters_before=before,
        counters_after=after,
        own_group=cgroup.MEMORY in group.places,
        own_pids_group=cgroup.PIDS in group.places,
        seen=sampler.seen,
        stall=stall,
        log_tail=_tail(starting.log_path(order)),
        notes=limits.notes,
        started_at=started_at,
        wall_s=wall_s,
    )
    _require_entered(raw)
    return raw


def _prepare(order: Order) -> None:
    make_folders(order.folder)
    try:
        fd = os.open(
            starting.order_path(order), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
    except FileExistsError:
        raise UsageError(
            f"{order.folder} holds another trial; nothing was tried",
            hint="each trial has a folder of its own",
            path=order.folder,
        ) from None
    with open(fd, "wb") as file:
        file.write(msgspec.json.encode(order))


def _patience_s(order: Order, family: Family) -> float:
    fault = family.faults.get(order.fault)
    if fault is None or fault.patience_s is None:
        return family.patience_s
    return min(family.patience_s, fault.patience_s)


@contextlib.contextmanager
def _following(journal: str) -> Iterator[JournalTail]:
    tail = JournalTail(journal)
    try:
        yield tail
    finally:
        tail.close()


def _watch(
    keeper: starting.Keeper, entry: Entry, sampler: Sampler, hear: Callable[[], Stall | None]
) -> tuple[Ended, Stall | None]:
    """Waits until the trial has ended, or has stalled and was stopped."""
    try:
        sampler.follow(keeper.start(entry))
        while (ended := keeper.wait(LOOK_S)) is None:
            stall = hear()
            if stall is not None:
                return keeper.stop(f"stalled: {stall}") or _unknown(), stall
        hear()
    except BaseException as error:
        # Interrupted, or who was told the events failed: the trial does not outlive its watcher.
        keeper.stop(f"its watcher was interrupted: {type(error).__name__}")
        raise
    return ended, None


def _unknown() -> Ended:
    return Ended(exit_code=None, signal=None, cpu_s=0.0, max_rss_bytes=0)


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _require_entered(raw: RawTrial) -> None:
    if raw.ended.exit_code == REFUSED and not raw.journal.events:
        last = raw.log_tail.strip().splitlines()
        raise ConfigError(
            f"{last[-1] if last else 'the trial could not be limited'}; nothing was tried",
            hint="run it where its cgroup can be written, or without the limit",
        )


# ------------------------------------------------------------------------------ the record


def judge(order: Order, family: Family, raw: RawTrial) -> Trial:
    """The record of a trial, from what was seen of it."""
    journal = raw.journal
    evidence = gather(order, raw)
    failure: Failure | None = None
    facts: Facts = {}
    if not ended_well(evidence):
        failure, facts = classify(evidence)
    phase = _phase(journal, failure)
    cycle_s = median(journal.cycle_walls_s)
    return Trial(
        family=family.key,
        identity=family.identity_hash,
        batch=order.batch,
        verdict=Verdict.FAILED if failure else Verdict.OK,
        failure=failure,
        phase=phase,
        owner=_owner(journal, failure, facts, phase),
        detail=tell(failure, facts, phase) if failure else "",
        evidence={**facts, **_witnesses(raw)},
        phases=journal.phases,
        missing_phases=journal.missing_phases,
        cycle_walls_s=journal.cycle_walls_s,
        samples_per_s=order.batch / cycle_s if cycle_s else None,
        soak_live_bytes=journal.soak_live_bytes,
        checks=journal.checks,
        participants=journal.participants,
        tracking_overhead_fraction=journal.tracking_overhead_fraction,
        start_live_bytes=journal.start_live_bytes,
        environment=journal.environment,
        journal=order.journal,
        journal_sha256=journal.sha256,
        started_at=raw.started_at,
        wall_s=raw.wall_s,
    )


def gather(order: Order, raw: RawTrial) -> Evidence:
    """The evidence of one trial."""
    journal, failed = raw.journal, raw.journal.failed
    # A line that we wrote ourselves when we stopped it is no word of the trial's.
    said = failed if failed is not None and failed.kind != STOPPED else None
    seen = raw.seen
    others = seen.device_before_bytes if seen.neighbour_bytes is None else seen.neighbour_bytes
    before, after = raw.counters_before, raw.counters_after
    pids_refused = cgroup.moved(before.pids_refused, after.pids_refused)
    return Evidence(
        exit_code=raw.ended.exit_code,
        signal=raw.ended.signal,
        finished=journal.finished,
        phase=_phase(journal, Failure.ERROR),
        oom_kills=cgroup.moved(before.oom_kills, after.oom_kills),
        pids_refused=pids_refused,
        own_group=raw.own_group,
        own_pids_group=raw.own_pids_group,
        memory_limit_bytes=after.memory_limit_bytes,
        memory_peak_bytes=after.memory_peak_bytes if raw.own_group else None,
        host_budget_bytes=order.host_budget_bytes,
        pids_limit=order.pids_limit,
        kind=said.kind if said else "",
        message=said.message if said else "",
        found=(said.failure or "") if said else "",
        log_tail=raw.log_tail,
        device_budget_bytes=order.device_budget_bytes,
        neighbour_bytes=others,
        stall=raw.stall,
        participants=journal.participants,
    )


def _phase(journal: Journal, failure: Failure | None) -> str:
    """Where it failed; of a trial that did not, the phase with the highest peak."""
    if failure is None:
        highest = highest_peak(journal.phases)
        return highest.name if highest else ""
    failed = journal.failed
    if failed is not None and failed.phase:
        return failed.phase
    return journal.open_phase or journal.last_phase


def _owner(journal: Journal, failure: Failure | None, facts: Facts, phase: str) -> str:
    """Who is to blame, where one is; without a failure, the largest owner of the peak."""
    failed = journal.failed
    if failure is not None and failed is not None and failed.owner:
        return failed.owner
    if failure in (Failure.PARTIAL, Failure.HOST_OOM):
        dead = [name for name, how in journal.participants.items() if how.startswith("dead")]
        return dead[0] if dead else ""
    if failure is not None and not failure.value.startswith("device_oom"):
        return ""
    record = next((one for one in journal.phases if one.name == phase), None)
    return record.owners[0].name if record and record.owners else ""


def _witnesses(raw: RawTrial) -> dict[str, Any]:
    """What was measured from outside, kept with every trial; without what is not known."""
    after, seen = raw.counters_after, raw.seen
    known = {
        "host_cgroup": "own"
        if raw.own_group
        else "shared"
        if after.oom_kills is not None
        else None,
        "cgroup_peak_bytes": after.memory_peak_bytes if raw.own_group else None,
        "cgroup_limit_bytes": after.memory_limit_bytes,
        "cgroup_reclaims": cgroup.moved(raw.counters_before.reclaims, after.reclaims),
        "tree_rss_peak_bytes": seen.rss_peak_bytes,
        "with_children_rss_peak_bytes": seen.with_children_rss_peak_bytes,
        "device_before_bytes": seen.device_before_bytes,
        "neighbour_bytes": seen.neighbour_bytes,
        "neighbour_peak_bytes": seen.neighbour_peak_bytes,
        "device_not_watched": seen.device_detail or None,
        "cpu_s": round(raw.ended.cpu_s, 3),
        "exit_code": raw.ended.exit_code,
        "signal": signal_name(raw.ended.signal) or None,
        "leftovers_stopped": raw.ended.leftovers or None,
        "weaker_limits": list(raw.notes) or None,
        "journal_bad_lines": raw.journal.bad_lines or None,
    }
    return {name: value for name, value in known.items() if value is not None}
