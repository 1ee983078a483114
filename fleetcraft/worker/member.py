"""A worker of a local fleet: it tells its parent what it does, and leaves when it is told to.

Started by `local_fleet` with its settings as JSON on the command line. Events go to stdout as JSON
lines; a line on stdin, or its end, is the parent's word to leave. Invariant: a member does not
outlive its parent.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

import msgspec

from fleetcraft.errors import FleetError
from fleetcraft.process import die_with_parent
from fleetcraft.worker.loop import Worker
from fleetcraft.worker.settings import WorkerSettings


class Member(Worker):
    """Reports that it is idle instead of deciding by itself when to leave."""

    def on_idle(self) -> None:
        """Tells the parent that a whole walk found nothing, and when that may change."""
        self.tell({"event": "idle", "next_chance_s": self._claimer.next_chance_s()})

    def extra_fds(self) -> list[int]:
        """The parent's word."""
        return [0]

    def on_ready(self, ready: list[int]) -> None:
        """Leaves when the parent says so, or has closed the pipe."""
        if 0 in ready:
            os.read(0, 4096)
            self.leave("nothing is left to claim")

    def tell(self, event: Mapping[str, object]) -> None:
        """Writes one event for the parent."""
        tell_parent(event)


def tell_parent(event: Mapping[str, object]) -> None:
    """Writes one JSON line to stdout in one call."""
    try:
        os.write(1, msgspec.json.encode(event) + b"\n")
    except BrokenPipeError:
        return  # the parent is gone; its death signal follows


def main() -> None:
    """Runs one member until it leaves."""
    settings = msgspec.json.decode(sys.argv[1], type=WorkerSettings)
    if not die_with_parent(int(sys.argv[2]), signal.SIGTERM):
        raise SystemExit(143)
    try:
        member = Member(settings, tell_parent)
        tell_parent({"event": "arrive", "launch": member.lease.name})
        try:
            report = member.run()
        finally:
            member.close()
    except FleetError as error:
        tell_parent({"event": "refused", "text": error.message, "hint": error.hint})
        raise SystemExit(error.exit_code) from None
    tell_parent({"event": "leave", "reason": report.reason, "exit_code": report.exit_code})
    raise SystemExit(report.exit_code)


if __name__ == "__main__":
    main()
