"""The passes of a trial, each a way of running the family's cycle and of looking at it.

What a phase's numbers are is in `meters`, what a process does around the passes in `child`.
Invariant: nothing of one cycle is kept for the next, so that a cycle finds what the first one did.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import torch

from fleetcraft.calibration.family import Family
from fleetcraft.calibration.records import MIB, Check, Failure
from fleetcraft.calibration.tracking import device as devices
from fleetcraft.calibration.trial.context import Context
from fleetcraft.calibration.trial.fake import predict
from fleetcraft.calibration.trial.findings import Finding
from fleetcraft.calibration.trial.journal import Event, JournalWriter
from fleetcraft.calibration.trial.meters import ByteMeter, ClockMeter, Meter
from fleetcraft.calibration.trial.orders import Order, Pass

LEAST_SOAK_CYCLES = 4
OVERHEAD_ROUNDS = 3
# Tracked bytes are exact, so this only passes over a counter or a name; the allocator takes whole
# blocks. Source: CUDA blocks of small tensors are 2 MiB.
LIVE_SLACK_BYTES = 4096
CACHED_SLACK_BYTES = 2 << 20


class Session:
    """One child's work: its order, its family, its journal, and where it has got to.

    Attributes:
        pass_name: The pass that runs.
        ctx: The context of the cycle that runs, or of the last.
        in_family: Whether the family's own code runs, or ran when an exception came out of it.
    """

    def __init__(self, order: Order, family: Family, journal: JournalWriter) -> None:
        self.order = order
        self.family = family
        self.journal = journal
        self.pass_name: Pass | None = None
        self.ctx: Context | None = None
        self.in_family = False
        self._said_start = False

    @property
    def findings(self) -> list[Finding]:
        """What the cycle that runs, or the last one, has been found to do wrong."""
        return self.ctx.findings if self.ctx is not None else []

    def context(self, pass_name: Pass, cycle: int, meter: Meter) -> Context:
        """A fresh context, in a folder of its own."""
        self.ctx = Context(
            batch=self.order.batch,
            device=self.order.device,
            fault=self.order.fault,
            folder=os.path.join(self.order.outputs, f"{pass_name}-{cycle}"),
            seed=self.order.seed,
            pass_name=pass_name,
            cycle=cycle,
            journal=self.journal,
            meter=meter,
        )
        return self.ctx

    def run(self, pass_name: Pass) -> list[Finding]:
        """Runs one pass; returns what it found wrong, first things first."""
        self.pass_name, self.ctx = pass_name, None
        self.journal.write(Event.PASS_BEGIN, **{"pass": pass_name})
        findings = _PASSES[pass_name](self)
        self.journal.write(Event.PASS_END, **{"pass": pass_name})
        return findings

    def cycle(self, meter: Meter, number: int) -> dict[str, Any]:
        """Runs one cycle from a fresh state; returns what its meter says of it as a whole."""
        assert self.pass_name is not None
        where = {"pass": self.pass_name, "cycle": number}
        start = {} if self._said_start else {"start_live_bytes": self._start_live_bytes()}
        self._said_start = True
        self.journal.write(Event.CYCLE_BEGIN, **where, **start)
        ctx = self.context(self.pass_name, number, meter)
        torch.manual_seed(self.order.seed)
        with meter.cycle():
            try:
                self.in_family = True
                self.family.cycle(ctx, self.order.batch)
                ctx.finish()
                self.in_family = False
            except BaseException:
                ctx.interrupt()
                raise
        fields = meter.summary()
        self.journal.write(Event.CYCLE_END, **where, **fields)
        if not ctx.findings:  # checkpoints of every cycle and batch would fill any scratch
            shutil.rmtree(ctx.folder, ignore_errors=True)
        return fields

    def _start_live_bytes(self) -> int:
        return live_tensor_bytes(self.order.device)


def _preflight(session: Session) -> list[Finding]:
    order = session.order
    for batch in order.preflight_batches or (order.batch,):
        predicted, phases = predict(session.family, order, batch)
        session.journal.write(Event.PREDICTION, **msgspec.structs.asdict(predicted), phases=phases)
    return []


def _flops(session: Session) -> list[Finding]:
    from fleetcraft.calibration.flop_count import side_by_side

    ctx = session.context(Pass.FLOPS, 0, Meter()).variant(batch=1, device="meta")
    session.in_family = True
    counted = side_by_side(session.family, ctx)
    session.in_family = False
    session.journal.write(Event.FLOPS, **msgspec.structs.asdict(counted))
    return []


def _checks(session: Session) -> list[Finding]:
    from fleetcraft.calibration.checks.run import run_checks

    session.in_family = True
    checks = run_checks(session.family, session.context(Pass.CHECKS, 0, Meter()))
    session.in_family = False
    found = []
    for check in checks:
        session.journal.write(Event.CHECK, **msgspec.structs.asdict(check))
        if check.ok is False:
            found.append(_failed_check(check))
    gc.collect()
    devices.empty_cache(session.order.device)  # what they left reserved is no need of the cycle
    return found


def _failed_check(check: Check) -> Finding:
    return Finding(failure=check.failure or Failure.ERROR, phase=check.phase, message=check.detail)


def _memory(session: Session) -> list[Finding]:
    order = session.order
    meter = ByteMeter(order.device, budget_bytes=order.device_budget_bytes)
    session.cycle(meter, 0)
    return session.findings


def _time(session: Session) -> list[Finding]:
    meter = ClockMeter(session.order.device)
    return _until_found(session, lambda n: session.cycle(meter, n), session.order.timed_cycles)


def _soak(session: Session) -> list[Finding]:
    order = session.order
    meter = ByteMeter(order.device, budget_bytes=order.device_budget_bytes)
    ends: list[dict[str, Any]] = []
    cycles = max(LEAST_SOAK_CYCLES, order.soak_cycles)
    found = _until_found(session, lambda n: ends.append(session.cycle(meter, n)), cycles)
    if found:
        return found
    for name, slack, what in (
        ("live_end_bytes", LIVE_SLACK_BYTES, "tracked bytes that live"),
        ("cached_bytes", CACHED_SLACK_BYTES, "reserved bytes that are not allocated"),
    ):
        values = [end[name] for end in ends if end.get(name) is not None]
        if rises(values, slack):
            session.findings.append(_rising(session, what, values))
            return session.findings
    return []


def _rising(session: Session, what: str, values: Sequence[int]) -> Finding:
    told = ", ".join(f"{value / MIB:.1f}" for value in values)
    return Finding(
        failure=Failure.SOAK_RISING,
        phase=session.ctx.last_phase if session.ctx else "",
        bytes=values[-1] - values[1],
        message=f"{what} after each of {len(values)} equal cycles rise: {told} MiB",
    )


def rises(values: Sequence[int], slack: int) -> bool:
    """Whether a number grows from cycle to cycle and does not come to rest.

    The first cycle is left out: it makes caches and states that stay. Of the others, none may
    have fallen, and both halves must have grown by more than the slack.

    Args:
        values: One number a cycle.
        slack: Growth that is passed over.

    Returns:
        False also where there are fewer than four: they show nothing.
    """
    tail = values[1:]
    if len(tail) < LEAST_SOAK_CYCLES - 1:
        return False
    middle = len(tail) // 2
    fell = any(later < earlier for earlier, later in pairwise(tail))
    halves = (tail[middle] - tail[0], tail[-1] - tail[middle])
    return not fell and min(halves) > slack


def _overhead(session: Session) -> list[Finding]:
    """CPU time of the phases' own work, tracked and not, in turns; the least of each counts.

    With one thread: several spin while they wait for one another, longer on a busy machine than
    tracking takes, and that is no work.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure_overhead(session)
    finally:
        torch.set_num_threads(threads)


