"""A whole report from a scratch tree: what it counts, what it is about, what it could not read."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from fleetcraft.batch_table import make_table, write_table
from fleetcraft.errors import DataError
from fleetcraft.files import FileSystem
from fleetcraft.identity import Owner
from fleetcraft.layout import Scratch, State
from fleetcraft.layout.runs import RunPaths
from fleetcraft.report.gather import Places, gather
from fleetcraft.report.records import Report
from fleetcraft.report.scope import Scope
from fleetcraft.report.tasks import Limits
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Settings
from fleetcraft.spool.record import Outcome
from fleetcraft.training.records import State as RunState
from fleetcraft.training.supervision.entry import make_folders
from fleetcraft.training.supervision.status_file import Status, StatusFile
from tests.batch_table.rows import FAMILY, ROW
from tests.report.fleets import Busy, busy_fleet, ended, spool_of
from tests.telemetry.trees import lines, write_file

SMALL = Busy(tasks=60, left=10, hosts=3, gpus=2, hours=2)


def places(root: Path) -> Places:
    tree = Scratch(str(root))
    return Places(
        root=tree.root,
        outer=tree.outer,
        inner=tree.inner,
        telemetry=tree.telemetry,
        table=tree.batch_table,
    )


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A small fleet, looked at once."""
    root = tmp_path_factory.mktemp("busy") / "fleet"
    busy_fleet(root, SMALL)
    return gather(places(root))


def test_every_task_is_counted_in_its_state_and_every_attempt_in_its_outcome(
    busy: Report,
) -> None:
    (spool,) = busy.spools

    assert spool.tasks == 70
    assert spool.pace.left == 10
    assert spool.counts["done"] == spool.outcomes["completed"]
    assert sum(spool.pace.completed) + sum(spool.pace.other) == spool.attempts
    assert sum(sum(group.counts.values()) for group in spool.groups) == 70
    assert {group.name for group in spool.groups} == {"wan21-1.3b/480p/81f", "score-*"}


def test_the_sentence_says_how_tasks_and_gpus_stand(busy: Report) -> None:
    assert "of 70 tasks are done" in busy.sentence
    assert "10 are left" in busy.sentence
    assert "6 GPUs allocated" in busy.sentence
    assert busy.unread == ()


def test_gpus_are_told_beside_the_queue_and_energy_with_the_hours_it_covers(busy: Report) -> None:
    found = busy.machines

    assert found is not None
    assert (found.gpus_seen, found.gpus_allocated, found.hosts_seen) == (6, 6, 3)
    assert found.energy_kwh is not None
    assert 0 < found.energy_gpu_h <= found.covered_gpu_h < 12.1
    assert "outer" in found.queue
    assert found.state_gpu_h["silent"] > 0
    bins = sum(stretch.bins for stretch in found.stretches)
    assert all(len(host.strip) == bins for host in found.hosts)
    silent = found.hosts[-1]
    assert None in silent.strip
    assert silent.coverage_fraction is not None
    assert silent.coverage_fraction < 0.95


def test_slowest_are_those_that_completed_with_how_far_they_are_from_their_kind(
    busy: Report,
) -> None:
    slowest = busy.spools[0].slowest

    assert [one.outcome for one in slowest] == ["completed"] * len(slowest)
    assert all(one.times_median is not None for one in slowest)
    walls = [one.wall_s or 0.0 for one in slowest]
    assert walls == sorted(walls, reverse=True)


def test_the_most_retried_come_first_and_the_rest_is_counted(root: Path) -> None:
    spool = spool_of(root)
    now_s = time.time()
    for number in range(5):
        history = [
            ended(f"t-{number}", now_s - 9, attempt=n, outcome=Outcome.FAILED, to="pending")
            for n in range(1, number + 2)
        ]
        spool.task(f"t-{number}", State.PENDING, history)

    (part,) = gather(places(root), limits=Limits(retried=2)).spools

    assert [(one.task, one.attempts) for one in part.retried] == [("t-4", 5), ("t-3", 4)]
    assert part.retried_left_out == 2
    assert part.retried[0].outcomes == {"failed": 5}


