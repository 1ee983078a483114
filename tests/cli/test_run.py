"""``fleetcraft run`` and ``fleetcraft worker``, with real workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Fleet, environment

Put = Callable[..., None]


def test_run_drains_the_spool_and_reports_one_object(fleet: Fleet, put: Put) -> None:
    put("a", "echo a > a.out")
    put("b", "true", "--after", "a")
    value = fleet.ok("run", "--workers", "2", "--json").json
    assert value["schema"] == "fleetcraft.run/1"
    assert (value["done"], value["failed"], value["interrupted"]) == (2, 0, 0)
    assert value["wall_s"] > 0
    assert value["left"] == {"waiting": 0, "pending": 0, "running": 0}
    assert (fleet.root.parent / "a.out").read_text() == "a\n"


def test_run_is_exit_1_and_says_what_failed_and_what_to_do(fleet: Fleet, put: Put) -> None:
    put("bad", "exit 3", "--retries", "1")
    put("dep", "true", "--after", "bad")
    put("good")
    called = fleet("run")
    assert called.code == 1
    assert called.out.startswith("1 done, 1 failed, 1 retried in ")
    assert "  bad  failed, exit code 3\n" in called.out
    assert f"log {fleet.spool}/logs/bad.2.log" in called.out
    assert "retry bad  puts it back" in called.out
    assert "dep  waits for bad (failed)" in called.out
    assert "bad attempt 1: failed, exit code 3" in called.err
    assert "put back" in called.err


def test_run_logs_telemetry_where_and_as_often_as_the_settings_say(
    fleet: Fleet, put: Put, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere"
    put("task", f'echo "$FLEET_FORWARDS" > place; until ls {place}/*.csv; do sleep 0.1; done')
    settings = {"PROJECT_SCRATCH": str(fleet.root), "TELEMETRY_DIR": str(place)}

    done = subprocess.run(
        [sys.executable, "-m", "fleetcraft", "run", "--json"],
        env={**environment(), **settings, "FLEET_TELEMETRY_INTERVAL_S": "0.2"},
        capture_output=True,
        timeout=60,
        check=True,
    )

    assert json.loads(done.stdout)["done"] == 1
    [file] = place.glob("*.csv")
    facts = json.loads(file.with_suffix(".json").read_text())
    assert facts["interval_s"] == 0.2
    assert facts["ended_at"]
    told = (fleet.root.parent / "place").read_text()
    assert told.startswith(f"{place}/forwards/{facts['job_id']}.0.0.")


def test_run_of_an_empty_spool_ends_at_once(fleet: Fleet) -> None:
    value = fleet.ok("run", "--json").json
    assert (value["done"], value["exit_code"]) == (0, 0)


def test_run_takes_slots_from_the_settings(
    fleet: Fleet, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_WORKER_SLOTS", "2")
    for name in "ab":
        other = "b" if name == "a" else "a"
        put(name, f"touch {name}.here; for i in $(seq 100); do [ -e {other}.here ] && exit; "
            "sleep 0.1; done; exit 1")  # fmt: skip
    assert fleet.ok("run", "--json").json["done"] == 2


def test_run_drains_the_inner_spool_when_asked(fleet: Fleet) -> None:
    fleet.ok("enqueue", "--spool", "gpu", "-n", "g", "echo $FLEET_SPOOL")
    fleet.ok("run", "--spool", "gpu", "--json")
    assert fleet.ok("logs", "g", "--spool", "gpu").out == f"{fleet.root}/taskq_gpu\n"


def test_a_task_can_enqueue_the_next_into_its_own_spool(fleet: Fleet) -> None:
    python = fleet.command()[0]
    fleet.ok("enqueue", "-n", "a", f"{python} -m fleetcraft enqueue -n b 'echo next'")
    with pytest.MonkeyPatch.context() as patch:
        for name, text in environment().items():
            patch.setenv(name, text)
        value = fleet.ok("run", "--json").json
    assert value["done"] == 2
    assert fleet.ok("logs", "b").out == "next\n"


def test_ctrl_c_interrupts_a_run_and_its_tasks_go_back(fleet: Fleet, put: Put) -> None:
    put("a", "sleep 60")
    with subprocess.Popen(
        fleet.command("run", "--grace", "1", "--json"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 30
        while fleet.state("a") != "running":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["interrupted"] == 1
    assert "Traceback" not in err
    assert fleet.state("a") == "pending"


def test_a_worker_leaves_when_idle_and_tells_why(fleet: Fleet, put: Put) -> None:
    put("a")
    put("b", "exit 2")
    called = fleet.process("worker", "--idle", "0.2")
    assert called.returncode == 0
    assert called.stdout.startswith("left: nothing to claim for 0.2 s; 2 attempts:")
    assert "a attempt 1: completed in " in called.stderr
    assert "b attempt 1: failed, exit code 2" in called.stderr


def test_a_worker_streams_its_events_as_json_lines(fleet: Fleet, put: Put) -> None:
    put("a")
    called = fleet.process("worker", "--idle", "0.2", "--json")
    *events, report = [json.loads(line) for line in called.stdout.splitlines()]
    assert {event["schema"] for event in events} == {"fleetcraft.worker_event/1"}
    start, end = (event for event in events if event["event"] in ("start", "end"))
    assert (start["task"], end["task"], end["to"]) == ("a", "a", "done")
    assert report["schema"] == "fleetcraft.worker/1"
    assert (report["exit_code"], report["outcomes"]) == (0, {"completed": 1})


def test_a_worker_takes_its_place_from_the_environment(fleet: Fleet, put: Put) -> None:
    put("a", "echo $FLEET_OWNER")
    variables = {"SLURM_JOB_ID": "8812", "FLEET_RANK": "3", "FLEET_RANKS": "4"}
    fleet.process("worker", "--idle", "0.2", env=environment(**variables))
    assert fleet.ok("logs", "a").out.startswith("8812.3.0.")


def test_inside_a_slurm_step_the_rank_is_that_of_the_process(fleet: Fleet, put: Put) -> None:
    put("a", "echo $FLEET_OWNER")
    variables = {"SLURM_JOB_ID": "8812", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2"}
    fleet.process("worker", "--idle", "0.2", env=environment(**variables))
    assert fleet.ok("logs", "a").out.startswith("8812.2.0.")


@pytest.mark.parametrize("variables", [{"FLEET_RANK": "x"}, {"FLEET_RANKS": "0"}])
def test_a_rank_that_is_no_number_is_a_configuration_error(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    error = fleet("worker", "--idle", "0", "--json").error
    assert error["exit_code"] == 3, error
    assert next(iter(variables)) in error["message"]


@pytest.mark.parametrize("verb", [["run"], ["worker", "--idle", "1"]])
def test_a_path_that_is_no_text_fails_its_task_and_not_the_worker(
    fleet: Fleet, tmp_path: Path, verb: list[str]
) -> None:
    fleet.ok("enqueue", "-n", "a", "--env-file", f"{tmp_path}/no\udcff", "true")
    fleet.ok("enqueue", "-n", "b", "true")
    called = fleet.process(*verb)
    assert called.returncode in (0, 1), called.stderr
    assert "Traceback" not in called.stderr
    assert (fleet.state("a"), fleet.state("b")) == ("failed", "done")


def test_run_works_in_a_root_whose_name_is_no_text(fleet: Fleet, tmp_path: Path) -> None:
    strange = os.fsencode(tmp_path) + b"/r\xff"
    call = [*map(os.fsencode, fleet.command()[:3]), b"--root", strange]
    for words in ([b"init"], [b"enqueue", b"-n", b"a", b"true"], [b"run"]):
        done = subprocess.run(
            [*call, *words], env=environment(), capture_output=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
    assert os.path.exists(strange + b"/taskq/done/a.sh")
