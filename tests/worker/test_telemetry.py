"""Workers with the telemetry logger on: it is in nobody's way, and ends with them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from fleetcraft.identity import this_host
from fleetcraft.layout import parse_telemetry_file, sidecar
from fleetcraft.spool import leases
from fleetcraft.worker.local_fleet import _LOGGER_AFTER_S, _LocalFleet, _Member
from fleetcraft.worker.settings import WorkerSettings
from tests.rig.rig import Rig
from tests.worker.harness import Site, command_line, lives, processes_with, python, wait_until

LOGGER = b"fleetcraft.telemetry.logger"
KEEPER = b"fleetcraft.worker.logger_keeper"


@pytest.fixture
def logged(site: Site) -> dict[str, Any]:
    """Settings with which a worker starts a logger."""
    return {"telemetry_dir": str(site.root / "telemetry"), "telemetry_interval_s": 0.2}


def files(site: Site) -> list[Path]:
    return sorted((site.root / "telemetry").glob("*.csv"))


def await_rows(site: Site, count: int = 1) -> list[Path]:
    """The telemetry files, once so many of them have a row."""

    def look() -> list[Path]:
        found = [path for path in files(site) if path.read_text().count("\n") > 1]
        return found if len(found) >= count else []

    return wait_until(look, f"{count} telemetry files with rows")


def facts(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(sidecar(str(file))).read_text())
    return found


def loggers(site: Site, module: bytes = LOGGER) -> list[int]:
    """The loggers of this site, or their keepers, whatever started them."""
    place = f'"folder":"{site.root}/telemetry"'.encode()
    return [
        pid
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
        if place in (line := command_line(pid)) and module in b"\0".join(line.split(b"\0")[:4])
    ]


def notes(site: Site) -> list[str]:
    return [str(event["text"]) for event in site.journals() if event["event"] == "note"]


@pytest.mark.parametrize("slots", ["1", "2"])
def test_a_worker_has_a_logger_that_is_no_descendant_and_ends_with_it(
    site: Site, logged: dict[str, Any], slots: str
) -> None:
    site.enqueue("first", "true")
    site.enqueue("held", "until [ -e go ]; do sleep 0.02; done")

    worker = site.start(slots=slots, run={"job": "77", "step": "3", "cluster": "big"}, **logged)
    [file] = await_rows(site)
    [logger] = loggers(site)
    [keeper] = loggers(site, KEEPER)
    below = {child.pid for child in psutil.Process(worker.pid).children(recursive=True)}

    assert below.isdisjoint({logger, keeper})
    assert os.getsid(keeper) not in (os.getsid(worker.pid), os.getsid(0))
    assert processes_with("FLEET_ROOT", str(site.root)).count(logger) == 0
    named = parse_telemetry_file(file.name)
    assert named is not None
    assert (named.node, named.job) == (this_host().host, "77")
    assert (facts(file)["step_id"], facts(file)["cluster"]) == ("3", "big")
    assert facts(file)["ended_at"] is None

    site.file("go").touch()
    assert worker.wait() == 0
    assert not lives(logger)
    assert facts(file)["ended_at"]
    assert [site.last(name).reason for name in ("first", "held")] == ["", ""]
    assert files(site) == [file]


def test_a_logger_outlives_a_worker_that_was_killed_only_to_end_in_order(
    site: Site, logged: dict[str, Any]
) -> None:
    worker = site.start(idle_s=60.0, **logged)
    [file] = await_rows(site)
    [logger] = loggers(site)

    worker.kill()

    wait_until(lambda: not lives(logger), "the logger ends by itself")
    assert facts(file)["ended_at"]
    again = site.start(idle_s=60.0, **logged)
    await_rows(site, 2)
    site.spool.drain()
    assert again.wait() == 0
    assert len(files(site)) == 2
    assert not any("logger" in note for note in notes(site))


def test_a_logger_that_is_killed_is_started_again_and_its_worker_says_so(
    site: Site, logged: dict[str, Any]
) -> None:
    site.enqueue("held", "until [ -e go ]; do sleep 0.02; done")
    worker = site.start(**logged)
    await_rows(site)
    [logger] = loggers(site)

    os.kill(logger, signal.SIGKILL)

    await_rows(site, 2)
    site.file("go").touch()
    assert worker.wait() == 0
    [note] = [note for note in notes(site) if "logger" in note]
    assert note.startswith("the telemetry logger was ended by signal 9")
    assert "it is started again in 1 s" in note
    ended = [facts(file)["ended_at"] for file in files(site)]
    assert sorted(map(bool, ended)) == [False, True]  # the one that was killed said nothing
    assert site.last("held").reason == ""


def test_a_second_worker_of_the_same_node_and_job_is_told_once_that_there_is_one(
    site: Site, logged: dict[str, Any]
) -> None:
    first = site.start(idle_s=60.0, **logged)
    await_rows(site)

    second = site.start(idle_s=60.0, **logged)
    wait_until(lambda: second.events("note"), "it is told")
    site.enqueue_all({f"t{n}": "true" for n in range(4)})
    wait_until(lambda: site.counts()["done"] == 4, "both go on")
    site.spool.drain()

    assert (first.wait(), second.wait()) == (0, 0)
    told = [note for note in notes(site) if "logger" in note]
    assert len(told) == 1
    assert "stands back" in told[0]
    assert len(files(site)) == 1


def test_a_task_has_no_descriptor_of_the_logger(site: Site, logged: dict[str, Any]) -> None:
    look = "import os; print(*(os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)))\n"
    look += "held = [fd for fd in os.listdir('/proc/self/fd') if int(fd) > 2]\n"
    look += "links = [f'/proc/self/fd/{fd}' for fd in held]\n"
    look += "print(*(os.readlink(link) for link in links if os.path.exists(link)))"
    for number in range(3):
        site.enqueue(f"look-{number}", python(look))

    without = site.work()
    for number in range(3, 6):
        site.enqueue(f"look-{number}", python(look))
    with_logger = site.work(**logged)

    assert without["outcomes"] == with_logger["outcomes"] == {"completed": 3}

    def pipes(number: int) -> list[str]:
        return [word for word in site.log(f"look-{number}").split() if word.startswith("pipe:")]

    assert {tuple(pipes(number)) for number in range(6)} == {tuple(pipes(0))}


def test_a_logger_that_cannot_write_is_a_note_and_costs_no_task(
    site: Site, logged: dict[str, Any]
) -> None:
    site.enqueue("task", "until [ -e go ]; do sleep 0.02; done")
    (site.root / "telemetry").write_text("a file where the folder should be")

    worker = site.start(**logged)
    how = "the telemetry logger ended with exit code"
    wait_until(lambda: [note for note in notes(site) if how in note], "it is noted")
    site.file("go").touch()

    assert worker.wait() == 0
    assert site.state("task") == "done"
    assert [note for note in notes(site) if "cannot report forward calls" in note]


def test_a_worker_whose_logger_says_that_a_gpu_is_lost_finishes_and_leaves(
    site: Site, logged: dict[str, Any]
) -> None:
    site.enqueue("held", "touch begun; until [ -e go ]; do sleep 0.02; done")
    worker = site.start(idle_s=60.0, **logged)
    wait_until(site.file("begun").exists, "it runs")
    [keeper] = wait_until(lambda: loggers(site, KEEPER), "the logger has its keeper")
    words_fd = command_line(keeper).split(b"\0")[4].decode()

    with open(f"/proc/{keeper}/fd/{words_fd}", "w") as words:  # as the logger has it
        words.write("lost GPU 3 is lost\n")
    wait_until(lambda: worker.events("note", text="leaving: GPU 3 is lost"), "it stops claiming")
    site.enqueue("later", "true")
    site.file("go").touch()

    assert worker.wait() == 6
    assert (site.state("held"), site.state("later")) == ("done", "pending")


def test_a_worker_leaves_a_node_whose_driver_has_lost_a_gpu(
    site: Site, logged: dict[str, Any]
) -> None:
    with Rig(site.base) as rig:
        worker = site.start(idle_s=60.0, env=rig.env(), **logged)
        await_rows(site)

        rig.set("gpu.1.error.all", 15)

        assert worker.wait() == 6
        [note] = [note for note in notes(site) if note.startswith("leaving")]
        assert "is lost" in note


def test_a_local_run_whose_gpu_is_lost_ends_early_and_says_why(
    site: Site, logged: dict[str, Any]
) -> None:
    site.enqueue_all({f"t{n}": "until [ -e go ]; do sleep 0.02; done" for n in range(4)})
    with Rig(site.base) as rig:
        fleet = site.start(workers=2, env=rig.env(), **logged)
        await_rows(site)

        rig.set("gpu.0.error.all", 15)
        wait_until(lambda: [n for n in fleet.events("note") if "is lost" in n["text"]], "it hears")
        site.file("go").touch()

        report = fleet.report()
    assert (report["exit_code"], report["done"]) == (1, 2)
    assert report["left"]["pending"] == 2
    [why] = report["stopped"]
    assert "is lost" in why
    assert {lease.reason for lease in leases.read_all(site.spool.tree)} == {why}


def test_workers_of_a_local_run_hear_of_a_lost_gpu_before_anybody_else_does(site: Site) -> None:
    read_fd, write_fd = os.pipe()
    heard: list[bytes] = []
    settings = msgspec.convert(site.settings(), WorkerSettings)
    fleet = _LocalFleet(
        site.spool.tree, settings, 1, lambda event: heard.append(os.read(read_fd, 4096))
    )
    with open(write_fd, "wb") as stdin, open("/dev/null", "rb") as stdout:
        process = SimpleNamespace(stdin=stdin, stdout=stdout)
        fleet._members = [_Member(index=0, process=process)]  # type: ignore[arg-type]
        fleet._telemetry = SimpleNamespace(  # type: ignore[assignment]
            fds=list, hear=lambda ready: ["GPU 0 is lost"], lost="GPU 0 is lost"
        )
        fleet._listen()
    os.close(read_fd)

    assert heard == [b"leave GPU 0 is lost\n"]


def test_without_telemetry_there_is_no_logger_and_no_folder(site: Site) -> None:
    site.enqueue("task", "env")

    site.work()

    assert not (site.root / "telemetry").exists()
    assert "FLEET_FORWARDS" not in site.log("task")


def test_a_task_learns_its_family_and_where_it_may_report(
    site: Site, logged: dict[str, Any]
) -> None:
    logged["telemetry_interval_s"] = 0.0
    report = 'echo "$FLEET_OWNER $FLEET_FAMILY $FLEET_FORWARDS"; echo {} >> "$FLEET_FORWARDS"'
    site.enqueue("of-a-family", report, family="wan-1.3b")
    site.enqueue("of-none", 'echo "[${FLEET_FAMILY-none}]"')

    site.work(env={"FLEET_FAMILY": "outer", "FLEET_FORWARDS": "outer"}, **logged)

    owner, family, place = site.log("of-a-family").split()
    assert family == "wan-1.3b"
    assert place == f"{site.root}/telemetry/forwards/{owner}.jsonl"
    assert Path(place).read_text() == "{}\n"
    assert oct(Path(place).parent.stat().st_mode)[-3:] == "700"
    assert site.log("of-none") == "[none]\n"
    starts = {e["task"]: e["family"] for e in site.journals() if e["event"] == "start"}
    assert starts == {"of-a-family": "wan-1.3b", "of-none": ""}
    assert files(site) == []


def test_a_run_of_a_moment_leaves_no_telemetry_file(site: Site, logged: dict[str, Any]) -> None:
    site.enqueue("quick", "true")

    report = site.drain(workers=2, **logged)

    assert report["done"] == 1
    # A machine that is busy may make a moment long; then there is a whole file.
    assert not files(site) or report["wall_s"] >= _LOGGER_AFTER_S


def test_where_others_could_take_the_place_of_reports_tasks_have_none(
    site: Site, logged: dict[str, Any], tmp_path: Path
) -> None:
    (site.root / "telemetry").mkdir(mode=0o700)
    (site.root / "telemetry" / "forwards").symlink_to(tmp_path)
    site.enqueue("task", 'echo "[${FLEET_FORWARDS-none}]"')

    site.work(telemetry_dir=logged["telemetry_dir"])

    assert site.log("task") == "[none]\n"
    assert [note for note in notes(site) if "cannot report forward calls" in note]


def test_a_longer_run_has_one_logger_for_all_its_workers(
    site: Site, logged: dict[str, Any]
) -> None:
    site.enqueue_all({f"t{n}": "until [ -e go ]; do sleep 0.02; done" for n in range(2)})
    fleet = site.start(workers=2, **logged)

    await_rows(site)
    [logger] = loggers(site)
    site.file("go").touch()

    assert fleet.report()["done"] == 2
    assert not lives(logger)
    [file] = files(site)
    assert facts(file)["ended_at"]
    assert facts(file)["job_id"] == this_host().local_job
    assert fleet.events("note") == []


def test_a_run_that_is_killed_leaves_no_logger_behind(site: Site, logged: dict[str, Any]) -> None:
    site.enqueue("held", "exec sleep 600")
    fleet = site.start(workers=1, **logged)
    await_rows(site)
    [logger] = loggers(site)

    fleet.kill()

    wait_until(lambda: not lives(logger), "the logger ends by itself")
    wait_until(lambda: not processes_with("FLEET_ROOT", str(site.root)), "its task is stopped")


def test_a_pack_starts_no_logger_since_its_node_has_one(site: Site, logged: dict[str, Any]) -> None:
    owner = "77.0.0.abcdefgh-1"
    site.enqueue("task", "touch begun; until [ -e go ]; do sleep 0.02; done")

    worker = site.start(
        env={"FLEET_OWNER": owner, "FLEET_ROOT": str(site.root), "SLURM_JOB_ID": "77"}, **logged
    )
    wait_until(site.file("begun").exists, "it runs its task")
    seen = loggers(site, KEEPER)
    site.file("go").touch()

    assert worker.wait() == 0
    assert seen == []
    assert files(site) == []


def test_the_arrival_says_where_and_for_which_job(site: Site) -> None:
    site.work(slots="2", run={"job": "8812"})

    [arrive] = [event for event in site.journals() if event["event"] == "arrive"]
    assert (arrive["host"], arrive["job"]) == (this_host().host, "8812")
    assert (arrive["gpus"], arrive["slot_gpus"]) == (0, ["", ""])


def test_slots_that_are_gpus_are_named_in_lease_and_journal(site: Site) -> None:
    site.work(slots="gpu", env={"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"})

    [arrive] = [event for event in site.journals() if event["event"] == "arrive"]
    [lease] = site.spool.tree.fs.listdir(site.spool.tree.paths.workers)[:1]
    written = json.loads(
        Path(site.spool.tree.paths.workers, f"{Path(lease).stem}.json").read_text()
    )
    assert arrive["slot_gpus"] == written["slot_gpus"] == ["GPU-aa", "GPU-bb"]
    assert arrive["gpus"] == written["gpus"] == 2
