"""Following progress files: what is new, what is history, and what could not be read."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import progress_file
from fleetcraft.training.progress.reading import (
    CHUNK_BYTES,
    LOG_RANK,
    LOOK_BYTES,
    MAX_LINE_BYTES,
    ProgressReader,
    read_at,
)
from fleetcraft.training.records import RankProgress

HELLO = '{"hello":1,"pid":%d,"start_ticks":7,"host":"n","boot_id":"b","pid_namespace":"p"}\n'


class Ticks:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Run:
    """A folder of progress files, a clock, and a reader that has seen the folder empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Ticks()
        self.reader = ProgressReader(str(folder), clock=self.clock)
        self.reader.look()

    def path(self, rank: int = 0) -> Path:
        return Path(progress_file(str(self.folder), rank))

    def write(self, text: str, rank: int = 0) -> None:
        with self.path(rank).open("a") as file:
            file.write(text)

    def look(self, rank: int = 0) -> RankProgress:
        self.clock.now_s += 1
        return self.reader.look()[rank]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def step(number: int, **more: object) -> str:
    return json.dumps({"step": number, **more}) + "\n"


def test_any_language_can_append_a_line(run: Run) -> None:
    command = f"""echo '{{"step": 12, "tokens": 64}}' >> {run.path(2)}"""
    subprocess.run(["bash", "-c", command], check=True)
    rank = run.look(2)
    assert (rank.step, rank.tokens, rank.process, rank.name) == (12, 64, None, "")


def test_a_step_is_seen_to_grow_when_it_grows_and_not_when_it_is_said_again(run: Run) -> None:
    run.write(step(1))
    assert run.look().step_changed_s == 101
    run.write(step(1) + step(1))
    again = run.look()
    assert (again.step_changed_s, again.changed_s) == (101, 102)
    run.write(step(2))
    assert run.look().step_changed_s == 103
    assert run.look().step_changed_s == 103


def test_tokens_add_up_and_the_first_step_is_kept(run: Run) -> None:
    run.write(step(600, tokens=10) + step(601, tokens=2.5))
    run.write(step(602))
    run.look()
    run.write(step(603, tokens=10))
    rank = run.look()
    assert (rank.first_step, rank.step, rank.tokens) == (600, 603, 22)


def test_half_a_line_waits_for_its_end(run: Run) -> None:
    run.write(step(1) + '{"step": 2, "lo')
    assert run.look().step == 1
    assert run.look().bad_lines == 0
    run.write('ss": 0.5}\n')
    rank = run.look()
    assert (rank.step, rank.loss, rank.lines, rank.bad_lines) == (2, 0.5, 2, 0)


def test_lines_that_stood_there_before_are_no_progress_that_was_seen(tmp_path: Path) -> None:
    before = Run(tmp_path)
    before.write(step(690))
    reader = ProgressReader(str(tmp_path), clock=before.clock)
    rank = reader.look()[0]
    assert (rank.step, rank.step_changed_s, rank.changed_s) == (690, None, None)
    before.clock.now_s += 1
    before.write(step(690))
    assert reader.look()[0].step_changed_s is None
    before.write(step(691))
    assert reader.look()[0].step_changed_s == 101


def test_a_file_that_appears_later_is_news(run: Run) -> None:
    run.write(step(5), rank=9)
    assert run.look(9).step_changed_s == 101


