"""Signalling what carries a launch's nonce on this machine, until nothing of it is left.

Not here: finding (`nonce_scan`) and the order of a stop (`stop`). Invariant: every signal goes
through `signalling.send`, so to a process that was identified while it was pinned.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from fleetcraft.identity import ProcessId
from fleetcraft.training.launching.nonce_scan import newest_first, scan
from fleetcraft.training.launching.signalling import PROC, identify, send
from fleetcraft.training.records import ProcessRecord

_PAUSE_S = 0.01
_MOST_S = 0.2


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """How a sweep ended.

    Attributes:
        quiet: Whether two passes in a row met nothing of the launch.
        left: What was met and lives, or may live. It may be empty although it is not quiet: of
            processes that fork and exit without end, none lives for long.
    """

    quiet: bool
    left: tuple[ProcessRecord, ...] = ()


class Net:
    """What is left of one launch on this machine.

    Args:
        nonce: Of the launch.
        node: Only what the keeper of this node has started; everything if empty.
        proc: Where processes are described; a stand-in in tests.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(
        self,
        nonce: str,
        *,
        node: str = "",
        proc: str = PROC,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._nonce = nonce
        self._node = node
        self._proc = proc
        self._clock = clock
        self._sleep = sleep
        self._known: dict[ProcessId, ProcessRecord] = {}
        self.signalled = 0

    def sweep(self, number: int | None, wait_s: float) -> Swept:
        """Signals each process once, also those that appear meanwhile, until none is left.

        Args:
            number: The signal; None only waits.
            wait_s: At most so long, and a pass or two more.

        Raises:
            OSError: The processes of this machine cannot be listed.
        """
        deadline = self._clock() + wait_s
        done: set[ProcessId] = set()
        pause, empty = _PAUSE_S, 0
        while True:
            before = len(done)
            met = self._pass(number, done)
            left = self._left()
            empty = 0 if left or met else empty + 1
            if empty == 2 or (empty == 0 and self._clock() >= deadline):
                return Swept(quiet=empty == 2, left=left)
            if number is None or len(done) == before:
                self._sleep(min(pause, max(0.0, deadline - self._clock())))
                pause = min(pause * 1.5, _MOST_S)

    def _pass(self, number: int | None, done: set[ProcessId]) -> bool:
        """One pass; says whether it met anything, be it gone by now."""
        met = False
        if not self._node:
            # Before any signal: once a leader is dead, nothing leads to kin without the nonce.
            for record in scan((self._nonce,), proc=self._proc).found:
                self._known[record.process] = record
                met = True
        # Each is signalled as it is met: one that forks and exits is gone before the pass is over.
        for record in newest_first(self._nonce, node=self._node, proc=self._proc):
            self._meet(record, number, done)
            met = True
        for record in tuple(self._known.values()):
            self._meet(record, number, done)
        return met

    def _meet(self, record: ProcessRecord, number: int | None, done: set[ProcessId]) -> None:
        self._known[record.process] = record
        if number is not None and record.process not in done and send(record, number):
            done.add(record.process)
            self.signalled += 1

    def _left(self) -> tuple[ProcessRecord, ...]:
        """Those that live, or of which that is not known."""
        self._known = {
            process: record
            for process, record in self._known.items()
            if identify(record, proc=self._proc) is not False
        }
        return tuple(self._known.values())
