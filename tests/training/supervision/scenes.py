"""Scenes for a supervisor: a scratch tree, a command that plays a training run, and its events.

Time scales are those of a laptop: looks every 50 ms, warm-up 0.3 s. Alarms come late, unless a
scene is about them, since a process may take seconds to start on a busy machine. Not here: what a
scene must lead to.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import RunPaths
from fleetcraft.locks import Judge
from fleetcraft.training.launching.nonce_scan import find_by_nonce
from fleetcraft.training.plan.records import BudgetPlan, ProgressPlan, RunPlan
from fleetcraft.training.records import State
from fleetcraft.training.supervision.entry import Settings, supervise
from fleetcraft.training.supervision.journal import read_events
from fleetcraft.training.supervision.leaving import Ended
from fleetcraft.training.supervision.orders import Orders

REPO = Path(__file__).resolve().parents[3]
PATIENCE_S = 40.0
Event = Mapping[str, Any]
Hook = Callable[[Event, Orders], None]
HEAD = """
import os, signal, subprocess, sys, time
from fleetcraft.training.progress.writing import progress_phase, report_progress
epoch = int(os.environ["FLEET_EPOCH"])
"""
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.74 GiB. GPU 0 has a total "
    "capacity of 94.97 GiB of which 4.57 GiB is free. Including non-PyTorch memory, this process "
    "has 90.39 GiB memory in use. Of the allocated memory 90.29 GiB is allocated by PyTorch, and "
    "52.00 MiB is reserved by PyTorch but unallocated."
)


class Scene:
    """One run in a scratch tree of its own."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *,
        before: tuple[str, ...] = (sys.executable,),
        **plan: Any,
    ) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.script = folder / "trainer.py"
        self.script.write_text(HEAD + script)
        self._child: subprocess.Popen[bytes] | None = None
        values: dict[str, Any] = {
            "run": "distill",
            "command": (*before, str(self.script)),
            "environment": {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"},
            "look_s": 0.05,
            "warmup_s": 0.3,
            "verify_steps": 3,
            "grace_s": 0.5,
            "inner_grace_s": 0.1,
            "progress": ProgressPlan(stall_least_s=60.0),
            "budgets": BudgetPlan(backoff_s=(0.0,)),
        }
        self.plan = RunPlan(**{**values, **plan})
        self.paths = RunPaths(str(self.root / "runs" / self.plan.run))

    def supervise(
        self,
        hook: Hook | None = None,
        *,
        judge: Judge | None = None,
        fs: FileSystem | None = None,
        **settings: Any,
    ) -> Ended:
        """In this process, until it ends; the hook is called at every event."""
        orders = Orders()

        def tell(event: Event) -> None:
            if hook is not None:
                hook(event, orders)

        wanted = {"plan": self.plan, "root": str(self.root), "lock_interval_s": 0.1, **settings}
        return supervise(Settings(**wanted), tell, orders=orders, judge=judge, fs=fs)

    # -- as processes

    def run_file(self) -> Path:
        """The plan as a run file."""
        path = self.root / "run.yaml"
        values = msgspec.to_builtins(self.plan)
        values = {key: value for key, value in values.items() if value not in (None, "", [], ())}
        path.write_text(json.dumps(values))  # JSON is YAML
        return path

    def command(self, *words: str) -> list[str]:
        """The words of one call of the command line."""
        return [sys.executable, "-m", "fleetcraft", "--root", str(self.root), *words]

    @contextmanager
    def process(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A supervisor of its own, killed at the end if it still lives."""
        words = ["train", "supervise", "--json", "--lock-interval", "0.1", *options]
        with open(self.root / "supervisor.log", "ab") as log:
            child = subprocess.Popen(
                self.command(*words, str(self.run_file())),
                env={**os.environ, "PYTHONPATH": str(REPO)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._child = self._child or child
        try:
            yield child
        finally:
            self._child = None
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait()

    # -- what was told

    def journal(self) -> list[Event]:
        """Every event in the journal."""
        return list(read_events(self.paths.events).events)

    def wait_for(self, told: Callable[[Event], bool], *, count: int = 1) -> Event:
        """Waits until the journal has so many events of a kind; returns the last of them."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = [event for event in self.journal() if told(event)]
            if len(found) >= count:
                return found[count - 1]
            if self._child is not None and self._child.poll() is not None:
                break  # it will tell nothing more
            time.sleep(0.02)
        log = self.root / "supervisor.log"
        raise AssertionError(
            f"it was not told; {self.course()}; {log.read_text()[-2000:] if log.exists() else ''}"
        )

    def course(self, *, generation: int | None = None) -> list[str]:
        """The states in the order in which they were entered."""
        return [
            event["state"]
            for event in self.journal()
            if event["event"] == "state" and generation in (None, event["generation"])
        ]

    def told(self, kind: str) -> list[Event]:
        """The events of one kind."""
        return [event for event in self.journal() if event["event"] == kind]

    def nonces(self) -> list[str]:
        """Of every launch."""
        return [event["nonce"] for event in self.told("launched")]

    def alive(self) -> list[int]:
        """Processes of any launch that live."""
        return [record.process.pid for nonce in self.nonces() for record in find_by_nonce(nonce)]

    def is_gone(self) -> bool:
        """Whether nothing of any launch is left; a keeper that is just leaving is waited for."""
        deadline = time.monotonic() + PATIENCE_S
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def kill_all(self) -> None:
        """Ends what a test left alive on purpose."""
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def entered(state: State) -> Callable[[Event], bool]:
    """Whether an event is that state."""
    return lambda event: event["event"] == "state" and event["state"] == state
