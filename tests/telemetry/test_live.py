"""What every GPU does, from the shared files: what is read again, who counts, and who runs what."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from fleetcraft.gpu.states import GpuState
from fleetcraft.identity import Owner
from fleetcraft.spool import leases
from fleetcraft.spool.leases import Journal, Lease
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.store import Spool
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.telemetry.live.files import FIRST_BYTES, LiveTelemetry, Logged, Look
from fleetcraft.telemetry.live.journals import eta
from fleetcraft.telemetry.live.spool import LiveSpool
from fleetcraft.telemetry.live.state import Held, NodeNow, Picture, compose
from fleetcraft.telemetry.tail import TAIL_BYTES
from fleetcraft.view.top_shape import running_s, sentence
from tests.fleet.telemetry_files import Telemetry, row

HOUR_S = 3600.0


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


class Watched:
    """A scratch tree under a live view."""

    def __init__(self, root: Path, forget_s: float = HOUR_S) -> None:
        self.forget_s = forget_s
        self.telemetry = LiveTelemetry(str(root / "telemetry"), forget_s)
        self.spools = [
            LiveSpool("outer", str(root / "taskq"), forget_s),
            LiveSpool("inner", str(root / "taskq_gpu"), forget_s),
        ]

    def look(self, held: Held | None = None) -> Picture:
        spools = [spool.look() for spool in self.spools]
        return compose(self.telemetry.look(), spools, forget_s=self.forget_s, held=held)


@pytest.fixture
def watched(root: Path) -> Watched:
    return Watched(root)


def append(path: Path, *lines: str, torn: str = "") -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines) + torn)


def beside(path: Path, **said: object) -> None:
    """A sidecar, replaced as its logger does it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"interval_s": 30, "ended_at": None, **said}))
    os.replace(new, path.with_suffix(".json"))


def aged(path: Path, age_s: float) -> None:
    at = time.time() - age_s
    os.utime(path, (at, at))


def worker(
    root: Path, *, host: str = "n1", job: str = "7", spool: str = "taskq", **facts: object
) -> Lease:
    """A worker's lease, published."""
    lease = leases.new_lease(rank="0", interval_s=30)
    lease = msgspec.structs.replace(lease, host=host, job=job, **facts)  # type: ignore[arg-type]
    leases.publish(SpoolTree(str(root / spool)), lease)
    return lease


def holds(root: Path, lease: Lease, task: str, *, slot: int = 0, spool: str = "taskq") -> Owner:
    """A task, enqueued and claimed for a slot of a worker by the protocol's own move."""
    Spool(str(root / spool)).enqueue(task, "true")
    tree = SpoolTree(str(root / spool))
    owner = Owner(lease.job, lease.rank, str(slot), f"{lease.launch}-{slot + 1}")
    location = tree.locate(task)
    assert location is not None
    tree.fs.rename_new(location.path, tree.paths.claim(task, owner))
    return owner


def at(age_s: float) -> str:
    moment = datetime.now(UTC) - timedelta(seconds=age_s)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def states(picture: Picture) -> dict[str, int]:
    return {state.value: count for state, count in picture.states.items() if count}


def one_node(picture: Picture) -> NodeNow:
    (node,) = picture.nodes
    return node


# --------------------------------------------------------------------- what is read, and again


def test_only_what_was_appended_is_read_again(telemetry: Telemetry, watched: Watched) -> None:
    path = telemetry.write("n1", row(35, util_pct=0))
    first = watched.telemetry.look()
    more = row(5, util_pct=88)
    append(path, more)
    second, third = watched.telemetry.look(), watched.telemetry.look()
    assert first.bytes_read == path.stat().st_size - len(more) - 1
    assert second.bytes_read == len(more) + 1
    assert third.bytes_read == 0
    assert [r.seen.util_pct for r in third.logged[0].readings] == [88]


def test_a_row_without_its_newline_waits_for_it(telemetry: Telemetry, watched: Watched) -> None:
    path = telemetry.write("n1", row(35, util_pct=11))
    whole = row(5, util_pct=88)
    append(path, torn=whole[:50])
    torn = watched.telemetry.look()
    append(path, whole[50:])
    healed = watched.telemetry.look()
    assert (torn.rows_waiting, torn.rows_rejected) == (1, 0)
    assert [r.seen.util_pct for r in torn.logged[0].readings] == [11]
    assert (healed.rows_waiting, healed.rows_rejected) == (0, 0)
    assert [r.seen.util_pct for r in healed.logged[0].readings] == [88]


