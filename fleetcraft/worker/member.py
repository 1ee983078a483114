"""A worker of a local fleet: it tells its parent what it does, and leaves when it is told to.

Forked by `local_fleet`, or started with its settings as JSON on the command line. Events go to
stdout as JSON lines; ``look`` on stdin asks it to look for tasks at once, ``leave`` (with a reason,
if that is not that all is done) or the end to leave.
Invariant: a member does not outlive its parent.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Mapping

import msgspec

from fleetcraft.errors import FleetError
from fleetcraft.process import die_with_parent
from fleetcraft.spool.record import escaped
from fleetcraft.worker.loop import Worker
from fleetcraft.worker.settings import WorkerExit, WorkerSettings

_TELL_EVERY_S = 0.05


class Member(Worker):
    """Reports that it is idle instead of deciding by itself when to leave.

    Args:
        settings: How it behaves.
        teller: Tells the parent.
    """

    idle_limit_s = 0.5  # a fellow's end may make something claimable at any moment

    def __init__(self, settings: WorkerSettings, teller: Teller) -> None:
        super().__init__(settings, teller.tell)
        self._teller = teller
        self._parent_speaks = True

    def on_idle(self) -> None:
        """Tells the parent that a whole walk found nothing, and when that may change."""
        self._teller.tell({"event": "idle", "next_chance_s": self.next_chance_s()})

    def before_wait(self) -> float:
        """Passes on what is due; says when the rest will be."""
        return self._teller.flush_if_due()

    def extra_fds(self) -> list[int]:
        """The parent's word."""
        return [0] if self._parent_speaks else []

    def on_ready(self, ready: list[int]) -> None:
        """Looks again when the parent asks; leaves when it says so, or has closed the pipe."""
        if 0 not in ready:
            return
        said = os.read(0, 4096)
        if said and b"leave" not in said:
            self.look_now()
            return
        self._parent_speaks = False
        why = said.partition(b"leave")[2].decode("utf-8", "replace").strip()
        usual = "nothing is left to claim" if said else "its parent is gone"
        self.leave(why or usual, quiet=True)


class Teller:
    """Events for the parent, gathered for at most 50 ms.

    At a thousand tasks a second a write and a wake-up for each would cost as much as the task.
    For the same reason the start of a task that has ended within one gathering is left out.
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._starts: dict[object, int] = {}
        self._due = 0.0
        self._idle = True

    def tell(self, event: Mapping[str, object]) -> None:
        """Gathers one event; what changes whether this worker is idle goes out at once."""
        kind = event["event"]
        if kind == "start":
            self._starts[event["claim"]] = len(self._lines)
        elif kind == "end" and (index := self._starts.pop(event["claim"], None)) is not None:
            self._lines[index] = b""
        try:
            line = msgspec.json.encode(event)
        except UnicodeEncodeError:  # of a reason that names a file
            line = msgspec.json.encode(escaped(dict(event)))
        self._lines.append(line + b"\n")
        if kind == "idle" or self._idle or time.monotonic() >= self._due:
            self.flush()
        self._idle = kind == "idle"

    def flush_if_due(self) -> float:
        """Passes on what has waited long enough; returns the monotonic time the rest is due."""
        if not self._lines:
            return float("inf")
        if time.monotonic() >= self._due:
            self.flush()
            return float("inf")
        return self._due

    def flush(self) -> None:
        """Passes on everything."""
        data = b"".join(self._lines)
        self._lines.clear()
        self._starts.clear()
        self._due = time.monotonic() + _TELL_EVERY_S
        try:
            while data:
                data = data[os.write(1, data) :]
        except BrokenPipeError:
            return  # the parent is gone; its death signal follows


def main() -> None:
    """Runs one member until it leaves, as its command line says."""
    settings = msgspec.json.decode(sys.argv[1], type=WorkerSettings)
    raise SystemExit(run_member(settings, int(sys.argv[2])))


def run_member(settings: WorkerSettings, parent_pid: int) -> int:
    """Runs one member until it leaves; returns its exit code."""
    if not die_with_parent(parent_pid, signal.SIGTERM):
        return WorkerExit.TERMINATED
    teller = Teller()
    try:
        member = Member(settings, teller)
        _spare_the_collector()
        teller.tell({"event": "arrive", "launch": member.lease.name})
        try:
            report = member.run()
        finally:
            member.close()
    except FleetError as error:
        teller.tell({"event": "refused", "text": error.message, "hint": error.hint})
        teller.flush()
        return error.exit_code
    teller.tell({"event": "leave", "reason": report.reason, "exit_code": report.exit_code})
    teller.flush()
    return report.exit_code


def _spare_the_collector() -> None:
    # What lives for ever need not be looked through again, and a task makes no cycles.
    gc.freeze()
    gc.set_threshold(50_000)


if __name__ == "__main__":
    main()
