"""Reading a log as a stream: fences, half lines, replaced files, steps, and bounded memory."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetcraft.files import FileSystem
from fleetcraft.training.diagnosing.fences import make_fence
from fleetcraft.training.diagnosing.hits import Hit
from fleetcraft.training.diagnosing.scan import LogScan
from fleetcraft.training.records import Crash, Role
from tests.training.diagnosing.corpus import elastic, steps, traceback, transcripts
from tests.training.diagnosing.crashes import GLOO_CLOSED, OOM_SEED

_GIB = 1 << 30


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


def _append(log: Path, text: str | bytes) -> None:
    with log.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def _facts(hits: list[Hit]) -> list[tuple[object, ...]]:
    return [(hit.crash, hit.role, hit.byte, hit.line, hit.rank, hit.step) for hit in hits]


def test_a_hit_says_where_it_is_who_said_it_and_which_step_was_done(log: Path) -> None:
    before = steps(690, 703)
    _append(log, before + traceback(OOM_SEED, "[rank2]: "))
    with LogScan(log) as scan:
        (hit,) = scan.look()
    assert (hit.crash, hit.role, hit.rank, hit.step) == (Crash.CUDA_OOM, Role.ROOT, 2, 703)
    text = log.read_text().splitlines()
    assert text[hit.line - 1].endswith(OOM_SEED)
    assert log.read_bytes()[hit.byte :].startswith(b"[rank2]: torch.OutOfMemoryError")
    assert hit.oom is not None
    assert round((hit.oom.request_bytes or 0) / _GIB, 2) == 4.74


def test_a_half_line_waits_for_its_end(log: Path) -> None:
    with LogScan(log) as scan:
        assert scan.look() == []
        assert "not there" in scan.trouble
        _append(log, "step 1 loss 2\nsrun: error: node-03: task 2: Out Of Mem")
        assert scan.look() == []
        assert (scan.trouble, scan.step) == ("", 1)
        _append(log, "ory\n")
        assert [hit.crash for hit in scan.look()] == [Crash.HOST_OOM]
        assert scan.look() == []


def test_the_last_line_counts_without_an_end_when_nothing_more_comes(log: Path) -> None:
    _append(log, "Killed")
    with LogScan(log) as scan:
        assert scan.look() == []
        assert [hit.crash for hit in scan.look(final=True)] == [Crash.KILLED_UNCONFIRMED]


def test_a_traceback_waits_for_its_exception_but_not_for_ever(log: Path) -> None:
    whole = traceback("ValueError: bad batch")
    cut = whole.index("ValueError")
    with LogScan(log) as scan:
        _append(log, whole[:cut])
        assert scan.look() == []
        _append(log, whole[cut:])
        assert [hit.crash for hit in scan.look()] == [Crash.CODE_ERROR]
        _append(log, whole[:cut])
        assert scan.look() == []
        assert [(hit.crash, hit.role) for hit in scan.look()] == [(Crash.UNKNOWN, Role.CASCADE)]


_WHOLE = (
    steps(690, 703)
    + traceback("KeyError: 'a'", "[rank1]: ")
    + "[rank1]: During handling of the above exception, another exception occurred:\n"
    + traceback(OOM_SEED, "[rank1]: ")
    + steps(704, 704)
    + traceback(GLOO_CLOSED, "[rank0]: ")
    + elastic(1)
).encode()


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cuts=st.lists(st.integers(0, len(_WHOLE)), max_size=12))
def test_however_a_log_grows_it_says_the_same(tmp_path: Path, cuts: list[int]) -> None:
    whole, growing = tmp_path / "whole.log", tmp_path / "growing.log"
    whole.write_bytes(_WHOLE)
    growing.write_bytes(b"")
    with LogScan(whole) as scan:
        expected = _facts(scan.look(final=True))
    places = [0, *sorted(cuts), len(_WHOLE)]
    found: list[Hit] = []
    with LogScan(growing) as scan:
        for begin, end in itertools.pairwise(places):
            _append(growing, _WHOLE[begin:end])
            if end > begin:
                found += scan.look()
        found += scan.look(final=True)
        assert scan.step == 704
    assert _facts(found) == expected
    assert len(expected) == 8


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    data=st.lists(
        st.one_of(
            st.binary(max_size=80),
            st.sampled_from(
                [
                    b"Traceback (most recent call last):",
                    b"\n",
                    b"\r",
                    b'  File "x"',
                    b"Error: ",
                    b"[rank1]: ",
                    b"ut of memory",
                    b"loss: nan",
                    b'{"level": "error"',
                    b"step 3",
                    b"\x1b[",
                ]
            ),
        ),
        max_size=30,
    )
)
def test_no_bytes_break_it_and_every_hit_lies_inside(tmp_path: Path, data: list[bytes]) -> None:
    log = tmp_path / "noise.log"
    log.write_bytes(b"".join(data))
    with LogScan(log) as scan:
        for hit in scan.look(final=True):
            assert 0 <= hit.byte < log.stat().st_size
            assert 1 <= hit.line <= log.read_bytes().count(b"\n") + 1


@pytest.mark.parametrize(
    ("text", "crash"),
    [
        (traceback(OOM_SEED, "node-03: "), Crash.CUDA_OOM),
        (traceback("ValueError: bad batch", "node-03: "), Crash.CODE_ERROR),
        (traceback("zlib.error: Error -3 while decompressing data"), Crash.CODE_ERROR),
        (
            traceback("socket.gaierror: [Errno -2] Name or service not known"),
            Crash.DIST_NETWORK,
        ),
        (
            "  + Exception Group Traceback (most recent call last):\n"
            '  |   File "t.py", line 1, in <module>\n'
            "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
            "  +-+---------------- 1 ----------------\n"
            "    | Traceback (most recent call last):\n"
            '    |   File "t.py", line 2, in f\n'
            "    | OSError: [Errno 28] No space left on device\n",
            Crash.DISK_FULL,
        ),
    ],
    ids=["pdsh, out of memory", "pdsh, a bug", "zlib", "gaierror", "exception group"],
)
def test_a_traceback_is_read_to_its_exception_whoever_printed_it(
    log: Path, text: str, crash: Crash
) -> None:
    _append(log, steps(1, 3) + text)
    with LogScan(log) as scan:
        assert {hit.crash for hit in scan.look(final=True)} == {crash}


# -- fences


def test_lines_before_the_fence_never_count(log: Path) -> None:
    _append(log, traceback("ValueError: old"))
    fence = make_fence(log)
    _append(log, steps(1, 3) + "Killed\n")
    with LogScan(log, fence=fence) as scan:
        (hit,) = scan.look()
    assert hit.crash is Crash.KILLED_UNCONFIRMED


def test_a_line_across_the_fence_began_before_it(log: Path) -> None:
    _append(log, "srun: error: node-03: task 2: Out ")
    fence = make_fence(log)
    _append(log, "Of Memory\nsrun: error: node-03: task 3: Killed\n")
    with LogScan(log, fence=fence) as scan:
        assert [hit.crash for hit in scan.look()] == [Crash.KILLED_UNCONFIRMED]


@pytest.mark.parametrize("other", [b"Killed\n", b"x" * 50 + b"\nKilled\n" * 3])
def test_a_log_that_no_longer_holds_its_fence_is_fenced_anew_where_it_ends_now(
    log: Path, other: bytes
) -> None:
    _append(log, steps(1, 3))
    fence = make_fence(log)
    log.write_bytes(other)
    with LogScan(log, fence=fence) as scan:
        assert scan.look() == []
        assert "not the file that was fenced" in scan.trouble
        _append(log, "Segmentation fault (core dumped)\n")
        assert [hit.crash for hit in scan.look()] == [Crash.CODE_ERROR]


def test_the_fence_of_a_log_that_is_not_there_is_its_beginning(log: Path) -> None:
    fence = make_fence(log)
    _append(log, "Killed\n")
    with LogScan(log, fence=fence) as scan:
        assert len(scan.look()) == 1


# -- files that move


def test_a_log_that_was_renamed_away_is_read_to_its_end_before_the_new_one(log: Path) -> None:
    _append(log, steps(1, 3))
    with LogScan(log) as scan:
        scan.look()
        archive = log.with_suffix(".old")
        log.rename(archive)
        _append(archive, "srun: error: node-03: task 2: Killed\n")
        assert [hit.crash for hit in scan.look()] == [Crash.KILLED_UNCONFIRMED]
        _append(archive, "srun: error: node-03: task 2: Out Of Memory\n")
        _append(log, "Segmentation fault (core dumped)\n")
        assert [hit.crash for hit in scan.look()] == [Crash.HOST_OOM, Crash.CODE_ERROR]


def test_a_log_that_was_cut_is_read_anew_and_says_so(log: Path) -> None:
    _append(log, steps(1, 100))
    with LogScan(log) as scan:
        scan.look()
        log.write_bytes(b"Killed\n")
        assert len(scan.look()) == 1
        assert "cut below" in scan.trouble


def test_a_log_that_was_cut_and_has_grown_beyond_that_place_is_read_anew(log: Path) -> None:
    _append(log, steps(1, 10))
    with LogScan(log) as scan:
        scan.look()
        log.write_bytes(b"srun: error: node-03: task 2: Killed\n" + steps(1, 100).encode())
        assert [hit.crash for hit in scan.look()] == [Crash.KILLED_UNCONFIRMED]
        assert scan.step == 100


def test_a_log_that_is_named_by_a_link_is_read(log: Path) -> None:
    _append(log, "Killed\n")
    link = log.with_suffix(".link")
    link.symlink_to(log)
    with LogScan(link) as scan:
        assert len(scan.look()) == 1


def test_what_is_no_file_is_trouble_and_holds_nobody(log: Path) -> None:
    os.mkfifo(log)
    with LogScan(log) as scan:
        assert scan.look() == []
        assert "not a regular file" in scan.trouble


def test_the_same_log_under_another_inode_number_is_not_read_twice(log: Path) -> None:
    _append(log, steps(1, 3) + "Killed\n")
    with LogScan(log) as scan:
        assert len(scan.look()) == 1
        copy = log.with_suffix(".copy")
        copy.write_bytes(log.read_bytes())
        os.replace(copy, log)
        assert scan.look() == []
        _append(log, "Killed\n")
        assert len(scan.look()) == 1


class _Failing(FileSystem):
    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def read_at(self, fd: int, count: int, offset: int) -> bytes:
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        return super().read_at(fd, count, offset)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_log_that_cannot_be_read_says_nothing_and_goes_on_later(log: Path, code: int) -> None:
    _append(log, "Killed\n")
    files = _Failing(code)
    with LogScan(log, fs=files) as scan:
        assert scan.look() == []
        assert os.strerror(code) in scan.trouble
        with pytest.raises(OSError, match="."):
            scan.raise_trouble()
        files.code = 0
        assert len(scan.look()) == 1
        assert scan.trouble == ""


# -- steps


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("step 703", 703),
        ("Step: 690 | loss 2.1", 690),
        ("iter 5/100 loss 1", 5),
        ("Iteration 12", 12),
        (" iteration      500/   10000 | consumed samples: 64000 |", 500),
        ("global_step=44 lr=1", 44),
        ('{"step": 9, "loss": 1.0}', 9),
        ("train/global_step: 12", 12),
        ("Step [5/100] loss", 5),
        (" 4%|#  | 45/1000 [00:10<03:32,  4.50it/s]", 45),
        ("STEP 8", 8),
        ("\x1b[31mstep: 12  \x1b[32mloss:  2.1", 12),
        ("Epoch: [0][ 101/5005]\tTime 0.1", 101),
        ("Epoch: [3]  [ 10/1251]  eta: 0:10:11", 10),
        ("Train: 0 [ 100/1251 (  8%)]  Loss: 2.1", 100),
        ("epoch 001: 7 / 50 loss=2.1, num_updates=57, lr=1", 57),
        ("resuming Epoch: [3][ 10/1251]", None),
        ("max_steps: 100", None),
        ("warmup steps 10", None),
        ("resuming from step 650", None),
        ("error at step 704", None),
        ("step 704 failed", None),
        ("saving every step 5", None),
        ("micro_step=3", None),
        ("step time: 12", None),
        ("step: 0.45 s", None),
        ("step 12 ms", None),
        ("saved checkpoint-500", None),
        ("validation step 5/10", None),
        ("Loading checkpoint shards: 100%|##| 4/4 [00:03<00:00,  1.20it/s]", None),
        ('  File "step.py", line 5, in step', None),
        ("step 3 loss nan", None),
    ],
)
def test_the_step_counter_of_a_line(log: Path, text: str, step: int | None) -> None:
    _append(log, f"hello\n{text}\nbye\n")
    with LogScan(log) as scan:
        scan.look(final=True)
        assert (scan.step, scan.first_step) == (step, step)


def test_a_bar_counts_only_where_nothing_names_a_step(log: Path) -> None:
    bar = " 4%|#  | 45/1000 [00:10<03:32,  4.50it/s]\r"
    _append(log, f"{bar}\nstep 3\n{bar}")
    with LogScan(log) as scan:
        scan.look(final=True)
        assert scan.step == 3


# -- bounds


def test_a_log_without_a_line_end_takes_bounded_memory_and_is_still_searched(log: Path) -> None:
    with log.open("wb") as file:
        for _ in range(5):
            file.write(b"x" * (1 << 20))
        file.write(b"\nKilled\n")
    with LogScan(log) as scan:
        assert [hit.byte for hit in scan.look()] == [(5 << 20) + 1]
        assert len(scan._carry) <= 1 << 18


def test_hits_beyond_the_bound_are_counted(log: Path) -> None:
    _append(log, "Killed\n" * 5000)
    with LogScan(log) as scan:
        assert len(scan.look()) + scan.left_out == 5000
        assert scan.left_out > 0


def test_two_ranks_that_write_into_one_line_are_told_apart(log: Path) -> None:
    _append(log, f'[rank0]:   File "a", line 3[rank1]: {OOM_SEED}\n')
    with LogScan(log) as scan:
        (hit,) = scan.look()
    assert (hit.rank, hit.crash) == (1, Crash.CUDA_OOM)


def test_every_hit_of_the_corpus_lies_where_it_says(log: Path) -> None:
    for transcript in list(transcripts())[::9]:
        log.write_bytes(transcript.data)
        with LogScan(log) as scan:
            hits = scan.look(final=True)
        for hit in hits:
            assert transcript.data.count(b"\n", 0, hit.byte) == hit.line - 1
        assert [hit.byte for hit in hits] == sorted({hit.byte for hit in hits})
