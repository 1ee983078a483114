"""Following a journal as it grows, and hearing its silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.calibration.records import PhaseRecord, Trial, Verdict
from fleetcraft.calibration.trial import watching
from fleetcraft.calibration.trial.stall import QUIET_S
from fleetcraft.calibration.trial.watching import JournalTail, Sampler, Silence, listen
from fleetcraft.gpu.processes import MemoryUse


def line(event: str, **fields: Any) -> bytes:
    return json.dumps({"event": event, **fields}).encode() + b"\n"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_journal_is_followed_from_before_it_exists_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    tail = JournalTail(str(path))
    assert list(tail.read()) == []
    append(path, line("begin") + b'{"event": "phase')
    assert [event["event"] for event in tail.read()] == ["begin"]
    assert list(tail.read()) == []
    append(path, b'_begin", "phase": "load"}\n' + line("end"))
    assert [event["event"] for event in tail.read()] == ["phase_begin", "end"]
    tail.close()
    tail.close()


def test_lines_that_are_no_object_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, b'\n[1]\nnot json\n"text"\n\xff\n' + b"[" * 100_000 + b"\n" + line("end"))
    tail = JournalTail(str(path))
    assert [event["event"] for event in tail.read()] == ["end"]
    assert tail.bad_lines == 5
    tail.close()


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_how_a_journal_is_cut_into_reads_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    whole = line("begin") + data + b"\n" + line("end")
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    tail, found = JournalTail(str(path)), []
    for start, stop in pairwise(edges):
        append(path, whole[start:stop])
        found += list(tail.read())
    tail.close()
    again = JournalTail(str(path))
    assert found == list(again.read())
    assert tail.bad_lines == again.bad_lines
    again.close()


def test_listening_tells_each_line_once_and_resets_the_silence(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, line("pass_begin", **{"pass": "memory"}) + line("phase_begin", phase="load"))
    tail, silence, told = JournalTail(str(path)), Silence(None, 60.0), []
    silence.silent_s = 59.0
    assert listen(tail, silence, told.append) is None
    assert listen(tail, silence, told.append) is None
    assert [event["event"] for event in told] == ["pass_begin", "phase_begin"]
    assert silence.phase == "load"
    assert silence.silent_s < 1.0
    tail.close()


def silent(expected_s: float | None, patience_s: float, *events: dict[str, Any]) -> Silence:
    silence = Silence(expected_s, patience_s)
    for event in events:
        silence.hear(event)
    return silence


IN_CYCLES = ({"event": "pass_begin", "pass": "time"}, {"event": "phase_begin", "phase": "decode"})


def looks_until_stalled(silence: Silence, most_s: float) -> float | None:
    now_s = 0.0
    while now_s <= most_s:
        if silence.look(now_s) is not None:
            return now_s
        now_s += 0.05
    return None


def test_silence_beyond_four_times_the_expected_is_a_stall_with_its_numbers() -> None:
    silence = silent(4.0, 120.0, *IN_CYCLES)
    assert looks_until_stalled(silence, 60.0) == pytest.approx(16.0, abs=0.2)
    stall = silence.look(100.0)
    assert stall is not None
    assert (stall.expected_s, stall.limit_s, stall.phase) == (4.0, 16.0, "decode")


def test_the_first_batch_is_judged_by_patience_alone() -> None:
    silence = silent(None, 2.0, *IN_CYCLES)
    assert looks_until_stalled(silence, 60.0) == pytest.approx(2.0, abs=0.2)
    stall = silence.look(100.0)
    assert stall is not None
    assert stall.expected_s is None


@pytest.mark.parametrize(
    "events",
    [(), ({"event": "begin"},), ({"event": "pass_begin", "pass": "preflight"},),
     ({"event": "pass_begin", "pass": "checks"},), (*IN_CYCLES, {"event": "pass_end"})],
)  # fmt: skip
def test_outside_of_real_cycles_nothing_is_expected_to_speak(events: tuple[Any, ...]) -> None:
    silence = silent(None, 2.0, *events)
    assert looks_until_stalled(silence, QUIET_S - 1) is None
    assert looks_until_stalled(silence, QUIET_S + 9) is not None


def test_a_watcher_that_did_not_look_blames_nobody() -> None:
    silence = silent(None, 2.0, *IN_CYCLES)
    assert silence.look(0.0) is None
    assert silence.look(3600.0) is None  # suspended for an hour
    assert silence.silent_s < 1.0


def test_a_line_that_came_during_the_silence_is_heard_before_it_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, line("progress"))
    tail, silence = JournalTail(str(path)), silent(None, 2.0, *IN_CYCLES)
    silence.silent_s = 2.5
    assert listen(tail, silence, None) is None
    tail.close()


def test_memory_of_a_process_tree_is_sampled_until_the_block_ends() -> None:
    with Sampler("cpu") as sampler:
        sampler.follow(os.getpid())
        for _ in range(200):
            if sampler.seen.rss_peak_bytes is not None:
                break
            sampler._stop.wait(0.05)
    assert sampler.seen.rss_peak_bytes is not None
    assert sampler.seen.rss_peak_bytes > 1 << 20
    assert sampler.seen.neighbour_bytes is None
    assert not sampler._thread.is_alive()


HOLDS = "import sys; held = bytearray(64 << 20); print(flush=True); sys.stdin.read()"


def holder() -> subprocess.Popen[bytes]:
    """A child that holds 64 MiB until its input ends."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"\n"
    return child


