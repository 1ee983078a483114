"""The diary of one worker: each event goes to its journal and to whoever listens.

Invariant: what is told is what the journal says, and neither can stop the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fleetcraft.clock import timestamp
from fleetcraft.spool.leases import Journal, Lease
from fleetcraft.spool.record import HistoryLine
from fleetcraft.spool.tree import SpoolTree, unreadable
from fleetcraft.worker.attempt import Attempt
from fleetcraft.worker.slots import Slot

OnEvent = Callable[[Mapping[str, object]], None]


class Diary:
    """Writes down and tells.

    Args:
        tree: The spool.
        lease_name: Whose journal it is.
        on_event: Told of starts, ends and notes, as plain mappings.

    Raises:
        SpoolError: The journal cannot be made.
    """

    def __init__(self, tree: SpoolTree, lease_name: str, on_event: OnEvent) -> None:
        self._root = tree.paths.root
        try:
            self._journal = Journal(tree, lease_name)
        except OSError as error:
            raise unreadable(tree.paths.journal(lease_name), error) from error
        self._on_event = on_event
        self.untold = 0

    def arrive(self, lease: Lease, caches: Mapping[str, object]) -> None:
        """The worker is there: where, for which job, and with which GPUs and caches."""
        self._journal.write(
            {
                "event": "arrive",
                "at": timestamp(),
                "slots": lease.slots,
                "host": lease.host,
                "job": lease.job,
                "gpus": lease.gpus,
                "slot_gpus": lease.slot_gpus or ("",) * lease.slots,
                "caches": caches,
            }
        )

    def depth(self, counts: Mapping[str, int]) -> None:
        """How many tasks were in which state."""
        self._journal.write({"event": "depth", "at": timestamp(), **counts})

    def start(self, slot: Slot, attempt: Attempt) -> None:
        """An attempt runs."""
        self._tell(
            {
                "event": "start",
                "at": attempt.started_at,
                "task": attempt.held.name,
                "attempt": attempt.number,
                "claim": attempt.held.owner.token,
                "slot": slot.index,
                "pid": attempt.pid,
                "family": attempt.held.record.spec.family,
            }
        )

    def end(self, task: str, line: HistoryLine) -> None:
        """A claim is closed by this worker."""
        self._tell(
            {
                "event": "end",
                "at": line.ended_at,
                "task": task,
                "attempt": line.attempt,
                "claim": line.claim,
                "outcome": f"{line.outcome}",
                "to": line.to,
                "exit_code": line.exit_code,
                "wall_s": line.wall_s,
                "log": f"{self._root}/{line.log}" if line.log else "",
                "reason": line.reason,
            }
        )

    def note(self, text: str) -> None:
        """Something that a person should know."""
        self._tell({"event": "note", "at": timestamp(), "text": text})

    def leave(self, reason: str) -> None:
        """The worker leaves."""
        self._journal.write({"event": "leave", "at": timestamp(), "reason": reason})

    def close(self) -> None:
        """Closes the journal."""
        self._journal.close()

    def _tell(self, event: Mapping[str, object]) -> None:
        event = self._journal.write(event)
        try:
            self._on_event(event)
        except OSError:  # such as a pipe whose reader has gone; the journal has it all the same
            self.untold += 1
