"""The frame of all verbs: help, errors, exit codes, JSON, and what a start loads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from fleetcraft import __version__
from fleetcraft.cli import main as frame
from fleetcraft.cli.main import VERBS, cli
from fleetcraft.errors import FleetError
from tests.cli.conftest import Fleet, environment

CALLS = [[verb] for verb in VERBS] + [["config", "show"]]


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_the_help_of_every_verb_shows_an_example(fleet: Fleet, words: list[str]) -> None:
    called = fleet.bare(*words, "--help")
    assert called.code == 0
    assert "Examples:\n  fleetcraft" in called.out
    assert called.err == ""
    assert fleet.bare(*words, "-h").out == called.out


@pytest.mark.parametrize("verb", list(VERBS))
def test_the_list_of_verbs_says_the_first_line_of_each_ones_help(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    assert (command.help or "").partition("\n")[0] == VERBS[verb][1]


def test_the_help_lists_every_verb_and_the_exit_codes(fleet: Fleet) -> None:
    out = fleet.bare("--help").out
    assert all(f"\n  {verb} " in out for verb in VERBS)
    assert "75 try again later" in out


def test_without_a_verb_the_help_is_shown_as_a_usage_error(fleet: Fleet) -> None:
    called = fleet.bare()
    assert (called.code, called.out) == (2, "")
    assert "Commands:" in called.err
    assert fleet.bare("--json").error["type"] == "UsageError"


def test_the_version_is_told_in_both_forms(fleet: Fleet) -> None:
    assert fleet.bare("--version").out == f"fleetcraft {__version__}\n"
    assert fleet.bare("--version", "--json").json["version"] == __version__


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["enqeue"], "no command 'enqeue'", "did you mean enqueue?"),
        (["zzz"], "no command 'zzz'", "fleetcraft --help lists them"),
        (["status", "--jsn"], "--jsn", "fleetcraft status --help"),
        (["enqueue", "--retries", "x", "-n", "a", "b"], "'--retries'", "enqueue --help"),
        (["enqueue", "--lane", "middle", "-n", "a", "b"], "'middle'", "enqueue --help"),
        (["show"], "argument", "fleetcraft show --help"),
        (["run", "--workers", "0"], "'--workers'", "fleetcraft run --help"),
        (["run", "--slots", "many"], "--slots", "tasks that one worker runs"),
        (["worker", "--idle", "soon"], "--idle", "a worker leaves"),
        (["worker", "--walltime", "1x"], "not a usable duration: '1x'", "HH:MM:SS"),
        (["enqueue", "--root"], "--root", "--help"),
        (["status", "--spool", "middle"], "'--spool'", "status --help"),
    ],
)
def test_a_call_with_wrong_words_is_two_lines_and_exit_2(
    fleet: Fleet, words: list[str], message: str, hint: str
) -> None:
    called = fleet(*words)
    assert (called.code, called.out) == (2, "")
    first, second = called.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second

    error = fleet("--json", *words).error
    assert (error["type"], error["exit_code"]) == ("UsageError", 2)
    assert message in error["message"]
    assert hint in error["hint"]


def test_a_mistyped_option_is_answered_with_a_near_one(fleet: Fleet) -> None:
    assert "--json" in fleet("status", "--jso").err


def test_shared_options_may_stand_before_and_after_the_verb(fleet: Fleet) -> None:
    root = str(fleet.root)
    assert fleet.bare("--root", root, "--json", "status").json["spool"] == str(fleet.spool)
    assert fleet.bare("status", "--root", root, "--json").json["spool"] == str(fleet.spool)
    after = fleet.bare("--root", "/nowhere", "status", "--root", root, "--json")
    assert after.json["spool"] == str(fleet.spool)


def test_the_inner_spool_is_reached_by_an_option(fleet: Fleet) -> None:
    fleet.ok("enqueue", "--spool", "gpu", "-n", "g", "true")
    assert fleet.ok("status", "--spool", "gpu", "--json").json["counts"]["pending"] == 1
    assert fleet.ok("--spool", "gpu", "show", "g", "--json").json["state"] == "pending"
    assert fleet.ok("status", "--json").json["counts"]["pending"] == 0


def test_a_hint_leads_to_the_same_spool(fleet: Fleet) -> None:
    called = fleet("retry", "--spool", "gpu", "nobody")
    assert f"hint: fleetcraft --root '{fleet.root}' --spool gpu status" not in called.err
    assert "--spool gpu status lists what is there" in called.err


def test_json_in_the_command_of_a_task_is_not_an_option(fleet: Fleet) -> None:
    called = fleet("enqueue", "-n", "a", "--", "prog", "--json")
    assert called.out == "enqueued: a (pending)\n"


def test_inside_a_task_calls_go_to_the_tasks_own_spool(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_ROOT", str(fleet.root))
    monkeypatch.setenv("FLEET_SPOOL", f"{fleet.root}/taskq_gpu")
    assert fleet.bare("enqueue", "-n", "next", "true", "--json").json["spool"].endswith("_gpu")
    assert fleet.bare("enqueue", "--spool", "outer", "-n", "next", "true").code == 0
    assert (fleet.spool / "names/next").exists()


def test_without_a_root_the_exit_code_is_3_and_init_is_named(fleet: Fleet) -> None:
    called = fleet.bare("status")
    assert called.code == 3
    assert "hint: fleetcraft --root DIR init" in called.err
    assert fleet.bare("status", "--json").error["type"] == "ConfigError"


def test_a_defect_shows_its_traceback_and_has_its_own_exit_code(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(frame, "_call", broken)
    called = fleet("status")
    assert called.code == 70
    assert "Traceback" in called.err
    assert "error: fleetcraft has a defect: ZeroDivisionError: by design" in called.err
    assert "ZeroDivisionError" in fleet("status", "--json").error["facts"]["traceback"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_a_refusal_of_the_system_is_one_sentence_and_exit_5(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> int:
        raise error

    monkeypatch.setattr(frame, "_call", refuse)
    called = fleet("status")
    assert called.code == 5
    assert called.err.startswith("error: ")
    assert "Traceback" not in called.err


def test_facts_of_any_kind_can_be_written_as_json(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        facts = {"path": Path("/a"), "many": {1}, "by": {2: object}, "bad": "\udcff"}
        raise FleetError("no", **facts)

    monkeypatch.setattr(frame, "_call", refuse)
    facts = fleet("status", "--json").error["facts"]
    assert facts == {"path": "/a", "many": [1], "by": {"2": str(object)}, "bad": "�"}


def test_control_characters_of_a_name_do_not_reach_the_terminal(fleet: Fleet) -> None:
    called = fleet("show", "a\x1b[31m\x07")
    assert "\x1b" not in called.err
    assert "\x07" not in called.err


def test_a_reader_that_goes_away_is_no_error(fleet: Fleet) -> None:
    command = fleet.command("status", "--watch", "0.5")
    called = subprocess.run(
        ["bash", "-c", '"$@" | head -c 10; echo "${PIPESTATUS[0]}"', "bash", *command],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert called.stdout.endswith("141\n")
    assert called.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_defect(fleet: Fleet, closed: str) -> None:
    for words in (["status"], ["show", "nosuch"]):
        called = subprocess.run(
            ["bash", "-c", f'"$@" {closed}', "bash", *fleet.command(*words)],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert called.returncode in (0, 5)
        assert "defect" not in called.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_stdout_is_one_error_that_says_what_stands(
    fleet: Fleet, unbuffered: str
) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        env = environment(PYTHONUNBUFFERED=unbuffered)  # empty is unset, as at a user's
        with open("/dev/full", "w") as full:
            return fleet.process(*words, stdout=full, env=env)

    as_text, as_json = call("enqueue", "-n", "a", "true"), call("status", "--json")
    record = call("show", "a", "--record")

    said = "the answer could not be written to stdout: No space left on device"
    assert [call.returncode for call in (as_text, as_json, record)] == [5, 5, 5]
    assert as_text.stderr.startswith(f"error: {said}; what the command did stands\nhint: ")
    assert as_text.stderr.count("\n") == 2
    assert json.loads(as_json.stderr)["error"]["message"].startswith(said)
    assert said in record.stderr
    assert fleet.state("a") == "pending"


def test_a_full_disk_under_stderr_does_not_change_the_exit_code(fleet: Fleet) -> None:
    with open("/dev/full", "w") as full:
        env = environment(PYTHONUNBUFFERED="")
        called = fleet.process("show", "nosuch", stderr=full, env=env)
    assert called.returncode == 5


def test_a_current_folder_that_is_gone_is_named(fleet: Fleet, tmp_path: Path) -> None:
    script = 'mkdir "$1" && cd "$1" && rmdir "$1" && shift && exec "$@"'
    called = subprocess.run(
        ["bash", "-c", script, "bash", str(tmp_path / "gone"), *fleet.command("status")],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert called.returncode == 3
    assert "the folder in which this was started is gone" in called.stderr
    assert "free space" not in called.stderr


@pytest.mark.parametrize("number", ["nan", "inf", "1e300"])
@pytest.mark.parametrize(
    "words",
    [
        ["status", "--watch"],
        ["top", "--interval"],
        ["train", "status", "--watch", "--interval"],
        ["cancel", "a", "--wait"],
        ["calibrate", "run", "demo", "--patience"],
        ["calibrate", "run", "demo", "--device-budget-mib"],
        ["worker", "--idle", "1", "--heartbeat"],
    ],
)
def test_a_number_that_no_wait_takes_is_a_usage_error(
    fleet: Fleet, words: list[str], number: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: pytest.fail("it was accepted"))
        called = fleet(*words, number)
    assert called.code == 2, called.err
    assert words[-1] in called.err


def test_ctrl_c_ends_a_call_with_130_and_no_traceback(fleet: Fleet) -> None:
    with subprocess.Popen(
        fleet.command("status", "--watch", "30"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == ""


def test_text_that_no_encoding_holds_is_printed_all_the_same(fleet: Fleet) -> None:
    fleet.ok("enqueue", "-n", "strange", "--command-file", "-", stdin=b"echo \xff\xfe \xe2\x82\xac")
    ascii_only = environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    called = fleet.process("show", "strange", env=ascii_only)
    assert called.returncode == 0, called.stderr
    assert "\\u20ac" in called.stdout
    shown = fleet.process("show", "strange", "--json", env=ascii_only, encoding="utf-8")
    assert json.loads(shown.stdout)["command"] == "echo �� €"


def test_python_m_fleetcraft_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fleetcraft", "--version"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"fleetcraft {__version__}\n"


NOT_FOR_ENQUEUE = [
    "yaml", "rich", "subprocess", "dataclasses", "hashlib", "difflib", "graphlib", "csv", "json",
    "fleetcraft.spool.store", "fleetcraft.spool.views", "fleetcraft.cli.batch", "fleetcraft.worker",
    "fleetcraft.cli.run", "pathlib", "importlib.metadata", "locale", "shutil",
]  # fmt: skip


def test_one_enqueue_loads_nothing_that_it_does_not_need(fleet: Fleet) -> None:
    code = f"""
import sys, click
before = set(sys.modules)
from fleetcraft.cli.main import main
code = main(["--root", {str(fleet.root)!r}, "enqueue", "-n", "light", "--retries", "1", "true"])
print([name for name in {NOT_FOR_ENQUEUE} if name in set(sys.modules) - before])
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert fleet.names() == ["light"]


def test_a_shell_is_told_what_could_come_next(fleet: Fleet) -> None:
    for words, expected in (
        ("fleetcraft en", "plain,enqueue"),
        ("fleetcraft run --wo", "--workers"),
    ):
        asked = environment(
            _FLEETCRAFT_COMPLETE="bash_complete",
            COMP_WORDS=words,
            COMP_CWORD=str(len(words.split()) - 1),
        )
        done = subprocess.run(
            [sys.executable, "-m", "fleetcraft"],
            env=asked, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