def test_a_folder_that_is_made_later_holds_only_news(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.folder = tmp_path / "progress"
    run.reader = ProgressReader(str(run.folder), clock=run.clock)
    assert run.reader.look() == {}
    assert run.reader.trouble == f"{run.folder}: No such file or directory"
    run.folder.mkdir()
    run.write(step(1))
    assert run.look().step_changed_s == 101


def test_a_process_that_resumes_at_an_earlier_step_makes_progress(run: Run) -> None:
    run.write(HELLO % 1 + step(690))
    run.look()
    run.write(HELLO % 2)
    assert run.look().step == 690
    run.write(step(600))
    rank = run.look()
    assert (rank.step, rank.step_changed_s) == (600, 103)
    assert rank.process is not None
    assert rank.process.process.pid == 2


def test_a_new_process_is_in_no_phase_of_the_one_before(run: Run) -> None:
    run.write(HELLO % 1 + '{"phase":"save"}\n')
    assert (run.look().phase, run.look().phase_since_s) == ("save", 101)
    run.write(HELLO % 2)
    assert (run.look().phase, run.look().phase_since_s) == ("", None)


def test_a_phase_that_ends_and_begins_between_two_looks_is_a_new_one(run: Run) -> None:
    run.write('{"phase":"eval"}\n')
    run.look()
    run.write('{"phase":""}\n{"phase":"eval"}\n')
    assert run.look().phase_since_s == 102


def test_bad_lines_are_counted_by_kind_and_take_nothing_with_them(run: Run) -> None:
    run.write("Traceback (most recent call last):\n\n  \n" + step(3, loss="low") + '{"x":1}\n')
    rank = run.look()
    assert (rank.step, rank.lines, rank.bad_lines) == (3, 3, 3)
    assert dict(run.reader.rejected) == {
        "no JSON": 1, "loss: no number": 1, "says nothing known": 1,
    }  # fmt: skip


@pytest.mark.parametrize("length", [MAX_LINE_BYTES - 1, MAX_LINE_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_line_without_end_is_left_out_and_the_next_is_read(run: Run, length: int) -> None:
    run.write(step(1) + "x" * length)
    assert run.look().step == 1
    run.write("x" * 10)
    run.look()
    run.write("\n" + step(2))
    rank = run.look()
    assert (rank.step, rank.bad_lines) == (2, 1)


def test_a_file_that_was_cut_is_read_anew_and_is_no_progress(run: Run) -> None:
    run.write(step(1, tokens=5) + step(2, tokens=5))
    run.look()
    run.path().write_text(step(1, tokens=5))
    rank = run.look()
    assert (run.reader.replaced, rank.step, rank.tokens, rank.step_changed_s) == (1, 1, 10, 101)
    run.write(step(2, tokens=5))
    rank = run.look()
    assert (rank.step, rank.tokens, rank.step_changed_s) == (2, 15, 103)


def test_a_file_that_was_replaced_by_a_longer_one_is_noticed_by_its_bytes(run: Run) -> None:
    run.write(step(100))
    run.look()
    new = run.folder / "new"
    new.write_text(step(1) + step(2) + step(3))
    new.replace(run.path())
    assert run.look().step == 3
    assert run.reader.replaced == 1


class Failing:
    """Reads, until told to fail."""

    def __init__(self) -> None:
        self.code = 0

    def __call__(self, path: str, offset: int, limit_bytes: int) -> tuple[bytes, int]:
        if self.code:
            raise OSError(self.code, os.strerror(self.code), path)
        return read_at(path, offset, limit_bytes)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOENT])
def test_what_cannot_be_read_changes_nothing_and_is_said(tmp_path: Path, code: int) -> None:
    run, read = Run(tmp_path), Failing()
    run.reader = ProgressReader(str(tmp_path), clock=run.clock, read=read)
    run.reader.look()
    run.write(step(5))
    run.look()
    read.code = code
    run.write(step(6))
    assert run.look().step == 5
    assert run.reader.trouble == f"rank 0: {os.strerror(code)}"
    read.code = 0
    assert run.look().step == 6
    assert run.reader.trouble == ""


def test_a_folder_that_cannot_be_listed_hides_no_rank_that_is_known(tmp_path: Path) -> None:
    class NoList(FileSystem):
        broken = False

        def listdir(self, path: str) -> list[str]:
            if self.broken:
                raise OSError(errno.EIO, "Input/output error", path)
            return super().listdir(path)

    fs = NoList()
    run = Run(tmp_path)
    run.reader = ProgressReader(str(tmp_path), fs=fs, clock=run.clock)
    run.reader.look()
    run.write(step(5))
    run.look()
    fs.broken = True
    run.write(step(6))
    assert run.look().step == 6
    assert run.reader.trouble == f"{tmp_path}: Input/output error"


def test_a_link_or_a_pipe_is_not_read(run: Run) -> None:
    secret = run.folder / "secret"
    secret.write_text(step(9))
    run.path(0).symlink_to(secret)
    os.mkfifo(run.path(1))
    seen = run.reader.look()
    assert [seen[0].step, seen[1].step] == [None, None]
    assert "rank 0" in run.reader.trouble
    assert "rank 1" in run.reader.trouble


def test_other_names_in_the_folder_are_no_ranks(run: Run) -> None:
    for name in ("rank-1.jsonl", "rank-00001.jsonl.tmp", "notes", "rank-.jsonl"):
        (run.folder / name).write_text(step(1))
    assert run.reader.look() == {}
    assert run.reader.trouble == ""


def test_a_long_history_is_read_in_several_looks_and_said_meanwhile(tmp_path: Path) -> None:
    run = Run(tmp_path)
    line = step(1, pad="x" * 60_000)
    count = LOOK_BYTES // len(line) + 20
    run.write(line * count + step(7))
    reader = ProgressReader(str(tmp_path), clock=run.clock)
    assert reader.look()[0].step == 1
    assert "are not read yet" in reader.trouble
    rank = reader.look()[0]
    assert (rank.step, rank.lines, rank.step_changed_s, reader.trouble) == (7, count + 1, None, "")


def test_steps_of_the_log_count_only_while_no_rank_counts_any(tmp_path: Path) -> None:
    run = Run(tmp_path)
    told: list[int | None] = [3]
    run.reader = ProgressReader(str(tmp_path), clock=run.clock, log_steps=lambda: told[0])
    first = run.look(LOG_RANK)
    assert (first.name, first.step, first.step_changed_s) == ("log", 3, None)
    told[0] = 4
    assert run.look(LOG_RANK).step_changed_s == 102
    assert run.look(LOG_RANK).step_changed_s == 102
    run.write(step(1))
    run.look(0)
    assert LOG_RANK not in run.reader.look()


def test_the_world_size_is_as_a_rank_told_it(run: Run) -> None:
    run.write('{"hello":1,"world_size":6}\n')
    run.look()
    assert run.reader.world_size == 6


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 400), max_size=8),
)
def test_however_the_bytes_arrive_the_same_is_read(steps: list[int], cuts: list[int]) -> None:
    data = "".join(step(one, tokens=1, loss=0.5) for one in steps).encode()
    edges = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    sizes = iter([*edges, edges[-1]])
    size = 0

    def read(path: str, offset: int, limit_bytes: int) -> tuple[bytes, int]:
        return data[offset : min(size, offset + limit_bytes)], size

    class OneFile(FileSystem):
        def listdir(self, path: str) -> list[str]:
            return ["rank-00000.jsonl"]

    reader = ProgressReader("/nowhere", fs=OneFile(), clock=Ticks(), read=read)
    for size in sizes:  # noqa: B007
        rank = reader.look()[0]
    assert (rank.step, rank.tokens, rank.lines) == (steps[-1], len(steps), len(steps))
    assert rank.bad_lines == 0
