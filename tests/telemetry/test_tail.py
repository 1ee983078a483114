"""The newest row of each GPU of a file, however its bytes come and whatever else is in it."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.gpu.states import Sighting, classify
from fleetcraft.telemetry.live.newest import NewestRows, Reading
from fleetcraft.telemetry.tail import read_tails
from tests.fleet.telemetry_files import COLUMNS, Telemetry, row

PLACE = ("7", "n1")
OURS = f"{COLUMNS},kind"


@pytest.fixture
def telemetry(tmp_path: Path) -> Telemetry:
    return Telemetry(tmp_path)


def of_kind(kind: str, age_s: float = 5.0, **cells: object) -> str:
    """One row with the last column of our own files."""
    return f"{row(age_s, **cells)},{kind}"


def about_no_gpu(kind: str, age_s: float, status: str) -> str:
    return of_kind(kind, age_s, gpu_index="", gpu_uuid="", util_pct="", status=status)


def seen(telemetry: Telemetry, *rows: str, interval_s: float = 30) -> tuple[Sighting, ...]:
    telemetry.write("n1", *rows, header=OURS, interval_s=interval_s)
    return read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus


def test_a_row_about_an_event_is_no_sample(telemetry: Telemetry) -> None:
    event = of_kind("event", 1, util_pct="", mem_used_mib="", status="xid")
    (gpu,) = seen(telemetry, of_kind("gpu", 5), event)
    assert classify(gpu)[0] == "working"


def test_while_the_driver_hangs_its_gpus_are_unknown_and_not_silent(telemetry: Telemetry) -> None:
    rows = [of_kind("gpu", 300), *(about_no_gpu("heartbeat", a, "timeout") for a in (270, 60, 5))]
    (gpu,) = seen(telemetry, *rows)
    assert gpu.age_s < 30
    assert gpu.util_pct is None
    assert classify(gpu) == ("unknown", "no utilization reading: status timeout")


def test_a_heartbeat_about_one_gpu_leaves_the_others_alone(telemetry: Telemetry) -> None:
    stuck = of_kind("heartbeat", 5, gpu_index=1, util_pct="", status="timeout")
    gpus = seen(
        telemetry,
        of_kind("gpu", 35, gpu_index=0), of_kind("gpu", 35, gpu_index=1),
        of_kind("gpu", 5, gpu_index=0), stuck,
    )  # fmt: skip
    assert {gpu.index: classify(gpu)[0] for gpu in gpus} == {0: "working", 1: "unknown"}


def test_a_heartbeat_beside_fresh_rows_takes_nothing_from_them(telemetry: Telemetry) -> None:
    (gpu,) = seen(telemetry, of_kind("gpu", 5), about_no_gpu("heartbeat", 5, "timeout"))
    assert classify(gpu)[0] == "working"


def test_when_the_driver_goes_away_its_gpus_are_unknown(telemetry: Telemetry) -> None:
    (gpu,) = seen(
        telemetry, of_kind("gpu", 65), about_no_gpu("host", 35, "ok"),
        about_no_gpu("host", 5, "driver_not_loaded"),
    )  # fmt: skip
    assert classify(gpu) == ("unknown", "no utilization reading: status driver_not_loaded")
    assert gpu.index == 0


def test_a_clock_that_was_set_back_makes_no_old_row_fresh(telemetry: Telemetry) -> None:
    # GPU 1 was last written about before the clock was set back by an hour; since then an hour.
    before = [of_kind("gpu", -3595, gpu_index=i) for i in (0, 1)]
    after = [of_kind("gpu", age_s, gpu_index=0) for age_s in range(3600, 0, -120)]
    gpus = seen(telemetry, *before, *after, interval_s=120)
    assert {gpu.index: classify(gpu)[0] for gpu in gpus} == {0: "working", 1: "silent"}


def test_the_file_that_is_written_counts_whatever_its_name_says(telemetry: Telemetry) -> None:
    telemetry.write("n1", row(900, util_pct=10), started="20261129T210000Z", age_s=900)
    telemetry.write("n1", row(util_pct=77), started="20261129T200000Z")
    (gpu,) = read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus
    assert gpu.util_pct == 77


def test_a_second_header_nul_bytes_and_a_wrong_number_of_cells_are_counted(
    telemetry: Telemetry,
) -> None:
    telemetry.write(
        "n1", of_kind("gpu", 5), OURS, of_kind("gpu\0"), of_kind("gpu") + ",more", "", header=OURS
    )
    tail = read_tails(str(telemetry.folder), [PLACE])
    assert tail.rows_rejected == 4
    assert len(tail.places[PLACE].gpus) == 1


def test_a_file_that_is_no_telemetry_has_no_rows(telemetry: Telemetry) -> None:
    telemetry.write("n1", of_kind("gpu"), header="name,phone")
    tail = read_tails(str(telemetry.folder), [PLACE])
    assert tail.places[PLACE].gpus == ()
    assert tail.rows_rejected == 2


# ------------------------------------------------------------------ however the bytes are cut

LINES = [
    *(of_kind("gpu", 300 - 30 * n, gpu_index=i, util_pct=n) for n in range(4) for i in range(3)),
    "",
    "Unable to determine the device handle: GPU is lost",
    OURS,
    of_kind("gpu", 20) + "\r",
    of_kind("heartbeat", 10, gpu_index=2, status="timeout"),
    about_no_gpu("host", 5, "no_nvml"),
    of_kind("event", 4, gpu_index=0),
    "é,\0," + "x" * 40,
]
lines = st.lists(st.sampled_from(LINES), max_size=12)


def told(rows: NewestRows, now_s: float) -> tuple[list[Reading], str]:
    return rows.readings(interval_s=30, file_age_s=2.0, now_s=now_s)


@settings(deadline=None)
@given(lines=lines, tail=st.text("123,x", max_size=8), cuts=st.lists(st.integers(0, 4000)))
def test_however_the_bytes_are_cut_the_same_rows_are_found(
    lines: list[str], tail: str, cuts: list[int]
) -> None:
    data = "\n".join([OURS, *lines, tail]).encode()
    whole, pieces = NewestRows(), NewestRows()
    whole.feed(data)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        pieces.feed(data[start:end])
    now_s = time.time()
    assert told(pieces, now_s) == told(whole, now_s)
    assert pieces.rejected == whole.rejected
    assert pieces.waiting == whole.waiting == bool(tail)


@settings(deadline=None)
@given(lines=st.lists(st.sampled_from(LINES), min_size=1), skip=st.integers(1, 60))
def test_a_reading_that_begins_in_a_row_passes_over_that_one_alone(
    lines: list[str], skip: int
) -> None:
    first, rest = of_kind("gpu", 900, gpu_index=9).encode(), "\n".join([*lines, ""]).encode()
    within = NewestRows(OURS.encode())
    within.feed(first[skip:] + b"\n" + rest)
    alone = NewestRows()
    alone.feed(OURS.encode() + b"\n" + rest)
    now_s = time.time()
    assert told(within, now_s) == told(alone, now_s)
    assert within.rejected == alone.rejected


def test_a_line_that_never_ends_is_rejected_once_and_reading_goes_on() -> None:
    rows = NewestRows()
    rows.feed(OURS.encode() + b"\n" + b"x" * 70_000)
    rows.feed(b"y" * 70_000 + b"\n" + of_kind("gpu", 5).encode() + b"\n")
    assert rows.rejected == 1
    assert len(told(rows, time.time())[0]) == 1
