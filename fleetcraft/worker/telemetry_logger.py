"""The telemetry logger of this node, as the worker sees it: started, listened to, and let go.

It must be no descendant of the worker: one that runs one task at a time takes every descendant for
that task's, and stops it. So it is started twice removed, before the worker adopts orphans, under a
parent of its own (`logger_keeper`). Not here: what is logged.
Invariant: no worker waits for it, but for a moment at its own end, and none fails because of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
import time

import msgspec

from fleetcraft.identity import this_host
from fleetcraft.worker.logger_keeper import LAST
from fleetcraft.worker.pack import is_pack
from fleetcraft.worker.settings import WorkerSettings

_RESTART_PAUSES_S = (1.0, 5.0, 25.0, 125.0, 300.0)
_END_WAIT_S = 2.0
_LOCK_WAIT_S = 5.0
LOST = "lost"
"""The first word of a line in which the logger itself says that the driver has lost a GPU."""
_SHELL = "/bin/sh"  # unlike bash it reads no BASH_ENV, which sites fill with slow modules
_PR_GET_CHILD_SUBREAPER = 37


class TelemetryLogger:
    """This node's logger; nothing when telemetry is off, or in a pack, whose node has one.

    Made before the worker becomes a child subreaper. What went wrong is told by `hear`.

    Args:
        settings: The worker's.

    Attributes:
        lost: What the logger said of the first GPU that was lost; empty while none was.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._watch_fd = -1
        self._words_fd = -1
        self.lost = ""
        self._heard = b""
        self._over = False
        self._untold: list[str] = []
        if not _wanted(settings):
            return
        try:
            self._start(settings)
        except OSError as error:
            problem = error.strerror or str(error)
            self._untold.append(f"no telemetry: its logger cannot be started: {problem}")

    def _start(self, settings: WorkerSettings) -> None:
        if _adopts_orphans():
            raise OSError(0, "this process is a child subreaper already")
        watch_fd, self._watch_fd = os.pipe2(os.O_CLOEXEC)
        self._words_fd, words_fd = os.pipe2(os.O_CLOEXEC)
        try:
            for fd in (watch_fd, words_fd):
                os.set_inheritable(fd, True)
            _spawn_twice_removed(_command(settings, watch_fd, words_fd))
        except OSError:
            self._close()
            raise
        finally:
            os.close(watch_fd)
            os.close(words_fd)

    def fds(self) -> list[int]:
        """What is readable when `hear` may have news."""
        return [self._words_fd] if self._words_fd >= 0 else []

    def hear(self, ready: list[int]) -> list[str]:
        """What is to be noted, given the readable descriptors: each thing once, without waiting."""
        told, self._untold = self._untold, []
        if self._words_fd < 0 or self._words_fd not in ready:
            return told
        data = os.read(self._words_fd, 4096)
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            kind, _, text = line.decode("utf-8", "replace").partition(" ")
            self._over |= kind == LAST
            if kind == LOST:
                self.lost = self.lost or text
            told.append(text)
        if not data:
            if not self._over:
                told.append("the telemetry logger is gone; nothing more is logged here")
            self._close()
        return told

    def end(self) -> None:
        """Lets it end, and waits for that a moment: the end of a step would cut its last words."""
        if self._watch_fd < 0:
            return
        os.close(self._watch_fd)
        self._watch_fd = -1
        deadline = time.monotonic() + _END_WAIT_S
        while self._words_fd >= 0 and (left_s := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._words_fd], [], [], left_s)
            if ready and not os.read(self._words_fd, 4096):
                break
        self._close()

    def _close(self) -> None:
        for fd in (self._watch_fd, self._words_fd):
            if fd >= 0:
                os.close(fd)
        self._watch_fd = self._words_fd = -1


def _wanted(settings: WorkerSettings) -> bool:
    if not settings.telemetry_dir or settings.telemetry_interval_s <= 0:
        return False
    return not is_pack(settings.root, os.environ)


def _command(settings: WorkerSettings, watch_fd: int, words_fd: int) -> list[str]:
    """The keeper's command line, which ends with the logger's."""
    here = this_host()
    logger = {
        "folder": settings.telemetry_dir,
        "interval_s": settings.telemetry_interval_s,
        "node": here.host,
        "job": settings.run.job or here.local_job,
        "step": settings.run.step,
        "cluster": settings.run.cluster,
        "watch_fd": watch_fd,
        "done_fd": words_fd,
        "wait_s": _LOCK_WAIT_S,
    }
    # As this process was started: with -P, a folder of the project is no place for modules.
    python = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m"]
    pauses = ",".join(f"{pause_s:g}" for pause_s in _RESTART_PAUSES_S)
    return [
        *python, "fleetcraft.worker.logger_keeper", str(watch_fd), str(words_fd), pauses,
        *python, "fleetcraft.telemetry.logger", msgspec.json.encode(logger).decode(),
    ]  # fmt: skip


def _spawn_twice_removed(command: list[str]) -> None:
    """Starts a command in a session of its own whose parent has gone when this returns."""
    pid = os.posix_spawn(
        _SHELL,
        [_SHELL, "-c", '"$@" &', "sh", *command],
        _environment(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            # The worker's own may be pipes whose readers wait for their end.
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
        ],
        setsid=True,
    )
    os.waitpid(pid, 0)


def _environment() -> dict[str, str]:
    """The worker's, without what marks a task and what belongs to it."""
    return {name: text for name, text in os.environ.items() if not name.startswith("FLEET_")}


def _adopts_orphans() -> bool:
    answer = ctypes.c_int(0)
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return answer.value != 0
