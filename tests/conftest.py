"""Every test starts from the same environment, whatever the shell that started pytest had set.

Not here: fixtures of one subject; they are in the conftest.py of its own folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

CLASSIC_NAMES = {
    "PROJECT",
    "PROJECT_SCRATCH",
    "SPOOL_DIR",
    "GPU_SPOOL_DIR",
    "TELEMETRY_DIR",
    "MAX_IDLE_MIN",
}
NO_LOGGER = ("FLEET_TELEMETRY_INTERVAL_S", "0")
"""Most tests start workers for other reasons, and each would start a telemetry logger on two cores
that wait for tasks. Where the logger is tested it is turned on."""


def names_with_a_meaning() -> list[str]:
    """The variables of this process that fleetcraft or Slurm gives a meaning to."""
    return [
        name
        for name in os.environ
        if name in CLASSIC_NAMES or name.startswith(("FLEET_", "SLURM_"))
    ]


def pytest_configure() -> None:
    """Removes them for good: fixtures of a wider scope come before the one below."""
    for name in names_with_a_meaning():
        del os.environ[name]
    os.environ.update([NO_LOGGER])


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """None that another test left behind, no telemetry logger, and the usual umask."""
    for name in names_with_a_meaning():
        monkeypatch.delenv(name)
    monkeypatch.setenv(*NO_LOGGER)
    umask = os.umask(0o022)
    yield
    os.umask(umask)