@pytest.mark.parametrize("how", ["shrunk", "replaced"])
def test_a_file_that_shrank_or_was_replaced_is_read_anew(
    telemetry: Telemetry, watched: Watched, how: str
) -> None:
    path = telemetry.write("n1", row(35, gpu_index=0), row(35, gpu_index=1), "damaged")
    before = watched.telemetry.look()
    if how == "replaced":
        path.unlink()
        telemetry.write("n1", *(row(5, gpu_index=2, util_pct=42) for _ in range(9)))
    else:
        telemetry.write("n1", row(5, gpu_index=2, util_pct=42))
    look = watched.telemetry.look()
    assert len(before.logged[0].readings) == 2
    assert [r.seen.index for r in look.logged[0].readings] == [2]
    assert look.bytes_read == path.stat().st_size
    assert look.rows_rejected == 1  # what was rejected before is not forgotten


def test_of_a_long_file_the_end_is_enough(telemetry: Telemetry, watched: Watched) -> None:
    path = telemetry.write("n1", *(row(i / 10, gpu_index=i % 2) for i in range(2000, 0, -1)))
    assert watched.telemetry.look().bytes_read == TAIL_BYTES
    beside(path, gpus=[{"uuid": "GPU-0"}, {"uuid": "GPU-1"}])
    short = LiveTelemetry(str(telemetry.folder), HOUR_S).look()
    assert short.bytes_read == FIRST_BYTES
    assert len(short.logged[0].readings) == 2
    beside(path, gpus=[{"uuid": "GPU-0"}, {"uuid": "GPU-7"}])  # perhaps further up
    assert LiveTelemetry(str(telemetry.folder), HOUR_S).look().bytes_read > TAIL_BYTES


def test_of_a_hundred_hosts_with_eight_gpus_only_new_bytes_are_read(
    telemetry: Telemetry, watched: Watched
) -> None:
    rows = [row(35, gpu_index=i) for i in range(8)]
    paths = [telemetry.write(f"n{host}", *rows) for host in range(100)]
    watched.telemetry.look()
    new = [row(5, gpu_index=i) for i in range(8)]
    for path in paths:
        append(path, *new)
    look = watched.telemetry.look()
    assert look.bytes_read == 100 * len("\n".join([*new, ""]))
    assert sum(len(one.readings) for one in look.logged) == 800


def test_what_somebody_else_could_have_written_is_not_read(
    telemetry: Telemetry, watched: Watched
) -> None:
    paths = {name: telemetry.write(name, row()) for name in ("n1", "n2", "n3")}
    paths["n2"].chmod(0o666)
    paths["n3"].unlink()
    paths["n3"].symlink_to(paths["n1"])
    refused = ["n2_job7_20261129T200000Z.csv: others can write it",
               "n3_job7_20261129T200000Z.csv: Too many levels of symbolic links"]  # fmt: skip
    if os.geteuid() == 0:
        foreign = telemetry.write("n4", row())
        os.chown(foreign, 65534, 65534)
        refused.append("n4_job7_20261129T200000Z.csv: belongs to user 65534")
    look = watched.telemetry.look()
    assert [one.node for one in look.logged] == ["n1"]
    assert sorted(look.refused) == refused


