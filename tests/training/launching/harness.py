"""Real launches in tests: a run's folder, commands that behave badly, and what is left of them.

Not here: what is right. Invariant: whatever a test leaves with one of its nonces is killed at its
end, each as pid and start time.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fleetcraft.caches.scope import CacheSettings
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token, this_host
from fleetcraft.layout.runs import RunPaths
from fleetcraft.training.launching.epochs import Epochs
from fleetcraft.training.launching.looking import Launch
from fleetcraft.training.launching.sights import LaunchSight, Whole
from fleetcraft.training.launching.start import launch
from fleetcraft.training.launching.sweeping import Net
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import EPOCH_SCHEMA, Epoch, EpochKind

T = TypeVar("T")
LIMIT_S = 30.0
PLAIN = "import time; open('up', 'w').close(); time.sleep(600)"
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "open('up', 'w').close(); time.sleep(600)"
)
ESCAPED = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        open("up", "w").close()
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""
REFORKING = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("up", "w").close()
while True:
    if os.fork():
        os._exit(0)
    time.sleep({pause})
"""


def wait_until(look: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
    """The first true value that ``look`` gives."""
    deadline = time.monotonic() + limit_s
    while not (value := look()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s in vain: {what}"
        time.sleep(0.01)
    return value


class Killed(BaseException):
    """The process was killed here."""


class Faulty(FileSystem):
    """Stops at the given operation, counted from 1.

    Args:
        at: Which one.
        fault: What is raised there.
        performed: Whether the operation is performed before that.
    """

    def __init__(
        self, at: int, fault: Callable[[], BaseException], *, performed: bool = False
    ) -> None:
        super().__init__()
        self._at = at
        self._fault = fault
        self._performed = performed
        self.count = 0

    def disarm(self) -> None:
        """Nothing fails from here on."""
        self._at = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name == "disarm" or not callable(found):
            return found

        def counted(*args: Any, **named: Any) -> Any:
            self.count += 1
            if self.count != self._at:
                return found(*args, **named)
            if self._performed:
                found(*args, **named)
            raise self._fault()

        return counted


class Run:
    """One run in a test: its folder, its epochs, and what it launches."""

    def __init__(self, base: Path, name: str = "r1") -> None:
        self.paths = RunPaths(str(base / "runs" / name))
        Path(self.paths.folder).parent.mkdir(parents=True, exist_ok=True)
        for folder in self.paths.folders():
            Path(folder).mkdir(mode=0o700)
        self.work = base / "work"
        self.work.mkdir(exist_ok=True)
        self.epochs = Epochs(self.paths)
        self.node = this_host().host
        self.launches: list[Launch] = []
        self.nonces: list[str] = []

    def plan(self, *command: str, **more: object) -> RunPlan:
        settings: dict[str, object] = {
            "directory": str(self.work),
            "grace_s": 0.3,
            "inner_grace_s": 0.0,
            "look_s": 0.05,
            **more,
        }
        return RunPlan(run=self.paths.name, command=command, **settings)  # type: ignore[arg-type]

    def epoch(self, command: tuple[str, ...], number: int | None = None) -> Epoch:
        """A published epoch."""
        number = number or self.epochs.next_number()
        nonce = new_launch_token()
        self.nonces.append(nonce)
        epoch = Epoch(
            schema=EPOCH_SCHEMA,
            number=number,
            generation=1,
            run=self.paths.name,
            kind=EpochKind.LAUNCHED,
            attempt=number,
            nonce=nonce,
            at="2026-01-01T00:00:00.000Z",
            why="a test",
            command=command,
            command_sha256="",
            environment_sha256="",
        )
        assert self.epochs.publish(epoch)
        return epoch

    def launch(
        self,
        *command: str,
        environment: Mapping[str, str] | None = None,
        kill_wait_s: float = 10.0,
        caches: CacheSettings | None = None,
        **more: object,
    ) -> Launch:
        plan = self.plan(*command, **more)
        epoch = self.epoch(plan.command)
        started = launch(
            self.paths.attempt(epoch.attempt),
            plan,
            epoch,
            environment=environment or {},
            kill_wait_s=kill_wait_s,
            caches=caches,
        )
        self.launches.append(started)
        return started

    def python(self, code: str, **more: object) -> Launch:
        """Launches a Python program and waits until it says that it is up."""
        started = self.launch(sys.executable, "-S", "-E", "-c", code, **more)  # type: ignore[arg-type]
        wait_until(lambda: self.is_up(started), "the command is up")
        return started

    def is_up(self, started: Launch) -> bool:
        sight = started.look()
        assert sight.whole in (Whole.STARTING, Whole.RUNNING), self.told(started)
        return (self.work / "up").exists() and sight.whole is Whole.RUNNING

    def ended(self, started: Launch) -> LaunchSight:
        """Waits until every node has told its end."""
        wait_until(
            lambda: started.look().whole not in (Whole.STARTING, Whole.RUNNING), "it has ended"
        )
        sight = started.look()
        assert sight.whole is Whole.ENDED, self.told(started)
        return sight

    def told(self, started: Launch) -> str:
        logs = sorted(Path(started.paths.logs).glob("*"))
        return f"{started.look()}\n" + "\n".join(f"{p.name}: {p.read_text()}" for p in logs)

    def clear(self) -> None:
        """Kills whatever is left."""
        for nonce in self.nonces:
            assert Net(nonce).sweep(signal.SIGKILL, 10.0).quiet
        for started in self.launches:
            if started.starter is not None:
                wait_until(lambda s=started.starter: s.poll() is not None, "it is waited for")  # type: ignore[misc]
