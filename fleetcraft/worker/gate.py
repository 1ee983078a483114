"""The node's gate: untimed attempts share the node, a timed one has it alone.

Two lock files in node-local memory, keyed by scratch root and node name: whoever wants the node
alone holds the turnstile, so that no new sharer enters while it waits for the room to empty.
Tasks inherit the room's descriptor: the gate stays shut while any process of an attempt lives,
also when its worker was killed. Invariant: nothing here blocks.
"""

from __future__ import annotations

import fcntl
import os
import time

from fleetcraft.errors import TryAgainLaterError
from fleetcraft.identity import sha256_hex, this_host
from fleetcraft.process import GATE_FD
from fleetcraft.trust import node_local_folder

_PACK_PAUSE_S = 0.05


class Gate:
    """One slot's place at the node's gate.

    Args:
        root: The scratch tree.
    """

    def __init__(self, root: str) -> None:
        folder = node_local_folder()
        self._turnstile = _open(_path(folder, root, "turnstile"))
        self._room = _open(_path(folder, root, "room"))
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
    """The gate inside a pack: the outer task has passed the node's gate for all that it runs.

    Args:
        room_fd: The outer task's own hold of the room, handed on to what runs here, so that the
            node stays shut while any of that lives; None where this process did not inherit it.
    """

    def __init__(self, room_fd: int | None = None) -> None:
        self._outer_room = room_fd
        self.held = False

    @property
    def room_fd(self) -> int:
        """The descriptor that a task inherits, asked for only while this is held."""
        assert self._outer_room is not None
        return self._outer_room

    def enter_shared(self) -> bool:
        """Always."""
        self.held = self._outer_room is not None
        return True

    def enter_alone(self) -> bool:
        """Never: a pack shares its node among its own slots."""
        return False

    @property
    def waits(self) -> bool:
        """Never."""
        return False

    def leave(self) -> None:
        """Nothing is unlocked: the room is the outer task's to give up."""
        self.held = False

    def close(self) -> None:
        """Nothing is open."""


def hold_node_alone(root: str, *, patience_s: float = 2.0) -> int | None:
    """Waits until the outer task of this process, a pack, has the node alone.

    A pack that was enqueued as timed has it. Any other shares the room so far with what the other
    slots of the outer worker run; its hold is made exclusive as soon as those have ended, and
    nothing new enters meanwhile.

    Args:
        root: The scratch tree.
        patience_s: It gives way when another one has been waiting for the node for so long: two
            that hold the room and wait for each other would never end.

    Returns:
        The descriptor of the room, which keeps the node shut; None when this process did not
        inherit it (a launcher in between closed it), so that the outer task's word is taken.

    Raises:
        TryAgainLaterError: Another task waits for the node alone.
    """
    if not _is_room(GATE_FD, root):
        return None
    folder = node_local_folder()
    probe = _open(_path(folder, root, "room"))
    turnstile = _open(_path(folder, root, "turnstile"))
    try:
        # Refused a share although the outer task is in: then it is in alone.
        if not _try_lock(probe, fcntl.LOCK_SH):
            return GATE_FD
        fcntl.flock(probe, fcntl.LOCK_UN)
        _take_turnstile(turnstile, patience_s)
        # Converting a lock gives it up first (flock(2)); with the turnstile held nobody else can
        # come in alone meanwhile, so the share can always be taken again.
        while not _try_lock(GATE_FD, fcntl.LOCK_EX):
            fcntl.flock(GATE_FD, fcntl.LOCK_SH)
            time.sleep(_PACK_PAUSE_S)
    finally:
        os.close(probe)
        os.close(turnstile)
    return GATE_FD


def _is_room(fd: int, root: str) -> bool:
    try:
        ours = os.fstat(fd)
        room = os.stat(_path(node_local_folder(), root, "room"))
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (room.st_dev, room.st_ino)


def _take_turnstile(turnstile: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not _try_lock(turnstile, fcntl.LOCK_EX):
        # Whoever merely enters holds it for a moment; who waits for the node holds it for long.
        if time.monotonic() >= deadline:
            raise TryAgainLaterError(
                "another task waits to have this node alone, so this pack gives way; "
                "nothing was claimed",
                hint="it is tried again by itself; publish packs as timed (fleetcraft bridge does)",
            )
        time.sleep(_PACK_PAUSE_S)


def _path(folder: str, root: str, kind: str) -> str:
    where = f"{os.path.realpath(root)}\n{this_host().host}"
    key = sha256_hex(where.encode("utf-8", "surrogateescape"))
    return f"{folder}/{key[:24]}.{kind}"


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
