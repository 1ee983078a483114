"""What an inspection finds: steps, energy, GPUs over several files, and the archived numbers."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.errors import DataError
from fleetcraft.telemetry.inspection import sorting
from fleetcraft.telemetry.inspection.records import Inspection
from fleetcraft.telemetry.inspection.steps import FileOrder, TimeOrder
from fleetcraft.telemetry.inspection.whole import inspect
from fleetcraft.telemetry.reading.reader import FileReader
from fleetcraft.telemetry.reading.sources import Source
from fleetcraft.view.inspection_shape import inspection_shape
from tests.telemetry.traces import (
    HEADER,
    archive_row,
    archived,
    bare_row,
    our_row,
    write_archive,
    write_ours,
)

KWH_J = 3.6e6
NAN = math.nan


def shape_of(folder: Path, **options: Any) -> dict[str, Any]:
    return inspection_shape(inspect(str(folder), **options))


def us(seconds: Iterable[float]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([round(1e6 * second) for second in seconds], dtype=np.int64)


def in_time(
    rows: Sequence[tuple[float, float, float, float]],
    *,
    gap_s: float = 35.0,
    pieces: Sequence[int] = (),
) -> TimeOrder:
    """Rows of seconds, percent, watts and joules, handed over in pieces that end at these rows."""
    order = TimeOrder(round(gap_s * 1e6))
    edges = [0, *sorted(pieces), len(rows)]
    for begin, end in pairwise(edges):
        if part := rows[begin:end]:
            t_s, util, power, energy_j = (np.array(column) for column in zip(*part, strict=True))
            order.take(us(t_s), util, power, energy_j)
    order.close()
    return order


# ------------------------------------------------------------------------------------ archived


def test_the_archived_traces_give_the_numbers_that_are_known_of_them() -> None:
    expected = json.loads((archived() / "expected.json").read_text())
    found = shape_of(archived() / "hosts")
    named = {
        "active_fraction_5": found["active_fraction"],
        "rows_less_than_1s_after_previous": found["double_logged_rows"],
        "steps_back_in_time": found["back_steps"],
        "gaps_35s_or_more": found["gaps"]["count"],
        "biggest_gap_s": found["gaps"]["biggest_s"],
        "biggest_gap_file": found["gaps"]["file"],
        "energy_kwh_gaps_left_out": found["energy_kwh"],
        "dedup_rows": found["dedup"]["rows"],
        "dedup_mean_util": found["dedup"]["mean_util_pct"],
        "dedup_active": found["dedup"]["active_fraction"],
    }
    for key, value in expected.items():
        got = named[key] if key in named else found[key]
        digits = len(str(value).partition(".")[2])
        assert (round(got, digits) if isinstance(value, float) else got) == value, key
    assert (found["zone"], found["rejected"], found["missing"]) == ("none", 0, {})


# --------------------------------------------------------------------------------------- steps


def test_the_limits_of_double_rows_and_gaps_are_exact(tmp_path: Path) -> None:
    at_s = [0, 0.999, 1.999, 31.999, 66.998, 101.998, 101.998, 71.998, 72]
    write_archive(tmp_path, "host.csv", [archive_row(at) for at in at_s])
    found = shape_of(tmp_path)
    # 0.999 and 0 and -30 and 0.002 s after the row before; 1.000 s is no double
    assert found["double_logged_rows"] == 4
    assert found["back_steps"] == 1
    assert found["gaps"] == {"count": 1, "biggest_s": 35.0, "file": "host.csv"}  # not 34.999


def test_the_gap_follows_a_longer_interval_and_the_option_wins(tmp_path: Path) -> None:
    write_ours(tmp_path, [our_row(0), our_row(60), our_row(126)], sidecar={"interval_s": 60})
    assert shape_of(tmp_path)["gaps"]["count"] == 1
    assert shape_of(tmp_path, gap_s=90)["gaps"] == {"count": 0, "biggest_s": None, "file": None}
    assert shape_of(tmp_path, gap_s=10)["gaps"]["count"] == 2


def test_a_shorter_interval_does_not_make_gaps_shorter(tmp_path: Path) -> None:
    write_ours(tmp_path, [our_row(0), our_row(30)], sidecar={"interval_s": 1})
    assert shape_of(tmp_path)["gaps"]["count"] == 0


def test_a_logger_that_samples_every_half_second_has_logged_nothing_twice(tmp_path: Path) -> None:
    at_s = [0, 0.5, 0.999, 1.5, 1.6, 2, 2.5]
    write_ours(tmp_path, [our_row(at) for at in at_s], sidecar={"interval_s": 0.5})
    found = shape_of(tmp_path)
    assert (found["rows"], found["double_logged_rows"], found["dedup"]["rows"]) == (7, 1, 6)
    # A file that does not say how far its rows are apart is read as the archives are.
    (tmp_path / "alone").mkdir()
    write_ours(tmp_path / "alone", [our_row(at) for at in at_s])
    assert shape_of(tmp_path / "alone")["double_logged_rows"] == 6


def test_steps_are_those_of_each_gpu_of_a_file(tmp_path: Path) -> None:
    rows = [our_row(at + gpu / 1000, gpu) for at in (0, 30, 60) for gpu in range(8)]
    write_ours(tmp_path, rows)
    found = shape_of(tmp_path)
    assert (found["gpus"], found["rows"]) == (8, 24)
    assert (found["double_logged_rows"], found["back_steps"]) == (0, 0)
    assert found["dedup"]["rows"] == 24
    assert found["covered_hours"] == pytest.approx(8 * 60 / 3600)


def test_two_loggers_in_one_file_are_one_gpu(tmp_path: Path) -> None:
    at_s = [at + more for at in range(0, 300, 30) for more in (0.1, 0.4)]
    write_archive(tmp_path, "host.csv", [archive_row(at, util_pct=90) for at in at_s])
    found = shape_of(tmp_path)
    assert (found["gpus"], found["rows"], found["double_logged_rows"]) == (1, 20, 10)
    assert found["dedup"] == {"rows": 10, "mean_util_pct": 90.0, "active_fraction": 1.0}
    assert found["covered_hours"] == pytest.approx(270.3 / 3600)


def test_what_is_kept_is_a_second_after_the_last_that_was_kept_not_after_the_last() -> None:
    order = in_time([(0.4 * n, 50.0, NAN, NAN) for n in range(10)])
    assert order.kept == 4  # 0, 1.2, 2.4 and 3.6 s


TIMES = st.lists(st.integers(0, 20), max_size=40).map(
    lambda steps: [sum(steps[:n]) / 10 for n in range(1, len(steps) + 1)]
)


@given(times=TIMES, pieces=st.lists(st.integers(0, 40), max_size=6))
def test_the_same_is_kept_in_pieces_of_any_size(times: list[float], pieces: list[int]) -> None:
    kept: list[float] = []
    for at in times:
        if not kept or round(10 * (at - kept[-1])) >= 10:
            kept.append(at)
    rows = [(at, at % 7, NAN, NAN) for at in times]
    order = in_time(rows, pieces=[n for n in pieces if n < len(rows)])
    assert order.kept == len(kept)
    assert order.kept_util_sum == pytest.approx(sum(at % 7 for at in kept))


@given(
    times=st.lists(st.integers(-500, 500), min_size=1, max_size=40),
    pieces=st.lists(st.integers(1, 39), max_size=6),
)
def test_neighbours_are_the_same_in_pieces_of_any_size(times: list[int], pieces: list[int]) -> None:
    t_us = us(time / 10 for time in times)
    order = FileOrder(35_000_000)
    for part in np.split(t_us, sorted(n for n in pieces if n < len(times))):
        if len(part):
            order.take(part)
    steps = [b - a for a, b in pairwise(times)]
    assert order.double_logged == sum(step < 10 for step in steps)
    assert order.back_steps == sum(step < 0 for step in steps)
    assert order.gaps == sum(step >= 350 for step in steps)
    assert order.biggest_gap_us == max([s for s in steps if s >= 350], default=0) * 100_000
    assert (order.first_us, order.last_us) == (min(times) * 100_000, max(times) * 100_000)


# -------------------------------------------------------------------------------------- energy


def test_a_gap_is_in_no_energy_and_in_no_hours(tmp_path: Path) -> None:
    rows = [archive_row(at, power_w=360) for at in (0, 30, 60, 3660, 3690)]
    write_archive(tmp_path, "host.csv", rows)
    found = shape_of(tmp_path)
    assert found["energy_kwh"] == pytest.approx(360 * 90 / KWH_J)
    assert found["covered_hours"] == pytest.approx(90 / 3600)


def test_rows_out_of_order_are_integrated_in_the_order_of_time(tmp_path: Path) -> None:
    rows = [archive_row(at, power_w=at) for at in (60, 0, 30, 90)]
    write_archive(tmp_path, "host.csv", rows)
    found = shape_of(tmp_path)
    assert found["back_steps"] == 1
    assert found["energy_kwh"] == pytest.approx((15 + 45 + 75) * 30 / KWH_J)
    assert found["by_file"][0]["energy_kwh"] == found["energy_kwh"]


def test_a_missing_power_reading_is_not_zero_and_not_bridged_over_a_gap() -> None:
    order = in_time([(0, NAN, 100, NAN), (30, NAN, NAN, NAN), (60, NAN, 100, NAN)])
    assert (order.trapezoid_j, order.trapezoid_us) == (0, 0)
    near = in_time([(0, NAN, 100, NAN), (0.5, NAN, NAN, NAN), (30, NAN, 100, NAN)])
    assert (near.trapezoid_j, near.trapezoid_us) == (3000, 30_000_000)


def test_the_counter_counts_where_there_is_one_also_over_a_gap() -> None:
    order = in_time([(0, NAN, 100, 1000), (30, NAN, 100, 4600), (630, NAN, 100, 9600)])
    assert (order.counter_j, order.counter_us, order.counter_resets) == (8600, 630_000_000, 0)
    assert (order.trapezoid_j, order.power_j) == (0, 3000)


def test_a_counter_that_begins_anew_is_filled_in_by_power() -> None:
    order = in_time([(0, NAN, 100, 5e6), (30, NAN, 200, 100), (60, NAN, 200, 6100)])
    assert (order.counter_j, order.counter_resets) == (6000, 1)
    assert (order.trapezoid_j, order.trapezoid_us) == (4500, 30_000_000)


def test_a_counter_that_rises_faster_than_any_power_is_not_believed() -> None:
    order = in_time([(0, NAN, 100, 5000), (30, NAN, 100, 1e13), (60, NAN, 100, 1e13 + 3000)])
    assert order.counter_j == 3000
    assert order.trapezoid_j == 3000


def test_two_loggers_that_read_a_counter_in_turn_are_no_reset() -> None:
    order = in_time([(0, NAN, 100, 1000), (0.2, NAN, 100, 999.5), (30, NAN, 100, 4000)])
    assert order.counter_resets == 0
    assert order.counter_j + order.trapezoid_j == pytest.approx(3000, rel=0.01)


@pytest.mark.parametrize("pieces", [(), (1,), (2,), (3,), (1, 2, 3)])
def test_a_counter_that_comes_back_from_a_single_zero_adds_no_energy(
    pieces: Sequence[int],
) -> None:
    counter = [2e6, 2e6 + 3000, 0.0, 2e6 + 9000, 2e6 + 12000]
    rows = [(30 * n, NAN, 100, joules) for n, joules in enumerate(counter)]
    order = in_time(rows, pieces=pieces)
    assert order.counter_j + order.trapezoid_j == pytest.approx(4 * 3000)
    assert order.counter_resets == 1


READING = st.one_of(st.just(NAN), st.floats(0, 700))
SAMPLES = st.lists(
    st.tuples(st.integers(0, 40), READING, st.one_of(st.just(NAN), st.integers(-3, 9))),
    max_size=30,
)


@given(samples=SAMPLES, pieces=st.lists(st.integers(0, 30), max_size=6))
def test_energy_is_the_same_in_pieces_of_any_size_and_covers_no_time_twice(
    samples: list[tuple[int, float, float]], pieces: list[int]
) -> None:
    rows, at_s, energy_j = [], 0, 10_000.0
    for step_s, power, rise in samples:
        at_s += step_s
        energy_j += 0 if math.isnan(rise) else 100 * rise
        rows.append((at_s, NAN, power, rise if math.isnan(rise) else energy_j))
    whole = in_time(rows)
    parts = in_time(rows, pieces=[n for n in pieces if n < len(rows)])
    for name in ("counter_j", "trapezoid_j", "power_j"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name)), name
    for name in ("counter_us", "trapezoid_us", "power_us", "counter_resets"):
        assert getattr(parts, name) == getattr(whole, name), name

    powers = [(t, p) for t, _, p, _ in rows if not math.isnan(p)]
    steps = [(b[0] - a[0], (a[1] + b[1]) / 2) for a, b in pairwise(powers) if b[0] - a[0] < 35]
    assert whole.power_us == 1e6 * sum(length for length, _ in steps)
    assert whole.power_j == pytest.approx(sum(length * mean for length, mean in steps))
    assert whole.trapezoid_us <= whole.power_us
    if all(math.isnan(row[3]) for row in rows):
        assert whole.trapezoid_j == pytest.approx(whole.power_j)


# --------------------------------------------------------------------------------- several files


def test_a_gpu_of_two_jobs_on_one_host_is_one_gpu(tmp_path: Path) -> None:
    rows = [our_row(at, power_w=360) for at in (0, 30, 60)]
    later = [our_row(at, power_w=360) for at in (600, 630)]
    write_ours(tmp_path, rows, job="7")
    write_ours(tmp_path, later, job="8", started="20260717T121000Z")
    found = shape_of(tmp_path)
    assert (found["files"], found["hosts"], found["gpus"], found["rows"]) == (2, 1, 1, 5)
    assert found["double_logged_across_files"] == 0
    assert found["gaps"]["count"] == 0  # neighbours of one file only
    assert found["energy_kwh"] == pytest.approx(360 * 90 / KWH_J)
    assert [file["energy_kwh"] for file in found["by_file"]] == pytest.approx(
        [360 * 60 / KWH_J, 360 * 30 / KWH_J]
    )


def test_two_loggers_of_two_jobs_at_once_count_the_energy_once_and_say_so(tmp_path: Path) -> None:
    write_ours(tmp_path, [our_row(at, power_w=360) for at in (0, 30, 60)], job="7")
    write_ours(tmp_path, [our_row(at + 0.3, power_w=360) for at in (0, 30, 60)], job="8")
    found = shape_of(tmp_path)
    assert (found["gpus"], found["rows"], found["double_logged_rows"]) == (1, 6, 0)
    assert found["double_logged_across_files"] == 3
    assert found["dedup"]["rows"] == 3
    assert found["energy_kwh"] == pytest.approx(360 * 60.3 / KWH_J)
    assert [file["energy_kwh"] for file in found["by_file"]] == [None, None]


def test_archives_of_the_same_time_are_each_a_gpu(tmp_path: Path) -> None:
    for name in ("host01.csv", "host02.csv"):
        write_archive(tmp_path, name, [archive_row(0), archive_row(30)])
    found = shape_of(tmp_path)
    assert (found["gpus"], found["double_logged_across_files"]) == (2, 0)


def test_a_gpu_that_lost_its_uuid_is_still_the_one_at_its_place(tmp_path: Path) -> None:
    lost = {"gpu_uuid": "", "util_pct": "", "power_w": "", "status": "lost"}
    rows = [our_row(0), our_row(0, 1), our_row(30, 0, **lost), our_row(30, 1)]
    rows.append(our_row(60, 0, pci_bus_id="", **lost))
    write_ours(tmp_path, rows)
    assert shape_of(tmp_path)["gpus"] == 2


def test_indexes_of_two_hosts_are_two_gpus(tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        write_ours(tmp_path, [our_row(0, gpu_uuid="", pci_bus_id="")], node=node)
    assert shape_of(tmp_path)["gpus"] == 2


def test_slices_are_counted_beside_their_gpu(tmp_path: Path) -> None:
    rows = [our_row(0, status="mig", util_pct="")]
    rows += [our_row(0, kind="mig", mig_uuid=f"MIG-{n}", util_pct="") for n in range(3)]
    write_ours(tmp_path, rows)
    found = shape_of(tmp_path)
    assert (found["gpus"], found["slices"], found["rows"]) == (1, 3, 4)
    assert found["mean_util_pct"] is None
    assert found["active_fraction"] is None


# ------------------------------------------------------------------------- kinds of files and rows


def test_files_are_told_by_what_they_are(tmp_path: Path) -> None:
    write_archive(tmp_path, "a_good.csv", [archive_row(0), archive_row(30)])
    write_archive(tmp_path, "b_header.csv", [])
    write_archive(tmp_path, "c_single.csv", [archive_row(0)])
    write_archive(tmp_path, "d_empty.csv", [], header="")
    write_archive(tmp_path, "e_words.csv", ["no telemetry at all"], header="")
    write_archive(tmp_path, "f_bare.csv", [archive_row(0), archive_row(30)], header="")
    write_archive(tmp_path, "g_torn.csv", [], tail=archive_row(0))
    write_ours(tmp_path, [bare_row(0, "host"), bare_row(30, "host")], node="h")
    found = shape_of(tmp_path)
    assert [file["kind"] for file in found["by_file"]] == [
        "samples", "header_only", "single_row", "empty", "no_rows", "samples", "header_only",
        "no_samples",
    ]  # fmt: skip
    assert (found["files"], found["header_only"], found["single_row"]) == (8, 2, 1)
    assert found["without_header"] == 1
    assert found["rejected_kinds"] == {"sentence": 1, "torn_tail": 1}
    assert found["rows_by_kind"] == {"gpu": 5, "host": 2}
    assert found["gpus"] == 3


def test_everything_that_can_be_wrong_is_counted_and_nothing_is_lost(tmp_path: Path) -> None:
    rows = [
        archive_row(0),
        "Unable to determine the device handle for GPU 0: GPU is lost",
        archive_row(30, power_w="[N/A]"),
        HEADER,
        archive_row(60) + ",1",
        archive_row(90)[:25] + "\0" * 6,
        "x" * 100_000,
        archive_row(60),
        "",
        archive_row(30),
    ]
    write_archive(tmp_path, "host.csv", rows, tail="2026/07/17 12:0")
    found = shape_of(tmp_path)
    assert found["rows"] == 4
    assert found["rejected_kinds"] == {
        "sentence": 1, "header_again": 1, "wrong_columns": 1, "nul_bytes": 1, "too_long": 1,
        "torn_tail": 1,
    }  # fmt: skip
    assert found["rejected"] == 6
    assert found["missing"] == {"power_w": {"[N/A]": 1}}
    assert found["back_steps"] == 1
    assert (
        found["lines"]
        == found["rows"] + found["rejected"] + found["headers"] + found["blank_lines"]
    )


def test_zones_are_told_and_mixed_ones_too(tmp_path: Path) -> None:
    write_ours(tmp_path, [our_row(0), our_row(30)])
    found = shape_of(tmp_path)
    assert (found["zone"], found["first_at"]) == ("utc", "2026-07-17T12:00:00.000Z")
    write_archive(tmp_path, "old.csv", [archive_row(0)])
    found = shape_of(tmp_path)
    assert (found["zone"], found["last_at"]) == ("mixed", "2026-07-17T12:00:30.000")
    assert [file["zone"] for file in found["by_file"]] == ["utc", "none"]


def test_loggers_without_an_end_are_counted(tmp_path: Path) -> None:
    write_ours(tmp_path, [our_row(0)], node="n1", sidecar={"ended_at": None})
    ended = {"ended_at": "2026-07-17T13:00:00.000Z", "end_reason": "TERM"}
    write_ours(tmp_path, [our_row(0)], node="n2", sidecar=ended)
    write_ours(tmp_path, [our_row(0)], node="n3")
    found = shape_of(tmp_path)
    assert found["unfinished"] == 1
    assert [file["ended"] for file in found["by_file"]] == [
        {"at": None, "reason": None},
        {"at": ended["ended_at"], "reason": "TERM"},
        None,
    ]
    assert found["by_file"][2]["sidecar_problem"] == "no sidecar"


def test_what_cannot_be_read_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    write_archive(tmp_path, "good.csv", [archive_row(0)])
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    found = shape_of(tmp_path)
    assert (found["files"], found["rows"], found["refused_files"]) == (1, 1, 2)
    assert {entry["reason"] for entry in found["refused"]} == {"not a regular file"}


def test_where_no_file_can_be_read_it_is_an_error_that_names_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file there ends in .csv"):
        inspect(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="pipe.csv: not a regular file"):
        inspect(str(tmp_path))
    with pytest.raises(DataError, match="pipe.csv: not a regular file"):
        inspect(str(tmp_path / "pipe.csv"))


def test_a_file_that_vanishes_while_others_are_read_is_refused(tmp_path: Path) -> None:
    write_archive(tmp_path, "a.csv", [archive_row(0)])
    last = write_archive(tmp_path, "b.csv", [archive_row(0)])
    done = inspect(str(tmp_path), progress=lambda *_: last.unlink(missing_ok=True))
    assert [file.source.name for file in done.files] == ["a.csv"]
    assert done.refused == [(str(last), "No such file or directory")]


def test_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    for name in ("a.csv", "b.csv"):
        write_archive(tmp_path, name, [archive_row(n) for n in range(50)])
    inspect(str(tmp_path), progress=lambda done, total: told.append((done, total)))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert told[-1] == (size, size)
    assert told == sorted(told)


# -------------------------------------------------------------------------------------- sorting


def scattered(folder: Path, seed: int = 1) -> None:
    """An archive in no order, and two loggers of ours at the same time."""
    dice = random.Random(seed)
    at_s = [30 * n + dice.choice((0, 0, 0.4)) for n in range(200)]
    rows = [archive_row(at, power_w=dice.randint(50, 700)) for at in at_s]
    dice.shuffle(rows)
    write_archive(folder, "host.csv", rows)
    for job in ("7", "8"):
        write_ours(
            folder,
            [
                our_row(at + dice.random(), gpu, power_w=dice.randint(50, 700), energy_j=at * 300)
                for at in at_s
                for gpu in (0, 1)
            ],
            job=job,
        )


@pytest.mark.parametrize("most", [60, 250, 1000])
def test_sorting_in_small_parts_gives_the_same_as_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    scattered(tmp_path)
    whole = shape_of(tmp_path)
    assert whole["double_logged_across_files"] > 0
    assert whole["back_steps"] > 0
    monkeypatch.setattr(sorting, "MOST_SAMPLES", most)
    assert shape_of(tmp_path) == {**whole, "place": str(tmp_path)}


def test_the_order_of_rows_does_not_change_what_is_summed_in_the_order_of_time(
    tmp_path: Path,
) -> None:
    dice = random.Random(3)
    rows = [archive_row(30 * n, power_w=dice.randint(1, 500)) for n in range(200)]
    write_archive(tmp_path, "host.csv", rows)
    in_order = shape_of(tmp_path)
    dice.shuffle(rows)
    write_archive(tmp_path, "host.csv", rows)
    shuffled = shape_of(tmp_path)
    assert shuffled["back_steps"] > 0
    for key in ("energy_kwh", "covered_hours", "dedup", "mean_util_pct", "first_at", "last_at"):
        assert shuffled[key] == in_order[key], key


def test_a_file_that_changed_between_two_readings_is_a_problem_not_a_number(
    tmp_path: Path,
) -> None:
    path = write_archive(tmp_path, "a.csv", [archive_row(30), archive_row(0)])
    write_archive(tmp_path, "b.csv", [archive_row(0), archive_row(30)])
    done = inspect(str(tmp_path), progress=lambda *_: path.write_text(HEADER + "\n"))
    (problem,) = done.problems
    assert "a.csv was changed while it was read" in problem
    assert done.dedup.rows == 2


# ----------------------------------------------------------------------------- growing, and memory

WRITER = """
import sys, time
path, row = sys.argv[1:]
with open(path, "ab", buffering=0) as file:
    print("go", flush=True)
    while True:
        file.write(row[:30].encode())
        file.write(row[30:].encode() + b"\\n")
        time.sleep(0.0002)
