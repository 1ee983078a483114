"""The lease of a stream: one holder, and a second process that stops before its first prompt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.errors import UsageError
from fleetcraft.locks import LockHeldError, LockLostError
from fleetcraft.rollouts.streams import StreamLease, physical_slot
from tests.rollouts.producing import OwnClock, lease_of, queue_in, unknown

REPO = Path(__file__).resolve().parents[2]
HOLDER = """
import sys, time
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.streams import StreamLease
with StreamLease.acquire(RolloutQueue.open(sys.argv[1]), "s") as lease:
    print("held", lease.generation, flush=True)
    sys.stdin.read()
"""


def holder_of(folder: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder],
        cwd=REPO, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("held")
    return process


def test_a_second_process_with_a_live_stream_stops_before_its_first_prompt(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    with holder_of(queue.paths.folder) as process:
        try:
            with pytest.raises(LockHeldError, match="stream s of run wan belongs to") as raised:
                StreamLease.acquire(queue, "s")
            assert raised.value.exit_code == 75
            assert "a stream of its own" in raised.value.hint
            assert StreamLease.acquire(queue, "another").generation == 1
        finally:
            process.kill()


def test_a_killed_holder_is_followed_and_a_released_stream_is_free_at_once(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    with holder_of(queue.paths.folder) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    followed = StreamLease.acquire(queue, "s")
    assert followed.generation == 2
    followed.release()
    clock = OwnClock()
    third = StreamLease.acquire(queue, "s", clock=clock, sleep=clock.sleep)
    assert (third.generation, clock.now_s) == (3, 0)
    assert len({followed.nonce, third.nonce}) == 2


def test_a_silent_holder_elsewhere_keeps_its_stream_without_consent(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    lease_of(queue)
    with pytest.raises(LockHeldError, match="nothing says that it is gone") as raised:
        lease_of(queue, judge=unknown)
    assert "by_age=True" in raised.value.hint
    assert lease_of(queue, judge=unknown, by_age=True).generation == 2


def test_a_holder_that_was_followed_finds_out_at_its_next_check(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    first = lease_of(queue)
    first.check()
    lease_of(queue)
    with pytest.raises(LockLostError, match="taken over"):
        first.check()


def test_a_bad_stream_name_makes_no_folder(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    with pytest.raises(UsageError, match="bad stream name"):
        lease_of(queue, "../x")
    assert os.listdir(queue.paths.streams) == []


def test_the_slot_names_the_device_that_the_process_sees_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaa,GPU-bbb")
    assert physical_slot().device_uuid == "GPU-aaa"
    assert physical_slot(1).device_uuid == "GPU-bbb"
    assert physical_slot(2).device_uuid == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert physical_slot().device_uuid == ""
    assert physical_slot().host
