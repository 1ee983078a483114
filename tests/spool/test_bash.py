"""Records as bash runs them: exit status, quoting, and that history is never executed.

Bash reads a script piece by piece, so a command that leaves a quote open would swallow the history
after it: such a command must be refused at enqueue.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fleetcraft.errors import UsageError
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.record import HistoryLine, Outcome, compose, write_history
from fleetcraft.spool.syntax import refuse_unfinished_commands
from tests.spool.strategies import is_accepted, raw_text

HISTORY = write_history(
    HistoryLine(
        claim="a-1",
        outcome=Outcome.FAILED,
        to="pending",
        attempt=1,
        reason='it\'s "over"; echo HISTORY RAN; $(echo HISTORY RAN >&2) `echo HISTORY RAN >&2`',
    )
)
ENV = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


def run_record(
    folder: Path, command: str, *, attempts: int = 1
) -> subprocess.CompletedProcess[str]:
    """Runs the record of a task as a worker does, with so many attempts in its history."""
    path = folder / "t.sh"
    spec = TaskSpec(name="t", command=command, project_dir=str(folder))
    path.write_bytes(compose(spec, "1" * 12) + HISTORY * attempts)
    done = subprocess.run(
        ["bash", str(path)],
        capture_output=True,
        env=ENV,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    # Decoded by hand: text mode would turn a carriage return into a newline.
    out, err = (raw.decode("utf-8", "surrogateescape") for raw in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


@pytest.mark.parametrize("attempts", [0, 1, 3])
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("true", 0),
        ("false", 1),
        ("exit 3", 3),
        ("(exit 7)", 7),
        ("false\n\n# a comment", 1),
        ("sh -c 'exit 9' # why", 9),
        ("kill -TERM $$", -15),
        ("true | (exit 4)", 4),
        ("cat <<'END'\nexit 5\nEND\n(exit 6)", 6),
        ("f() { return 8; }\nf", 8),
        ("set -e\nfalse\ntrue", 1),
        ("trap 'exit 11' EXIT", 11),
        ("no-such-program-at-all", 127),
    ],
)
def test_the_exit_status_of_the_command_is_kept_whatever_history_follows(
    tmp_path: Path, command: str, status: int, attempts: int
) -> None:
    done = run_record(tmp_path, command, attempts=attempts)
    assert done.returncode == status
    assert "HISTORY" not in done.stdout + done.stderr


def test_a_here_document_ends_where_the_command_says(tmp_path: Path) -> None:
    done = run_record(tmp_path, "cat <<END\none\n#FLEET two\nexit\nEND\ncat <<<three", attempts=2)
    assert done.stdout == "one\n#FLEET two\nexit\nthree\n"


def test_it_runs_in_the_project_directory_and_not_without_it(tmp_path: Path) -> None:
    assert run_record(tmp_path, "pwd").stdout == f"{tmp_path}\n"
    path = tmp_path / "gone.sh"
    path.write_bytes(compose(TaskSpec(name="t", command="echo ran", project_dir="/no/such"), "1"))
    done = subprocess.run(["bash", path], capture_output=True, text=True, check=False, env=ENV)
    assert done.returncode == 1
    assert done.stdout == ""


@given(raw_text(without=b"\0/\n", max_size=30).filter(lambda name: name not in ("", ".", "..")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_project_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / f"d{name}"
    folder.mkdir(exist_ok=True)
    assert run_record(folder, "pwd").stdout == f"{folder}\n"


@given(raw_text(max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_quoted_argument_reaches_the_program_as_it_was_given(tmp_path: Path, text: str) -> None:
    command = f"printf %s {shlex.quote(text)}"
    if is_accepted(TaskSpec(name="t", command=command)):
        assert run_record(tmp_path, command).stdout == text


def is_open(command: str) -> bool:
    """Whether bash finds a quote or here-document that is still open at the end."""
    checked = subprocess.run(
        ["bash", "-n"],
        input=f"{command}\nexit\n".encode("utf-8", "surrogateescape"),
        capture_output=True,
        env=ENV,
        check=False,
    )
    said = checked.stderr.decode("utf-8", "replace")
    return any(f"matching `{mark}'" in said for mark in "'\"`") or "here-document" in said


@given(st.text(alphabet="'\"\\`$#{} \nab<", min_size=1, max_size=14))
@settings(max_examples=200)
@example("echo \"it's\" 'abc")
@example("echo \\' 'abc")
@example("# it's\necho 'abc")
@example("echo $'it\\'s")
@example("echo $'a' \\\"")
@example("cat <<END\nabc")
@example('echo "${x:-\'}"')
def test_a_command_that_would_swallow_what_follows_is_refused(command: str) -> None:
    spec = TaskSpec(name="t", command=command)
    try:
        refuse_unfinished_commands([spec])
    except UsageError:
        return
    assert not is_accepted(spec) or not is_open(command)


@pytest.mark.parametrize(
    "command",
    [
        "python gen.py --seed 17 --out \"${OUT}\" --name 'it is'",
        "cat <<'END'\nit's\nEND",
        "echo \"it's\" \\' \\\" # it's fine",
        "echo $'it\\'s' $\"x\" `date` \"$(echo ')')\" ${x#\\'} $#",
    ],
)
def test_a_complete_command_is_not_refused(command: str) -> None:
    refuse_unfinished_commands([TaskSpec(name="t", command=command)])
    assert not is_open(command)


def test_plain_commands_are_not_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("bash was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    plain = ["true", "python gen.py --seed 17 'a b' \"c $d ${e}\" > out 2>&1 < in", "a \\' b"]
    refuse_unfinished_commands([TaskSpec(name="t", command=command) for command in plain])


def test_a_command_longer_than_one_argument_may_be_is_judged() -> None:
    command = "echo '" + "a" * 200_000 + "' \"" + "b" * 200_000 + '" ' + "c" * 200_000
    refuse_unfinished_commands([TaskSpec(name="t", command=command)])
    with pytest.raises(UsageError):
        refuse_unfinished_commands([TaskSpec(name="t", command=command + " 'open")])
