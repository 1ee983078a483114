"""What each GPU does, as far as is known, and one look at everything a fleet's owner asks about."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from pathlib import Path

import msgspec
import pytest

from fleetcraft.fleet.shapes import Mark, root_mark
from fleetcraft.fleet.snapshot import probe_step
from fleetcraft.fleet.snapshot.gpus import Gpu, Share, count_gpus, list_gpus
from fleetcraft.fleet.snapshot.probe import NodeReport, look
from fleetcraft.fleet.snapshot.probe_step import Allocation, probe_jobs
from fleetcraft.fleet.snapshot.whole import Snapshot, Wanted, take_snapshot
from fleetcraft.gpu import nvml
from fleetcraft.gpu.nvml import Reading
from fleetcraft.gpu.states import GpuState, Sighting, Sightings, classify
from fleetcraft.slurm import commands
from fleetcraft.slurm.polls import Polls
from fleetcraft.spool import leases
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.telemetry.tail import read_tails
from tests.fleet.quiet_slurm import QuietSlurm
from tests.fleet.telemetry_files import Telemetry, row

PLACE = ("7", "n1")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QuietSlurm:
    return QuietSlurm(tmp_path, monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    for spool in ("taskq", "taskq_gpu"):
        set_up(SpoolTree(str(root / spool)))
    return root


@pytest.fixture
def telemetry(root: Path) -> Telemetry:
    return Telemetry(root)


def wanted(root: Path, **more: object) -> Wanted:
    return Wanted(
        root=str(root),
        outer=str(root / "taskq"),
        inner=str(root / "taskq_gpu"),
        **more,  # type: ignore[arg-type]
    )


def states(shot: Snapshot) -> dict[tuple[str, int | None], GpuState]:
    assert shot.gpus.value is not None
    return {(gpu.node, gpu.index): gpu.state for gpu in shot.gpus.value}


# ------------------------------------------------------------------------- one GPU's state


def seen(**more: object) -> Sighting:
    facts = {"source": "telemetry", "age_s": 5.0, "interval_s": 30.0, **more}
    return Sighting(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sighting", "state"),
    [
        (seen(util_pct=5.0, mem_used_mib=60000.0), "working"),
        (seen(util_pct=100.0), "working"),  # whatever its memory is
        (seen(util_pct=4.9, mem_used_mib=60000.0), "resident_idle"),
        (seen(util_pct=0.0, mem_used_mib=8.0), "free_idle"),
        (seen(util_pct=0.0, mem_used_mib=None), "unknown"),  # perhaps somebody holds it
        (seen(util_pct=None, mem_used_mib=0.0), "unknown"),
        (seen(util_pct=97.0, age_s=90.0), "working"),
        (seen(util_pct=97.0, age_s=90.1), "silent"),
        (seen(status="lost"), "lost"),
        (seen(status="absent"), "lost"),
        (seen(status="lost", age_s=400.0), "silent"),
        (seen(status="timeout"), "unknown"),
        (seen(util_pct=97.0, status="no_permission"), "working"),
        (seen(util_pct=0.0, mem_used_mib=0.0, age_s=1e6, interval_s=None), "free_idle"),
    ],
)
def test_a_gpu_is_what_was_last_seen_of_it(sighting: Sighting, state: str) -> None:
    found, reason = classify(sighting)
    assert found == state
    assert bool(reason) == (state in ("unknown", "silent", "lost"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gres:gpu:2", 2),
        ("gres/gpu:a100:4", 4),
        ("gpu:a100:2,gpu:v100:1", 3),
        ("gres:gpu:2g.10gb:3", 3),
        ("gres:gpu", 1),
        ("gres:nic:3", None),
        ("vgpu:3", None),
        ("", None),
    ],
)
def test_gpus_are_counted_in_what_a_job_asked_for(text: str, count: int | None) -> None:
    assert count_gpus(text) == count


# --------------------------------------------------------- what Slurm gave and what was seen


def share(count: int | None) -> Share:
    return Share(job_id="7", node="n1", count=count)


def paired(count: int | None, sightings: Sightings | None) -> list[Gpu]:
    return list_gpus([share(count)], {} if sightings is None else {PLACE: sightings})


def test_an_allocated_gpu_that_nobody_saw_is_unknown_and_not_left_out() -> None:
    gpus = paired(3, None)
    assert [gpu.state for gpu in gpus] == ["unknown"] * 3
    assert gpus[0].reason == "nobody looked at it"


def test_of_which_some_were_seen_the_others_are_unknown() -> None:
    gpus = paired(2, Sightings(gpus=(seen(index=1, util_pct=50.0),)))
    assert [(gpu.index, gpu.state) for gpu in gpus] == [(1, "working"), (None, "unknown")]


def test_a_job_on_a_part_of_a_node_is_told_by_slurms_own_numbers() -> None:
    whole_node = tuple(seen(index=i, util_pct=10.0 * i) for i in range(4))
    gpus = paired(2, Sightings(gpus=whole_node, indexes=(2, 3)))
    assert [(gpu.index, gpu.seen and gpu.seen.util_pct) for gpu in gpus] == [(2, 20.0), (3, 30.0)]


def test_a_job_that_sees_only_its_own_gpus_counts_them_from_0() -> None:
    own = (seen(index=0, util_pct=10.0), seen(index=1, util_pct=20.0))
    gpus = paired(2, Sightings(gpus=own, indexes=(2, 3)))
    assert [(gpu.index, gpu.seen and gpu.seen.util_pct) for gpu in gpus] == [(2, 10.0), (3, 20.0)]


def test_without_numbers_nobody_guesses_which_gpus_of_a_node_are_the_jobs() -> None:
    whole_node = tuple(seen(index=i, util_pct=90.0) for i in range(4))
    gpus = paired(2, Sightings(gpus=whole_node))
    assert [gpu.state for gpu in gpus] == ["unknown"] * 2
    assert "4 GPUs were seen there" in gpus[0].reason


def test_where_slurm_counts_no_gpus_those_that_were_seen_are_listed() -> None:
    assert [gpu.state for gpu in paired(None, Sightings(gpus=(seen(util_pct=9.0),)))] == ["working"]
    assert paired(None, Sightings(reason="no telemetry file")) == []


# ------------------------------------------------------------------------- telemetry files


def test_the_newest_row_of_each_gpu_counts(telemetry: Telemetry) -> None:
    telemetry.write(
        "n1",
        row(35, gpu_index=0, util_pct=97),
        row(35, gpu_index=1, util_pct=0),
        row(5, gpu_index=0, util_pct=0, mem_used_mib=2),
        row(5, gpu_index=1, util_pct=88),
    )
    found = read_tails(str(telemetry.folder), [PLACE]).places[PLACE]
    by_index = {gpu.index: gpu for gpu in found.gpus}
    assert {i: classify(gpu)[0] for i, gpu in by_index.items()} == {0: "free_idle", 1: "working"}
    assert by_index[1].uuid == "GPU-1"
    assert by_index[0].age_s >= 4


def test_a_cell_that_holds_no_measurement_is_none(telemetry: Telemetry) -> None:
    cells = {0: ("nan", 5), 1: (-1, 5), 2: (101, 5), 3: ("[N/A]", 5), 4: (3, "inf"), 5: (3, "")}
    telemetry.write(
        "n1", *(row(gpu_index=i, util_pct=u, mem_used_mib=m) for i, (u, m) in cells.items())
    )
    found = read_tails(str(telemetry.folder), [PLACE]).places[PLACE]
    assert [classify(gpu)[0] for gpu in found.gpus] == ["unknown"] * 6


def test_memory_of_a_gpu_that_has_none_is_not_free(telemetry: Telemetry) -> None:
    telemetry.write("n1", row(util_pct=0, mem_used_mib=0, mem_total_mib=0))
    (gpu,) = read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus
    assert (gpu.mem_used_mib, gpu.mem_total_mib, classify(gpu)[0]) == (None, None, "unknown")


def test_torn_and_damaged_rows_are_passed_over_and_counted(telemetry: Telemetry) -> None:
    whole = row(gpu_index=0)
    telemetry.write(
        "n1",
        "Unable to determine the device handle: GPU is lost",
        whole,
        whole.partition(",")[0] + ",1,2",
        tail=row(gpu_index=1)[:40],
    )
    tail = read_tails(str(telemetry.folder), [PLACE])
    assert [gpu.index for gpu in tail.places[PLACE].gpus] == [0]
    assert tail.rows_rejected == 3


def test_only_the_end_of_a_long_file_is_read(telemetry: Telemetry) -> None:
    old = [row(300 - i / 100, gpu_index=5) for i in range(20_000)]
    telemetry.write("n1", *old, *(row(5, gpu_index=0) for _ in range(1200)))
    tail = read_tails(str(telemetry.folder), [PLACE])
    assert [gpu.index for gpu in tail.places[PLACE].gpus] == [0]
    assert tail.rows_rejected == 0  # though the reading began in the middle of a row


@pytest.mark.parametrize("rows_age_s", [5, 400])
def test_a_file_that_nobody_writes_any_more_is_silent(
    telemetry: Telemetry, rows_age_s: float
) -> None:
    # Also when the clock of its node is ahead, or when a copy has made an old file look new.
    telemetry.write("n1", row(rows_age_s), age_s=400 if rows_age_s == 5 else 0)
    (gpu,) = read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus
    assert classify(gpu)[0] == "silent"


def test_where_the_clock_of_the_files_cannot_be_had_nothing_is_fresh(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    telemetry.write("n1", row(5))
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    found = read_tails(str(telemetry.folder), [PLACE]).places[PLACE]
    assert found.gpus == ()
    assert "Read-only file system" in found.reason


def test_the_sidecar_says_how_far_apart_rows_are(telemetry: Telemetry) -> None:
    telemetry.write("n1", row(400), interval_s=300)
    (gpu,) = read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus
    assert (gpu.interval_s, classify(gpu)[0]) == (300, "working")


def test_without_a_sidecar_the_rows_themselves_say_it(telemetry: Telemetry) -> None:
    telemetry.write("n1", *(row(age_s) for age_s in (600, 480, 360, 240, 120)))
    (gpu,) = read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus
    assert gpu.interval_s == pytest.approx(120, abs=1)


def test_one_gpu_that_is_no_longer_written_about_is_silent_alone(telemetry: Telemetry) -> None:
    telemetry.write("n1", row(200, gpu_index=1), row(5, gpu_index=0), interval_s=30)
    gpus = read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus
    assert {gpu.index: classify(gpu)[0] for gpu in gpus} == {0: "working", 1: "silent"}


def test_a_row_about_the_host_is_no_gpu_and_gives_the_reason(telemetry: Telemetry) -> None:
    telemetry.write("n1", row(gpu_index="", gpu_uuid="", util_pct="", status="no_nvml"))
    found = read_tails(str(telemetry.folder), [PLACE]).places[PLACE]
    assert found == Sightings(reason="its logger saw no GPU: status no_nvml")


def test_slices_of_a_gpu_stand_for_it(telemetry: Telemetry) -> None:
    telemetry.write(
        "n1",
        row(gpu_index=0, util_pct="", status="mig"),
        row(gpu_index=0, mig_uuid="MIG-a", util_pct=30),
        row(gpu_index=0, mig_uuid="MIG-b", util_pct=""),
    )
    gpus = read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus
    assert {gpu.uuid: classify(gpu)[0] for gpu in gpus} == {"MIG-a": "working", "MIG-b": "unknown"}


def test_a_gpu_whose_uuid_is_not_told_any_more_is_still_one(telemetry: Telemetry) -> None:
    telemetry.write("n1", row(35), row(5, gpu_uuid="", util_pct="", status="lost"))
    gpus = read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus
    assert [(gpu.index, classify(gpu)[0]) for gpu in gpus] == [(0, "lost")]


def test_an_archive_without_names_and_zones_is_read_by_its_files_age(telemetry: Telemetry) -> None:
    telemetry.write(
        "n1",
        "2026/07/19 21:59:17.693,8,97871,0,85.83",
        "2026/07/19 21:59:47.744,6,97871,0,85.44",
        header="timestamp,mem_used_mib,mem_total_mib,util_pct,power_w",
    )
    (gpu,) = read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus
    assert (gpu.mem_used_mib, gpu.index, classify(gpu)[0]) == (6, None, "free_idle")


def test_the_newest_file_counts_unless_it_has_no_row_yet(telemetry: Telemetry) -> None:
    telemetry.write("n1", row(util_pct=0, mem_used_mib=0), started="20261129T100000Z")
    telemetry.write("n1", row(util_pct=77), started="20261129T200000Z")
    telemetry.write("n1", started="20261129T210000Z")
    telemetry.write("n1", row(util_pct=11), job="70", started="20261129T230000Z")
    (gpu,) = read_tails(str(telemetry.folder), [PLACE]).places[PLACE].gpus
    assert gpu.util_pct == 77


def test_what_somebody_else_could_have_written_is_not_read(telemetry: Telemetry) -> None:
    link, shared, pipe = (telemetry.folder / f"n{i}_job7_20261129T200000Z.csv" for i in (1, 2, 3))
    link.symlink_to(telemetry.write("elsewhere", row()))
    telemetry.write("n2", row())
    shared.chmod(0o666)
    os.mkfifo(pipe, 0o600)
    tail = read_tails(str(telemetry.folder), [("7", "n1"), ("7", "n2"), ("7", "n3")])
    assert not any(found.gpus for found in tail.places.values())
    assert sorted(tail.refused) == [
        "n1_job7_20261129T200000Z.csv: Too many levels of symbolic links",
        "n2_job7_20261129T200000Z.csv: others can write it",
        "n3_job7_20261129T200000Z.csv: not a regular file",
    ]


@pytest.mark.parametrize("how", ["link", "open", "file"])
def test_a_telemetry_folder_that_is_not_private_is_not_read(
    telemetry: Telemetry, tmp_path: Path, how: str
) -> None:
    telemetry.write("n1", row())
    folder = telemetry.folder
    if how == "open":
        folder.chmod(0o777)
    else:
        folder = tmp_path / "other"
        folder.symlink_to(telemetry.folder) if how == "link" else folder.touch()
    tail = read_tails(str(folder), [PLACE])
    assert tail.places[PLACE].gpus == ()
    assert str(folder) in tail.places[PLACE].reason
    assert len(tail.refused) == 1


# ------------------------------------------------------------------------- the probe's program


def test_the_probe_reports_the_gpus_of_its_step_alone() -> None:
    readings = [Reading(index=i, uuid=f"GPU-{i}", util_pct=50.0) for i in range(4)]
    environ = {
        **{"CUDA_VISIBLE_DEVICES": "1,GPU-3", "SLURM_STEP_GPUS": "1,3"},
        **{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4"},
    }
    report = look(environ, read=lambda: readings)
    assert [gpu.index for gpu in report.gpus] == [1, 3]
    assert (report.step, report.indexes, report.reason) == ("7.4", (1, 3), "")


def test_a_driver_that_hangs_is_a_reason_and_not_a_hang() -> None:
    for_ever = threading.Event()

    def hang() -> list[Reading]:
        for_ever.wait()
        return []

    report = look({}, read=hang, limit_s=0.05)
    for_ever.set()
    assert report.gpus == ()
    assert report.reason == "the driver did not answer within 0.05 s"


def test_one_gpu_in_a_bad_state_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    class Memory:
        used, total = 3 << 20, 80 << 30

    class Use:
        gpu = 7

    def handle(index: int) -> int:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def memory(handle: int, version: object = None) -> Memory:
        if handle == 2:
            raise pynvml.NVMLLibraryMismatchError("an old driver")
        return Memory()

    for name, stand_in in {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetUtilizationRates": lambda handle: Use(),
        "nvmlDeviceGetMemoryInfo": memory,
    }.items():
        monkeypatch.setattr(pynvml, name, stand_in)
    assert nvml.read_gpus() == [
        Reading(index=0, uuid="GPU-0", util_pct=7.0, mem_used_mib=3.0, mem_total_mib=81920.0),
        Reading(index=1, status="lost"),
        Reading(index=2, uuid="GPU-2", util_pct=7.0, status="unsupported_driver"),
    ]


# ------------------------------------------------------------------------- asking nodes by srun


def says_report(slurm: QuietSlurm, *reports: NodeReport | str, then: str = "") -> None:
    lines = [r if isinstance(r, str) else msgspec.json.encode(r).decode() for r in reports]
    file = slurm.folder / "reports"
    file.write_text("".join(f"{line}\n" for line in lines))
    slurm.write("srun", f"cat '{file}'\n{then}")


def report(node: str, *, util_pct: float | None = None, reason: str = "") -> NodeReport:
    gpus = tuple(
        Reading(index=i, uuid=f"GPU-{node}-{i}", util_pct=util_pct, mem_used_mib=0.0)
        for i in range(2)
        if util_pct is not None
    )
    return NodeReport(node=node, step="7.3", gpus=gpus, indexes=(0, 1), reason=reason)


def test_one_srun_asks_all_nodes_of_a_job(slurm: QuietSlurm, root: Path) -> None:
    says_report(slurm, report("n1", util_pct=50.0), report("n2", util_pct=0.0))
    shot = take_snapshot(wanted(root, probe=True))
    assert states(shot) == {
        **{("n1", 0): "working", ("n1", 1): "working"},
        **{("n2", 0): "free_idle", ("n2", 1): "free_idle"},
    }
    (call,) = slurm.calls("srun")
    words = call.words.split()
    assert {"--jobid=7", "--overlap", "--nodes=2", "--ntasks-per-node=1", "--time=1"} <= set(words)
    assert words[-2:] == ["-m", "fleetcraft.fleet.snapshot.probe"]
    assert shot.answered


def test_a_node_whose_driver_is_silent_keeps_its_count_and_says_why(
    slurm: QuietSlurm, root: Path
) -> None:
    says_report(slurm, report("n1", util_pct=50.0), report("n2", reason="NVML is not there"))
    shot = take_snapshot(wanted(root, probe=True))
    assert shot.gpus.value is not None
    found = [(gpu.index, gpu.state, gpu.reason) for gpu in shot.gpus.value if gpu.node == "n2"]
    why = "NVML is not there; no telemetry file"
    assert found == [(0, "unknown", why), (1, "unknown", why)]


def test_what_a_probe_cannot_see_telemetry_may_have_told(
    slurm: QuietSlurm, root: Path, telemetry: Telemetry
) -> None:
    says_report(slurm, report("n1", reason="NVML is not there"), report("n2", util_pct=0.0))
    telemetry.write("n1", row(gpu_index=0), row(gpu_index=1, util_pct=0))
    shot = take_snapshot(wanted(root, probe=True))
    assert states(shot)["n1", 0] == "working"
    assert states(shot)["n1", 1] == "resident_idle"


@pytest.mark.parametrize("then", ["echo 'srun: error: no' >&2; exit 1", "exit 0"])
def test_a_node_that_did_not_answer_is_unknown_and_the_look_is_not_whole(
    slurm: QuietSlurm, root: Path, then: str
) -> None:
    says_report(slurm, "not json", '{"schema":"other"}', report("n1", util_pct=50.0), then=then)
    shot = take_snapshot(wanted(root, probe=True))
    assert [state for (node, _), state in states(shot).items() if node == "n2"] == ["unknown"]
    assert shot.probed is not None
    assert "its srun ended with" in shot.probed.failures["7"]
    assert not shot.answered


def test_an_srun_that_hangs_is_ended_and_its_step_cancelled_by_its_id(
    slurm: QuietSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_step, "_TERM_GRACE_S", 0.3)
    says_report(slurm, report("n1", util_pct=50.0), then="trap '' TERM; sleep 60 & wait; wait")
    slurm.write("scancel", "")
    probed = probe_jobs([Allocation(job_id="7", nodes=("n1", "n2"))], Polls(), bound_s=0.5)
    assert [call.words for call in slurm.calls("scancel")] == ["7.3"]
    assert "did not end within 0.5 s" in probed.failures["7"]
    assert ("7", "n1") in probed.reports
    assert not os.path.exists(f"/proc/{slurm.calls('srun')[0].pid}")


def test_a_probe_is_made_a_few_at_a_time_and_each_job_fails_alone(slurm: QuietSlurm) -> None:
    slurm.write("srun", 'case "$1" in --jobid=3) exit 1 ;; esac\nsleep 0.2')
    jobs = [Allocation(job_id=str(i), nodes=("n1",)) for i in range(1, 7)]
    probed = probe_jobs(jobs, Polls(), bound_s=20)
    starts = sorted(call.at_s for call in slurm.calls("srun"))
    assert len(starts) == 6
    assert starts[4] - starts[0] > 0.15
    assert set(probed.failures) == set("123456")  # none of them printed a report


def test_no_srun_is_started_for_jobs_that_wait_or_have_no_gpu(
    slurm: QuietSlurm, root: Path
) -> None:
    slurm.jobs(
        {"JobID": "8", "State": "PENDING", "Reason": "Priority"},
        {"JobID": "9", "NodeList": "n3", "tres-per-node": "N/A"},
    )
    slurm.nodes({"NodeList": "n3", "GresUsed": "gpu:0"})
    shot = take_snapshot(wanted(root, probe=True))
    assert slurm.calls("srun") == []
    assert (shot.gpus.value, shot.answered) == ([], True)


# ------------------------------------------------------------------------------ the whole look


def test_a_look_costs_few_calls_and_a_second_one_none(slurm: QuietSlurm, root: Path) -> None:
    take_snapshot(wanted(root))
    assert len(slurm.calls("squeue")) == len(slurm.calls("sinfo")) == 1
    asked = sorted(call.words for call in slurm.calls("scontrol"))
    assert asked == ["show config", "show hostnames n1,n2"]

    again = take_snapshot(wanted(root))
    assert len(slurm.calls("squeue")) == len(slurm.calls("sinfo")) == 1
    assert again.jobs.age_s is not None
    assert again.jobs.age_s > 0


def test_jobs_of_this_tree_are_told_by_their_comment(slurm: QuietSlurm, root: Path) -> None:
    mine, other = Mark(root_mark(str(root)), "8x12:00:00", "abc"), Mark("0123456789ab")
    slurm.jobs(
        {"JobID": "10", "NodeList": "n1", "Comment": f"{mine}"},
        {"JobID": "9", "NodeList": "n2", "Comment": f"{other}"},
        {"JobID": "8", "State": "COMPLETED"},
        {"JobID": "11", "State": "PENDING", "Reason": "Priority", "NumNodes": "4"},
    )
    shot = take_snapshot(wanted(root))
    assert shot.jobs.value is not None
    assert [(view.job.job_id, view.mark) for view in shot.jobs.value] == [
        *(("9", None), ("10", mine), ("11", None)),
    ]
    assert [view.nodes for view in shot.jobs.value] == [("n2",), ("n1",), ()]


@pytest.mark.parametrize(
    ("program", "lost"),
    [
        ("squeue", {"jobs", "nodes", "gpus"}),
        ("sinfo", {"nodes"}),
        ("scontrol", {"jobs", "nodes", "gpus", "limits", "balance"}),
    ],
)
@pytest.mark.parametrize("body", ["exit 1", "", "echo nonsense", "echo no >&2; kill -9 $$"])
def test_a_part_that_was_not_answered_is_unknown_and_the_others_stand(
    slurm: QuietSlurm, root: Path, program: str, lost: set[str], body: str
) -> None:
    slurm.write(program, body)
    shot = take_snapshot(wanted(root))
    parts = {name: getattr(shot, name) for name in ("jobs", "nodes", "gpus", "limits", "balance")}
    assert {name for name, part in parts.items() if not part.answered} == lost
    assert all(program in parts[name].reason for name in lost)
    assert (shot.gpus.value is None) == ("gpus" in lost)
    assert not shot.answered


def test_a_controller_that_hangs_is_asked_everything_at_once(
    slurm: QuietSlurm, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "TIMEOUT_S", 2.0)
    programs = ("squeue", "sinfo", "scontrol")
    for program in programs:
        slurm.write(program, "sleep 30")
    shot = take_snapshot(wanted(root))
    starts = [call.at_s for program in programs for call in slurm.calls(program)]
    assert len(starts) == 3
    assert max(starts) - min(starts) < 2.0  # none has waited for another's timeout
    assert [shot.jobs.value, shot.nodes.value, shot.gpus.value] == [None] * 3
    assert "did not answer within 2 s" in shot.jobs.reason
    assert shot.limits.value is not None
    assert shot.limits.value.status == "unknown"


def test_where_no_thread_can_be_started_questions_are_put_one_by_one(
    slurm: QuietSlurm, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert take_snapshot(wanted(root)).answered
    assert len(slurm.calls("squeue")) == 1


def test_without_slurm_the_spools_are_still_counted(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("FLEET_POLLS_DIR", str(tmp_path / "polls"))
    shot = take_snapshot(wanted(root))
    assert not shot.answered
    assert "cannot start squeue" in shot.jobs.reason
    assert shot.spools["outer"].value == dict.fromkeys(
        ("waiting", "pending", "running", "done", "failed"), 0
    )


def test_a_spool_that_is_not_there_is_unknown_and_slurm_answered(
    slurm: QuietSlurm, tmp_path: Path
) -> None:
    shot = take_snapshot(wanted(tmp_path / "no-root"))
    assert shot.spools["inner"].value is None
    assert "no spool at" in shot.spools["inner"].reason
    assert shot.answered


def test_what_jobs_really_have_is_asked_where_it_is_not_what_they_asked_for(
    slurm: QuietSlurm, root: Path
) -> None:
    slurm.jobs(
        {"JobID": "7", "NodeList": "n1", "tres-per-node": "N/A"},  # has the node whole
        {"JobID": "8", "NodeList": "n2"},
    )
    slurm.details["7"] = "JobId=7 JobName=x\n     Nodes=n1 CPU_IDs=0-3 Mem=0 GRES=gpu:2(IDX:0-1)\n"
    slurm.scontrol()
    shot = take_snapshot(wanted(root))
    assert [(one.job_id, one.count) for one in shot.shares] == [("7", 2), ("8", 2)]
    asked = [call.words for call in slurm.calls("scontrol") if "job" in call.words]
    assert asked == ["show job --details 7"]


def test_a_job_whose_gpus_nobody_can_count_is_named_and_not_said_to_have_none(
    slurm: QuietSlurm, root: Path
) -> None:
    slurm.jobs({"JobID": "7", "NodeList": "n1", "tres-per-node": "N/A"})
    shot = take_snapshot(wanted(root))  # scontrol says nothing about job 7
    assert [one.count for one in shot.shares] == [None]
    assert not shot.answered
    assert "scontrol" in shot.gpus.reason


def test_what_a_job_asked_for_is_not_believed_where_its_node_says_otherwise(
    slurm: QuietSlurm, root: Path
) -> None:
    slurm.jobs({"JobID": "7", "NodeList": "n1", "tres-per-node": "gres:gpu:1"})
    shot = take_snapshot(wanted(root))  # two are in use there; scontrol says nothing about job 7
    assert [(one.count, one.reason) for one in shot.shares] == [
        (None, "more or less is in use there than was asked for")
    ]


def test_a_site_that_counts_no_gpus_shows_those_of_telemetry(
    slurm: QuietSlurm, root: Path, telemetry: Telemetry
) -> None:
    slurm.jobs({"JobID": "7", "NodeList": "n1", "tres-per-node": "N/A"})
    slurm.nodes({"NodeList": "n1", "Gres": "(null)", "GresUsed": "(null)"})
    telemetry.write("n1", row(gpu_index=0))
    shot = take_snapshot(wanted(root))
    assert states(shot) == {("n1", 0): "working"}
    assert shot.shares[0].reason == "Slurm counts no GPUs on n1"
    assert shot.answered


def test_a_node_that_a_job_has_lost_is_shown_where_its_worker_has_not_left(
    slurm: QuietSlurm, root: Path
) -> None:
    slurm.jobs({"JobID": "7", "NodeList": "n1"})
    slurm.nodes(
        {"NodeList": "n1"},
        {"NodeList": "n2", "StateLong": "idle"},
        {"NodeList": "n3", "StateLong": "down*", "Reason": "Not responding"},
    )
    tree = SpoolTree(str(root / "taskq"))
    for number, (job, host, left_at) in enumerate(
        [
            ("7", "n1", None),
            ("7", "n3", None),
            ("7", "n2", "2026-11-29T20:00:00Z"),
            ("6", "n2", None),
        ]
    ):
        lease = leases.new_lease(rank=str(number), interval_s=30)
        leases.publish(
            tree,
            leases.msgspec.structs.replace(
                lease, job=job, host=host, left_at=left_at, launch=f"launch{number}x"
            ),
        )
    shot = take_snapshot(wanted(root))
    assert shot.nodes.value is not None
    assert [(v.name, v.node and v.node.state, v.jobs, v.workers_of) for v in shot.nodes.value] == [
        ("n1", "allocated", ("7",), ("7",)),
        ("n3", "down", (), ("7",)),
    ]
    assert shot.node_states == {"allocated": 1, "idle": 1, "down": 1}


def test_nodes_are_expanded_one_by_one_where_a_job_has_left_some_already(
    slurm: QuietSlurm, root: Path
) -> None:
    leaving = {"JobID": "7", "NodeList": "n1,n2", "NumNodes": "3", "State": "COMPLETING"}
    slurm.jobs(leaving, {"JobID": "8", "NodeList": "n3"})
    shot = take_snapshot(wanted(root))
    assert shot.jobs.value is not None
    assert [view.nodes for view in shot.jobs.value] == [("n1", "n2"), ("n3",)]


def test_nodes_that_two_programs_count_differently_are_not_known(
    slurm: QuietSlurm, root: Path
) -> None:
    slurm.jobs({"JobID": "7", "NodeList": "n1,n2", "NumNodes": "3"})
    shot = take_snapshot(wanted(root))
    assert shot.jobs.value is not None
    assert shot.jobs.value[0].nodes is None
    assert "expands 'n1,n2' to 2 nodes, but squeue says that job 7 has 3" in shot.jobs.reason
    assert shot.gpus.value is None
    assert not shot.answered