def test_a_report_about_a_job_counts_its_attempts_and_their_tasks_alone(root: Path) -> None:
    spool = spool_of(root)
    now_s = time.time()
    spool.task("a", State.DONE, [ended("a", now_s - 60, job="7")])
    spool.task("b", State.DONE, [ended("b", now_s - 50, job="8")])
    spool.task("c", State.PENDING)
    folder = Path(Scratch(str(root)).telemetry)
    write_file(folder, "n7", lines(now_s - 600, 10, util_pct=50), job="7")
    write_file(folder, "n8", lines(now_s - 600, 10, util_pct=90), job="8")

    report = gather(places(root), Scope(jobs=frozenset({"7"})))

    (part,) = report.spools
    assert (part.tasks, part.attempts) == (1, 1)
    assert report.machines is not None
    assert [host.host for host in report.machines.hosts] == ["n7"]
    assert report.machines.mean_util_pct == pytest.approx(50)


def test_a_report_about_a_job_that_nothing_is_known_of_has_no_spool(root: Path) -> None:
    spool_of(root).task("a", State.DONE, [ended("a", time.time(), job="7")])

    report = gather(places(root), Scope(jobs=frozenset({"8"})))

    assert report.spools == ()
    assert report.sentence.startswith("No task of these jobs is there.")


def test_a_report_about_a_span_leaves_out_what_ended_before_and_has_no_eta_in_the_past(
    root: Path,
) -> None:
    spool = spool_of(root)
    now_s = time.time()
    for number in range(30):
        spool.task(f"t-{number}", State.DONE, [ended(f"t-{number}", now_s - 100 * number)])
    spool.task("last", State.PENDING)

    report = gather(places(root), Scope(since_s=now_s - 2050, until_s=now_s - 950))

    (part,) = report.spools
    assert part.attempts == 11
    assert part.pace.eta_s is None
    assert "in the past" in part.pace.eta_why


def test_a_record_that_cannot_be_read_still_counts_and_is_named_by_its_reason(root: Path) -> None:
    spool = spool_of(root)
    now_s = time.time()
    spool.task("a", State.DONE, [ended("a", now_s)]).write_text("no record\n")
    shared = spool.task("b", State.DONE, [ended("b", now_s)])
    shared.chmod(0o722)
    torn = spool.task("c", State.DONE, [ended("c", now_s)])
    torn.write_bytes(torn.read_bytes() + b'#FLEET-RUN {"claim": "torn')

    report = gather(places(root))

    (part,) = report.spools
    assert part.counts["done"] == 3
    assert sum(part.unread.values()) == 2
    assert part.damaged_lines == 1
    assert len(report.unread) == 3


def test_a_spool_that_others_can_write_costs_its_own_part_alone(root: Path) -> None:
    busy_fleet(root, SMALL)
    Path(Scratch(str(root)).outer).chmod(0o777)

    report = gather(places(root))

    assert report.spools == ()
    assert report.machines is not None
    assert report.lost == ("outer spool",)
    assert report.sentence.startswith("The outer spool could not be read. When last seen:")
    assert any("others can write it" in one.why for one in report.unread)


def test_without_telemetry_what_gpus_did_is_not_known(root: Path) -> None:
    spool_of(root).task("a", State.DONE, [ended("a", time.time())])

    report = gather(places(root))

    assert report.machines is None
    assert "no telemetry was written" in report.no_machines
    assert report.sentence.endswith("What GPUs did is not known.")


def test_a_spool_with_a_drain_marker_or_without_workers_has_no_eta(root: Path) -> None:
    busy_fleet(root, SMALL)
    (Path(Scratch(str(root)).outer) / "DRAIN").write_text("maintenance\n")

    (part,) = gather(places(root)).spools

    assert part.pace.eta_s is None
    assert "DRAIN" in part.pace.eta_why
    assert "DRAIN" in part.markers


def test_waiting_tasks_behind_a_failed_one_are_counted(root: Path) -> None:
    spool = spool_of(root)
    now_s = time.time()
    spool.task("a", State.FAILED, [ended("a", now_s, outcome=Outcome.FAILED)])
    spool.task("b", State.WAITING, after=("a",))
    spool.task("c", State.WAITING, after=("never",))

    (part,) = gather(places(root)).spools

    assert part.blocked == 2
    assert part.pace.eta_why == "all that is left waits for tasks that failed or are missing"


def test_the_frozen_table_is_shown_while_its_hash_holds_and_refused_when_it_does_not(
    root: Path,
) -> None:
    tree = Scratch(str(root))
    Path(tree.calibration).mkdir(parents=True)
    write_table(tree.batch_table, make_table({FAMILY: ROW}), replaces="")

    whole = gather(places(root)).calibration
    table = Path(tree.batch_table)
    table.chmod(0o600)
    table.write_text(table.read_text().replace("batch: 4", "batch: 9"))
    edited = gather(places(root)).calibration

    assert whole is not None
    assert whole.holds
    assert [(row.family, row.batch, row.evidence_holds) for row in whole.rows] == [
        (FAMILY, 4, False)
    ]
    assert edited is not None
    assert not edited.holds
    assert edited.rows == ()
    assert "hash" in edited.problem


