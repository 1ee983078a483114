"""Starts the sampling program on a driver and passes calls to it.

Not here: tests. Invariant: a program that does not answer in time fails its test, and none outlives
the fixture that started it.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.rig import Rig

REPO = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("sampling_program.py")
DEADLINE_S = 60


class Player:
    """The program, and the rig that plays its driver, if any."""

    def __init__(self, env: dict[str, str], rig: Rig | None = None) -> None:
        self.rig = rig
        self.program = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env={**env, "PYTHONPATH": str(REPO)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def close(self) -> None:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        if self.rig is not None:
            self.rig.clear()
        self.program.stdin.close()
        try:
            self.program.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.program.kill()
            self.program.wait()
        self.program.stdout.close()

    def call(self, name: str, **arguments: Any) -> Any:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.program.stdin.write(json.dumps([name, arguments]).encode() + b"\n")
        self.program.stdin.flush()
        ready, _, _ = select.select([self.program.stdout], [], [], DEADLINE_S)
        assert ready, f"no answer to {name}"
        line = self.program.stdout.readline()
        assert line, f"the program ended in {name}"
        return _named(json.loads(line))

    def play(self, **arguments: Any) -> Any:
        """Opens a session on the driver as it is set now."""
        return self.call("open", **arguments)

    def rows(self, times: int = 1) -> list[Any]:
        return list(self.call("sample", times=times))

    def row(self, times: int = 1) -> Any:
        """The row of the first GPU."""
        return self.rows(times)[0]

    def calls_of(self, name: str, **arguments: Any) -> Counter[str]:
        """What one call of the program asked of the driver."""
        assert self.rig is not None
        before = self.rig.calls()
        self.call(name, **arguments)
        return self.rig.calls() - before


def _named(value: Any) -> Any:
    if isinstance(value, list):
        return [_named(one) for one in value]
    if isinstance(value, dict):
        return SimpleNamespace(**{key: _named(one) for key, one in value.items()})
    return value


def causes(row: Any) -> dict[str, str]:
    """The causes of a row's empty cells, by column."""
    return {column: status for column, status, _ in row.missing}
