"""A fleet in bins: gaps stay open, what is near is held, and absence is never idleness or zero."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.gpu.states import GpuState, Sighting, classify
from fleetcraft.telemetry.figures.binning import bin_means, quantiles
from fleetcraft.telemetry.figures.time_axis import Span, TimeAxis, choose_axis, stretches
from fleetcraft.telemetry.figures.timeline import Timeline, build_timeline
from fleetcraft.telemetry.figures.traces import STATES, Traces, classify_all, measure, read_traces
from fleetcraft.telemetry.queue import Depth, Presence, Queue, Run
from fleetcraft.telemetry.reading.sources import find_sources
from tests.telemetry.traces import (
    BEGIN_S,
    archive_row,
    archived,
    bare_row,
    our_row,
    write_archive,
    write_ours,
)

HOUR_S = 3600.0


def traces_of(folder: Path, **span: float | None) -> Traces:
    return read_traces(find_sources(str(folder)).sources, **span)  # type: ignore[arg-type]


def timeline_of(folder: Path, queue: Queue | None = None) -> Timeline:
    found = build_timeline(traces_of(folder), queue)
    assert found is not None
    return found


def every_30_s(start: int, end: int, **cells: object) -> list[str]:
    return [our_row(at, **cells) for at in range(start, end, 30)]  # type: ignore[arg-type]


def in_state(line: Timeline, state: GpuState) -> np.ndarray:  # type: ignore[type-arg]
    return line.states[STATES.index(state)]


# ------------------------------------------------------------------------------------- the axis


def test_an_axis_without_long_gaps_is_one_span_of_real_time() -> None:
    axis = choose_axis([(0.0, 600.0), (700.0, 1500.0)], interval_s=30.0)
    assert axis is not None
    assert axis.spans == (Span(start_s=0.0, first_bin=0, bins=51),)
    assert axis.cuts_s == ()


def test_time_without_data_is_cut_out_when_it_dominates_and_its_length_is_kept() -> None:
    day = 86400.0
    axis = choose_axis([(0.0, HOUR_S), (9 * day, 9 * day + 2 * HOUR_S)], interval_s=30.0)
    assert axis is not None
    assert len(axis.spans) == 2
    assert sum(axis.cuts_s) + axis.bins * axis.bin_s == pytest.approx(
        9 * day + 2 * HOUR_S, abs=2 * axis.bin_s
    )
    assert axis.cuts_s[0] == pytest.approx(9 * day - HOUR_S, abs=axis.bin_s)


def test_a_short_gap_stays_even_where_another_is_cut_out() -> None:
    covered = [(0.0, HOUR_S), (HOUR_S + 60, 2 * HOUR_S), (30 * HOUR_S, 31 * HOUR_S)]
    axis = choose_axis(covered, interval_s=30.0)
    assert axis is not None
    assert [span.start_s for span in axis.spans] == [0.0, 30 * HOUR_S]


def test_what_is_cut_out_has_no_bin() -> None:
    axis = choose_axis([(0.0, 60.0), (1e6, 1e6 + 60)], interval_s=30.0)
    assert axis is not None
    assert axis.bin_of(np.array([-1.0, 0.0, 60.0, 5e5, 1e6, 1e6 + 60, 2e6])).tolist() == [
        *(-1, 0, 2, -1),
        *(axis.spans[1].first_bin, axis.bins - 1, -1),
    ]


@given(
    st.lists(
        st.tuples(st.floats(0, 1e7), st.floats(0, 1e5)).map(lambda p: (p[0], p[0] + p[1])),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([1.0, 30.0, 60.0]),
)
@settings(max_examples=60, deadline=None)
def test_every_moment_with_data_has_a_bin_and_bins_are_bounded(
    covered: list[tuple[float, float]], interval_s: float
) -> None:
    axis = choose_axis(covered, interval_s=interval_s)
    assert axis is not None
    assert axis.bin_s >= interval_s
    assert axis.bins <= 1200 + 2 * len(axis.spans)
    moments = np.array([moment for span in covered for moment in span])
    assert (axis.bin_of(moments) >= 0).all()
    starts = axis.starts_s()
    assert len(starts) == axis.bins
    assert axis.bin_of(starts).tolist() == list(range(axis.bins))
    assert (np.diff(starts) >= axis.bin_s * 0.999).all()


def test_nothing_outside_the_wanted_span_is_shown() -> None:
    covered = [(0.0, 1000.0), (5000.0, 6000.0)]
    axis = choose_axis(covered, interval_s=30.0, since_s=600.0, until_s=900.0)
    assert axis is not None
    assert (axis.start_s, axis.bins) == (600.0, 10)
    assert choose_axis(covered, interval_s=30.0, since_s=2000.0, until_s=3000.0) is None


def test_stretches_end_where_a_step_is_a_gap() -> None:
    t_s = np.array([0.0, 30, 60, 95, 125, 1000])
    assert stretches(t_s, np.full(6, 35.0)) == [(0.0, 60.0), (95.0, 125.0), (1000.0, 1000.0)]


# --------------------------------------------------------------------------------------- binning


def even_axis(bins: int, bin_s: float = 10.0) -> TimeAxis:
    span = Span(start_s=0.0, first_bin=0, bins=bins)
    return TimeAxis(spans=(span,), bin_s=bin_s, start_s=0.0, end_s=bins * bin_s)


def test_a_bin_between_near_samples_is_held_and_a_gap_is_open() -> None:
    t_s = np.array([0.0, 30.0, 70.0])
    means, counts = bin_means(even_axis(8), t_s, np.array([4.0, 8.0, 6.0]), np.full(3, 35.0))
    np.testing.assert_equal(means, [4, 4, 4, 8, np.nan, np.nan, np.nan, 6])
    assert counts.tolist() == [1, 1, 1, 1, 0, 0, 0, 1]


def test_a_bin_is_the_mean_of_its_samples_and_a_missing_reading_is_none_of_them() -> None:
    t_s = np.array([0.0, 3.0, 6.0, 12.0])
    values = np.array([10.0, np.nan, 20.0, np.nan])
    means, counts = bin_means(even_axis(2), t_s, values, np.full(4, 15.0))
    np.testing.assert_equal(means, [15, np.nan])
    assert counts.tolist() == [2, 0]


@given(
    st.lists(
        st.lists(st.one_of(st.just(np.nan), st.floats(-1e6, 1e6)), min_size=3, max_size=3),
        min_size=1,
        max_size=9,
    )
)
def test_quantiles_are_those_of_numpy_over_what_is_there(rows: list[list[float]]) -> None:
    values = np.array(rows)
    ours = quantiles(values, (0.1, 0.5, 0.9))
    for column in range(3):
        there = values[:, column][np.isfinite(values[:, column])]
        expected = np.quantile(there, (0.1, 0.5, 0.9)) if len(there) else [np.nan] * 3
        np.testing.assert_allclose(ours[:, column], expected, rtol=1e-9, atol=1e-6)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(0, 100)),
            st.one_of(st.none(), st.floats(0, 80000)),
            st.sampled_from(["ok", "lost", "absent", "unified", ""]),
        ),
        max_size=20,
    )
)
def test_every_sample_has_the_state_that_a_single_look_would_give(
    looks: list[tuple[float | None, float | None, str]],
) -> None:
    util = np.array([np.nan if u is None else u for u, _, _ in looks], float)
    used = np.array([np.nan if m is None else m for _, m, _ in looks], float)
    status = np.array([word for _, _, word in looks], object)
    singles = [
        classify(Sighting(source="t", age_s=0, util_pct=u, mem_used_mib=m, status=s))[0]
        for u, m, s in looks
    ]
    assert [STATES[code] for code in classify_all(util, used, status)] == singles


# ---------------------------------------------------------------------------------------- traces


def test_a_gap_in_one_gpu_is_open_for_it_alone(tmp_path: Path) -> None:
    rows = every_30_s(0, 300) + every_30_s(480, 600) + every_30_s(0, 600, gpu=1, util_pct=40)
    write_ours(tmp_path, rows, sidecar={"interval_s": 30.0})
    line = timeline_of(tmp_path)
    first, second = (row.util_pct for row in line.rows)
    assert line.per_gpu
    assert np.flatnonzero(np.isnan(first)).tolist() == [10, 11, 12, 13, 14, 15]
    assert not np.isnan(second).any()
    assert line.util.mean[0] == pytest.approx((97 + 40) / 2)
    assert line.util.mean[12] == 40.0
    assert line.util.gpus[12] == 1


def test_files_of_one_gpu_are_one_trace_and_an_archive_is_one_a_file(tmp_path: Path) -> None:
    write_ours(tmp_path, every_30_s(0, 300), started="20260717T120000Z")
    write_ours(tmp_path, every_30_s(300, 600), started="20260717T120500Z")
    write_archive(tmp_path, "a.csv", [archive_row(at) for at in range(0, 600, 30)])
    found = traces_of(tmp_path)
    assert [(trace.host, trace.gpu, len(trace.t_s)) for trace in found.traces] == [
        *(("a", "", 20), ("n1", "gpu 0", 20)),
    ]
    assert (found.files, found.gpus, found.zoned, found.zoneless) == (3, 2, 2, 1)


def test_rows_that_lost_their_uuid_belong_to_the_only_gpu_of_that_number(tmp_path: Path) -> None:
    lost = our_row(60, gpu_uuid="", pci_bus_id="", util_pct="", mem_used_mib="", status="lost")
    write_ours(tmp_path, [our_row(0), our_row(30), lost])
    line = timeline_of(tmp_path)
    assert traces_of(tmp_path).gpus == 1
    assert in_state(line, GpuState.LOST).tolist() == [0.0, 0.0, 1.0]
    assert np.isnan(line.rows[0].util_pct).tolist() == [False, False, True]


def test_slices_are_not_gpus_and_use_no_power_of_their_own(tmp_path: Path) -> None:
    parent = {"util_pct": "", "mem_used_mib": "", "status": "mig", "power_w": 100}
    part = {"kind": "mig", "power_w": 50, "util_pct": 80}
    rows = []
    for at in range(0, 300, 30):
        rows.append(our_row(at, **parent))  # type: ignore[arg-type]
        rows += [our_row(at, mig_uuid=f"MIG-{n}", **part) for n in (1, 2)]  # type: ignore[arg-type]
    write_ours(tmp_path, rows)
    found = traces_of(tmp_path)
    line = timeline_of(tmp_path)
    energy = measure(found).energy
    assert (found.gpus, len(found.traces)) == (1, 3)
    assert line.power.total.tolist() == [100.0] * 10
    assert energy is not None
    assert energy.kwh == pytest.approx(100 * 270 / 3.6e6)
    assert in_state(line, GpuState.UNKNOWN).tolist() == [1.0] * 10


def test_rows_without_readings_are_samples_of_nothing(tmp_path: Path) -> None:
    write_ours(tmp_path, [our_row(at, util_pct="", power_w="[N/A]") for at in (0, 30, 60)])
    found = traces_of(tmp_path)
    facts = measure(found)
    line = timeline_of(tmp_path)
    assert found.samples == 3
    assert (facts.mean_util_pct, facts.active_fraction, facts.energy) == (None, None, None)
    assert not line.util.has_data
    assert not line.power.has_data
    assert line.memory.has_data
    assert in_state(line, GpuState.UNKNOWN).tolist() == [1.0, 1.0, 1.0]


def test_a_folder_of_host_rows_or_headers_has_no_timeline(tmp_path: Path) -> None:
    write_ours(tmp_path, [bare_row(at, "host") for at in (0, 30)])
    write_archive(tmp_path, "a.csv", [])
    found = traces_of(tmp_path)
    assert (found.samples, found.header_only, found.kinds["host"]) == (0, 1, 2)
    assert found.hosts == ["a", "n1"]
    assert build_timeline(found) is None


def test_a_host_without_samples_keeps_its_row(tmp_path: Path) -> None:
    write_archive(tmp_path, "a.csv", [archive_row(0)])
    write_archive(tmp_path, "b.csv", [])
    line = timeline_of(tmp_path)
    assert [(row.host, row.samples) for row in line.rows] == [("a", 1), ("b", 0)]
    assert np.isnan(line.rows[1].util_pct).all()


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    write_ours(tmp_path, every_30_s(0, 600))
    found = traces_of(tmp_path, since_s=BEGIN_S + 60, until_s=BEGIN_S + 150)
    assert (found.traces[0].t_s - BEGIN_S).tolist() == [60.0, 90.0, 120.0]


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    write_archive(tmp_path, "a.csv", [archive_row(0)])
    write_archive(tmp_path, "b.csv", [archive_row(0)])
    sources = find_sources(str(tmp_path)).sources
    (tmp_path / "a.csv").unlink()
    found = read_traces(sources)
    assert found.samples == 1
    assert [name for name, _ in found.unread] == ["a.csv"]


def test_a_counter_is_trusted_where_it_grew_and_power_elsewhere(tmp_path: Path) -> None:
    counter = {0: 1000, 30: 4000, 60: 100, 90: 1100}  # it starts anew between 30 and 60
    write_ours(tmp_path, [our_row(at, energy_j=j, power_w=200) for at, j in counter.items()])
    energy = measure(traces_of(tmp_path)).energy
    assert energy is not None
    assert energy.kwh == pytest.approx((3000 + 200 * 30 + 1000) / 3.6e6)
    assert energy.by_counter_fraction == pytest.approx(2 / 3)


# --------------------------------------------------------------------------- states and the queue


def test_a_gpu_that_nobody_writes_about_is_silent_only_when_it_is_ours(tmp_path: Path) -> None:
    rows = every_30_s(0, 300) + every_30_s(1200, 1500)
    write_ours(tmp_path, rows, sidecar={"interval_s": 30.0})
    line = timeline_of(tmp_path)
    assert in_state(line, GpuState.SILENT)[15] == 1.0
    (tmp_path / "n1_job7_20260717T120000Z.csv").unlink()
    times = [*range(0, 900, 30), *range(1080, 1500, 30)]
    write_archive(tmp_path, "a.csv", [archive_row(at) for at in times])
    archive = timeline_of(tmp_path)
    assert np.flatnonzero(np.isnan(archive.states).all(axis=0)).tolist() == [30, 31, 32, 33, 34, 35]


def worker(start: float, end: float | None, *, host: str = "n1", gpus: int = 2) -> Presence:
    return Presence(
        spool="outer",
        host=host,
        job="7",
        lease=f"7.0.{host}",
        start_s=BEGIN_S + start,
        end_s=None if end is None else BEGIN_S + end,
        gpus=gpus,
    )


def depth(at: float, spool: str, pending: int) -> Depth:
    return Depth(
        t_s=BEGIN_S + at, spool=spool, waiting=0, pending=pending, running=1, done=0, failed=0
    )


def test_gpus_that_workers_hold_and_nobody_writes_about_are_silent(tmp_path: Path) -> None:
    write_ours(tmp_path, every_30_s(0, 600))
    queue = Queue(workers=[worker(0, 600), worker(0, 600, host="n2", gpus=4)])
    line = timeline_of(tmp_path, queue)
    assert line.allocation_known
    assert line.states.sum(axis=0).tolist() == [6.0] * 20
    assert in_state(line, GpuState.SILENT).tolist() == [5.0] * 20
    assert line.workers["outer"].tolist() == [2.0] * 20


def test_a_moment_without_rows_is_unknown_and_not_yet_silent(tmp_path: Path) -> None:
    write_ours(tmp_path, every_30_s(0, 600))
    line = timeline_of(tmp_path, Queue(workers=[worker(-60, 600, gpus=1)]))
    assert in_state(line, GpuState.SILENT).sum() == 0.0
    line = timeline_of(
        tmp_path, Queue(workers=[worker(-300, 600, gpus=1)], depths=[depth(-300, "outer", 1)])
    )
    assert in_state(line, GpuState.SILENT)[0] == 1.0


def test_a_depth_holds_until_three_were_missed(tmp_path: Path) -> None:
    write_ours(tmp_path, every_30_s(0, 600))
    queue = Queue(depths=[depth(0, "outer", 5), depth(90, "outer", 3), depth(300, "outer", 1)])
    pending = timeline_of(tmp_path, queue).depths["outer"]["pending"]
    np.testing.assert_equal(pending, [5, 5, 5, 3, *[np.nan] * 6, 1, *[np.nan] * 9])


def test_what_ran_is_counted_by_starts_and_ends_between_two_depths(tmp_path: Path) -> None:
    write_ours(tmp_path, every_30_s(0, 150))
    runs = [
        Run(spool="outer", task=name, lease="l", claim=name, start_s=BEGIN_S + a, end_s=BEGIN_S + b)
        for name, a, b in (("a", 30, 90), ("b", 45, 60), ("c", 60, 90))
    ]
    queue = Queue(runs=runs, depths=[depth(at, "outer", 0) for at in (0, 90, 120)])
    running = timeline_of(tmp_path, queue).depths["outer"]["running"]
    assert running.tolist() == [0.0, 1.5, 2.0, 0.0, 0.0]


@given(
    st.lists(st.tuples(st.floats(-50, 150), st.floats(-50, 150)).map(sorted).map(tuple), max_size=8)
)
def test_concurrency_is_the_sum_of_the_single_overlaps(spans: list[tuple[float, float]]) -> None:
    axis = even_axis(10)
    wanted = sum((axis.overlap(*span) for span in spans), np.zeros(axis.bins))
    np.testing.assert_allclose(axis.concurrency(spans), wanted, atol=1e-6)


def test_drained_spools_are_set_against_what_the_gpus_did(tmp_path: Path) -> None:
    write_ours(tmp_path, every_30_s(0, 300) + every_30_s(300, 600, util_pct=0))
    depths = [
        depth(at, spool, 1 if at < 300 else 0)
        for at in range(0, 600, 30)
        for spool in ("outer", "inner")
    ]
    line = timeline_of(tmp_path, Queue(depths=depths, workers=[worker(0, 600)]))
    assert line.drained is not None
    assert (line.drained.hours, line.drained.gpus, line.drained.working) == (300 / 3600, 2.0, 0.0)
    one_spool = Queue(depths=[d for d in depths if d.spool == "outer"], workers=[worker(0, 600)])
    assert timeline_of(tmp_path, one_spool).drained is None


# --------------------------------------------------------------------------- the archived traces


def test_the_archived_traces_amount_to_what_is_expected_of_them() -> None:
    folder = archived()
    expected = json.loads((folder / "expected.json").read_text())
    found = traces_of(folder / "hosts")
    facts = measure(found)
    assert found.samples == expected["rows"]
    assert (found.files, found.header_only, found.gpus) == (31, 1, 30)
    assert facts.mean_util_pct == pytest.approx(expected["mean_util_pct"], abs=5e-7)
    assert facts.active_fraction == pytest.approx(expected["active_fraction_5"], abs=5e-7)
    assert facts.gaps == expected["gaps_35s_or_more"]
    assert facts.biggest_gap_s == pytest.approx(expected["biggest_gap_s"], abs=1e-3)
    assert facts.energy is not None
    assert facts.energy.kwh == pytest.approx(expected["energy_kwh_gaps_left_out"], abs=1e-3)
    assert facts.energy.covered_hours == pytest.approx(expected["covered_hours"], abs=1e-3)


def test_the_archived_traces_are_cut_into_their_active_days() -> None:
    line = timeline_of(archived() / "hosts")
    assert len(line.axis.spans) > 3
    assert sum(line.axis.cuts_s) > 5 * 86400
    host28 = next(row for row in line.rows if row.host == "host28")
    assert 0.05 < np.isfinite(host28.util_pct).mean() < 0.5
    assert np.nanmax(line.states.sum(axis=0)) <= 30.0
