"""The host side of a phase, on this process and a child of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fleetcraft.calibration import host

MIB = 1 << 20


def touched(mib: int) -> bytearray:
    """So much memory, every page of it resident; large enough that malloc maps it apart."""
    return bytearray(os.urandom(1)) * (mib * MIB)


def test_the_peak_covers_what_was_freed_again_and_begins_anew_when_reset() -> None:
    if not host.reset_rss_peak():
        pytest.skip("the kernel does not let this process reset its peak")
    start = host.rss_peak_bytes()
    assert start is not None
    block = touched(64)
    del block
    host.trim_heap()
    peak = host.rss_peak_bytes()
    assert peak is not None
    assert peak >= start + 60 * MIB
    assert host.reset_rss_peak()
    after = host.rss_peak_bytes()
    assert after is not None
    assert after <= peak - 48 * MIB


def test_a_process_that_is_gone_has_no_sizes() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait(30)
    assert host.rss_peak_bytes(child.pid) is None
    assert host.tree_rss_bytes(child.pid) is None


def test_a_child_that_ended_and_was_not_waited_for_has_no_peak() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert host.rss_peak_bytes(child.pid) is None
    child.wait(30)
    child.stdout.close()


def test_a_tree_is_its_root_and_all_that_descend_from_it() -> None:
    holds = "import sys; b = bytearray(b'x') * (40 << 20); print('ready', flush=True); input()"
    starts = (
        "import subprocess, sys; "
        f"c = subprocess.Popen([sys.executable, '-c', {holds!r}], stdin=subprocess.PIPE); "
        "input(); c.communicate(b'\\n')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starts], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as root:
        assert root.stdout is not None
        assert root.stdout.readline() == b"ready\n"
        tree = host.tree_rss_bytes(root.pid)
        alone = host.rss_peak_bytes(root.pid)
        assert tree is not None
        assert alone is not None
        assert tree > 40 * MIB
        assert tree > alone
        root.communicate(b"\n", timeout=30)


def test_nothing_of_it_loads_torch() -> None:
    code = "import sys, fleetcraft.calibration.host; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
