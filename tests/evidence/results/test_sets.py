"""A set of results only grows, and nothing in it is used that was changed or cut short."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.errors import DataError, UnsafeSpoolError, UsageError
from fleetcraft.evidence.records import Producer
from fleetcraft.evidence.results.sets import (
    Result,
    check_name,
    put,
    read_file,
    read_set,
    set_names,
    stack_digest,
)
from fleetcraft.evidence.sealed import seal, unseal
from fleetcraft.files import FileSystem
from tests.evidence.result_rows import fill, result, room


def test_what_is_put_is_read_again(tmp_path: Path) -> None:
    paths = room(tmp_path)
    rows = [result(seed=seed, score=seed / 7, candidate="a ß") for seed in range(5)]

    path = fill(paths, "main", *rows)

    found = read_set(paths.folder, "main")
    assert (found.results, found.counts, found.damaged) == (rows, {}, False)
    assert set_names(paths.folder) == ["main"]
    assert read_file(str(path)).rows == found.rows
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_each_line_is_json_that_any_tool_reads(tmp_path: Path) -> None:
    path = fill(room(tmp_path), "main", result(seed=3, score=0.25))

    value = json.loads(path.read_text())

    assert (value["record"]["seed"], value["record"]["metrics"]) == (3, {"score": 0.25})
    assert value["record"]["timed"] is False


def test_the_digest_of_a_set_does_not_depend_on_who_wrote_when(tmp_path: Path) -> None:
    rows = [result(seed=seed) for seed in range(3)]
    one, other = room(tmp_path / "a"), room(tmp_path / "b")
    fill(one, "s", *rows)
    for number, row in enumerate(reversed(rows)):
        fill(other, "s", row, writer=f"w{number}")

    assert read_set(one.folder, "s").sha256 == read_set(other.folder, "s").sha256


@given(body=st.binary(max_size=80), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_flipped_bit_of_a_line_is_believed_or_taken_for_a_torn_write(
    body: bytes, place: int, bit: int
) -> None:
    line = bytearray(seal(body)[:-1])
    assert unseal(bytes(line)) == (body, "")
    line[place % len(line)] ^= 1 << bit

    assert unseal(bytes(line)) == (b"", "digest")


@given(body=st.binary(max_size=40), end=st.sampled_from([b"", b"}", b"}}"]), data=st.data())
def test_no_part_of_a_line_is_believed_or_taken_for_a_change(
    body: bytes, end: bytes, data: st.DataObject
) -> None:
    line = seal(body + end)[:-1]
    cut = data.draw(st.integers(0, len(line) - 1))

    assert unseal(line[:cut]) == (b"", "torn")


@pytest.mark.parametrize("body", [b"", b"}", b"{}"])
def test_a_short_line_cut_anywhere_is_torn(body: bytes) -> None:
    line = seal(body)[:-1]

    assert {unseal(line[:cut]) for cut in range(len(line))} == {(b"", "torn")}


@given(line=st.binary(max_size=200))
def test_whatever_stands_in_a_line_it_is_judged(line: bytes) -> None:
    assert unseal(line)[0] == b""


def test_a_flipped_bit_on_disk_is_counted_and_the_other_lines_are_used(tmp_path: Path) -> None:
    paths = room(tmp_path)
    path = fill(paths, "main", *(result(seed=seed, score=0.5) for seed in range(3)))
    data = bytearray(path.read_bytes())
    place = data.index(b'"score":0.5', data.index(b"\n")) + len('"score":0.')
    data[place] ^= 1
    path.write_bytes(data)

    found = read_set(paths.folder, "main")

    assert [row.seed for row in found.results] == [0, 2]
    assert found.counts == {"digest": 1}
    assert (found.rejects[0].line, found.damaged) == (2, True)


def test_a_torn_tail_is_counted_and_the_next_record_stands_on_a_line_of_its_own(
    tmp_path: Path,
) -> None:
    paths = room(tmp_path)
    path = fill(paths, "main", result(seed=0))
    with path.open("ab") as file:
        file.write(seal(b'{"schema":"fleetcraft.result/1"}')[:120])
    assert read_set(paths.folder, "main").counts == {"torn": 1}

    fill(paths, "main", result(seed=1))

    found = read_set(paths.folder, "main")
    assert [row.seed for row in found.results] == [0, 1]
    assert (found.counts, found.damaged) == ({"torn": 1}, False)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"schema":"fleetcraft.result/9","arm":"a"}', "schema"),
        (b'{"schema":"fleetcraft.result/1","arm":"a"}', "fields"),
        (b'{"schema":"fleetcraft.result/1","arm":1,"seed":1,"timed":true,"metrics":{}}', "fields"),
        (b"[]", "fields"),
        (b"\xff", "fields"),
        (b"[" * 5000, "fields"),
    ],
)
def test_a_whole_line_that_is_no_result_is_counted_by_its_reason(
    tmp_path: Path, body: bytes, reason: str
) -> None:
    paths = room(tmp_path)
    path = fill(paths, "main", result())
    with path.open("ab") as file:
        file.write(seal(body))

    found = read_set(paths.folder, "main")

    assert (len(found.rows), found.counts, found.damaged) == (1, {reason: 1}, True)


def test_files_that_are_no_writers_are_counted_too(tmp_path: Path) -> None:
    paths = room(tmp_path)
    path = fill(paths, "main", result())
    (path.parent / "notes.txt").write_text("hello")
    (path.parent / "link.jsonl").symlink_to(path)
    os.mkfifo(path.parent / "pipe.jsonl")

    found = read_set(paths.folder, "main")

    assert (len(found.rows), found.counts) == (1, {"foreign": 1, "unreadable": 2})


def test_a_record_that_stands_twice_or_says_the_same_counts_once(tmp_path: Path) -> None:
    paths = room(tmp_path)
    row = result()
    fill(paths, "main", row, row)
    fill(paths, "main", row, result(at="later"), result(score=0.6), writer="other")

    found = read_set(paths.folder, "main")

    assert ([each.metrics["score"] for each in found.results], found.repeated) == ([0.5, 0.6], 3)


def test_of_several_attempts_of_one_task_the_last_counts(tmp_path: Path) -> None:
    paths = room(tmp_path)
    for attempt, score in ((1, 0.1), (3, 0.3), (2, 0.2)):
        who = Producer(task="t", spool="taskq", attempt=attempt)
        fill(paths, "main", result(score=score, producer=who), writer=f"w{attempt}")
    fill(paths, "main", result(score=0.9, producer=Producer(task="u", spool="taskq", attempt=1)))
    fill(paths, "main", result(seed=1, score=0.7), result(seed=1, score=0.8))

    found = read_set(paths.folder, "main")

    assert sorted(row.metrics["score"] for row in found.arms()["full"]) == [0.3, 0.7, 0.8, 0.9]
    assert (len(found.rows), len(found.current)) == (6, 4)


class _LyingFS(FileSystem):
    """Appends, and reports that as failed."""

    def append(self, fd: int, data: bytes) -> None:
        super().append(fd, data)
        raise OSError(errno.EIO, "lost")


class _ShortFS(FileSystem):
    """A disk with room for so many bytes more."""

    def __init__(self, room_bytes: int) -> None:
        super().__init__()
        self.room_bytes = room_bytes

    def append(self, fd: int, data: bytes) -> None:
        super().append(fd, data[: self.room_bytes])
        raise OSError(errno.ENOSPC, "no space")


def test_an_append_that_happened_and_was_reported_as_failed_is_done(tmp_path: Path) -> None:
    paths, row = room(tmp_path), result()

    put(paths.folder, "main", row, writer="w", fs=_LyingFS())

    assert read_set(paths.folder, "main").results == [row]


@pytest.mark.parametrize("room_bytes", [0, 1, 30, 120])
def test_a_full_disk_is_told_and_what_it_left_is_no_record(tmp_path: Path, room_bytes: int) -> None:
    paths = room(tmp_path)
    fill(paths, "main", result(seed=0))

    with pytest.raises(OSError, match="no space"):
        put(paths.folder, "main", result(seed=1), writer="w", fs=_ShortFS(room_bytes))

    fill(paths, "main", result(seed=2))
    found = read_set(paths.folder, "main")
    assert [row.seed for row in found.results] == [0, 2]
    assert found.counts == ({"torn": 1} if room_bytes else {})


class _Stop(Exception):
    """The process ends here."""


class _StoppingFS(FileSystem):
    """Ends at its k-th operation."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.left = k

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name in ("create_log", "sync_folder", "open_append", "append", "datasync"):
            self.left -= 1
            if self.left < 0:
                raise _Stop
        return value


