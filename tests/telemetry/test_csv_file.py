"""The logger's file: its name, its rows on disks that fill up or vanish, its sidecar, its lock."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleetcraft.errors import SpoolError, TryAgainLaterError
from fleetcraft.files import FileSystem
from fleetcraft.layout import parse_telemetry_file
from fleetcraft.telemetry.logger.csv_file import HEADER, CsvFile, Place, prepare_folder

NOON_S = 1796040000.0  # 2026-11-30T12:00:00Z
ROWS = ["one,1\n", "two,2\n", "three,3\n"]


class Disk:
    """``os.write`` for a disk that takes so many bytes more, or answers with an error."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.error = 0
        self.writes: list[bytes] = []

    def write(self, fd: int, data: bytes) -> int:
        self.writes.append(data)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        if self.room is not None:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: self.room]
            self.room -= len(data)
        return os.write(fd, data)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def make(tmp_path: Path, disk: Disk) -> Callable[..., CsvFile]:
    def new(node: str = "n1", job: str = "7") -> CsvFile:
        return CsvFile(str(tmp_path), node, job, wall_s=lambda: NOON_S, write=disk.write)

    return new


@pytest.fixture
def file(make: Callable[..., CsvFile]) -> Iterator[CsvFile]:
    opened = make()
    opened.open()
    yield opened
    opened.close()


def lines(file: CsvFile) -> list[str]:
    return Path(file.path).read_text().splitlines()[1:]


# ------------------------------------------------------------------------------------- names


def test_a_file_is_named_by_node_job_and_start_and_private(file: CsvFile, tmp_path: Path) -> None:
    assert file.path == f"{tmp_path}/n1_job7_20261130T120000Z.csv"
    assert stat.S_IMODE(os.stat(file.path).st_mode) == 0o600
    assert Path(file.path).read_text() == HEADER


def test_a_logger_that_follows_within_the_second_has_a_file_of_its_own(
    make: Callable[..., CsvFile],
) -> None:
    files = [make() for _ in range(3)]
    for one in files:
        one.open()
    assert len({one.path for one in files}) == 3
    for one in files:
        one.close()


@pytest.mark.parametrize(
    "node", ["../../etc/x", "rack 3/node 4", "a\nb", "..", "", "é\udc80", "x" * 500, "n_job9_x"]
)
@pytest.mark.parametrize("job", ["7", "7_1", "a/b", ""])
def test_no_name_of_a_node_or_job_leads_out_of_the_folder(
    make: Callable[..., CsvFile], tmp_path: Path, node: str, job: str
) -> None:
    file = make(node, job)
    file.open()
    file.close()
    (name,) = os.listdir(tmp_path)
    assert parse_telemetry_file(name) is not None
    assert not name.startswith(".")


def test_a_link_in_its_place_is_not_followed(make: Callable[..., CsvFile], tmp_path: Path) -> None:
    target = tmp_path / "precious.txt"
    target.write_text("precious")
    (tmp_path / "n1_job7_20261130T120000Z.csv").symlink_to(target)
    file = make()
    file.open()
    file.append(ROWS)
    file.close()
    assert target.read_text() == "precious"
    assert file.path.endswith("T120001Z.csv")


# -------------------------------------------------------------------------------------- rows


def test_all_rows_of_a_sample_are_one_write(file: CsvFile, disk: Disk) -> None:
    disk.writes.clear()
    assert file.append(ROWS)
    assert disk.writes == [b"one,1\ntwo,2\nthree,3\n"]
    assert (file.rows_written, file.rows_lost) == (3, 0)


@pytest.mark.parametrize("room", range(20))
def test_on_a_full_disk_whole_rows_count_and_the_next_begin_on_a_line_of_their_own(
    file: CsvFile, disk: Disk, room: int
) -> None:
    disk.room = room
    assert not file.append(ROWS)
    whole = b"".join(row.encode() for row in ROWS)[:room].count(b"\n")
    assert (file.rows_written, file.rows_lost) == (whole, 3 - whole)
    assert file.trouble == os.strerror(errno.ENOSPC)

    disk.room = None
    assert file.append(["later,4\n"])
    found = lines(file)
    assert found[:whole] == [row.rstrip() for row in ROWS[:whole]]
    assert found[-1] == "later,4"
    assert len(found) <= whole + 2
    assert "" not in found
    assert file.trouble == ""


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_refuses_is_borne_and_its_rows_are_counted(
    file: CsvFile, disk: Disk, code: int
) -> None:
    disk.error = code
    for _ in range(3):
        assert not file.append(ROWS)
    disk.error = 0
    assert file.append(ROWS)
    assert (file.rows_written, file.rows_lost) == (3, 9)
    assert len(lines(file)) == 3


def test_a_file_that_was_removed_is_noticed_and_another_one_begun(
    file: CsvFile, make: Callable[..., CsvFile]
) -> None:
    first = file.path
    assert file.is_open
    os.unlink(first)
    assert not file.is_open
    assert not file.append(ROWS)
    file.open()
    assert file.append(ROWS)
    assert (file.rows_written, file.rows_lost) == (3, 3)
    assert lines(file) == ["one,1", "two,2", "three,3"]


