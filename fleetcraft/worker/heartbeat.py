"""The worker's heartbeat: a thread that refreshes the lease and looks after the claims.

A thread of its own, so that a long finish or a slow mount does not make the worker look dead.
Invariant: it changes nothing but the lease; what it sees it leaves for the main loop to act on.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable

from fleetcraft.spool import leases
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.tree import SpoolTree, unreadable


class Heartbeat:
    """Beats every interval, with a little jitter so that a fleet does not beat as one.

    Args:
        tree: The spool.
        lease: Published here, its counter growing.
        wake: Called when there is something for the main loop to see.
    """

    def __init__(self, tree: SpoolTree, lease: Lease, wake: Callable[[], None]) -> None:
        self._tree = tree
        self._lease = lease
        self._wake = wake
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._watched: dict[str, str] = {}
        self.vanished: set[str] = set()
        self.cancelled: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Publishes the lease, which must precede the first claim, and starts beating.

        Raises:
            SpoolError: The lease cannot be written.
        """
        try:
            leases.publish(self._tree, self._lease)
        except OSError as error:
            raise unreadable(self._tree.paths.lease(self._lease.name), error) from error
        self._thread.start()

    def watch(self, task: str, claim_path: str) -> None:
        """Looks after a claim from now on."""
        with self._lock:
            self._watched[task] = claim_path

    def forget(self, task: str) -> None:
        """Stops looking after a claim, before it is closed."""
        with self._lock:
            self._watched.pop(task, None)
            self.vanished.discard(task)
            self.cancelled.discard(task)

    def leave(self, reason: str, *, holds_claims: bool) -> None:
        """Beats for the last time; a worker that holds nothing says that it has left."""
        from fleetcraft.clock import timestamp

        self._stop.set()
        self._thread.join(timeout=self._lease.interval_s)
        if not holds_claims:
            self._lease.left_at = timestamp()
            self._lease.reason = reason
        with contextlib.suppress(OSError):
            leases.publish(self._tree, self._lease)

    def stop(self) -> None:
        """Beats no more; the lease stays as it is."""
        self._stop.set()

    def _run(self) -> None:
        # A child that ends while the main thread blocks signals would else wake this one for it.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        while not self._stop.wait(self._lease.interval_s * random.uniform(0.9, 1.0)):
            self._beat()

    def _beat(self) -> None:
        self._lease.counter += 1
        # A beat that cannot be written is simply missing, which is what observers go by.
        with contextlib.suppress(OSError):
            leases.publish(self._tree, self._lease)
        with self._lock:
            watched = list(self._watched.items())
        news = False
        for task, path in watched:
            news |= self._look_at(task, path)
        if news:
            self._wake()

    def _look_at(self, task: str, path: str) -> bool:
        try:
            gone = not self._tree.fs.exists(path)
            cancel = self._tree.fs.exists(self._tree.paths.cancel_marker(task))
        except OSError:
            return False  # unknown is not gone
        with self._lock:
            if self._watched.get(task) != path:
                return False
            if gone:
                self.vanished.add(task)
            elif cancel:
                self.cancelled.add(task)
        return gone or cancel