def _measure_overhead(session: Session) -> list[Finding]:
    order = session.order
    plain = ClockMeter(order.device, tidy=True)
    tracked = ByteMeter(order.device)
    cpu_s: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * OVERHEAD_ROUNDS):
        meter = tracked if turn % 2 else plain
        session.cycle(meter, turn)
        cpu_s[bool(turn % 2)].append(meter.cpu_s)
    least, least_tracked = min(cpu_s[False]), min(cpu_s[True])
    session.journal.write(
        Event.OVERHEAD,
        fraction=least_tracked / least - 1 if least > 0 else None,
        untracked_cpu_s=cpu_s[False],
        tracked_cpu_s=cpu_s[True],
        attribution_cpu_s=tracked.attribution_cpu_s / OVERHEAD_ROUNDS,
    )
    return []


def _until_found(session: Session, run: Callable[[int], object], cycles: int) -> list[Finding]:
    for number in range(cycles):
        run(number)
        if session.findings:
            return session.findings
    return []


_PASSES: dict[Pass, Callable[[Session], list[Finding]]] = {
    Pass.PREFLIGHT: _preflight,
    Pass.FLOPS: _flops,
    Pass.CHECKS: _checks,
    Pass.MEMORY: _memory,
    Pass.OVERHEAD: _overhead,
    Pass.TIME: _time,
    Pass.SOAK: _soak,
}


def live_tensor_bytes(device: str) -> int:
    """Bytes of all tensors of this process on a type of device, each storage once.

    Found among all objects that Python knows, so also what no tracker has seen being made.
    """
    kind = torch.device(device).type
    gc.collect()
    gc.unfreeze()
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type == kind:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    del thing
    gc.freeze()
    return sum(storages.values())
