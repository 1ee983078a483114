"""The keeper of one slot: a small process that is subreaper and parent of that slot's tasks.

Started by a worker with several slots; speaks JSON lines over the socket whose number is its
argument, and gets a task's log and gate as descriptors. When the socket closes it stops what runs
and leaves: a worker that was killed leaves no task behind. Invariant: one task at a time.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from typing import Any

import msgspec

from fleetcraft.process import Ended, TaskProcess, become_subreaper


class Keeper:
    """Serves one worker's slot."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._buffer = b""
        self._fds: list[int] = []
        self._task = TaskProcess()
        self._grace_s = 10.0
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The worker decides when a task stops; the keeper only follows it.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)

    def serve(self) -> None:
        """Until the worker closes the socket."""
        try:
            while self._look():
                pass
        finally:
            self._task.stop(self._grace_s)

    def _look(self) -> bool:
        channel = self._channel.fileno()
        ready, _, _ = select.select([channel, self._wake], [], [])
        if self._wake in ready:
            os.read(self._wake, 4096)
        ended = self._task.poll()
        if ended is not None:
            self._tell_ended(ended)
        return channel not in ready or self._listen()

    def _listen(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, 65536, 2)
        except ConnectionError:
            return False  # the worker was killed before it had read what it was told last
        for fd in fds:
            # A task gets them under numbers of its own, not under these too; recv_fds of Python
            # 3.11 drops the flag that would say so.
            os.set_inheritable(fd, False)
        self._fds += fds
        if not data:
            return False
        self._buffer += data
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            # One "!" travels with the descriptors, ahead of the message that uses them.
            self._obey(msgspec.json.decode(line.lstrip(b"!"), type=dict[str, Any]))
        return True

    def _obey(self, message: dict[str, Any]) -> None:
        if message["do"] == "start":
            self._start(message)
        elif self._task.pid is not None:
            ended = self._task.stop(float(message["grace_s"]))
            if ended is not None:
                self._tell_ended(ended)

    def _start(self, message: dict[str, Any]) -> None:
        self._grace_s = float(message["grace_s"])
        log_fd, *gate = self._fds
        try:
            pid = self._task.start(
                [word.encode("latin-1") for word in message["argv"]],
                {
                    key.encode("latin-1"): value.encode("latin-1")
                    for key, value in message["env"].items()
                },
                log_fd=log_fd,
                gate_fd=gate[0] if gate else None,
                grace_s=self._grace_s,
            )
            self._tell({"pid": pid})
        except OSError as error:
            self._tell({"error": error.strerror or str(error), "errno": error.errno or 0})
        finally:
            for fd in self._fds:
                os.close(fd)
            self._fds = []

    def _tell_ended(self, ended: Ended) -> None:
        self._tell({"ended": ended})

    def _tell(self, message: object) -> None:
        try:
            self._channel.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            return  # the worker is gone; the closed socket ends the loop


def main() -> None:
    """Serves the socket that was inherited under the number given as the only argument."""
    become_subreaper()
    channel = socket.socket(fileno=int(sys.argv[1]))
    # A task that had it too would hide the keeper's death from the worker.
    channel.set_inheritable(False)
    Keeper(channel).serve()


if __name__ == "__main__":
    main()
