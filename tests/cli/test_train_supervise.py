"""``fleetcraft train supervise`` as it is called: run file, command, dry run, refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fleetcraft.layout import Scratch
from fleetcraft.locks import GenerationLock
from tests.cli.conftest import Fleet, environment

RUN = """
run: distill
command: [{python}, -c, {script}]
look_s: 0.05
warmup_s: 0.1
grace_s: 1
inner_grace_s: 0
environment: {{FAVOURITE: blue}}
ladder:
  knobs: [{{name: micro_batch, value: 16, floor: 4, variable: MICRO_BATCH}}]
"""


def run_file(folder: Path, script: str, more: str = "") -> str:
    path = folder / "run.yaml"
    text = RUN.format(python=json.dumps(sys.executable), script=json.dumps(script))
    path.write_text(text + more)
    return str(path)


def events(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_events_are_json_lines_and_every_state_says_whence_and_why(
    fleet: Fleet, tmp_path: Path
) -> None:
    called = fleet("train", "supervise", "--json", run_file(tmp_path, "pass"))

    assert called.code == 0, called.err
    told = events(called.out)
    assert {event["schema"] for event in told} == {"fleetcraft.train-event/1"}
    assert all({"at", "run", "generation", "epoch", "event"} <= set(event) for event in told)
    states = [event for event in told if event["event"] == "state"]
    assert [event["state"] for event in states][:3] == ["LOCKED", "LAUNCHING", "WARMUP"]
    assert states[-1]["state"] == "DONE"
    assert all(event["from"] and "why" in event for event in states)
    assert told[-1]["event"] == "ended"
    assert told[-1]["exit_code"] == 0


def test_text_is_one_line_an_event_and_the_next_step_is_named(fleet: Fleet, tmp_path: Path) -> None:
    script = "print('\\x1b[31mKeyError\\x1b[0m'); raise KeyError('lr')"

    called = fleet("train", "supervise", run_file(tmp_path, script))

    assert called.code == 1
    assert "EXHAUSTED: CODE_ERROR" in called.out
    assert "diagnosis: CODE_ERROR" in called.out
    assert "\x1b" not in called.out
    assert "--anew" in called.err


def test_a_command_needs_a_name_and_then_runs_without_a_run_file(fleet: Fleet) -> None:
    named = fleet(
        "train", "supervise", "--run", "try-1", "--json", "--", sys.executable, "-c", "pass"
    )
    unnamed = fleet("train", "supervise", "--", sys.executable, "-c", "pass")

    assert (named.code, unnamed.code) == (0, 2)
    assert events(named.out)[0]["run"] == "try-1"
    assert "needs a name" in unnamed.err


def test_a_dry_run_says_what_would_be_launched_and_writes_nothing(
    fleet: Fleet, tmp_path: Path
) -> None:
    path = run_file(tmp_path, "pass")
    before = sorted(fleet.root.rglob("*"))

    text = fleet.ok("train", "supervise", "--dry-run", path)
    value = fleet.ok("train", "supervise", "--dry-run", "--json", path).json

    assert sorted(fleet.root.rglob("*")) == before
    assert "epoch 1 would be launched" in text.out
    assert ["MICRO_BATCH", "16"] in [line.split() for line in text.out.splitlines()]
    assert (value["epoch"], value["rung"]["kind"]) == (1, "first")
    assert value["decision"]["environment"] == {"MICRO_BATCH": "16"}


def test_a_wrong_run_file_is_named_with_its_line_and_launches_nothing(
    fleet: Fleet, tmp_path: Path
) -> None:
    called = fleet("train", "supervise", run_file(tmp_path, "pass", "warmup: 3\n"))
    missing = fleet("train", "supervise", str(tmp_path / "other.yaml"))

    assert called.code == 3
    assert "warmup_s" in called.err
    assert missing.code == 2
    assert not (fleet.root / "runs" / "distill").exists()


def test_without_a_scratch_tree_nothing_is_launched(bare_fleet: Fleet, tmp_path: Path) -> None:
    called = bare_fleet("train", "supervise", run_file(tmp_path, "pass"))

    assert called.code == 3
    assert "init" in called.err
    assert not bare_fleet.root.exists()


def test_several_nodes_outside_a_job_are_refused_before_anything_is_written(
    fleet: Fleet, tmp_path: Path
) -> None:
    called = fleet("train", "supervise", "--nodes", "2", run_file(tmp_path, "pass"))

    assert called.code == 3
    assert "this is no Slurm job" in called.err
    assert not (fleet.root / "runs" / "distill").exists()


def test_a_run_that_another_supervises_is_left_to_it(fleet: Fleet, tmp_path: Path) -> None:
    path = run_file(tmp_path, "pass")
    fleet.ok("train", "supervise", path)
    folder = Scratch(str(fleet.root)).run_folder("distill")
    lock = GenerationLock(f"{folder}/lock", purpose="another supervisor")

    with lock.acquire():
        called = fleet("train", "supervise", "--json", path)

    assert called.code == 75
    assert called.error["type"] == "LockHeldError"


def test_a_reader_that_goes_away_does_not_end_the_run(fleet: Fleet, tmp_path: Path) -> None:
    import subprocess

    script = "import time; time.sleep(0.5)"
    words = fleet.command("train", "supervise", "--json", run_file(tmp_path, script))
    child = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()

    child.stdout.close()

    assert child.wait(timeout=60) == 0


@pytest.mark.parametrize("words", [("--nodes", "0"), ("--run", "x")])
def test_options_that_do_not_fit_are_usage_errors(
    fleet: Fleet, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert fleet("train", "supervise", *words, run_file(tmp_path, "pass")).code == 2


@pytest.mark.parametrize(
    ("script", "found"), [("print('step 1')", "NONE"), ("raise KeyError('lr')", "CODE_ERROR")]
)
def test_a_run_is_diagnosed_by_name_also_once_its_logs_were_moved(
    fleet: Fleet, tmp_path: Path, script: str, found: str
) -> None:
    path = run_file(tmp_path, script)

    fleet("train", "supervise", path)
    first = fleet.ok("train", "diagnose", "--run", "distill", "--json").json
    fleet("train", "supervise", path)  # launches nothing, and keeps the books
    later = fleet.ok("train", "diagnose", "--run", "distill", "--json").json

    assert not list((fleet.root / "runs" / "distill" / "attempt-000001" / "logs").iterdir())
    assert (first["class"], later["class"]) == (found, found)
    assert first["evidence"][0]["text"] == later["evidence"][0]["text"]


def test_a_command_that_leaves_itself_running_is_not_called_done_in_silence(
    fleet: Fleet, tmp_path: Path
) -> None:
    script = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"

    called = fleet("train", "supervise", "--json", run_file(tmp_path, script))

    assert called.code == 0
    last = [event for event in events(called.out) if event["event"] == "state"][-1]
    assert "1 process that it left running was stopped" in str(last["why"])


def test_a_command_that_is_not_there_is_no_mystery(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "run: distill\ncommand: [/no/such/program]\nlook_s: 0.05\nwarmup_s: 0.1\n"
        "grace_s: 1\ninner_grace_s: 0\n"
    )

    called = fleet("train", "supervise", "--json", str(path))

    told = events(called.out)
    assert called.code == 1
    assert [event for event in told if event["event"] == "unknown"] == []
    assert [event for event in told if event["event"] == "launched"][1:] == []
    status = fleet.ok("train", "status", "distill", "--json").json["runs"][0]["status"]
    assert (status["state"], status["restarts"]) == ("EXHAUSTED", 0)


def test_a_full_disk_under_stdout_does_not_leave_the_run_alone(fleet: Fleet) -> None:
    with open("/dev/full", "w") as full:
        called = fleet.process("train", "supervise", "--run", "x", "--", "true", stdout=full)

    assert called.returncode == 0
    assert "DONE" in fleet.ok("train", "status", "x").out