def test_a_folder_that_others_can_write_makes_gpus_unknown_and_says_so(
    root: Path, telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write("n1", row())
    worker(root, gpus=2)
    telemetry.folder.chmod(0o777)
    picture = watched.look()
    assert states(picture) == {"unknown": 2}
    assert "others can write it" in one_node(picture).gpus[0].reason


def test_a_logger_that_began_anew_counts_by_its_newest_file_with_rows(
    telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write("n1", row(util_pct=10), started="20261129T200000Z")
    new = telemetry.write("n1", started="20261129T210000Z")
    header_only = watched.telemetry.look()
    append(new, row(util_pct=77))
    (logged,) = watched.telemetry.look().logged
    assert [r.seen.util_pct for r in header_only.logged[0].readings] == [10]
    assert [r.seen.util_pct for r in logged.readings] == [77]
    assert logged.file == new.name


def test_the_file_that_is_written_counts_also_where_a_clock_was_set_back(
    telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write("n1", row(900, util_pct=10), started="20261129T210000Z", age_s=900)
    written = telemetry.write("n1", row(util_pct=77), started="20261129T200000Z")
    (logged,) = watched.telemetry.look().logged
    assert logged.file == written.name
    assert [r.seen.util_pct for r in logged.readings] == [77]


def test_history_is_not_opened(telemetry: Telemetry, watched: Watched) -> None:
    aged(telemetry.write("n1", row(), job="1"), 30 * HOUR_S)
    telemetry.write("n1", row(), job="7")
    look = watched.telemetry.look()
    assert [one.job for one in look.logged] == ["7"]
    assert look.files == 1


# ------------------------------------------------------------------------- who is allocated


def test_each_gpu_of_a_living_logger_is_in_one_state(
    telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write(
        "n1",
        row(gpu_index=0, util_pct=97),
        row(gpu_index=1, util_pct=1),
        row(gpu_index=2, util_pct=0, mem_used_mib=3),
        row(gpu_index=3, util_pct="", status="lost"),
        row(gpu_index=4, util_pct=""),
        row(200, gpu_index=5),
    )
    picture = watched.look()
    assert [gpu.state for gpu in one_node(picture).gpus] == [
        "working", "resident_idle", "free_idle", "lost", "unknown", "silent",
    ]  # fmt: skip
    assert states(picture) == dict.fromkeys(states(picture), 1)
    assert sentence(picture) == (
        "6 GPUs allocated, 1 working, 1 resident idle, 1 free idle, 1 silent, 1 lost, 1 unknown; "
        "both spools drained"
    )


def test_a_worker_that_no_logger_stands_beside_has_unknown_gpus(
    root: Path, watched: Watched
) -> None:
    worker(root, gpus=4)
    worker(root, spool="taskq_gpu", gpus=4)  # its pack, on the same GPUs
    picture = watched.look()
    assert states(picture) == {"unknown": 4}
    reason = "its worker says that there are 4, 0 are known; telemetry not read: no telemetry"
    assert one_node(picture).gpus[0].reason.startswith(reason)


def test_gpus_that_a_worker_names_are_joined_with_what_was_seen(
    root: Path, telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write("n1", row(gpu_index=0), row(gpu_index=1))
    worker(root, spool="taskq_gpu", slots=3, gpus=3, slot_gpus=("GPU-0", "GPU-1", "GPU-2"))
    gpus = one_node(watched.look()).gpus
    assert [(gpu.uuid, gpu.state.value) for gpu in gpus] == [
        ("GPU-0", "working"), ("GPU-1", "working"), ("GPU-2", "unknown"),
    ]  # fmt: skip


def test_a_logger_that_sees_fewer_gpus_than_it_should_leaves_the_rest_unknown(
    telemetry: Telemetry, watched: Watched
) -> None:
    beside(telemetry.write("n1", row(gpu_index=0)), expected_gpus=4)
    picture = watched.look()
    assert states(picture) == {"working": 1, "unknown": 3}
    assert "its logger says that there are 4, 1 are known" in one_node(picture).gpus[-1].reason


def test_a_gpu_that_two_jobs_see_counts_once(telemetry: Telemetry, watched: Watched) -> None:
    telemetry.write("n1", row(35, gpu_index=0, util_pct=0), row(35, gpu_index=1), job="7")
    telemetry.write("n1", row(5, gpu_index=0, util_pct=66), row(5, gpu_index=1), job="8")
    gpus = one_node(watched.look()).gpus
    assert [gpu.jobs for gpu in gpus] == [("7", "8")] * 2
    assert gpus[0].reading is not None
    assert gpus[0].reading.seen.util_pct == 66  # as it was told of last


def test_the_logger_of_one_job_may_have_told_of_the_gpus_of_another(
    root: Path, telemetry: Telemetry, watched: Watched
) -> None:
    path = telemetry.write("n1", *(row(gpu_index=i) for i in range(4)), job="7")
    beside(path, expected_gpus=2)  # it sees the whole node
    worker(root, job="8", gpus=2)
    assert states(watched.look()) == {"working": 4}


def test_slices_stand_for_the_gpu_that_a_worker_names(
    root: Path, telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write(
        "n1", row(util_pct="", status="mig"), row(mig_uuid="MIG-a"), row(mig_uuid="MIG-b")
    )
    worker(root, gpus=1, slot_gpus=("GPU-0",))
    assert [gpu.uuid for gpu in one_node(watched.look()).gpus] == ["MIG-a", "MIG-b"]


def test_when_worker_and_logger_have_left_nothing_is_allocated(
    root: Path, telemetry: Telemetry, watched: Watched
) -> None:
    path = telemetry.write("n1", row())
    beside(path)
    lease = worker(root, gpus=1)
    held = watched.look()
    beside(path, ended_at=at(0), end_reason="terminated")
    still = watched.look()
    leases.publish(SpoolTree(str(root / "taskq")), msgspec.structs.replace(lease, left_at=at(0)))
    left = watched.look()
    assert [states(p) for p in (held, still, left)] == [{"working": 1}, {"working": 1}, {}]
    assert "ended at" in one_node(still).notes[0]
    assert left.ended == 1
    assert sentence(left) == "no GPU is known to be allocated; both spools drained"


def test_who_fell_silent_long_ago_is_named_and_not_counted(
    root: Path, telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write("n1", row(2 * HOUR_S), age_s=2 * HOUR_S)
    lease = worker(root, host="n2", gpus=2)
    aged(root / "taskq" / "workers" / f"{lease.name}.json", 2 * HOUR_S)
    picture = watched.look()
    assert picture.nodes == []
    assert (picture.silent_loggers, picture.silent_workers) == (["n1"], ["n2"])


def test_a_logger_that_died_moments_ago_is_silent_and_counted(
    telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write("n1", row(300), age_s=300)
    assert states(watched.look()) == {"silent": 1}


def test_what_slurm_holds_and_nobody_told_of_is_unknown(
    telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write("n1", row(), job="7")
    held = Held(counts={("n1", "7"): 1, ("n9", "8"): 4, ("n8", "9"): None})
    picture = watched.look(held)
    assert states(picture) == {"working": 1, "unknown": 4}
    assert "Slurm says that there are 4" in picture.gpus[-1].reason
    untold = next(node for node in picture.nodes if node.name == "n8")
    assert untold.notes == ("Slurm does not say how many GPUs job 9 has",)


def test_a_node_without_a_gpu_is_shown_with_its_reason(
    telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write("n1", row(gpu_index="", gpu_uuid="", util_pct="", status="no_nvml"))
    node = one_node(watched.look())
    assert node.gpus == ()
    assert node.notes == ("job 7: its logger saw no GPU: status no_nvml",)
    says = {"host_mem_used_mib": 2048, "host_mem_total_mib": 8192, "host_load": 1.5}
    telemetry.write("n2", row(gpu_index="", gpu_uuid="", util_pct="", status="no_nvml", **says))
    note = watched.look().nodes[1].notes[0]
    assert note.endswith("status no_nvml, host memory 2.0 of 8.0 GiB, load 1.50")


def test_a_gpu_that_is_named_by_index_after_it_was_lost_is_still_the_workers(
    root: Path, telemetry: Telemetry, watched: Watched
) -> None:
    telemetry.write("n1", row(35), row(5, gpu_uuid="", util_pct="", status="lost"))
    worker(root, gpus=1, slot_gpus=("GPU-0",))
    assert states(watched.look()) == {"lost": 1}


# ------------------------------------------------------------------------------- who runs what


def test_tasks_are_shown_where_they_run(root: Path, telemetry: Telemetry, watched: Watched) -> None:
    telemetry.write("n1", row(gpu_index=0), row(gpu_index=1))
    outer = worker(root, gpus=2)
    inner = worker(root, spool="taskq_gpu", slots=2, gpus=2, slot_gpus=("GPU-0", "GPU-1"))
    holds(root, outer, "pack-1")
    owner = holds(root, inner, "gen-1", slot=1, spool="taskq_gpu")
    began_at = at(90)
    journal = Journal(SpoolTree(str(root / "taskq_gpu")), inner.name)
    journal.write({"event": "start", "at": began_at, "task": "gen-1", "claim": owner.token})
    node = one_node(watched.look())
    assert [task.task for task in node.tasks] == ["pack-1"]
    assert [[task.task for task in gpu.tasks] for gpu in node.gpus] == [[], ["gen-1"]]
    (gen,) = node.gpus[1].tasks
    assert (gen.started_at, gen.since, gen.worker_is_silent) == (began_at, "start", False)
    assert node.tasks[0].since == "claim"  # its journal has nothing; then the claim's own time
    assert node.tasks[0].started_at
    journal.close()


def test_a_task_of_a_worker_that_nobody_knows_is_not_lost(root: Path, watched: Watched) -> None:
    lease = worker(root)
    holds(root, lease, "orphan")
    (root / "taskq" / "workers" / f"{lease.name}.json").unlink()
    (task,) = watched.look().unplaced
    assert (task.task, task.host) == ("orphan", "")


def test_a_claim_of_a_command_is_no_running_task(root: Path, watched: Watched) -> None:
    lease = worker(root, role="command")
    holds(root, lease, "cancelled-soon")
    picture = watched.look()
    assert picture.unplaced == []
    assert picture.nodes == []


def test_counts_follow_the_folders(root: Path, watched: Watched) -> None:
    first = watched.look()
    spool = Spool(str(root / "taskq"))
    for number in range(3):
        spool.enqueue(f"task-{number}", "true")
    spool.enqueue("later", "true", after=("task-0",))
    second = watched.look()
    spool.cancel("task-2")
    third = watched.look()
    assert [p.spools[0].counts["pending"] for p in (first, second, third)] == [0, 3, 2]
    assert third.spools[0].counts == {
        **{"waiting": 1, "pending": 2, "running": 0, "done": 0, "failed": 1}
    }
    assert sentence(third).endswith(
        "outer spool 1 waiting, 2 pending, 0 running; inner spool drained"
    )


def test_a_spool_that_is_not_there_and_one_that_is_not_safe_are_no_empty_ones(
    root: Path, tmp_path: Path
) -> None:
    (root / "taskq").chmod(0o777)
    unsafe = LiveSpool("outer", str(root / "taskq"), HOUR_S).look()
    missing = LiveSpool("inner", str(tmp_path / "none"), HOUR_S).look()
    assert "others can write it" in unsafe.problem
    assert missing.problem == "not there"
    picture = compose(Look(), [unsafe, missing], forget_s=HOUR_S)
    assert sentence(picture).endswith("outer spool not read; inner spool not there")


# --------------------------------------------------------------------------------------- rates


def ends(journal: Journal, *ages_s: float, to: str = "done") -> None:
    for number, age_s in enumerate(ages_s):
        journal.write({"event": "end", "at": at(age_s), "claim": f"x-{number}", "to": to})


def test_the_rate_is_of_what_ended_in_the_last_minutes(root: Path, watched: Watched) -> None:
    lease = worker(root)
    journal = Journal(SpoolTree(str(root / "taskq")), lease.name)
    journal.write({"event": "arrive", "at": at(1000), "slots": 1})
    ends(journal, 900, 800, 200, 100, 50)
    ends(journal, 40, to="failed")
    ends(journal, 30, to="pending")
    first = watched.look().spools[0].rates
    ends(journal, 0)
    second = watched.look().spools[0]
    journal.close()
    assert first is not None
    assert second.rates is not None
    assert first.window_s == 300
    assert first.done_per_min == pytest.approx(3 / 5)
    assert first.failed_per_min == first.put_back_per_min == pytest.approx(1 / 5)
    assert second.rates.done_per_min == pytest.approx(4 / 5)
    assert (first.ended, second.rates.ended) == (4, 5)
    assert 0 < second.bytes_read < 120


def test_a_journal_whose_beginning_was_not_read_counts_for_what_was(
    root: Path, watched: Watched
) -> None:
    lease = worker(root)
    journal = Journal(SpoolTree(str(root / "taskq")), lease.name)
    journal.write({"event": "arrive", "at": at(1000), "slots": 1})
    ends(journal, *(250 - i / 10 for i in range(2490)))  # ten a second
    found = watched.look().spools[0].rates
    journal.close()
    assert found is not None
    assert found.ended < 1000
    assert found.done_per_min == pytest.approx(600, rel=0.1)


def test_a_torn_line_of_a_journal_waits_and_a_damaged_one_is_counted(
    root: Path, watched: Watched
) -> None:
    lease = worker(root)
    path = root / "taskq" / "workers" / f"{lease.name}.jsonl"
    line = json.dumps({"event": "end", "at": at(1), "claim": "x-1", "to": "done"})
    append(path, '{"event": "arrive", "at": "' + at(60) + '"}', "no event", torn=line[:30])
    torn = watched.look().spools[0]
    append(path, line[30:])
    healed = watched.look().spools[0]
    assert torn.rates is not None
    assert healed.rates is not None
    assert (torn.rates.ended, healed.rates.ended) == (0, 1)
    assert torn.damaged_lines == healed.damaged_lines == 1


def test_how_long_it_will_take_is_told_only_where_enough_has_ended(
    root: Path, watched: Watched
) -> None:
    lease = worker(root)
    journal = Journal(SpoolTree(str(root / "taskq")), lease.name)
    journal.write({"event": "arrive", "at": at(1000)})
    ends(journal, 100, 90)
    Spool(str(root / "taskq")).enqueue("left", "true")
    first = watched.look().spools[0]
    few = eta(first.counts, first.rates)
    ends(journal, 50, 40, 30)
    second = watched.look().spools[0]
    enough, _ = eta(second.counts, second.rates)
    journal.close()
    assert few == (None, "only 2 tasks ended in 5 min 00 s, too few to tell")
    assert enough == pytest.approx(60)


# ----------------------------------------------------------------- no one can make it stumble


@pytest.mark.parametrize(
    "said",
    [
        {"interval_s": "soon", "gpus": "many", "expected_gpus": -1, "ended_at": 5},
        {"gpus": [1, {"uuid": 7}, {"name": "no uuid"}], "expected_gpus": True},
        {"interval_s": 0},
    ],
)
def test_a_sidecar_with_nonsense_says_nothing(
    telemetry: Telemetry, watched: Watched, said: Mapping[str, object]
) -> None:
    beside(telemetry.write("n1", row()), **said)
    (logged,) = watched.telemetry.look().logged
    assert isinstance(logged, Logged)
    assert (logged.interval_s, logged.expected_gpus, logged.ended_at) == (30, None, "")
    assert logged.gpu_names == {}


def test_times_without_a_zone_and_of_the_first_day_of_all_are_taken_as_utc(
    root: Path, watched: Watched
) -> None:
    lease = worker(root)
    path = root / "taskq" / "workers" / f"{lease.name}.jsonl"
    token = holds(root, lease, "held").token
    for when in ("0001-01-01T00:00:00", "2026-11-30T02:00:00"):
        append(path, json.dumps({"event": "start", "at": when, "claim": token}))
        append(path, json.dumps({"event": "end", "at": when, "claim": "other", "to": "done"}))
    (task,) = watched.look().spools[0].running
    assert running_s(task, "2026-11-30T02:00:05Z") == 5.0


def test_brackets_without_end_in_sidecar_lease_and_journal_say_nothing(
    root: Path, telemetry: Telemetry, watched: Watched
) -> None:
    deep = '{"event":"end","x":' + "[" * 2000 + "]" * 2000 + "}"
    telemetry.write("n1", row()).with_suffix(".json").write_text(deep)
    workers = root / "taskq" / "workers"
    (workers / "7.0.bbbbbbbb.json").write_text(deep)
    append(workers / f"{worker(root).name}.jsonl", deep)
    picture = watched.look()
    assert [gpu.state for gpu in picture.gpus] == [GpuState.WORKING]
    assert picture.spools[0].damaged_lines == 1


def test_without_a_telemetry_folder_there_is_a_reason_and_no_failure(watched: Watched) -> None:
    assert watched.look().look.problem.startswith("no telemetry folder at ")