@pytest.mark.parametrize("k", range(5))
def test_a_crash_anywhere_leaves_a_set_that_takes_the_next_record(tmp_path: Path, k: int) -> None:
    paths = room(tmp_path)
    first, second = result(seed=0), result(seed=1)
    with pytest.raises(_Stop):
        put(paths.folder, "main", first, writer="w", fs=_StoppingFS(k))

    fill(paths, "main", first, second)

    assert read_set(paths.folder, "main").results == [first, second]


_WRITER = """
import sys
from fleetcraft.evidence.results.sets import put
from tests.evidence.result_rows import result
for seed in range(40):
    put(sys.argv[1], "main", result(seed=seed, arm=sys.argv[2], nonce=f"{sys.argv[2]}-{seed}",
        candidate="c" * 3000), writer="w")
"""


def test_processes_that_append_to_one_file_do_not_mix_their_lines(tmp_path: Path) -> None:
    paths = room(tmp_path)
    repo = Path(__file__).resolve().parents[3]
    running = [
        subprocess.Popen([sys.executable, "-c", _WRITER, paths.folder, f"arm{n}"], cwd=repo)
        for n in range(3)
    ]
    assert [each.wait(60) for each in running] == [0, 0, 0]

    found = read_set(paths.folder, "main")

    assert found.counts == {}
    assert {name: len(rows) for name, rows in found.arms().items()} == dict.fromkeys(
        ["arm0", "arm1", "arm2"], 40
    )


