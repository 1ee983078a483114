"""How a test of crash points asks a server process for its trials, and reads what came out.

Not here: the operations, and what must hold afterwards; each server has its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder in memory where there is one: these tests make thousands of small files."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base, prefix="fleet-crash-") as made:
        yield Path(made)


def disturbed(
    server: str, folder: Path, operation: str, how: list[list[str]], broken: str | bool = ""
) -> dict[str, Any]:
    """The report of one server over one operation, disturbed in these ways at each of its steps."""
    done = subprocess.run(
        [sys.executable, "-m", server, str(folder),
         json.dumps({"operation": operation, "how": how, "broken": broken})],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def explained(report: dict[str, Any]) -> str:
    """Every trouble of a report, for the message of an assertion."""
    return "\n".join(
        f"{point['how']} at {point['at']}: {point.get('acted')}\n{point['trouble']}"
        + "\n".join(point.get("listing", []))
        for point in report["troubles"]
    )
