"""A pid alone is never signalled: one that was used again in the meantime is another process.

Not here: keepers of training, whose identity is looked at in `tests/training/launching`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from fleetcraft.identity import ProcessId, is_alive, lives_at, process_id, this_host
from fleetcraft.worker import survivors

WAIT = "import sys; sys.stdin.read()"


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that has nothing to do with any task."""
    with subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def earlier(process: subprocess.Popen[bytes]) -> ProcessId:
    """The one that had this pid before, which began at another time."""
    now = process_id(process.pid)
    assert now is not None
    return ProcessId(now.pid, now.start_ticks - 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_with_the_pid_of_a_dead_one_is_not_hit(
    bystander: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    told: set[ProcessId] = set()
    survivors._signal_once(earlier(bystander), number, told)
    assert told == set()
    assert bystander.poll() is None


def test_the_process_itself_is_hit(bystander: subprocess.Popen[bytes]) -> None:
    identity = process_id(bystander.pid)
    assert identity is not None
    survivors._signal_once(identity, signal.SIGKILL, set())
    assert bystander.wait(timeout=30) == -signal.SIGKILL


def test_an_owner_with_a_recycled_pid_is_gone_and_not_alive(
    bystander: subprocess.Popen[bytes],
) -> None:
    here = this_host()
    assert is_alive(earlier(bystander)) is False
    assert lives_at(here, earlier(bystander), here) is False
    rebooted = msgspec.structs.replace(here, boot_id="another")
    identity = process_id(bystander.pid)
    assert identity is not None
    assert lives_at(rebooted, identity, here) is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of two users")
def test_processes_of_other_users_are_never_survivors() -> None:
    from fleetcraft.identity import Owner

    owner = Owner(job="1", rank="0", slot="0", token="abcdefgh-1")
    env = {**os.environ, "FLEET_OWNER": str(owner)}
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, env=env, user=65534, group=65534,
        extra_groups=[], cwd="/",
    ) as theirs:  # fmt: skip
        try:
            assert survivors.find_survivors(owner) == []
        finally:
            theirs.kill()
