"""One soak from its first task to its last: feeds, disturbs, keeps fleets there, watches, drains.

Not here: whether what came of it is right; that is the judge's, in a process of its own. Invariant:
the schedule follows what has been done, and the clock only ends it.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.soak.disturbing import Disturber
from tests.soak.feeding import MOST_PACKS, Feeder
from tests.soak.ground import Call, Ground, write_json
from tests.soak.plan import INNER, OUTER, Plan
from tests.soak.watching import Watch

HEARTBEAT_S = 2
IDLE_S = 25
FED_FIRST = 0.3
DISTURB_UNTIL = 0.72  # of the time that was given: what is left then comes without
STALLED_S = 25.0  # a disturbance comes though little was done since the last one
LAST_PASSES = 4
MARKERS_READY = ("1", "2")  # of ready/1 to 3: tasks that wait for the third wait for ever


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How a soak is paced, in seconds.

    Attributes:
        minutes: Time for all of it; half as much again for the draining.
        gap_s: Least time between two disturbances.
        fleet_nodes: Nodes of each fleet; they take turns.
        idle_s: Workers leave after so long without work.
        slots: One of these is drawn for each fleet; with one slot a worker has no keepers.
    """

    minutes: float
    gap_s: float
    fleet_nodes: tuple[int, ...]
    idle_s: int = IDLE_S
    slots: tuple[int, ...] = (1, 2, 2, 3)


