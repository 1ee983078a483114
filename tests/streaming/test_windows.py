"""Windows of telemetry as rows: each once, none without a sample, caught up after a pause."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetcraft.errors import DataError
from fleetcraft.streaming.rows import Row
from fleetcraft.streaming.windows import SETTLE_S, WindowFollower
from tests.telemetry.journals import iso
from tests.telemetry.trees import inventory, lines, write_file

T = 1_800_000_000.0  # a multiple of 300 s, and 08:00 of that day
WINDOW_S = 300.0


class Clock:
    def __init__(self) -> None:
        self.now_s = T

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def follower(folder: Path, clock: Clock) -> WindowFollower:
    return WindowFollower(str(folder), spools=None, window_s=WINDOW_S, clock=clock)


def write(
    folder: Path, count: int, *, util_pct: int = 50, t_s: float = T, node: str = "n1"
) -> Path:
    sidecar = {"interval_s": 30, "started_at": iso(t_s), "gpus": inventory(0)}
    rows = lines(t_s + 30, count, util_pct=util_pct)
    path = write_file(folder, node, rows, sidecar=sidecar, started=started(t_s))
    touch(path, t_s + 30 * count)
    return path


def started(t_s: float) -> str:
    return iso(t_s).replace("-", "").replace(":", "").partition(".")[0].rstrip("Z") + "Z"


def touch(path: Path, t_s: float) -> None:
    import os

    os.utime(path, (t_s, t_s))


def all_rows(one: WindowFollower) -> list[Row]:
    taken = one.take()
    rows = taken.rows
    while taken.more:
        taken = one.take()
        rows += taken.rows
    return rows


def test_a_window_is_a_row_once_it_is_over_and_its_rows_had_time_to_arrive(
    tmp_path: Path, clock: Clock
) -> None:
    write(tmp_path, 20)
    one = follower(tmp_path, clock)
    clock.now_s = T + WINDOW_S + SETTLE_S - 1
    assert all_rows(one) == []
    clock.now_s += 1
    (row,) = all_rows(one)
    assert (row["_timestamp"], row["fleet/active_fraction"]) == (T + WINDOW_S, 1.0)
    assert (row["fleet/utilization_pct"], row["fleet/gpus_reporting"]) == (50.0, 1)
    assert "queue/outer/pending" not in row  # nobody says where the spools are
    clock.now_s += WINDOW_S
    assert [row["_timestamp"] for row in all_rows(one)] == [T + 2 * WINDOW_S]
    assert all_rows(one) == []


def test_another_call_goes_on_with_the_next_window(tmp_path: Path, clock: Clock) -> None:
    write(tmp_path, 100)
    clock.now_s = T + 2 * WINDOW_S + SETTLE_S
    first = follower(tmp_path, clock)
    assert len(all_rows(first)) == 2
    place = msgspec.json.decode(msgspec.json.encode(first.take().place))
    clock.now_s = T + 40 * WINDOW_S
    later = follower(tmp_path, clock)
    later.restore(place)
    assert [row["_timestamp"] for row in all_rows(later)] == [
        T + n * WINDOW_S for n in range(3, 11)
    ]


def test_hours_without_a_row_give_no_rows_and_are_not_even_looked_at(
    tmp_path: Path, clock: Clock
) -> None:
    write(tmp_path, 10)
    write(tmp_path, 10, t_s=T + 100 * WINDOW_S, node="n2")
    clock.now_s = T + 200 * WINDOW_S
    one = follower(tmp_path, clock)
    assert [row["_timestamp"] for row in all_rows(one)] == [T + WINDOW_S, T + 101 * WINDOW_S]
    assert one.counts().get("windows without a row", 0) <= 2


def test_files_that_cannot_be_read_and_folders_that_are_not_there_are_told(
    tmp_path: Path, clock: Clock
) -> None:
    assert all_rows(follower(tmp_path / "none", clock)) == []
    write(tmp_path, 10)
    (tmp_path / "x_job1_20270115T080000Z.csv").mkdir()
    archived = "timestamp,mem_used_mib,mem_total_mib,util_pct,power_w\n"
    (tmp_path / "host01.csv").write_text(f"{archived}2026/07/10 19:42:00.000,8,97871,50,85.83\n")
    clock.now_s = T + 2 * WINDOW_S
    one = follower(tmp_path, clock)
    assert len(all_rows(one)) == 1
    assert one.counts()["files refused"] == 1
    assert one.counts()["files whose names tell no start"] == 1
    with pytest.raises(DataError, match="damaged"):
        one.restore({"end_s": "soon"})


def test_a_window_waits_for_a_file_that_cannot_be_read_and_then_goes_without_it(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 20)
    away = write(tmp_path, 20, node="n2", util_pct=0)
    opened = os.open

    def stale(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == str(away):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return opened(path, *args, **kwargs)

    one, late = follower(tmp_path, clock), follower(tmp_path, clock)
    clock.now_s = T + WINDOW_S + SETTLE_S
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", stale)
        assert all_rows(one) == []
    (row,) = all_rows(one)
    assert row["fleet/active_fraction"] == 0.5

    clock.now_s = T + WINDOW_S + 600.0
    monkeypatch.setattr(os, "open", stale)
    assert all_rows(late)[0]["fleet/active_fraction"] == 1.0
    assert late.counts()["windows short of a file"] == 1
