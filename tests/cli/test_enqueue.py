"""``fleetcraft enqueue`` of one task: what is published, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Fleet

AWKWARD = [
    "echo 'single' \"double\" `true` $(true) $HOME",
    "printf '%s\\n' a\\ b",
    "echo one\necho two\n\necho three",
    "echo\ttab; echo naïve ☃ 漢字",
    "--dashes first",
    "cat <<EOF\n$HOME\nEOF",
    "# only a comment\nexit 3",
    "exit",
    "echo a &&\\\n  echo b",
    "echo '#FLEET-RUN inside a line'",
    "cd -- /elsewhere || exit 1",
    "  leading and trailing  ",
    "printf '\\033[31mred'",
]


@pytest.mark.parametrize("command", AWKWARD)
def test_a_command_is_kept_as_it_was_given(fleet: Fleet, command: str) -> None:
    fleet.ok("enqueue", "-n", "task", "--", command)
    assert fleet.ok("show", "task", "--json").json["command"] == command
    assert f"\n{command}\nexit\n" in fleet.record("task")


@pytest.mark.parametrize(
    "name", ["a", "0", "a.sh.b", "x.sh", "a.sh.L1.0.0.abc-1", "A_b-c.d", "a" * 180]
)
def test_a_name_of_allowed_characters_is_taken(fleet: Fleet, name: str) -> None:
    fleet.ok("enqueue", "-n", name, "true")
    assert fleet.ok("show", name, "--json").json["name"] == name
    assert fleet.ok("check", "--json").json["ok"] is True


@pytest.mark.parametrize(
    "name",
    ["", "-a", ".a", "a b", "a/b", "../a", "a'b", 'a"b', "a\nb", "naïve", "☃", "a" * 181, "a\x00b"],
)
def test_a_bad_name_is_a_usage_error_and_publishes_nothing(fleet: Fleet, name: str) -> None:
    error = fleet("enqueue", f"--name={name}", "true", "--json").error
    assert error["exit_code"] == 2
    assert "name" in error["message"]
    assert fleet.names() == []


def test_a_name_that_is_no_text_is_refused_in_readable_json(fleet: Fleet) -> None:
    called = fleet("enqueue", "-n", "a\udcff", "true", "--json")
    assert called.error["type"] == "BadNameError"


def test_every_directive_reaches_the_record(fleet: Fleet) -> None:
    fleet.ok("enqueue", "-n", "first", "true")
    options = "--after first --after x-* --after-file ready.txt --timed --time 00:40:00"
    options += " --timeout 1-00:00:00 --retries 2 --family wan --outputs a.mp4 --lane last"
    options += " --slot gpu --env-file env.sh --login"
    called = fleet.ok("enqueue", "-n", "all", *options.split(), "--outputs", "b c.mp4", "true")
    assert called.out == "enqueued: all (waiting)\n"
    assert fleet.ok("show", "all", "--json").json["directives"] == {
        "family": "wan",
        "timed": True,
        "time_s": 2400,
        "timeout_s": 86400,
        "retries": 2,
        "after": ["first", "x-*"],
        "after_files": ["ready.txt"],
        "outputs": ["a.mp4", "b c.mp4"],
        "lane": "last",
        "slot": "gpu",
        "env_file": "env.sh",
        "login": True,
    }
    shown = fleet.ok("show", "all").out
    assert "waits for    x-* (missing)" in shown
    assert "timeout      1-00:00:00" in shown


def test_the_answer_in_json_names_result_and_state(fleet: Fleet) -> None:
    value = fleet.ok("enqueue", "-n", "a", "true", "--json").json
    assert value["schema"] == "fleetcraft.enqueue/1"
    assert (value["name"], value["result"], value["state"]) == ("a", "enqueued", "pending")
    waits = fleet.ok("enqueue", "-n", "b", "--after", "a", "true", "--json").json
    assert waits["state"] == "waiting"


def test_the_project_folder_is_written_absolute(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my project").mkdir()
    fleet.ok("--project-dir", "my project", "enqueue", "-n", "a", "true")
    monkeypatch.setenv("PROJECT", "my project")
    fleet.ok("enqueue", "-n", "b", "true")
    for name in "ab":
        shown = fleet.ok("show", name, "--json").json
        assert shown["project_dir"] == str(tmp_path / "my project")


def test_words_after_dashes_are_quoted_and_joined(fleet: Fleet) -> None:
    fleet.ok("enqueue", "-n", "a", "--", "python", "a.py", "--title", "it's a; test")
    command = fleet.ok("show", "a", "--json").json["command"]
    assert command == """python a.py --title 'it'"'"'s a; test'"""
    fleet.ok("enqueue", "-n", "b", "--", "echo a; echo b")
    assert fleet.ok("show", "b", "--json").json["command"] == "echo a; echo b"


def test_several_words_without_dashes_are_refused(fleet: Fleet) -> None:
    error = fleet("enqueue", "-n", "a", "echo", "hi", "--json").error
    assert (error["exit_code"], fleet.names()) == (2, [])
    assert "'hi' is too many" in error["message"]
    assert "quote the whole command" in error["hint"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["true"], "no name was given"),
        (["-n", "a"], "no command was given for 'a'"),
        (["-n", "a", ""], "the command of 'a' is empty"),
        (["-n", "a", " \n "], "the command of 'a' is empty"),
        (["-n", "a", "echo 'open"], "is not complete shell text"),
        (["-n", "a", "cat <<EOF\nnever closed"], "is not complete shell text"),
        (["-n", "a", "echo \\"], "ends in a backslash"),
        (["-n", "a", "true\n#FLEET-RUN {}"], "starts with #FLEET-RUN"),
        (["-n", "a", "--timeout", "10", "true"], "not a usable duration: '10'"),
        (["-n", "a", "--timeout", "00:00:00", "true"], "not a usable duration"),
        (["-n", "a", "--timeout", "00:99:00", "true"], "not a usable duration"),
        (["-n", "a", "--time", "9999999:00:00", "true"], "not a usable duration"),
        (["-n", "a", "--time", "-1:00", "true"], "not a usable duration"),
        (["-n", "a", "--retries", "-1", "true"], "retries must be 0 to 1000"),
        (["-n", "a", "--retries", "1001", "true"], "retries must be 0 to 1000"),
        (["-n", "a", "--after", "a", "true"], "cannot wait for itself"),
        (["-n", "a", "--after", "b c", "true"], "bad task name 'b c'"),
        (["-n", "a", "--after", "b*/", "true"], "bad dependency 'b*/'"),
        (["-n", "a", "--family", "a b", "true"], "family: expected one word"),
        (["-n", "a", "--outputs", "a\nb", "true"], "holds a newline"),
        (["-n", "a", "--command-file", "/no/such/file"], "cannot read the command from"),
        (["-n", "a", "--command-file", "-", "true"], "a command was given twice"),
    ],
)
def test_what_cannot_be_a_task_is_a_usage_error(
    fleet: Fleet, words: list[str], message: str
) -> None:
    called = fleet("enqueue", *words)
    assert called.code == 2
    assert message in called.err
    assert "Traceback" not in called.err
    assert fleet.names() == []
    assert list((fleet.spool / "tmp").iterdir()) == []


def test_a_command_longer_than_an_argument_comes_from_a_file(fleet: Fleet, tmp_path: Path) -> None:
    command = "true '" + "x" * (200 << 10) + "'\necho end"
    (tmp_path / "long command.sh").write_text(command + "\n")
    fleet.ok("enqueue", "-n", "file", "--command-file", "long command.sh")
    fleet.ok("enqueue", "-n", "stdin", "--command-file", "-", stdin=command.encode())
    assert fleet.ok("show", "file", "--json").json["command"] == command
    assert fleet.ok("show", "stdin", "--json").json["command"] == command


def test_a_taken_name_is_refused_and_says_by_whom(fleet: Fleet) -> None:
    fleet.ok("enqueue", "-n", "a", "true")
    error = fleet("enqueue", "-n", "a", "false", "--json").error
    assert (error["type"], error["exit_code"]) == ("NameTakenError", 5)
    assert error["facts"] == {"name": "a", "state": "pending", "same": False}
    assert fleet("enqueue", "-n", "a", "false", "--if-absent").code == 5


def test_the_same_task_again_is_accepted_only_with_if_absent(fleet: Fleet) -> None:
    fleet.ok("enqueue", "-n", "a", "true")
    assert fleet("enqueue", "-n", "a", "true").code == 5
    value = fleet.ok("enqueue", "-n", "a", "true", "--if-absent", "--json").json
    assert (value["result"], value["state"]) == ("already_there", "pending")
    fleet.ok("cancel", "a")
    called = fleet.ok("enqueue", "-n", "a", "true", "--if-absent")
    assert called.out == "already there: a (failed)\n"


def test_an_enqueue_that_was_cut_short_is_completed(fleet: Fleet) -> None:
    fleet.ok("enqueue", "-n", "a", "true")
    record = fleet.spool / "pending/a.sh"
    identity = next(
        line.split()[-1] for line in record.read_text().splitlines() if "#FLEET id" in line
    )
    record.rename(fleet.spool / "tmp" / identity)
    assert fleet.ok("enqueue", "-n", "a", "true", "--json").json["result"] == "completed"
    assert record.exists()


def test_a_cycle_is_refused_and_spelled_out(fleet: Fleet) -> None:
    fleet.ok("enqueue", "-n", "a", "--after", "b", "true")
    fleet.ok("enqueue", "-n", "b", "--after", "c-*", "true")
    error = fleet("enqueue", "-n", "c-1", "--after", "a", "true", "--json").error
    assert error["exit_code"] == 2
    assert sorted(error["facts"]["cycle"]) == ["a", "b", "c-1"]
    assert fleet.names() == ["a", "b"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_dry_run_publishes_nothing_but_refuses_what_an_enqueue_would(
    fleet: Fleet, options: list[str]
) -> None:
    called = fleet.ok("enqueue", "-n", "a", "echo hi", "--dry-run", *options)
    assert "a" in called.out
    assert fleet.names() == []
    assert fleet("enqueue", "-n", "a", "--after", "a", "true", "--dry-run", *options).code == 2
    fleet.ok("enqueue", "-n", "a", "echo hi")
    assert fleet("enqueue", "-n", "a", "echo hi", "--dry-run", *options).code == 5
    assert fleet("enqueue", "-n", "a", "other", "--if-absent", "--dry-run", *options).code == 5
    fleet.ok("enqueue", "-n", "a", "echo hi", "--if-absent", "--dry-run", *options)


def test_the_command_as_a_process_publishes_too(fleet: Fleet) -> None:
    done = fleet.process("enqueue", "-n", "a", "echo 'hi there'")
    assert (done.returncode, done.stdout, done.stderr) == (0, "enqueued: a (pending)\n", "")
    assert fleet.state("a") == "pending"
