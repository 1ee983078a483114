"""Which source decides: wait status, scheduler, error file, kernel counter, log, silence."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import RunPaths
from fleetcraft.training.diagnosing.classify import diagnose, diagnose_logs
from fleetcraft.training.diagnosing.episode import Episodes
from fleetcraft.training.diagnosing.fences import make_fence
from fleetcraft.training.diagnosing.recorded import read_recorded
from fleetcraft.training.diagnosing.scan import LogScan
from fleetcraft.training.records import Crash, Diagnosis, NodeEnd, Source
from tests.training.diagnosing.corpus import elastic, steps, traceback
from tests.training.diagnosing.crashes import GLOO_CLOSED, OOM_FRAGMENTED, OOM_SEED

_GIB = 1 << 30
OOM = traceback(OOM_SEED, "[rank1]: ")
BUG = traceback("ValueError: bad batch", "[rank1]: ")
PEER = traceback(GLOO_CLOSED, "[rank0]: ")


def _end(exit_code: int | None = None, number: int | None = None, **more: Any) -> NodeEnd:
    return NodeEnd(node="node-03", nonce="n", exit_code=exit_code, signal=number, **more)


def _of(tmp_path: Path, text: str, **known: Any) -> Diagnosis:
    log = tmp_path / "train.log"
    log.write_text(steps(690, 703) + text)
    episodes = Episodes()
    with LogScan(log) as scan:
        episodes.feed(scan.look(final=True), None, (scan,))
    return diagnose(episodes=episodes, **known)


KILL = _end(number=signal.SIGKILL)
KILL_137 = _end(137)
FAILED = _end(1)


@pytest.mark.parametrize(
    ("text", "known", "crash", "source"),
    [
        # what a wait status alone can tell
        ("", {"ends": [KILL], "oom_kills": 1}, Crash.HOST_OOM, Source.WAIT_STATUS),
        ("", {"ends": [KILL_137], "oom_kills": 1}, Crash.HOST_OOM, Source.WAIT_STATUS),
        ("", {"ends": [KILL], "oom_kills": 0}, Crash.KILLED_UNCONFIRMED, Source.WAIT_STATUS),
        ("", {"ends": [KILL]}, Crash.KILLED_UNCONFIRMED, Source.WAIT_STATUS),
        (OOM, {"ends": [KILL], "oom_kills": 2}, Crash.HOST_OOM, Source.WAIT_STATUS),
        ("", {"ends": [FAILED]}, Crash.UNKNOWN, Source.WAIT_STATUS),
        ("", {"ends": [_end(number=signal.SIGSEGV)]}, Crash.CODE_ERROR, Source.WAIT_STATUS),
        ("", {"ends": [_end(number=signal.SIGTERM)]}, Crash.CANCELLED, Source.WAIT_STATUS),
        ("", {"ends": [_end(127)]}, Crash.CODE_ERROR, Source.WAIT_STATUS),
        ("", {"ends": [_end(why="/x: Permission denied")]}, Crash.PERMISSION, Source.WAIT_STATUS),
        ("", {"ends": [_end(why="/x: No such file")]}, Crash.CODE_ERROR, Source.WAIT_STATUS),
        # a weak one never outweighs a text that explains it
        (OOM, {"ends": [FAILED]}, Crash.CUDA_OOM, Source.LOG),
        (OOM, {"ends": [_end(number=signal.SIGABRT)]}, Crash.CUDA_OOM, Source.LOG),
        (OOM, {"ends": [_end(0)]}, Crash.CUDA_OOM, Source.LOG),
        (OOM, {"ends": [KILL], "oom_kills": 0}, Crash.CUDA_OOM, Source.LOG),
        (PEER, {"ends": [_end(number=signal.SIGABRT)]}, Crash.DIST_NETWORK, Source.LOG),
        (PEER, {"ends": [KILL]}, Crash.KILLED_UNCONFIRMED, Source.WAIT_STATUS),
        (elastic(1), {"ends": [FAILED]}, Crash.CHILD_FAILED, Source.LOG),
        # the scheduler
        ("", {"slurm_state": "OUT_OF_MEMORY", "slurm_exit": "0:125"}, Crash.HOST_OOM,
         Source.SCHEDULER),
        ("", {"slurm_exit": "0:125"}, Crash.HOST_OOM, Source.SCHEDULER),
        (BUG, {"slurm_state": "OUT_OF_MEMORY"}, Crash.HOST_OOM, Source.SCHEDULER),
        (PEER, {"slurm_state": "TIMEOUT"}, Crash.TIME_LIMIT, Source.SCHEDULER),
        (PEER, {"slurm_state": "PREEMPTED", "ends": [KILL]}, Crash.PREEMPTED, Source.SCHEDULER),
        (PEER, {"slurm_state": "CANCELLED by 1000"}, Crash.CANCELLED, Source.SCHEDULER),
        (OOM, {"slurm_state": "CANCELLED by 1000"}, Crash.CUDA_OOM, Source.LOG),
        ("", {"slurm_state": "NODE_FAIL"}, Crash.UNKNOWN, Source.SCHEDULER),
        (OOM, {"slurm_state": "FAILED", "slurm_exit": "1:0"}, Crash.CUDA_OOM, Source.LOG),
        (PEER, {"slurm_state": "FAILED", "slurm_exit": "1:0"}, Crash.DIST_NETWORK, Source.LOG),
        ("", {"slurm_state": "FAILED", "slurm_exit": "1:0"}, Crash.UNKNOWN, Source.SCHEDULER),
        # the kernel's counter
        ("Killed\n", {}, Crash.KILLED_UNCONFIRMED, Source.LOG),
        ("Killed\n", {"oom_kills": 0}, Crash.KILLED_UNCONFIRMED, Source.LOG),
        ("Killed\n", {"oom_kills": 1}, Crash.HOST_OOM, Source.KERNEL),
        (PEER + elastic(1, exit_code=-9), {"oom_kills": 1}, Crash.HOST_OOM, Source.KERNEL),
        (PEER + elastic(1, exit_code=-9), {}, Crash.KILLED_UNCONFIRMED, Source.LOG),
        (OOM, {"oom_kills": 1}, Crash.CUDA_OOM, Source.LOG),
        (BUG, {"oom_kills": 1, "ends": [FAILED]}, Crash.HOST_OOM, Source.KERNEL),
        # the log
        (PEER + OOM + elastic(1), {}, Crash.CUDA_OOM, Source.LOG),
        # silence
        ("", {"dead_ranks": [2, 1]}, Crash.UNKNOWN, Source.SILENCE),
        ("", {"quiet_s": 420.0}, Crash.UNKNOWN, Source.SILENCE),
        (OOM, {"dead_ranks": [1], "quiet_s": 420.0}, Crash.CUDA_OOM, Source.LOG),
    ],
)  # fmt: skip
def test_the_strongest_source_that_can_tell_decides(
    tmp_path: Path, text: str, known: dict[str, Any], crash: Crash, source: Source
) -> None:
    found = _of(tmp_path, text, **known)
    assert (found.crash, found.evidence[0].source) == (crash, source)
    assert found.evidence[0].crash is crash
    assert found.episode_open
    assert found.advice


def test_nothing_says_nothing(tmp_path: Path) -> None:
    for known in ({}, {"ends": [_end(0)]}, {"oom_kills": 0}, {"slurm_state": "COMPLETED"}):
        found = _of(tmp_path, "", **known)
        assert (found.crash, found.episode_open) == (Crash.NONE, False)


def test_what_was_ended_on_order_did_not_die(tmp_path: Path) -> None:
    found = _of(tmp_path, "", ends=[_end(number=signal.SIGKILL, told_to_stop=True)])
    assert (found.crash, found.episode_open) == (Crash.NONE, False)
    assert "on order" in found.evidence[0].text


def test_a_crash_that_was_passed_does_not_explain_a_later_end(tmp_path: Path) -> None:
    passed = OOM + steps(704, 720)
    assert _of(tmp_path, passed).crash is Crash.CUDA_OOM
    assert not _of(tmp_path, passed).episode_open
    found = _of(tmp_path, passed, ends=[FAILED])
    assert (found.crash, found.episode_open) == (Crash.UNKNOWN, True)


def test_the_counter_of_any_node_counts(tmp_path: Path) -> None:
    ends = [_end(1, oom_kills=0), _end(number=signal.SIGKILL, oom_kills=2)]
    assert _of(tmp_path, PEER, ends=ends).crash is Crash.HOST_OOM


def test_the_numbers_of_the_second_seed(tmp_path: Path) -> None:
    found = _of(tmp_path, OOM, step=703)
    assert found.oom is not None
    sizes = (
        found.oom.request_bytes, found.oom.free_bytes, found.oom.allocated_bytes,
        found.oom.capacity_bytes, found.oom.shortfall_bytes,
    )  # fmt: skip
    assert [round((size or 0) / _GIB, 2) for size in sizes] == [4.74, 4.57, 90.29, 94.97, 0.17]
    assert found.oom.cause == "capacity"
    assert (found.step, found.ranks) == (703, (1,))
    assert "one declared knob" in found.advice[0]
    assert "do not change two at once" in found.advice[0]
    assert "shortfall 0.17 GiB" in found.advice[0]


def test_fragmentation_is_answered_by_the_allocator_first(tmp_path: Path) -> None:
    found = _of(tmp_path, traceback(OOM_FRAGMENTED))
    assert found.oom is not None
    assert found.oom.cause == "fragmentation"
    assert "expandable_segments" in found.advice[0]


def test_a_wrapped_text_keeps_its_numbers_and_takes_none_of_the_next_error(tmp_path: Path) -> None:
    wrapped = OOM_SEED.replace(" GiB of which", "\nGiB of which").replace(" Of the", "\nOf the")
    found = _of(tmp_path, wrapped + "\n" + OOM_FRAGMENTED + "\n")
    assert found.oom is not None
    assert round((found.oom.free_bytes or 0) / _GIB, 2) == 4.57


def test_two_dead_drafters_are_named(tmp_path: Path) -> None:
    text = OOM + traceback(OOM_SEED, "[rank2]: ")
    found = _of(tmp_path, text, dead_ranks=[1, 2], quiet_s=420.0, step=690)
    assert (found.crash, found.ranks, found.step) == (Crash.CUDA_OOM, (1, 2), 690)
    assert [one.source for one in found.evidence[-2:]] == [Source.SILENCE, Source.SILENCE]


def test_the_rank_that_torchrun_names_is_told(tmp_path: Path) -> None:
    assert _of(tmp_path, PEER + elastic(3, exit_code=-9, ranks=4)).ranks == (3,)


# -- error files


def _error_file(folder: Path, rank: int, message: str, at_s: int) -> Path:
    path = folder / str(rank) / "error.json"
    path.parent.mkdir()
    extra = {"py_callstack": "Traceback ...", "timestamp": str(at_s)}
    path.write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))
    return path


def test_the_earliest_error_file_is_the_root(tmp_path: Path) -> None:
    files = [
        _error_file(tmp_path, 0, GLOO_CLOSED, 1_700_000_000),
        _error_file(tmp_path, 1, "ValueError: late", 1_700_000_009),
        _error_file(tmp_path, 2, OOM_SEED.replace("torch.", ""), 1_700_000_004),
    ]
    found = _of(tmp_path, BUG, error_files=files, ends=[FAILED])
    assert (found.crash, found.ranks) == (Crash.CUDA_OOM, (2,))
    assert (found.evidence[0].source, found.evidence[0].at) == (Source.ERROR_FILE, "1700000004")
    assert found.oom is not None
    assert found.oom.cause == "capacity"


def test_an_error_file_with_a_consequence_yields_to_a_log_with_a_cause(tmp_path: Path) -> None:
    files = [_error_file(tmp_path, 0, GLOO_CLOSED, 1_700_000_000)]
    assert _of(tmp_path, OOM, error_files=files).crash is Crash.CUDA_OOM
    assert _of(tmp_path, elastic(1), error_files=files).crash is Crash.DIST_NETWORK


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"other": 1}'])
def test_an_error_file_that_says_nothing_decides_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(content)
    found = _of(tmp_path, "", error_files=[path, tmp_path / "none.json"])
    assert (found.crash, found.episode_open) == (Crash.NONE, False)
    assert [one.path for one in found.evidence] == ([str(path)] if content else [])


def test_a_bare_text_is_a_message_too(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "OSError: [Errno 28] No space left on device"}))
    assert _of(tmp_path, "", error_files=[path]).crash is Crash.DISK_FULL


def test_a_log_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        diagnose_logs([tmp_path / "none.log"])


@pytest.mark.parametrize(
    ("line", "crash"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.batch.", Crash.HOST_OOM),
        (
            "slurmstepd: error: *** JOB 4711 ON node-03 CANCELLED AT 2026-03-01T12:00:00 DUE TO "
            "TIME LIMIT ***",
            Crash.TIME_LIMIT,
        ),
        ("step 700 was the last", Crash.KILLED_UNCONFIRMED),
    ],
)
def test_a_kill_is_explained_by_the_line_that_follows_it(
    tmp_path: Path, line: str, crash: Crash
) -> None:
    assert _of(tmp_path, f"Killed\n{line}\n").crash is crash


# -- the seam


class _Unreadable(FileSystem):
    """A mount that answers nothing but EIO."""

    def open_read(self, path: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def listdir(self, path: str) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def test_every_file_is_read_through_the_seam(tmp_path: Path) -> None:
    log, error_file = tmp_path / "train.log", tmp_path / "error.json"
    log.write_text("Killed\n")
    error_file.write_text('{"message": "MemoryError: "}')
    broken = _Unreadable()

    found = diagnose(error_files=[error_file], fs=broken)
    assert found.crash is Crash.NONE
    assert "cannot be read" in found.evidence[0].text
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        diagnose_logs([log], fs=broken)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        make_fence(log, fs=broken)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        read_recorded(RunPaths(str(tmp_path)), fs=broken)
