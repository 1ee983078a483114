"""Real workers on a real spool: start them, watch them, kill them, and see what became of tasks.

Not here: what is right. Every wait is for a condition, with a deadline that only a hang can meet.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fleetcraft.identity import process_id
from fleetcraft.layout import Lane
from fleetcraft.spool import leases
from fleetcraft.spool.record import HistoryLine, Record
from fleetcraft.spool.store import Spool

REPO = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("driver.py")
DEADLINE_S = 60.0
T = TypeVar("T")


def wait_until(look: Callable[[], T], what: str, *, limit_s: float = DEADLINE_S) -> T:
    """The first true value that ``look`` gives."""
    deadline = time.monotonic() + limit_s
    while True:
        value = look()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {limit_s:g} s in vain: {what}"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    return process_id(pid) is not None


def processes_with(variable: str, value: str) -> list[int]:
    """Pids of living processes that have exactly this in their environment."""
    mark = f"{variable}={value}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if mark in environment and lives(int(name)):
                found.append(int(name))
    return found


class Running:
    """A worker or a local fleet that was started."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._out = out
        self._err = err

    def events(self, kind: str = "", **facts: object) -> list[dict[str, Any]]:
        """What it has told so far, or the part of it that matches."""
        found = []
        for line in self._out.read_text(encoding="utf-8").split("\n")[:-1]:
            event = json.loads(line)
            if (not kind or event["event"] == kind) and facts.items() <= event.items():
                found.append(event)
        return found

    def said(self) -> str:
        """Everything, for a person."""
        return f"{self._out.read_text()}\n--- stderr\n{self._err.read_text()}"

    def errors(self) -> str:
        return self._err.read_text()

    def wait(self, limit_s: float = DEADLINE_S) -> int:
        """Its exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {limit_s} s:\n{self.said()}") from None

    def report(self, limit_s: float = DEADLINE_S) -> dict[str, Any]:
        """What it reported at its end."""
        self.wait(limit_s)
        reports = self.events("report")
        assert reports, self.said()
        return reports[-1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def members(self) -> list[int]:
        """Pids of the workers of a local fleet."""
        return [pid for pid in children(self.pid) if b"worker.member" in command_line(pid)]

    def keepers(self) -> list[int]:
        """Pids of the keepers of a worker with several slots."""
        return [pid for pid in children(self.pid) if b"worker.keeper" in command_line(pid)]


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class Site:
    """A scratch tree with a spool, a project directory, and the workers that a test starts."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "scratch"
        self.project = base / "project"
        self.project.mkdir()
        self.spool = Spool.create(str(self.root / "taskq"), project_dir=str(self.project))
        self.started: list[Running] = []

    # -- tasks

    def enqueue(self, name: str, command: str = "true", **directives: Any) -> None:
        self.spool.enqueue(name, command, **_typed(directives))

    def enqueue_all(self, commands: Mapping[str, str], **directives: Any) -> None:
        typed = _typed(directives)
        specs = [self.spool.spec(name, text, **typed) for name, text in commands.items()]
        self.spool.enqueue_many(specs)

    def file(self, name: str) -> Path:
        """A file of the project directory, where tasks run."""
        return self.project / name

    def lines(self, name: str) -> list[str]:
        """Lines that tasks appended to a file of the project directory."""
        path = self.file(name)
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def await_lines(self, name: str, count: int = 1) -> list[str]:
        def look() -> list[str]:
            lines = self.lines(name)
            return lines if len(lines) >= count else []

        return wait_until(look, f"{count} lines in {name}")

    def counts(self) -> dict[str, int]:
        return self.spool.counts()

    def state(self, name: str) -> str:
        return self.spool.show(name).state.value

    def record(self, name: str) -> Record:
        return self.spool.show(name).record

    def history(self, name: str) -> tuple[HistoryLine, ...]:
        return self.record(name).history

    def outcomes(self, name: str) -> list[str]:
        return [line.outcome.value for line in self.history(name)]

    def last(self, name: str) -> HistoryLine:
        history = self.history(name)
        assert history, f"{name} has no history"
        return history[-1]

    def log(self, name: str, attempt: int = 1) -> str:
        return Path(self.spool.tree.paths.log(name, attempt)).read_text(errors="replace")

    def await_state(self, name: str, state: str) -> None:
        wait_until(lambda: self.state(name) == state, f"{name} is {state}")

    def faults(self) -> list[str]:
        return [fault.detail for fault in self.spool.check().faults]

    def journals(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for lease in leases.read_all(self.spool.tree):
            found += leases.read_journal(self.spool.tree, lease.name)[0]
        return found

    # -- workers

    def settings(self, **changed: Any) -> dict[str, Any]:
        usual = {
            "spool_dir": self.spool.root,
            "root": str(self.root),
            "idle_s": 0.3,
            "heartbeat_s": 1.0,
            "grace_s": 1.0,
        }
        return {**usual, **changed}

    def start(
        self,
        *,
        workers: int = 0,
        env: Mapping[str, str] | None = None,
        wrap: list[str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        **settings: Any,
    ) -> Running:
        """Starts one worker, or with ``workers`` a local fleet."""
        number = len(self.started)
        out, err = self.base / f"worker{number}.out", self.base / f"worker{number}.err"
        task = {"workers": workers, "settings": self.settings(**settings)}
        command = [*(wrap or []), sys.executable, str(DRIVER), json.dumps(task)]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=self.base,
                env={**os.environ, "PYTHONPATH": str(REPO), **(env or {})},
            )
        running = Running(process, out, err)
        self.started.append(running)
        return running

    def work(self, **options: Any) -> dict[str, Any]:
        """Runs one worker until it has been idle for a moment; gives its report."""
        return self.start(**options).report()

    def drain(self, workers: int = 1, **options: Any) -> dict[str, Any]:
        """Runs a local fleet until nothing is claimable; gives its report."""
        return self.start(workers=workers, **options).report()

    # -- the end

    def close(self) -> list[str]:
        """Ends what was started; gives the processes of tasks that were still there."""
        for running in self.started:
            for pid in running.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if running.process.poll() is None:
                running.kill()
        left = []
        for pid in processes_with("FLEET_ROOT", str(self.root)):
            left.append(f"{pid}: {command_line(pid)!r}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


def _typed(directives: dict[str, Any]) -> dict[str, Any]:
    return {key: Lane(value) if key == "lane" else value for key, value in directives.items()}


def python(code: str) -> str:
    """A shell command that runs Python text."""
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"


# A process that ignores what asks it to end, in a session of its own, twice forked away. It writes
# its pid to the file that is its argument.
ESCAPED = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def escape_to(file: str) -> str:
    """A shell command that leaves such a process behind and goes on when it is there."""
    return (
        f"{python(ESCAPED)} {shlex.quote(file)}\n"
        f"until [ -s {shlex.quote(file)} ]; do sleep 0.02; done"
    )
