"""Which pending tasks this worker may claim now, judged from their headers before the rename.

Invariant: a task that is passed over is passed over for a reason that ends, or that only another
worker can cure; nothing is claimed to be judged afterwards.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from fleetcraft.clock import age_on_mount_s, parse_timestamp
from fleetcraft.errors import DataError
from fleetcraft.spool import leases
from fleetcraft.spool.claims import Known
from fleetcraft.spool.record import SPENDING, Outcome, Record, closing_lines, parse
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.worker.limits import Walltime
from fleetcraft.worker.outcome import TRY_AGAIN_EXIT

_FOREVER = float("inf")
_HOSTS_EVERY_S = 30.0
_BACKOFF_FIRST_S = 2.0
_BACKOFF_LIMIT_S = 300.0
_MAX_REMEMBERED = 50_000


class Eligibility:
    """Judges candidates for one worker, remembering what it passed over.

    Args:
        tree: The spool.
        lease: This worker's lease, whose file tells the mount's time.
        walltime: What is left of the allocation.
        in_pack: Whether this worker is itself a task; timed tasks are then left to whole nodes.
    """

    def __init__(
        self, tree: SpoolTree, lease: leases.Lease, walltime: Walltime, *, in_pack: bool
    ) -> None:
        self._tree = tree
        self._lease = lease
        self._walltime = walltime
        self._in_pack = in_pack
        self._until: dict[str, float] = {}
        self._walk_began = 0.0
        self._others: bool = False
        self._others_asked = -_HOSTS_EVERY_S

    def begin_walk(self) -> None:
        """Told before a walk over the candidates begins."""
        self._walk_began = time.monotonic()

    def passed_over(self, name: str) -> bool:
        """Whether a task was passed over not long ago, so that it need not be read again."""
        until = self._until.get(name)
        if until is None:
            return False
        if until > time.monotonic():
            return True
        del self._until[name]
        return False

    def next_chance_s(self) -> float | None:
        """Seconds until a task that was passed over for a while may be claimed; None: no such.

        Asked after a whole walk, which would have met and judged again every task whose time was
        up when it began: what is left of those is gone from the queue, claimed by somebody else.
        """
        for name in [name for name, until in self._until.items() if until < self._walk_began]:
            del self._until[name]
        finite = [until for until in self._until.values() if until != _FOREVER]
        return max(0.0, min(finite) - time.monotonic()) if finite else None

    def read(self, path: str, name: str) -> Known | None:
        """A candidate as it is before the claim; None when it is no record of this name.

        Such a one is claimed all the same, read with all checks, and filed as a failed launch.

        Raises:
            FileNotFoundError: It is gone.
        """
        data = self._tree.fs.peek(path)
        try:
            record = parse(data)
        except DataError:
            return None
        return Known(data, record) if record.spec.name == name else None

    def allows(self, record: Record, *, gpu: bool) -> bool:
        """Whether this worker may claim the task now; if not, remembers until when."""
        spec = record.spec
        if not (record.history or spec.slot or spec.timed or spec.time_s):
            return True
        wait_s = self._must_wait_s(record, gpu=gpu)
        if wait_s <= 0:
            return True
        self.pass_over(record.spec.name, wait_s)
        return False

    def pass_over(self, name: str, wait_s: float) -> None:
        """Passes a task over for a while, or for ever with an infinite one."""
        if len(self._until) >= _MAX_REMEMBERED:
            self._until.clear()
        self._until[name] = time.monotonic() + wait_s

    def take_up(self, name: str) -> None:
        """Judges a task anew that was passed over."""
        self._until.pop(name, None)

    def _must_wait_s(self, record: Record, *, gpu: bool) -> float:
        spec = record.spec
        if spec.slot and not (gpu and spec.slot == "gpu"):
            return _FOREVER
        if not self._walltime.allows(spec.time_s):
            return _FOREVER
        if spec.timed and self._in_pack:
            return _FOREVER
        return self._must_wait_for_history_s(record) if record.history else 0.0

    def _must_wait_for_history_s(self, record: Record) -> float:
        lines = closing_lines(record)
        last = lines[-1]
        if last.outcome is Outcome.INTERRUPTED and last.exit_code == TRY_AGAIN_EXIT:
            times = sum(line.exit_code == TRY_AGAIN_EXIT for line in lines)
            backoff_s = min(_BACKOFF_LIMIT_S, _BACKOFF_FIRST_S * 2.0 ** (times - 1))
            ended = parse_timestamp(last.ended_at or "")
            elapsed = (datetime.now(UTC) - ended).total_seconds() if ended else backoff_s
            # Another host's clock may be wrong by more than the backoff; waiting stays bounded.
            return min(backoff_s, backoff_s - elapsed)
        if last.outcome in SPENDING and last.host == self._lease.host and self._others_live():
            return _HOSTS_EVERY_S
        return 0.0

    def _others_live(self) -> bool:
        now = time.monotonic()
        if now - self._others_asked >= _HOSTS_EVERY_S:
            self._others_asked = now
            self._others = any(self._lives(lease) for lease in leases.each(self._tree))
        return self._others

    def _lives(self, lease: leases.Lease) -> bool:
        if lease.host == self._lease.host or lease.left_at or lease.role != "worker":
            return False
        paths = self._tree.paths
        try:
            age_s = age_on_mount_s(paths.lease(lease.name), paths.lease(self._lease.name))
        except OSError:
            return False
        # Its file may be this much older than ours without missing a beat.
        return age_s < leases.SILENT_INTERVALS * lease.interval_s
