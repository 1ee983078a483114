"""A logger as a process of its own, and what it has written so far.

Not here: what a driver answers; that is `tests.rig`.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

REPO = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0  # for what is soon true on an idle machine
Row = dict[str, str]


def until(true: Callable[[], bool], what: str = "") -> None:
    """Waits until something is true, or fails."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"never: {what or true}"
        time.sleep(0.01)


class RunningLogger:
    """One logger of ``n1`` and job 7; ends with the block.

    Args:
        folder: Where it writes; made if need be.
        env: Its environment, such as that of a rig.
        popen: What else `subprocess.Popen` is told.
        settings: Of the logger, by name.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str] | None = None,
        *,
        popen: Mapping[str, Any] | None = None,
        **settings: object,
    ) -> None:
        self.folder = folder
        # A machine that is busy with other tests is slow, not stuck.
        usual = {"interval_s": 0.1, "node": "n1", "job": "7", "deadline_s": PATIENCE_S}
        told = {"folder": str(folder), **usual, **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fleetcraft.telemetry.logger", json.dumps(told)],
            cwd=REPO,
            env=dict(os.environ if env is None else env),
            stderr=subprocess.PIPE,
            text=True,
            **(popen or {}),
        )

    def __enter__(self) -> RunningLogger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    @property
    def files(self) -> list[Path]:
        """Its CSV files, oldest first."""
        return sorted(self.folder.glob("*.csv"))

    @property
    def text(self) -> str:
        """All that it has written, torn tail included."""
        return "".join(file.read_text() for file in self.files)

    def rows(self, kind: str | None = None, **cells: str) -> list[Row]:
        """Whole rows so far, with these cells."""
        found = []
        for file in self.files:
            whole, _, _ = file.read_text().rpartition("\n")
            found += list(csv.DictReader(whole.splitlines()))
        wanted = cells if kind is None else {"kind": kind, **cells}
        return [row for row in found if wanted.items() <= row.items()]

    @property
    def sidecar(self) -> dict[str, Any]:
        """The sidecar of its newest file."""
        value: dict[str, Any] = json.loads(self.files[-1].with_suffix(".json").read_text())
        return value

    def await_rows(self, count: int = 1, kind: str | None = None, **cells: str) -> list[Row]:
        """Waits for so many rows more, with these cells; those of them that are new."""
        before = len(self.rows(kind, **cells))

        def there() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return len(self.rows(kind, **cells)) >= before + count

        until(there, f"{count} rows {kind} {cells}")
        return self.rows(kind, **cells)[before:]

    def end(self, number: int = signal.SIGTERM) -> str:
        """Tells it to end, waits, and gives back what it said on stderr."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return said