class Soak:
    """Runs one plan on one ground."""

    def __init__(self, ground: Ground, plan: Plan, pace: Pace) -> None:
        self._ground = ground
        self._plan = plan
        self._pace = pace
        self._rng = random.Random(plan.seed + 1)
        self._began = time.monotonic()
        self._feeder = Feeder(ground, plan, random.Random(plan.seed + 2))
        self._disturber = Disturber(ground, random.Random(plan.seed + 3), self._log)
        self._disturber.kinds["kill an enqueue"] = self._kill_enqueue
        self._watch = Watch(ground)
        self._left = list(plan.disturbances)
        self._begun = 0
        self._last_disturbed = time.monotonic()
        self._launches: list[Call] = []
        self._next_look = 0.0
        self._counts: dict[str, dict[str, int]] = {}
        self._story = (ground.base / "story.log").open("a", buffering=1)
        self._shown = 0.0
        self.drained = False

    def close(self) -> None:
        """Closes what it writes, before the judge reads it."""
        self._watch.close()
        self._feeder.close()
        self._story.close()

    def disturbances(self) -> list[str]:
        """The kinds that it can make."""
        return list(self._disturber.kinds)

    # -- what a person sees

    def _log(self, text: str) -> None:
        self._story.write(f"{time.monotonic() - self._began:7.1f} {text}\n")

    def _show(self, phase: str) -> None:
        now = time.monotonic()
        live = sys.stderr.isatty()
        if now - self._shown < (1.0 if live else 20.0):
            return
        self._shown = now
        outer, inner = self._counts[OUTER], self._counts[INNER]
        text = (
            f"{now - self._began:5.0f} s {phase}: {self._finished():,} of "
            f"{len(self._plan.tasks) + self._feeder.packs:,} tasks ended, "
            f"{outer['running'] + inner['running']} run, "
            f"{sum(self._disturber.done.values())} disturbances, {len(self._left)} to come, "
            f"{self._watch.workers} workers"
        )
        print(f"\r\x1b[K{text}" if live else text, end="" if live else "\n", file=sys.stderr)
        sys.stderr.flush()

    # -- the run

    def run(self) -> dict[str, object]:
        """Runs it; returns facts for the judge that no file of the tree tells."""
        self._feed(FED_FIRST)
        self._look()
        self._while("soak", lambda: bool(self._left) or self._feeder.fed < len(self._plan.tasks))
        self._disturber.undo_all()
        self._await_calls()
        self._log("no more disturbances; draining")
        self._while("drain", lambda: not self._is_drained(), patience=1.5)
        self._await_calls()
        self._last_fleets()
        return self._facts()

    def _while(self, phase: str, wanted: Callable[[], bool], *, patience: float = 1.0) -> None:
        until = self._began + self._pace.minutes * 60 * patience
        while wanted() and time.monotonic() < until:
            self._step()
            self._show(phase)
            time.sleep(0.25)
        if wanted() and phase == "soak":
            self._log("the time is over; what is left comes without disturbances")
            self._left.clear()
            self._feed(1.0)

    def _step(self) -> None:
        self._disturber.undo_due()
        if time.monotonic() >= self._next_look:
            self._look()
        self._disturb()

    def _look(self) -> None:
        self._counts = {spool: self._ground.counts(spool) for spool in (OUTER, INNER)}
        self._watch.look()
        self._feeder.reap()
        self._keep_fleets()
        self._keep_packs()
        self._next_look = time.monotonic() + 1.0

    def _finished(self) -> int:
        return sum(counts["done"] + counts["failed"] for counts in self._counts.values())

    # -- disturbing, and feeding in step with it

    def _disturb(self) -> None:
        now = time.monotonic()
        if not self._left:
            if self._feeder.fed < len(self._plan.tasks):
                self._feed(1.0)
            return
        since_s = now - self._last_disturbed
        if since_s < self._pace.gap_s:
            return
        of_all = (self._begun + 1) / (self._begun + len(self._left) + 1)
        if self._finished() < 0.9 * of_all * len(self._plan.tasks) and since_s < STALLED_S:
            return
        if now - self._began > self._pace.minutes * 60 * DISTURB_UNTIL:
            self._log(f"{len(self._left)} disturbances are left out: the time is needed to drain")
            self._left.clear()
            return
        self._last_disturbed = now
        self._begun += 1
        self._disturber.begin(self._left.pop(0))
        share = self._begun / (self._begun + len(self._left))
        self._feed(FED_FIRST + (1 - FED_FIRST) * share)
        if self._begun <= len(MARKERS_READY):
            (self._ground.project / "ready" / MARKERS_READY[self._begun - 1]).touch()

    def _feed(self, share: float, *, kill: bool = False) -> None:
        self._feeder.feed(round(share * len(self._plan.tasks)), kill=kill)

    def _kill_enqueue(self) -> str:
        before = self._feeder.killed
        share = (self._begun + 2) / (self._begun + len(self._left) + 2)
        self._feed(FED_FIRST + (1 - FED_FIRST) * share, kill=True)
        return "its batch was enqueued again" if self._feeder.killed > before else ""

    # -- keeping work going

    def _keep_fleets(self) -> None:
        if self._disturber.silent or self._disturber.barred:
            return
        self._launches = [call for call in self._launches if not call.over]
        jobs = self._ground.jobs() if not self._launches else None
        if jobs is None or not self._work_left():
            return
        lacking = len(self._pace.fleet_nodes) - len(jobs)
        for number in range(max(0, lacking)):
            self._launch(self._pace.fleet_nodes[(len(jobs) + number) % len(self._pace.fleet_nodes)])

    def _work_left(self) -> bool:
        if self._left or self._feeder.fed < len(self._plan.tasks):
            return True
        return any(counts["pending"] + counts["running"] for counts in self._counts.values())

    def _launch(self, nodes: int) -> Call:
        slots = self._rng.choice(self._pace.slots)
        words = ["launch", "-N", str(nodes), "--time", "60", "--slots", str(slots)]
        words += ["--idle", str(self._pace.idle_s), "--heartbeat", str(HEARTBEAT_S), "--grace", "2"]
        # Each fleet as on hosts of its own: their launchers do not share turns to ask Slurm.
        polls = self._ground.base / f"polls-{len(self._ground.calls)}"
        call = self._ground.fleetcraft(*words, FLEET_POLLS_DIR=str(polls))
        self._launches.append(call)
        self._log(f"launch of {nodes} nodes, {slots} slots")
        return call

    def _keep_packs(self) -> None:
        outer = self._ground.files(OUTER, "pending") + self._ground.files(OUTER, "running")
        there = sum(name.startswith("pack-") for name in outer)
        inner = self._counts[INNER]
        if self._feeder.busy:
            return  # packs may be among what is under way
        if inner["pending"] + inner["running"] and there < MOST_PACKS:
            self._feeder.add_packs(MOST_PACKS - there)

    # -- the end

    def _is_drained(self) -> bool:
        """Whether nothing is left that could run, for a while: promotion takes a moment."""
        left = self._feeder.busy
        left |= any(counts["pending"] + counts["running"] for counts in self._counts.values())
        now = time.monotonic()
        if left or not hasattr(self, "_empty_since"):
            self._empty_since = now
        self.drained = now - self._empty_since > 6.0
        return self.drained

    def _await_calls(self) -> None:
        for call in self._ground.calls:
            self._ground.await_call(call)
        self._feeder.reap()

    def _last_fleets(self) -> None:
        """Waits until no job is left; then a pass of recovery, and a fleet for what that found."""
        for _ in range(LAST_PASSES):
            self._await_no_jobs()
            for spool in (OUTER, INNER):
                self._ground.await_call(self._ground.fleetcraft("recover", spool=spool))
                self._ground.await_call(self._ground.fleetcraft("promote", spool=spool))
            self._look_only()
            if not self._anything_claimable():
                return
            self._log("a last fleet for what the recovery put back")
            if self._counts[INNER]["pending"]:
                self._feeder.add_packs(2)
                self._await_calls()
            self._ground.await_call(self._launch(max(self._pace.fleet_nodes)))

    def _anything_claimable(self) -> bool:
        return any(counts["pending"] for counts in self._counts.values())

    def _look_only(self) -> None:
        self._counts = {spool: self._ground.counts(spool) for spool in (OUTER, INNER)}
        self._watch.look()

    def _await_no_jobs(self) -> None:
        give_up = time.monotonic() + 240
        while self._ground.jobs() != {}:
            if time.monotonic() > give_up:
                self._log("jobs do not end; they are cancelled")
                self._ground.ask("scancel", "--me")
                give_up += 60
            self._look_only()
            self._show("last fleet")
            time.sleep(1.0)

    def _facts(self) -> dict[str, object]:
        checks = {}
        for spool in (OUTER, INNER):
            call = self._ground.await_call(self._ground.fleetcraft("check", spool=spool))
            checks[spool] = _value(call)
        time.sleep(1.0)
        left = [f"{p.kind} {p.pid} on {p.node or '?'}: {p.words}" for p in self._ground.census()]
        facts: dict[str, object] = {
            "seed": self._plan.seed,
            "drained": self.drained,
            "checks": checks,
            "left_processes": left,
            "done": dict(self._disturber.done),
            "vain": dict(self._disturber.vain),
            "notes": sorted(set(self._disturber.notes)),
            "killed_enqueues": self._feeder.killed,
            "packs": self._feeder.packs,
            "launches": sum(call.what.startswith("launch") for call in self._ground.calls),
            "calls": len(self._ground.calls),
            "strange_calls": _strange(self._ground.calls),
            "took_s": round(time.monotonic() - self._began, 1),
        }
        write_json(self._ground.base / "facts.json", facts)
        return facts


def _value(call: Call) -> object:
    for line in call.said().splitlines():
        if line.startswith("{"):
            return json.loads(line)
    return {"faults": [{"kind": "no_answer", "detail": call.said()}]}


EXPECTED_CODES = {
    "launch": {0, 4, 5},  # refused while a marker stands, or while slurmctld is silent
    "recover": {0, 4},
    "cancel": {0, 5},
    "retry": {0, 5},  # a task was moved meanwhile
    "check": {0, 1},
    "enqueue": {0, -9},
    "revive-node": {0, 4},  # the sandbox's: Slurm did not take it within a minute
}


def _strange(calls: list[Call]) -> list[str]:
    """Calls that ended as they should not, or with a traceback."""
    found = []
    for call in calls:
        verb = call.what.split()[0]
        if call.code not in EXPECTED_CODES.get(verb, {0}) or "Traceback" in call.said():
            found.append(f"{call.what}: exit code {call.code}: {call.said()[-400:]}")
    return found