def test_what_children_hold_is_part_of_the_host_peak() -> None:
    with Sampler("cpu") as sampler, holder() as child:
        sampler.follow(os.getpid())
        for _ in range(200):
            if sampler.seen.with_children_rss_peak_bytes is not None:
                break
            time.sleep(0.05)
        child.kill()
    most = sampler.seen.with_children_rss_peak_bytes
    assert most is not None
    assert most > 64 << 20
    trial = Trial(
        family="f", identity="i", batch=1, verdict=Verdict.OK,
        phases=(PhaseRecord(name="decode", rss_peak_bytes=5),),
        evidence={"with_children_rss_peak_bytes": most},
    )  # fmt: skip
    assert trial.host_peak_bytes == most


class Driver:
    """Stands for a watch of a GPU: what it reads is the test's."""

    def __init__(self, read: Callable[[], MemoryUse]) -> None:
        self.read = read

    def close(self) -> None:
        """Nothing is open."""


def watched(monkeypatch: pytest.MonkeyPatch, read: Callable[[], MemoryUse]) -> Sampler:
    monkeypatch.setattr(watching, "gpu_of", lambda device: device)
    monkeypatch.setattr(watching, "MemoryWatch", lambda uuid: Driver(read))
    monkeypatch.setattr(watching, "_BASELINE_WAIT_S", 0.01)
    return Sampler("cuda:0")


def test_a_baseline_that_came_after_the_start_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, read = threading.Event(), threading.Event()

    def slow() -> MemoryUse:
        answers.wait(30)
        read.set()
        return MemoryUse(total_bytes=100, used_bytes=90)  # 80 of them the trial's own by now

    with watched(monkeypatch, slow) as sampler:
        sampler.follow(os.getpid())
        answers.set()
        assert read.wait(30)
    assert (sampler.seen.device_total_bytes, sampler.seen.device_before_bytes) == (100, None)


def test_a_child_that_dies_under_the_drivers_answer_is_no_neighbour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = holder()

    def read() -> MemoryUse:
        with child:
            child.kill()
        return MemoryUse(used_bytes=100, by_pid={os.getpid(): 30, child.pid: 60})

    sampler = watched(monkeypatch, read)
    sampler._sample(os.getpid(), Driver(read))  # type: ignore[arg-type]
    assert sampler.seen.neighbour_peak_bytes == 10