"""


def test_a_folder_to_which_a_logger_writes_can_be_inspected(tmp_path: Path) -> None:
    # The rows are not in order, so that the file is read twice while it grows.
    path = write_archive(tmp_path, "host.csv", [archive_row(30), archive_row(0)])
    command = [sys.executable, "-c", WRITER, str(path), archive_row(60)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"go\n"
            for _ in range(10):
                done = inspect(str(tmp_path))
                assert done.problems == []
                assert set(done.counts.rejected) <= {"torn_tail"}
                assert done.dedup.rows == min(3, done.counts.rows)
        finally:
            writer.kill()
    assert done.counts.rows > 2


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for rows in (2_000, 10_000):
        path = write_archive(tmp_path, "host.csv", [archive_row(30 * n) for n in range(rows)])
        source = Source(path=str(path), name=path.name, node="host")
        tracemalloc.start()
        for _ in FileReader(source, chunk_bytes=1 << 14).chunks():
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_an_inspection_of_nothing_but_garbage_is_an_answer(tmp_path: Path) -> None:
    dice = random.Random(5)
    (tmp_path / "noise.csv").write_bytes(dice.randbytes(300_000))
    done: Inspection = inspect(str(tmp_path))
    shape = inspection_shape(done)
    assert shape["rows"] == 0
    assert shape["rejected"] + shape["blank_lines"] == shape["lines"] > 100
    assert shape["mean_util_pct"] is None
    assert shape["energy_kwh"] is None
