"""Every test starts from the same environment, whatever the shell that started pytest had set.

Not here: fixtures of one subject; they are in the conftest.py of its own folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from fleetcraft.caches.roles import VARIABLES as CACHE_NAMES

# No test measures absolute time, so neither does hypothesis: other work may run beside it.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and every process of a test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Started by nohup: this process goes on all the same, and those that it starts hear of it.
    signal.signal(signal.SIGHUP, lambda *_: None)

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

LOCAL = ("FLEET_CACHES_LOCAL", tempfile.mkdtemp(prefix="fleetcraft-tests-"))
"""Workers lock their places of compiled graphs by files of the node, which stay. Those of tests
are no business of workers that do real work on this machine."""

ONE_THREAD = ("OMP_NUM_THREADS", "1")
"""Several tests run at a time. With more threads than cores those of OpenMP spin while they wait
for one another, and everything takes many times as long."""
CALIBRATING = (
    "test_calibrate",
    "test_faults",
    "test_run_real",
    "test_demo",
    "test_diffusers_video",
)
"""Files, and below pages, whose tests calibrate for real. On one machine calibrations take turns,
so they are given to one process, which would otherwise wait for another's."""
CALIBRATING_PAGES = (
    "docs/calibration.md",
    "docs/walkthrough.md",
    "skills/gpu-memory-hierarchy/SKILL.md",
    "skills/gpu-utilization-batching/SKILL.md",
)


def names_with_a_meaning() -> list[str]:
    """The variables of this process that fleetcraft or Slurm gives a meaning to."""
    return [
        name
        for name in os.environ
        if name in CLASSIC_NAMES or name.startswith(("FLEET_", "SLURM_"))
    ]


def forget_caches() -> None:
    """Removes variables of caches: torch sets some in the process that asks it for a folder.

    For good, and before fixtures of a wider scope copy the environment, such as that of a cluster.
    """
    for name in CACHE_NAMES:
        os.environ.pop(name, None)


def pytest_configure() -> None:
    """Removes them for good: fixtures of a wider scope come before the one below."""
    forget_caches()
    for name in names_with_a_meaning():
        del os.environ[name]
    os.environ.update([NO_LOGGER, ONE_THREAD, LOCAL])


def pytest_unconfigure() -> None:
    """Removes what they have left on this node."""
    shutil.rmtree(LOCAL[1], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts calibrations into one group."""
    for item in items:
        page = getattr(item, "callspec", None) and item.nodeid.endswith(
            tuple(f"[{page}]" for page in CALIBRATING_PAGES)
        )
        if page or item.path.stem.startswith(CALIBRATING):
            item.add_marker(pytest.mark.xdist_group("calibration"))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """None that another test left behind, no telemetry logger, and the usual umask."""
    forget_caches()
    for name in names_with_a_meaning():
        monkeypatch.delenv(name)
    monkeypatch.setenv(*NO_LOGGER)
    monkeypatch.setenv(*LOCAL)
    umask = os.umask(0o022)
    yield
    forget_caches()
    os.umask(umask)
