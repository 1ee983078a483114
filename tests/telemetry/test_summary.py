"""A window of a folder of telemetry: GPUs, hosts, fleet, work and MFU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fleetcraft.errors import DataError
from fleetcraft.gpu.states import GpuState
from fleetcraft.telemetry.windows.levels import GpuSummary, HostSummary, Summary
from fleetcraft.telemetry.windows.span import window_at
from fleetcraft.telemetry.windows.summary import Read, summarize
from tests.telemetry.journals import Launch, depth, iso, make_spool
from tests.telemetry.trees import inventory, line, lines, write_file

REPO = Path(__file__).resolve().parents[2]
ARCHIVE = REPO.parent / "shared" / "telemetry"
T = 1_800_000_000.0
END = T + 300
archived = pytest.mark.skipif(not ARCHIVE.is_dir(), reason="no archived traces beside this copy")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "telemetry"
    path.mkdir(mode=0o700)
    return path


def read(folder: Path, end: str | None = None, window_s: float = 300.0, **options: object) -> Read:
    span = window_at(window_s, end or iso(END), now_s=END)
    return summarize(str(folder), span, **options)  # type: ignore[arg-type]


def summed(folder: Path, **options: object) -> Summary:
    return read(folder, **options).summary  # type: ignore[arg-type]


def host(summary: Summary, name: str) -> HostSummary:
    (found,) = (host for host in summary.hosts if host.host == name)
    return found


def gpu(summary: Summary, key: str) -> GpuSummary:
    (found,) = (gpu for gpu in summary.gpus if gpu.key == key)
    return found


WHOLE = T + 30  # ten rows from here fill the window


# ------------------------------------------------------------------------------------ the figures


def test_each_gpu_each_host_and_the_fleet_have_their_own_figures(folder: Path) -> None:
    write_file(folder, "n1", lines(WHOLE, 10, util_pct=100) + lines(WHOLE, 10, gpu_index=1,
               util_pct=0))  # fmt: skip
    write_file(folder, "n2", lines(WHOLE, 5, gpu_uuid="GPU-b", util_pct=40))
    summary = summed(folder)
    assert summary.zone == "UTC"
    assert (summary.start, summary.end) == (iso(T).replace(".000", ""), "2027-01-15T08:05:00Z")
    assert gpu(summary, "GPU-0").figures.mean_util_pct == 100  # type: ignore[union-attr]
    assert host(summary, "n1").figures.mean_util_pct == 50
    assert host(summary, "n1").figures.active_fraction == 0.5
    assert host(summary, "n2").figures.coverage_fraction == 0.5
    fleet = summary.fleet
    assert (fleet.hosts, fleet.gpus, fleet.gpus_reporting) == (2, 3, 3)
    assert fleet.figures.samples == 25
    assert fleet.figures.mean_util_pct == pytest.approx(48)
    assert fleet.figures.coverage_fraction == pytest.approx(25 / 30)


def test_the_window_has_its_end_and_not_its_start(folder: Path) -> None:
    write_file(folder, "n1", [line(T), line(T + 150), line(END), line(END + 1)])
    assert summed(folder).fleet.figures.samples == 2


def test_all_files_of_a_host_are_one_series_a_gpu(folder: Path) -> None:
    write_file(folder, "n1", lines(WHOLE, 5), job="7")
    write_file(folder, "n1", lines(WHOLE + 150, 5), job="8", started="20270115T080300Z")
    (only,) = summed(folder).gpus
    assert only.figures is not None
    assert only.figures.samples == 10
    assert only.figures.coverage_fraction == 1.0
    assert host(summed(folder), "n1").jobs == ("7", "8")


def test_two_loggers_of_one_gpu_are_double_logging_and_not_two_gpus(folder: Path) -> None:
    write_file(folder, "n1", lines(WHOLE, 10, util_pct=80), job="7")
    write_file(folder, "n1", lines(WHOLE - 0.2, 10, util_pct=60), job="8")
    fleet = summed(folder).fleet
    assert fleet.gpus == 1
    assert fleet.figures.double_logged_rows == 10
    assert fleet.figures.mean_util_pct == 70
    assert fleet.figures.dedup.mean_util_pct == 60
    assert fleet.figures.coverage_fraction == 1.0


def test_rows_that_name_a_lost_gpu_by_its_index_alone_are_its_own(folder: Path) -> None:
    lost = lines(WHOLE + 150, 5, gpu_uuid="", util_pct="", mem_used_mib="", status="lost")
    write_file(folder, "n1", lines(WHOLE, 5) + lost)
    (only,) = summed(folder).gpus
    assert only.state is GpuState.LOST
    assert only.figures is not None
    assert only.figures.statuses == {"lost": 5, "ok": 5}
    assert only.figures.mean_util_pct == 90


def test_events_heartbeats_and_host_rows_are_no_samples(folder: Path) -> None:
    others = [
        line(T + 40, kind="event", util_pct="", status="ok"),
        line(T + 41, kind="heartbeat", gpu_uuid="", gpu_index="", util_pct="", status="timeout"),
        line(T + 42, kind="host", gpu_uuid="", gpu_index="", util_pct="", status="no_nvml"),
    ]
    write_file(folder, "n1", [*lines(WHOLE, 10), *others])
    assert summed(folder).fleet.figures.samples == 10


def test_slices_are_no_gpus_and_their_gpu_does_what_the_busiest_does(folder: Path) -> None:
    rows = []
    for n in range(10):
        at = WHOLE + 30 * n
        rows.append(line(at, util_pct="", mem_used_mib=100, status="mig"))
        for part, util in (("a", 0), ("b", 70)):
            rows.append(line(at, kind="mig", mig_uuid=f"MIG-{part}", util_pct=util))
    write_file(folder, "n1", rows)
    summary = summed(folder)
    assert (summary.fleet.gpus, summary.fleet.slices, summary.fleet.gpus_reporting) == (1, 2, 1)
    assert summary.fleet.states["working"] == 1
    assert gpu(summary, "GPU-0").state is GpuState.WORKING
    figures = summary.fleet.figures
    assert sum(figures.state_gpu_s.values()) == pytest.approx(summary.window_s)
    assert figures.time_weighted.covered_s <= summary.window_s
    assert figures.samples == 30


def test_slices_that_a_job_was_given_as_gpus_are_not_silent_ones(folder: Path) -> None:
    rows = []
    for n in range(10):
        at = WHOLE + 30 * n
        rows.append(line(at, util_pct="", status="mig"))
        rows += [line(at, kind="mig", mig_uuid=f"MIG-{part}", util_pct=70) for part in "ab"]
    sidecar = {"interval_s": 30, "started_at": iso(T - 60), "gpus": inventory(0)}
    write_file(folder, "n1", rows, sidecar={**sidecar, "expected_gpus": 2})
    fleet = summed(folder).fleet
    assert (fleet.gpus_allocated, fleet.states["silent"], fleet.states["working"]) == (2, 0, 1)
    assert GpuState.SILENT not in fleet.figures.state_gpu_s
    assert (fleet.figures.coverage_fraction, fleet.reporting_fraction) == (1.0, 1.0)

    write_file(folder, "n1", rows, sidecar={**sidecar, "expected_gpus": 3})
    fleet = summed(folder).fleet
    assert fleet.states["silent"] == 1
    assert fleet.reporting_fraction == pytest.approx(2 / 3)


def test_rejected_lines_are_counted_by_kind(folder: Path) -> None:
    bad = ["unable to determine the device handle: GPU is lost\n", "1,2,3\n"]
    path = write_file(folder, "n1", [*lines(WHOLE, 10), *bad])
    with path.open("a") as file:
        file.write("2027-01-15T08:0")
    summary = summed(folder)
    assert sum(summary.rejected.values()) == 3
    assert summary.rejected["torn_tail"] == 1
    assert summary.fleet.figures.samples == 10


def test_the_interval_is_the_sidecars_else_the_options_else_what_the_rows_show(
    folder: Path,
) -> None:
    write_file(folder, "a", lines(T + 60, 5, 60.0, gpu_uuid="A"), sidecar={"interval_s": 60})
    write_file(folder, "b", lines(T + 10, 30, 10.0, gpu_uuid="B"))
    write_file(folder, "c", lines(T + 10, 2, 10.0, gpu_uuid="C"))
    summary = summed(folder)
    assert {g.host: (g.interval_s, g.interval_from) for g in summary.gpus} == {
        "a": (60, "sidecar"),
        "b": (10, "rows"),
        "c": (30, "default"),
    }
    assert host(summary, "a").figures.coverage_fraction == 1.0
    chosen = {g.host: g.interval_s for g in summed(folder, interval_s=5.0).gpus}
    assert chosen == {"a": 60, "b": 5, "c": 5}


# ------------------------------------------------------------------------------------- allocation


def test_gpus_that_a_sidecar_expects_and_nobody_saw_are_silent(folder: Path) -> None:
    sidecar = {"interval_s": 30, "started_at": iso(T - 60), "gpus": inventory(0, 1, 2),
               "expected_gpus": 4}  # fmt: skip
    write_file(folder, "n1", lines(WHOLE, 10), sidecar=sidecar)
    summary = summed(folder)
    assert summary.fleet.gpus_allocated == 4
    assert summary.fleet.allocated_sources == ("expected",)
    assert summary.fleet.reporting_fraction == summary.fleet.figures.coverage_fraction == 0.25
    assert summary.fleet.states == {**dict.fromkeys(summary.fleet.states, 0), "working": 1,
                                    "silent": 3}  # fmt: skip
    assert gpu(summary, "GPU-1").figures is None
    assert summary.sentence.startswith("4 GPUs allocated, 1 working, 3 silent; ")


def test_a_logger_that_stopped_before_the_window_allocates_nothing(folder: Path) -> None:
    sidecar = {"interval_s": 30, "started_at": iso(T - 900), "ended_at": iso(T - 600),
               "gpus": inventory(0), "expected_gpus": 1}  # fmt: skip
    write_file(folder, "old", lines(T - 900, 10), sidecar=sidecar)
    write_file(folder, "n1", lines(WHOLE, 10))
    summary = summed(folder)
    assert [h.host for h in summary.hosts] == ["n1"]
    assert summary.fleet.gpus_allocated is None
    assert "allocation not known" in summary.sentence


def test_a_logger_that_stopped_within_the_window_allocates_until_then(folder: Path) -> None:
    sidecar = {"interval_s": 30, "started_at": iso(T - 60), "ended_at": iso(T + 100),
               "gpus": inventory(0)}  # fmt: skip
    write_file(folder, "n1", lines(WHOLE, 3), sidecar=sidecar)
    summary = summed(folder)
    assert (summary.fleet.gpus_allocated, summary.fleet.gpus_allocated_at_end) == (1, 0)
    assert sum(summary.fleet.states.values()) == 0
    assert summary.sentence == "0 GPUs allocated at the end (1 at most); queue not known"
    assert GpuState.SILENT not in host(summary, "n1").figures.state_gpu_s


def test_a_logger_that_was_started_again_for_its_job_holds_the_same_gpus(folder: Path) -> None:
    first = {"interval_s": 30, "started_at": iso(T - 60), "ended_at": iso(T + 100),
             "gpus": inventory(0)}  # fmt: skip
    write_file(folder, "n1", lines(WHOLE, 3), sidecar=first)
    again = {"interval_s": 30, "started_at": iso(T + 110), "gpus": inventory(0)}
    write_file(folder, "n1", lines(T + 120, 7), started="20270115T080150Z", sidecar=again)
    summary = summed(folder)
    assert (summary.fleet.gpus_allocated, summary.fleet.gpus_allocated_at_end) == (1, 1)
    assert summary.sentence == "1 GPU allocated, 1 working; queue not known"


def test_a_gpu_that_nobody_saw_is_silent_also_where_it_was_not_held_all_the_time(
    folder: Path,
) -> None:
    sidecar = {"interval_s": 30, "started_at": iso(T + 150), "expected_gpus": 4}
    rows = [row for index in range(3) for row in lines(T + 180, 5, gpu_index=index)]
    write_file(folder, "n1", rows, sidecar=sidecar)
    figures = summed(folder).fleet.figures
    assert figures.state_gpu_s[GpuState.SILENT] == 150
    assert figures.expected_samples == pytest.approx(3 * 10 + 5)


def test_workers_tell_the_allocation_and_one_without_telemetry_is_silent(
    folder: Path, tmp_path: Path
) -> None:
    outer, inner = make_spool(tmp_path / "taskq"), make_spool(tmp_path / "taskq_gpu")
    write_file(folder, "n1", lines(WHOLE, 10), sidecar={"interval_s": 30, "expected_gpus": 1})
    for tree, launch, node in ((outer, "aa", "n1"), (inner, "bb", "n1"), (outer, "cc", "n2")):
        Launch(tree, T - 5, launch=launch, host=node).write(
            "arrive", T - 5, slots=1, host=node, job="7", gpus=4
        ).write("depth", T + 290, **depth())
    summary = summed(folder, spools={"outer": outer.paths.root, "inner": inner.paths.root})
    assert host(summary, "n1").gpus_allocated == 4  # the pack's four are among the node's
    assert host(summary, "n1").allocated_source == "workers"
    assert host(summary, "n2").states["silent"] == 4
    assert host(summary, "n2").figures.coverage_fraction == 0
    assert host(summary, "n2").figures.state_gpu_s == {GpuState.SILENT: 4 * 300}
    assert summary.fleet.figures.coverage_fraction == pytest.approx(10 / 80)
    assert summary.sentence == "8 GPUs allocated, 1 working, 7 silent; both spools drained"


def test_two_jobs_one_after_the_other_hold_no_more_than_at_one_time(
    folder: Path, tmp_path: Path
) -> None:
    outer = make_spool(tmp_path / "taskq")
    for job, begin, end in (("7", T, T + 100), ("8", T + 150, T + 250)):
        Launch(outer, begin, launch=f"l{job}", job=job, gpus=4).write(
            "arrive", begin, slots=1, gpus=4
        ).write("leave", end)
    summary = summed(folder, spools={"outer": outer.paths.root})
    (only,) = summary.hosts
    assert (only.gpus_allocated, only.gpus_allocated_at_end) == (4, 0)
    assert summary.sentence.startswith("0 GPUs allocated at the end (4 at most); ")


# ------------------------------------------------------------------------------------------ work


def test_no_utilization_stands_without_how_much_work_there_was(
    folder: Path, tmp_path: Path
) -> None:
    inner = make_spool(tmp_path / "taskq_gpu")
    launch = Launch(inner, T - 50, gpus=1).write("arrive", T - 50, slots=1, gpus=1)
    launch.run("before", T - 40, T - 30, number=1)
    launch.run("across", T - 20, T + 100, number=2, outcome="failed")
    launch.run("open", T + 110, number=3)
    for at, pending in ((-10, 9), (20, 7), (280, 3)):
        launch.write("depth", T + at, **depth(pending=pending, running=1))
    write_file(folder, "n1", lines(WHOLE, 10, util_pct=0))
    work = summed(folder, spools={"inner": inner.paths.root}).queue
    assert work.known
    assert (work.started, work.ended, work.running_at_end) == (1, {"failed": 1}, 1)
    depths = work.spools["inner"]
    assert (depths.first["pending"], depths.last["pending"]) == (9, 3)
    assert (depths.least["pending"], depths.most["pending"], depths.mean["pending"]) == (3, 7, 5)
    assert work.words == "inner spool 3 pending, 1 running"


def test_what_ran_between_two_notes_of_the_depth_is_not_missed(
    folder: Path, tmp_path: Path
) -> None:
    inner = make_spool(tmp_path / "taskq_gpu")
    launch = Launch(inner, T, gpus=1).write("arrive", T + 1, slots=2, gpus=1)
    launch.write("depth", T + 1, **depth(pending=3))
    launch.run("one", T + 2, T + 32, number=1)
    launch.run("two", T + 2, T + 62, number=2)
    launch.run("three", T + 32, T + 62, number=3)  # in the place of the first, at once
    launch.write("depth", T + 63, **depth(done=3))
    launch.write("leave", T + 63, reason="nothing to claim")
    write_file(folder, "n1", lines(WHOLE, 10, util_pct=0))
    depths = summed(folder, spools={"inner": inner.paths.root}).queue.spools["inner"]
    assert depths.most["running"] == 2
    assert depths.mean["running"] == pytest.approx(120 / 300)
    assert (depths.first["running"], depths.last["running"]) == (0, 0)


def test_an_old_depth_says_how_old_it_is(folder: Path, tmp_path: Path) -> None:
    inner = make_spool(tmp_path / "taskq_gpu")
    Launch(inner, T - 4000).write("depth", T - 900, **depth(pending=2))
    work = summed(folder, spools={"inner": inner.paths.root}).queue
    assert work.words == "inner spool 2 pending 20 min 00 s before the end"


def test_without_journals_the_queue_is_not_known(folder: Path, tmp_path: Path) -> None:
    write_file(folder, "n1", lines(WHOLE, 10))
    assert summed(folder).sentence.endswith("; queue not known")
    missing = {"outer": str(tmp_path / "taskq")}
    work = summed(folder, spools=missing).queue
    assert not work.known
    assert work.words == "queue not known"
    assert work.problems


def test_reported_forward_calls_become_mfu_by_family(folder: Path, tmp_path: Path) -> None:
    inner = make_spool(tmp_path / "taskq_gpu")
    launch = Launch(inner, T - 50, slots=1, gpus=1)
    launch.write("arrive", T - 50, slots=1, gpus=1, slot_gpus=["GPU-0"])
    claim = launch.run("train", T - 40, family="wan")
    launch.write("depth", T + 290, **depth())
    write_file(folder, "n1", lines(WHOLE, 10),
               sidecar={"interval_s": 30, "gpus": inventory(0)})  # fmt: skip
    reports = folder / "forwards"
    reports.mkdir(mode=0o700)
    text = json.dumps({"at": iso(T + 100), "forwards": 5, "flop": 300 * 312e12 * 0.5})
    (reports / f"7.0.0.{claim}.jsonl").write_text(f"{text}\nnonsense\n")
    mfu = summed(folder, spools={"inner": inner.paths.root}).mfu
    (family,) = mfu.families
    assert (family.family, family.mfu) == ("wan", pytest.approx(0.5))
    assert mfu.rejected_lines == 1


# ------------------------------------------------------------------------------- files and places


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read telemetry"):
        read(tmp_path / "nowhere")


def test_one_file_is_a_place_too(folder: Path) -> None:
    path = write_file(folder, "n1", lines(WHOLE, 10))
    write_file(folder, "n2", lines(WHOLE, 10))
    assert summed(path).fleet.hosts == 1


def test_a_file_that_cannot_be_read_is_named_with_its_reason(folder: Path) -> None:
    (folder / "n1_job7_20270115T070000Z.csv").mkdir()
    found = read(folder)
    assert found.summary.files_refused == 1
    assert found.refused[0][1] == "not a regular file"


def test_only_files_that_lie_far_away_in_every_respect_are_passed_over(folder: Path) -> None:
    day = 86400.0
    old = write_file(folder, "old", lines(T - 9 * day, 10))
    os.utime(old, (T - 9 * day, T - 9 * day))
    copied = write_file(folder, "copied", lines(T - 9 * day, 10))
    os.utime(copied, (T, T))
    stepped = write_file(folder, "stepped", lines(WHOLE, 10))
    os.utime(stepped, (T - 9 * day, T - 9 * day))
    future = write_file(folder, "future", lines(T + 9 * day, 10), started="20270124T080000Z")
    os.utime(future, (T + 9 * day, T + 9 * day))
    summary = summed(folder)
    assert summary.files_passed_over == 2  # old and future
    assert [h.host for h in summary.hosts] == ["stepped"]


# --------------------------------------------------------------------------------------- archives


def zoneless(folder: Path, name: str, offset_s: float = 0.0) -> None:
    folder.mkdir(exist_ok=True)
    rows = [iso(WHOLE + offset_s + 30 * n)[:-1].replace("-", "/").replace("T", " ") for n in
            range(10)]  # fmt: skip
    text = "timestamp,mem_used_mib,mem_total_mib,util_pct,power_w\n"
    (folder / name).write_text(text + "".join(f"{at},1000,2000,50,100\n" for at in rows))


def test_an_end_without_a_zone_is_the_archives_own_clock(folder: Path) -> None:
    zoneless(folder, "host01.csv")
    found = read(folder, end="2027-01-15T08:05:00")
    assert found.summary.fleet.figures.samples == 10
    assert (found.summary.zone, found.summary.end) == ("file-local", "2027-01-15T08:05:00")
    assert "their own clock" in found.notes[0]


def test_an_end_with_a_zone_takes_archives_to_be_of_it(folder: Path) -> None:
    zoneless(folder, "host01.csv", offset_s=-5 * 3600)
    found = read(folder, end="2027-01-15T03:05:00-05:00")
    assert found.summary.fleet.figures.samples == 10
    assert "of the zone given" in found.notes[0]


def test_a_folder_of_both_kinds_reads_each_by_its_own_rule(folder: Path) -> None:
    zoneless(folder, "host01.csv", offset_s=-5 * 3600)
    write_file(folder, "n1", lines(WHOLE, 10))
    found = read(folder, end="2027-01-15T03:05:00-05:00")
    assert found.summary.zone == "mixed"
    assert found.summary.fleet.figures.samples == 20
    assert found.notes


@archived
def test_a_window_over_everything_finds_what_the_archive_is_known_to_hold() -> None:
    known = json.loads((ARCHIVE / "expected.json").read_text())
    figures = summed(
        ARCHIVE / "hosts", end="2026-12-31T00:00:00", window_s=365 * 86400.0
    ).fleet.figures
    assert figures.samples == known["rows"]
    assert figures.mean_util_pct == pytest.approx(known["mean_util_pct"], abs=5e-7)
    assert figures.active_fraction == pytest.approx(known["active_fraction_5"], abs=5e-7)
    assert figures.mean_memory_fraction == pytest.approx(known["mean_memory_fraction"], abs=5e-7)
    assert figures.mean_power_w == pytest.approx(known["mean_power_w"], abs=5e-5)
    assert figures.energy_kwh == pytest.approx(known["energy_kwh_gaps_left_out"], abs=5e-4)
    assert figures.covered_hours == pytest.approx(known["covered_hours"], abs=5e-4)
    assert figures.dedup.samples == known["dedup_rows"]
    assert figures.dedup.mean_util_pct == pytest.approx(known["dedup_mean_util"], abs=5e-7)
    assert figures.dedup.active_fraction == pytest.approx(known["dedup_active"], abs=5e-7)


@archived
def test_a_window_of_the_archive_has_the_hosts_that_were_logged_then() -> None:
    summary = summed(ARCHIVE / "hosts", end="2026-07-17T12:00:00")
    assert summary.fleet.hosts_reporting == 7
    assert summary.fleet.figures.samples == 80
    assert summary.fleet.figures.dedup.samples == 70
    assert summary.newest.startswith("2026-07-21")
