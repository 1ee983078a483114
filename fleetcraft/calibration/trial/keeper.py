"""The keeper of trials: the process between who judges and what is tried.

``python -m fleetcraft.calibration.trial.keeper PARENT [MODULE ...]`` loads the modules once, then
starts one trial at a time: by a fork of itself, or in a fresh interpreter. It owns every wait, and
what a trial leaves behind becomes its child and is stopped. Invariant: when its parent is gone,
however that died, the trial is stopped, its journal says so, and then the keeper is gone too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from fleetcraft.calibration.trial.cgroup import remove_folders
from fleetcraft.calibration.trial.entering import Entry, enter
from fleetcraft.calibration.trial.orders import Order
from fleetcraft.clock import timestamp
from fleetcraft.files import FileSystem
from fleetcraft.process import Ended, TaskProcess, become_subreaper

_ORPHAN_GRACE_S = 2.0
_LEFTOVER_GRACE_S = 2.0
_LOOK_S = 1.0
STOPPED = "Stopped"
"""The kind of failure in the journal of a trial that was stopped from outside."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent asks: start a trial, or stop the one that runs, and why."""

    start: Entry | None = None
    stop: str = ""
    grace_s: float = 2.0


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the keeper says: ready, started, ended, or that it cannot go on.

    Attributes:
        ready: Sent once, when the modules are loaded.
        started: The trial's pid.
        ended: How it ended.
        failed: Why a request was not done, or why it is not ready.
    """

    ready: bool = False
    started: int | None = None
    ended: Ended | None = None
    failed: str = ""


class Tried(TaskProcess):
    """A trial's process tree; it can also be begun as a fork of this process."""

    def start_forked(self, run: Callable[[], int], grace_s: float) -> int:
        """Runs a function in a forked process and a session of its own, and exits with its value.

        Returns:
            The pid.

        Raises:
            OSError: No process could be made.
        """
        self._status = None
        self._cpu_s = 0.0
        self._max_rss_kib = 0
        self._grace_s = grace_s
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, which libraries start when they are loaded; they wait.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            self.pid = pid
            return pid
        code = 1
        try:
            os.setsid()
            code = run()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code & 0xFF)


class Keeper:
    """The loop: one pipe of requests, one of replies, one that wakes it for dead children."""

    def __init__(self, parent: int, requests_fd: int, replies_fd: int) -> None:
        self.parent = parent
        self.tried = Tried()
        self._entry: Entry | None = None
        self._requests_fd = requests_fd
        self._replies_fd = replies_fd
        self._pending = b""
        self._leave = False
        self._wake_fd, self._waker_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
        signal.set_wakeup_fd(self._waker_fd, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serves until the parent closes its end, is gone, or TERM comes."""
        while not self._leave and os.getppid() == self.parent:
            ready = select.select([self._requests_fd, self._wake_fd], [], [], _LOOK_S)[0]
            if self._wake_fd in ready:
                os.read(self._wake_fd, 4096)
            if self._requests_fd in ready and not self._take():
                break
            self._tell_if_ended()
        self._stop("the process that watched this trial is gone", _ORPHAN_GRACE_S)

    def say(self, reply: Reply) -> None:
        """One line to the parent; a parent that is gone is noticed elsewhere."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._replies_fd, msgspec.json.encode(reply) + b"\n")

    def _on_term(self, *_: object) -> None:
        self._leave = True

    def _take(self) -> bool:
        data = os.read(self._requests_fd, 1 << 16)
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._obey(msgspec.json.decode(line, type=Request))
        return bool(data)

    def _obey(self, request: Request) -> None:
        if request.start is not None:
            self._start(request.start)
        elif self.tried.pid is not None:
            self.say(Reply(ended=self._stop(request.stop, request.grace_s)))

    def _start(self, entry: Entry) -> None:
        self._entry = entry
        try:
            log = os.open(entry.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                pid = self._fresh(entry, log) if entry.fresh else self._forked(entry, log)
            finally:
                os.close(log)
        except OSError as error:
            self.say(Reply(failed=f"the trial's process could not be started: {error}"))
            return
        self.say(Reply(started=pid))

    def _fresh(self, entry: Entry, log: int) -> int:
        text = msgspec.json.encode(entry).decode()
        module = "fleetcraft.calibration.trial.entering"
        return self.tried.start(
            [sys.executable, "-P", "-m", module, text, str(os.getpid())],
            os.environb,
            log_fd=log,
            gate_fd=None,
            grace_s=_LEFTOVER_GRACE_S,
        )

    def _forked(self, entry: Entry, log: int) -> int:
        keeper_pid = os.getpid()

        def run() -> int:
            self._forget(log)
            enter(entry, keeper_pid)
            return run_program(entry)

        return self.tried.start_forked(run, _LEFTOVER_GRACE_S)

    def _forget(self, log: int) -> None:
        """In the forked process: nothing of the keeper's signals and pipes is left."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        # An end of these pipes that lived on here would hide the keeper's death from its parent.
        for fd in (self._requests_fd, self._replies_fd, self._wake_fd, self._waker_fd, nothing):
            os.close(fd)
        os.close(log)
        faulthandler.enable()

    def _tell_if_ended(self) -> None:
        if (ended := self.tried.poll()) is not None:
            self.say(Reply(ended=ended))

    def _stop(self, why: str, grace_s: float) -> Ended | None:
        ended = self.tried.stop(grace_s)
        if ended is not None and self._entry is not None:
            note_stop(self._entry.journal, why)
            if os.getppid() != self.parent or self._leave:
                remove_folders(self._entry.group_folders)
        return ended


def run_program(entry: Entry) -> int:
    """Calls ``main(order)`` of the trial's program."""
    with open(entry.order, "rb") as file:
        order = msgspec.json.decode(file.read(), type=Order)
    program: Any = importlib.import_module(entry.program)
    return int(program.main(order))


def note_stop(journal: str, why: str) -> None:
    """Appends to the journal of a stopped trial why it was stopped, on a line of its own.

    The first line of this kind in a journal is the cause, so one of the trial's own stays it.
    """
    fs = FileSystem()
    try:
        fd = fs.open_append(journal)
    except OSError:  # it had not begun one
        return
    try:
        told = {"event": "failed", "at": timestamp(), "kind": STOPPED, "message": why}
        line = msgspec.json.encode(told) + b"\n"
        fs.append(fd, line if fs.ends_with_newline(fd) else b"\n" + line)
        fs.datasync(fd)
    finally:
        fs.close(fd)


def main() -> None:
    """Loads, says so, and serves."""
    # Libraries may print; the parent reads nothing but replies.
    replies_fd, requests_fd = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    keeper = Keeper(int(sys.argv[1]), requests_fd, replies_fd)
    try:
        become_subreaper()
        for module in sys.argv[2:]:
            importlib.import_module(module)
    except (ImportError, OSError) as error:
        keeper.say(Reply(failed=f"{type(error).__name__}: {error}"))
        return
    keeper.say(Reply(ready=True))
    keeper.run()


if __name__ == "__main__":
    main()