def test_a_room_that_others_can_write_is_refused(tmp_path: Path) -> None:
    paths = room(tmp_path)
    fill(paths, "main", result())
    os.chmod(paths.results, 0o777)

    with pytest.raises(UnsafeSpoolError):
        put(paths.folder, "main", result(), writer="w")


def test_a_set_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    paths = room(tmp_path)
    assert set_names(paths.folder) == []
    fill(paths, "main", result())

    with pytest.raises(DataError, match="no result set 'other'") as told:
        read_set(paths.folder, "other")
    assert "main" in told.value.hint
    with pytest.raises(UsageError):
        read_set(paths.folder, "../main")


@pytest.mark.parametrize("name", ["", ".a", "a/b", "a b", "x" * 65, "a\n", "é"])
def test_what_is_no_name_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(UsageError) as told:
        check_name(name, "set")
    assert "at most 64" in told.value.hint


def test_a_stack_has_one_digest_whatever_its_order() -> None:
    assert stack_digest({"a": "1", "b": "2"}) == stack_digest({"b": "2", "a": "1"}) != ""
    assert stack_digest({}) == ""


def test_what_is_not_known_is_not_written(tmp_path: Path) -> None:
    path = fill(room(tmp_path), "main", result(score=None))

    assert set(json.loads(path.read_text())["record"]) == {
        "schema", "arm", "seed", "timed", "metrics", "nonce",
    }  # fmt: skip
    assert isinstance(read_file(str(path)).results[0], Result)