def test_a_file_whose_header_does_not_fit_is_not_left_behind(
    make: Callable[..., CsvFile], disk: Disk, tmp_path: Path
) -> None:
    disk.room = 10
    file = make()
    with pytest.raises(OSError, match="header"):
        file.open()
    assert os.listdir(tmp_path) == []
    assert not file.is_open
    assert not file.append(ROWS)
    assert file.rows_lost == 3


def test_past_a_limit_of_the_file_size_a_real_kernel_is_borne_too(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "from fleetcraft.telemetry.logger.csv_file import CsvFile, HEADER\n"
        "limit = len(HEADER) + 8\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "file = CsvFile(sys.argv[1], 'n', '7')\n"
        "file.open()\n"
        "said = [file.append(['one,1\\n', 'two,2\\n']), file.append(['three,3\\n'])]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "said.append(file.append(['four,4\\n']))\n"
        "print(said, file.rows_written, file.rows_lost)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert done.stdout == "[False, False, True] 2 2\n"
    (path,) = tmp_path.iterdir()
    assert path.read_text() == HEADER + "one,1\ntw\nfour,4\n"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != len(HEADER) + 8


# ------------------------------------------------------------------------------------ sidecar


def test_the_sidecar_is_replaced_as_a_whole_and_stays_when_it_cannot_be(
    file: CsvFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Path(file.path).with_suffix(".json")
    file.write_sidecar({"a": 1})
    file.write_sidecar({"a": 2})
    assert json.loads(beside.read_text()) == {"a": 2}
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(FileSystem, "create", full)
    with pytest.raises(OSError, match="full"):
        file.write_sidecar({"a": 3})
    assert json.loads(beside.read_text()) == {"a": 2}
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".json"]


# -------------------------------------------------------------------------------- the folder


def test_a_folder_is_made_private_with_its_parents(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "telemetry"
    prepare_folder(str(folder))
    prepare_folder(str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(SpoolError, match="somebody else owns it or can write it") as refused:
        prepare_folder(str(folder))
    assert refused.value.exit_code == 5
    assert "chmod go-w" in refused.value.hint


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(SpoolError, match="it is a link"):
        prepare_folder(str(tmp_path / "link"))


# ---------------------------------------------------------------------------------- the lock

HOLD = """
import sys
from fleetcraft.telemetry.logger.csv_file import Place
place = Place(sys.argv[1], "n1", "7")
place.take()
place.tell(sys.argv[2])
print(flush=True)
sys.stdin.read()
place.leave()
"""


def hold(folder: Path, file: str = "/first.csv") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), file],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "\n"
    return process


def test_the_refusal_names_the_pid_and_the_file_of_the_first(tmp_path: Path) -> None:
    first = hold(tmp_path)
    with first, pytest.raises(TryAgainLaterError) as refused:
        Place(f"{tmp_path}/.", "n1", "7").take()
    assert refused.value.exit_code == 75
    assert refused.value.message == (
        f"node n1, job 7 has a logger already: pid {first.pid} writes /first.csv; "
        "nothing was logged by this one"
    )


def test_another_node_another_job_and_another_folder_are_other_places(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with hold(tmp_path):
        places = [
            Place(str(tmp_path), "n2", "7"),
            Place(str(tmp_path), "n1", "8"),
            Place(f"{tmp_path}/other", "n1", "7"),
        ]
        for place in places:
            assert place.take()
            place.leave()


@pytest.mark.parametrize("killed", [False, True])
def test_the_place_is_free_once_its_holder_has_ended_in_whatever_way(
    tmp_path: Path, killed: bool
) -> None:
    first = hold(tmp_path, file="/" + "long" * 200)
    if killed:
        first.send_signal(signal.SIGKILL)
    first.communicate()
    with hold(tmp_path, file="/second.csv") as second, pytest.raises(TryAgainLaterError) as refused:
        Place(str(tmp_path), "n1", "7").take()
    assert f"pid {second.pid} writes /second.csv;" in refused.value.message


def test_who_waits_gets_the_place_when_it_is_given_up_and_leaves_no_file_behind(
    tmp_path: Path,
) -> None:
    first = hold(tmp_path)
    assert first.stdin
    place = Place(str(tmp_path), "n1", "7")
    pauses = iter(range(10_000))

    def pause(seconds: float) -> bool:
        if next(pauses) == 3:
            first.communicate()
        return True

    assert place.take(patience_s=60.0, pause=pause)
    assert next(pauses) >= 4
    place.leave()
    assert not os.path.exists(place.path)


def test_who_waits_stops_waiting_when_told_to(tmp_path: Path) -> None:
    with hold(tmp_path):
        place = Place(str(tmp_path), "n1", "7")
        assert not place.take(patience_s=60.0, pause=lambda _: False)
