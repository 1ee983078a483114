"""The node's gate: untimed attempts share the node, a timed one has it alone.

Two lock files in node-local memory, keyed by scratch root and node name: whoever wants the node
alone holds the turnstile, so that no new sharer enters while it waits for the room to empty.
Tasks inherit the room's descriptor: the gate stays shut while any process of an attempt lives,
also when its worker was killed. Invariant: nothing here blocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

from fleetcraft.errors import UnsafeSpoolError
from fleetcraft.identity import sha256_hex, this_host


class Gate:
    """One slot's place at the node's gate.

    Args:
        root: The scratch tree.
    """

    def __init__(self, root: str) -> None:
        key = sha256_hex(f"{os.path.realpath(root)}\n{this_host().host}".encode())
        folder = _private_folder()
        self._turnstile = _open(f"{folder}/{key[:24]}.turnstile")
        self._room = _open(f"{folder}/{key[:24]}.room")
        self._holds_turnstile = False
        self.held = False

    @property
    def room_fd(self) -> int:
        """The descriptor that a task inherits."""
        return self._room

    @property
    def waits(self) -> bool:
        """Whether this one is next, alone, as soon as the room is empty."""
        return self._holds_turnstile

    def enter_shared(self) -> bool:
        """Enters beside other untimed attempts; False while a timed one runs or waits."""
        self._release_turnstile()
        if not _try_lock(self._turnstile, fcntl.LOCK_SH):
            return False
        self.held = _try_lock(self._room, fcntl.LOCK_SH)
        fcntl.flock(self._turnstile, fcntl.LOCK_UN)
        return self.held

    def enter_alone(self) -> bool:
        """Enters alone; False while others are in, and then nobody new enters before this one."""
        if not self._holds_turnstile:
            self._holds_turnstile = _try_lock(self._turnstile, fcntl.LOCK_EX)
            if not self._holds_turnstile:
                return False
        self.held = _try_lock(self._room, fcntl.LOCK_EX)
        if self.held:
            self._release_turnstile()
        return self.held

    def leave(self) -> None:
        """Leaves the room, or stops waiting for it."""
        self._release_turnstile()
        if self.held:
            fcntl.flock(self._room, fcntl.LOCK_UN)
            self.held = False

    def close(self) -> None:
        """Leaves and closes the descriptors."""
        self.leave()
        os.close(self._turnstile)
        os.close(self._room)

    def _release_turnstile(self) -> None:
        if self._holds_turnstile:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)
            self._holds_turnstile = False


class OpenGate(Gate):
    """The gate inside a pack: the outer task has passed the node's gate for all that it runs."""

    def __init__(self) -> None:
        self.held = False

    def enter_shared(self) -> bool:
        """Always."""
        return True

    def enter_alone(self) -> bool:
        """Never: a pack shares its node among its own slots."""
        return False

    @property
    def waits(self) -> bool:
        """Never."""
        return False

    def leave(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is open."""


def _private_folder() -> str:
    base = "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp"
    folder = f"{base}/fleetcraft-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    facts = os.lstat(folder)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise UnsafeSpoolError(folder, "it is not a private folder of this user")
    return folder


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