def test_telemetry_that_cannot_be_listed_is_among_what_was_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool_of(root).task("a", State.DONE, [ended("a", time.time())])
    Path(places(root).telemetry).mkdir()

    def refused(folder: str) -> None:
        raise DataError(f"cannot read telemetry from {folder}: Permission denied")

    monkeypatch.setattr("fleetcraft.telemetry.reading.sources.find_sources", refused)
    report = gather(places(root))

    assert [one.what for one in report.unread] == ["telemetry"]
    assert "Permission denied" in report.no_machines


def test_times_of_files_without_a_zone_are_not_called_utc(root: Path) -> None:
    row = "2026/07/10 19:42:{:02d}.000,8,97871,50,85.83"
    folder = Path(places(root).telemetry)
    folder.mkdir(parents=True)
    head = "timestamp,mem_used_mib,mem_total_mib,util_pct,power_w\n"
    (folder / "host01.csv").write_text(head + "".join(row.format(n) + "\n" for n in (0, 30)))

    report = gather(places(root))

    assert report.machines is not None
    assert report.machines.zone == "file-local"
    assert (report.first_at, report.last_at) == ("2026-07-10T19:41:59", "2026-07-10T19:42:30")


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([State.DONE], "1 of 1 task is done, none is left."),
        ([State.PENDING], "0 of 1 task is done, 1 is left."),
        ([State.DONE, State.PENDING], "1 of 2 tasks are done, 1 is left."),
    ],
)
def test_the_sentence_counts_one_as_one(root: Path, states: list[State], words: str) -> None:
    spool = spool_of(root)
    for number, state in enumerate(states):
        lines = [ended(f"t{number}", time.time())] if state is State.DONE else []
        spool.task(f"t{number}", state, lines)

    assert gather(places(root)).sentence.startswith(words)


def test_a_queue_is_a_row_and_one_that_cannot_be_read_is_named(root: Path) -> None:
    tree = Scratch(str(root))
    RolloutQueue.create(f"{tree.rollouts}/wan", Settings(run="wan"))
    (Path(tree.rollouts) / "strange").mkdir()

    report = gather(places(root))

    assert [(one.name, one.version, one.waiting) for one in report.queues] == [("wan", 0, 0)]
    assert any("strange" in one.what for one in report.unread)


def test_a_running_task_is_named_with_its_owner_and_how_long_it_is_held(root: Path) -> None:
    spool = spool_of(root)
    owner = Owner(job="7", rank="0", slot="2", token="abcdefgh-1")
    record = spool.task("a", State.PENDING)
    record.rename(spool.tree.paths.claim("a", owner))

    (part,) = gather(places(root)).spools

    (running,) = part.running
    assert (running.task, running.owner) == ("a", str(owner))
    assert running.for_s is not None
    assert part.counts["running"] == 1
    assert gather(places(root), Scope(jobs=frozenset({"7"}))).spools[0].tasks == 1


def test_a_training_run_is_a_row_also_when_its_status_cannot_be_read(root: Path) -> None:
    root.mkdir(mode=0o700)
    tree = Scratch(str(root))
    left = {"step": 7, "end_step": 9, "loss": 2.5, "eta_s": (0.0, 0.0)}
    for name in ("distill", "broken", "over"):
        paths = RunPaths(tree.run_folder(name))
        make_folders(paths, FileSystem())
        state = RunState.DONE if name == "over" else RunState.HEALTHY
        status = msgspec.convert({"run": name, "state": state.value, **left}, Status)
        assert StatusFile(paths.status, nonce="n").write(status)
    Path(RunPaths(tree.run_folder("broken")).status).write_text("{")

    report = gather(places(root))
    broken, distill, over = report.runs

    assert (distill.eta_s, over.eta_s) == ((0.0, 0.0), None)
    assert "3 training runs: 1 of unknown state, 1 HEALTHY, 1 DONE." in report.sentence
    assert (distill.state, distill.step, distill.loss) == ("HEALTHY", 7, 2.5)
    assert broken.state == ""
    assert "cannot read the status" in broken.trouble


def test_the_record_goes_through_json_and_back(busy: Report) -> None:
    again = msgspec.json.decode(msgspec.json.encode(busy), type=Report)

    assert again == busy
