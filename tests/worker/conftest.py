"""A site of its own for every test, left without a process of any task."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.identity import this_host
from tests.worker.harness import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    left = made.close()
    _forget_gates(made)
    assert not left, f"processes of tasks were left: {left}"


def _forget_gates(site: Site) -> None:
    """Removes the two lock files that stand for this root in node-local memory."""
    for host in {this_host().host, "elsewhere"}:
        key = hashlib.sha256(f"{os.path.realpath(site.root)}\n{host}".encode()).hexdigest()[:24]
        for kind in ("turnstile", "room"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"/dev/shm/fleetcraft-{os.geteuid()}/{key}.{kind}")
