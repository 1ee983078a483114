"""A slot: a place for one running task, with its process tree, its gate and, maybe, its GPU.

With one slot the worker itself is the subreaper and owns the task's processes. With several, or
where it has children of its own, one keeper process per slot does, so that a grandchild that
escapes is still attributed to its slot.
Both look the same from here: start, ended, stop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from fleetcraft.errors import DeviceError, UsageError
from fleetcraft.process import Ended, TaskProcess, become_subreaper, has_children
from fleetcraft.worker.batch_order import NO_BATCH, BatchOrder
from fleetcraft.worker.environment import as_bytes, stream_id
from fleetcraft.worker.gate import Gate, OpenGate, hold_node_alone

if TYPE_CHECKING:
    import socket

    from fleetcraft.spool.leases import Lease
    from fleetcraft.worker.attempt import Attempt

MAX_SLOTS = 256
"""Three descriptors a slot, and select(2) ends at 1024."""


class KeeperGone(Exception):
    """The keeper of a slot died; what it ran may live on."""


class Runner(Protocol):
    """What runs one task at a time for a slot.

    Each method but `close` raises `KeeperGone` when the process that runs the task for us died.
    """

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[bytes, bytes],
        *,
        log_fd: int,
        gate_fd: int | None,
        grace_s: float,
    ) -> int:
        """Starts a task and returns its pid; OSError when it cannot be started."""

    def poll(self) -> Ended | None:
        """How the task ended, once it has and all of it is gone."""

    def stop(self, grace_s: float) -> Ended | None:
        """Stops the task; returns how it ended, or None when that is told later by `poll`."""

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when `poll` may have news; None: SIGCHLD tells."""

    def close(self) -> None:
        """Gives up the runner; a task that still runs is stopped."""


class OwnRunner(TaskProcess):
    """Runs the task as a child of the worker itself."""

    def __init__(self) -> None:
        super().__init__()
        become_subreaper()

    def fileno(self) -> int | None:
        """None: SIGCHLD tells."""
        return None

    def close(self) -> None:
        """Stops what still runs, which is so only when the worker itself failed."""
        self.stop(self._grace_s)


