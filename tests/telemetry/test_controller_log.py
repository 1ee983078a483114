"""A controller's log: every line is a point, a summary, or counted by what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.errors import DataError
from fleetcraft.telemetry.figures.controller_log import (
    LineKind,
    Point,
    Summary,
    parse_line,
    read_controller_logs,
)
from tests.telemetry.traces import archived

POINT = "[2026-07-17 14:03:23] util=48% (13/27 GPUs) free_idle=3 pending=5"
SUMMARY = (
    "[2026-07-19 14:42:27] rolling SUMMARY window=300s hosts=16 samples=410 active_fraction=0.761 "
    "mean_util=74.87 mean_mem_fraction=0.699"
)


def log_of(tmp_path: Path, *lines: str, tail: str = "") -> Path:
    path = tmp_path / "controller.log"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode() + tail.encode())
    return path


def at(time: str, rest: str = "util=50% (1/2 GPUs) free_idle=0 pending=0") -> str:
    return f"[2026-07-17 {time}] {rest}"


def test_a_point_says_what_it_says(tmp_path: Path) -> None:
    log = read_controller_logs([str(log_of(tmp_path, POINT))])
    (point,) = log.points
    assert (point.printed_pct, point.working, point.total) == (48, 13, 27)
    assert (point.free_idle, point.pending) == (3, 5)
    assert point.utilization_pct == pytest.approx(100 * 13 / 27)
    assert (log.inconsistent, log.rejected, log.zoned) == (0, {}, False)


def test_a_summary_says_what_it_says(tmp_path: Path) -> None:
    log = read_controller_logs([str(log_of(tmp_path, SUMMARY))])
    (summary,) = log.summaries
    assert (summary.window_s, summary.hosts, summary.samples) == (300.0, 16, 410)
    assert summary.active_fraction == 0.761
    assert summary.mean_util_pct == 74.87
    assert summary.mean_memory_fraction == 0.699


@pytest.mark.parametrize(
    ("printed", "consistent"), [("48%", True), ("49%", False), ("47%", False), ("?%", False)]
)
def test_a_percentage_other_than_the_floor_is_counted_and_kept(
    tmp_path: Path, printed: str, consistent: bool
) -> None:
    log = read_controller_logs([str(log_of(tmp_path, POINT.replace("48%", printed)))])
    assert len(log.points) == 1
    assert log.inconsistent == (0 if consistent else 1)


@pytest.mark.parametrize("counts", ["(0/0 GPUs)", "(3/2 GPUs)"])
def test_counts_that_cannot_be_are_inconsistent_and_kept(tmp_path: Path, counts: str) -> None:
    log = read_controller_logs([str(log_of(tmp_path, POINT.replace("(13/27 GPUs)", counts)))])
    assert (len(log.points), log.inconsistent) == (1, 1)


def test_lines_are_sorted_by_time_and_steps_back_are_counted(tmp_path: Path) -> None:
    path = log_of(tmp_path, at("10:00:00"), at("12:00:00"), at("11:00:00"), at("11:30:00"))
    log = read_controller_logs([str(path)])
    assert log.steps_back == 1
    assert [point.t_s for point in log.points] == sorted(point.t_s for point in log.points)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("controller started", LineKind.UNKNOWN_LINE),
        ("[2026-07-17 14:03:23] submitted job 12", LineKind.UNKNOWN_LINE),
        (POINT + " and more", LineKind.UNKNOWN_LINE),
        (POINT.replace("2026-07-17", "2026-13-17"), LineKind.BAD_TIME),
        (SUMMARY.replace("0.761", "1.761"), LineKind.BAD_SUMMARY),
        (SUMMARY.replace("hosts=16", "hosts=many"), LineKind.BAD_SUMMARY),
        (SUMMARY.replace(" window=300s", ""), LineKind.BAD_SUMMARY),
        (POINT.replace("util", "ut\0il"), LineKind.NUL_BYTES),
        (POINT + " x" * 5000, LineKind.TOO_LONG),
    ],
)
def test_a_line_that_is_neither_is_counted_by_its_kind(
    tmp_path: Path, line: str, kind: LineKind
) -> None:
    log = read_controller_logs([str(log_of(tmp_path, POINT, line, SUMMARY))])
    assert (len(log.points), len(log.summaries), log.lines) == (1, 1, 3)
    assert log.rejected == {kind.value: 1}


def test_a_torn_last_line_is_not_believed(tmp_path: Path) -> None:
    log = read_controller_logs([str(log_of(tmp_path, POINT, tail=at("15:00:00")[:-1] + "1"))])
    assert (len(log.points), log.rejected) == (1, {"torn_tail": 1})


def test_a_summary_without_a_measurement_has_none(tmp_path: Path) -> None:
    log = read_controller_logs([str(log_of(tmp_path, SUMMARY.replace("74.87", "nan")))])
    assert log.summaries[0].mean_util_pct is None
    assert log.summaries[0].active_fraction == 0.761


def test_what_lies_outside_the_span_is_counted(tmp_path: Path) -> None:
    path = log_of(tmp_path, at("10:00:00"), at("11:00:00"), at("12:00:00"))
    middle_s = read_controller_logs([str(path)]).points[1].t_s
    log = read_controller_logs([str(path)], since_s=middle_s, until_s=middle_s + 3600)
    assert (len(log.points), log.outside) == (1, 2)


def test_several_logs_are_one_and_no_step_back_lies_between_them(tmp_path: Path) -> None:
    first = log_of(tmp_path, at("12:00:00"))
    second = tmp_path / "second.log"
    second.write_text(at("10:00:00") + "\n\n")
    log = read_controller_logs([str(first), str(second)])
    assert (len(log.points), log.lines, log.steps_back) == (2, 2, 0)


def test_a_log_that_is_not_there_or_no_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("nowhere", "pipe", "."):
        with pytest.raises(DataError, match="nothing was drawn"):
            read_controller_logs([str(tmp_path / name)])


@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode)))
def test_no_bytes_break_the_parser(line: bytes) -> None:
    assert isinstance(parse_line(line), LineKind | tuple)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_point_as_printed_is_read_back(working: int, more: int, idle: int, pending: int) -> None:
    total = working + more
    printed = 100 * working // total
    line = f"util={printed}% ({working}/{total} GPUs) free_idle={idle} pending={pending}"
    found = parse_line(f"[2026-07-17 14:03:23] {line}\n".encode())
    assert isinstance(found, tuple)
    point = found[0]
    assert isinstance(point, Point)
    assert not isinstance(point, Summary)
    assert (point.working, point.total, point.free_idle) == (working, total, idle)
    assert (point.pending, point.is_consistent) == (pending, True)


def test_the_archived_log_is_read_whole() -> None:
    log = read_controller_logs([str(archived() / "controller.log")])
    assert (len(log.points), len(log.summaries), log.lines) == (198, 102, 300)
    assert (log.rejected, log.inconsistent) == ({}, 0)
    assert log.steps_back >= 1