class KeeperRunner:
    """Runs the task as a child of a keeper process, over a socket.

    The keeper stops its task and leaves when the socket closes, so also when the worker dies.
    """

    def __init__(self) -> None:
        import socket
        import subprocess

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket: socket.socket = ours
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fleetcraft.worker.keeper", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # The worker's own may be a pipe whose reader waits for its end.
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[bytes, bytes],
        *,
        log_fd: int,
        gate_fd: int | None,
        grace_s: float,
    ) -> int:
        """Hands the log and the gate to the keeper and waits until the task runs."""
        import socket

        message = {
            "do": "start",
            "argv": [os.fsencode(word).decode("latin-1") for word in argv],
            # Names and values are bytes to the system; JSON carries each as one character.
            "env": {k.decode("latin-1"): v.decode("latin-1") for k, v in env.items()},
            "grace_s": grace_s,
        }
        fds = [log_fd] if gate_fd is None else [log_fd, gate_fd]
        try:
            socket.send_fds(self._socket, [b"!"], fds)
        except ConnectionError as error:
            raise KeeperGone from error
        self._send(message)
        answer = self._receive()
        if answer.get("error"):
            raise OSError(answer["errno"], answer["error"])
        return int(answer["pid"])

    def poll(self) -> Ended | None:
        """The keeper's word, if it has spoken."""
        import select

        if b"\n" not in self._buffer:
            ready, _, _ = select.select([self._socket], [], [], 0)
            if not ready:
                return None
        return _ended(self._receive())

    def stop(self, grace_s: float) -> Ended | None:
        """Asks the keeper to stop the task; `poll` tells when it has."""
        self._send({"do": "stop", "grace_s": grace_s})
        return None

    def fileno(self) -> int | None:
        """The socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the socket, at which the keeper stops its task and leaves, and waits for that."""
        self._socket.close()
        self._process.wait()

    def _send(self, message: object) -> None:
        try:
            self._socket.sendall(msgspec.json.encode(message) + b"\n")
        except ConnectionError as error:
            raise KeeperGone from error

    def _receive(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            try:
                chunk = self._socket.recv(65536)
            except ConnectionError as error:
                raise KeeperGone from error
            if not chunk:
                raise KeeperGone
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return msgspec.json.decode(line, type=dict[str, Any])


def _ended(message: dict[str, Any]) -> Ended:
    return msgspec.convert(message["ended"], Ended)


@dataclass(slots=True, kw_only=True)
class Slot:
    """One place for a running task.

    Attributes:
        index: Its number on this node, from 0.
        gpu: UUID or name of its GPU; empty for a slot without one.
        runner: What runs its task.
        gate: Its place at the node's gate.
        attempt: What runs in it now.
        environment: What its tasks get beside the worker's own environment.
        batch: What was judged of the task that was claimed for it last.
    """

    index: int
    gpu: str
    runner: Runner
    gate: Gate
    environment: dict[bytes, bytes]
    attempt: Attempt | None = None
    batch: BatchOrder = NO_BATCH

    def renew(self) -> None:
        """Gives up a keeper that died, and starts another.

        Raises:
            OSError: It cannot be started.
        """
        fresh = KeeperRunner()
        self.runner.close()
        self.runner = fresh


def count_slots(text: str) -> list[str]:
    """What slots a worker has.

    Args:
        text: ``1``, a number, or ``gpu`` for one per physical GPU.

    Returns:
        One entry a slot: the GPU's UUID, or empty.

    Raises:
        UsageError: It is neither a number from 1 to 1024 nor ``gpu``.
        DeviceError: ``gpu`` was asked for and no GPU can be seen.
    """
    if text == "gpu":
        from fleetcraft.gpu.nvml import visible_gpus

        gpus = visible_gpus()
        if not gpus:
            raise DeviceError(
                "no GPU can be seen from here, so --slots gpu has no slots",
                hint="check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --slots N",
            )
        return gpus
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MAX_SLOTS:
        raise UsageError(
            f"bad number of slots {text!r}: expected 1 to {MAX_SLOTS}, or gpu", slots=text
        )
    return [""] * int(text)


def make_slots(gpus: list[str], lease: Lease, *, root: str, pack: bool) -> list[Slot]:
    """Makes the slots of a worker, with keepers where there are several or it has children.

    A pack first waits until it has the node alone.

    Raises:
        TryAgainLaterError: It is a pack, and another task waits for the node alone.
    """
    room = hold_node_alone(root) if pack else None
    # Its own children would be taken for its task's, and stopped with what that leaves behind.
    keeps = len(gpus) > 1 or has_children()
    slots = []
    for index, gpu in enumerate(gpus):
        environment = {
            "FLEET_PHYSICAL_SLOT": f"{lease.host}/{gpu or f'slot{index}'}",
            "FLEET_STREAM": stream_id(lease.name, str(index)),
        }
        if gpu:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        runner: Runner = KeeperRunner() if keeps else OwnRunner()
        slots.append(
            Slot(
                index=index,
                gpu=gpu,
                runner=runner,
                gate=OpenGate(room) if pack else Gate(root),
                environment=as_bytes(environment),
            )
        )
    return slots


def held_tokens(slots: Sequence[Slot]) -> set[str]:
    """The tokens of the claims that run in these slots."""
    return {slot.attempt.held.owner.token for slot in slots if slot.attempt is not None}


def close_slots(slots: Sequence[Slot]) -> None:
    """Gives up the gates and keepers."""
    for slot in slots:
        slot.runner.close()
        slot.gate.close()


def bash_argv(bash: str, record_path: str, *, login: bool) -> list[str]:
    """The command line that runs a record: bash reads the file itself, so exec costs one start."""
    return [bash, "-l", record_path] if login else [bash, record_path]
