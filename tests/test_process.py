"""One task's process tree: started, waited for, stopped; in a process of its own per test.

`TaskProcess` owns every child of its process, so it is not let loose on pytest's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.identity import process_id

REPO = Path(__file__).resolve().parents[1]

PRELUDE = """
import json, msgspec, os, signal, sys, time
from fleetcraft.process import TaskProcess, become_subreaper, descendants, die_with_parent
become_subreaper()
task = TaskProcess()
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def start(*argv, gate=None, grace=0.5):
    return task.start(argv, {b"PATH": b"/usr/bin:/bin"}, log_fd=log, gate_fd=gate, grace_s=grace)
def wait():
    while (ended := task.poll()) is None:
        time.sleep(0.01)
    return ended
def say(*what):
    print(json.dumps(msgspec.to_builtins(what)))
def until(path):
    while not os.path.exists(path):
        time.sleep(0.01)
"""


def run(folder: Path, code: str) -> list[Any]:
    """What the code said, run after the prelude in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: list[Any] = json.loads(done.stdout)
    return said


def test_how_a_task_ended_is_told_once(tmp_path: Path) -> None:
    first, again, pid = run(tmp_path, """
        start("/bin/bash", "-c", "echo out; echo err >&2; exit 3")
        say(wait(), task.poll(), task.pid)
    """)  # fmt: skip
    assert (first["exit_code"], first["signal"]) == (3, None)
    assert (first["leftovers"], first["clean"]) == (0, True)
    assert first["max_rss_bytes"] > 100_000
    assert (again, pid) == (None, None)
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_a_signal_is_not_taken_for_an_exit_code(tmp_path: Path) -> None:
    [ended] = run(tmp_path, 'start("/bin/bash", "-c", "kill -11 $$"); say(wait())')
    assert (ended["exit_code"], ended["signal"]) == (None, signal.SIGSEGV)


def test_one_process_runs_many_tasks_one_after_the_other(tmp_path: Path) -> None:
    codes = run(tmp_path, """
        codes = []
        for n in range(50):
            start("/bin/sh", "-c", f"exit {n}")
            codes.append(wait().exit_code)
        say(*codes)
    """)  # fmt: skip
    assert codes == list(range(50))


def test_what_cannot_be_started_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, """
        try:
            start("/nowhere/bash", "-c", "true")
        except FileNotFoundError as error:
            start("/bin/true")
            say(error.errno, task.pid is not None, wait().exit_code)
    """)  # fmt: skip
    assert said == [2, True, 0]


def test_a_task_gets_its_log_its_gate_and_nothing_else(tmp_path: Path) -> None:
    [ended] = run(tmp_path, """
        secret = os.open("/dev/zero", os.O_RDONLY)
        gate = os.open("gate", os.O_RDWR | os.O_CREAT)
        start("/bin/ls", "-l", "/proc/self/fd", gate=gate)
        say(wait())
    """)  # fmt: skip
    assert ended["exit_code"] == 0
    files = dict(line.split()[-3:][::2] for line in (tmp_path / "log").read_text().splitlines()[1:])
    assert files.pop("3").startswith("/proc/")  # what ls itself reads
    log, gate = str(tmp_path / "log"), str(tmp_path / "gate")
    assert files == {"0": "/dev/null", "1": log, "2": log, "9": gate}


@pytest.mark.parametrize("number", [0, 1, 2, 9])
def test_the_log_may_itself_have_a_number_that_the_task_needs(tmp_path: Path, number: int) -> None:
    run(tmp_path, f"""
        said = os.dup(1)
        gate = os.open("gate", os.O_RDWR | os.O_CREAT)
        os.dup2(log, {number}, inheritable=False)
        log = {number}
        start("/bin/bash", "-c", "echo out; echo err >&2; cat; readlink /proc/$$/fd/9", gate=gate)
        ended = wait()
        os.write(said, json.dumps([ended.exit_code]).encode())
    """)  # fmt: skip
    assert (tmp_path / "log").read_text() == f"out\nerr\n{tmp_path}/gate\n"


def test_an_orphan_that_ignores_term_is_killed_before_the_end_is_told(tmp_path: Path) -> None:
    ended, left = run(tmp_path, """
        start("/bin/bash", "-c",
              "trap '' TERM; (setsid bash -c 'sleep 60; :' &) ; sleep 0.2; exit 4", grace=0.2)
        say(wait(), len(descendants()))
    """)  # fmt: skip
    assert (ended["exit_code"], ended["clean"], left) == (4, True, 0)
    assert ended["leftovers"] >= 1


def test_stop_gives_everything_the_grace_it_was_promised(tmp_path: Path) -> None:
    [ended] = run(tmp_path, """
        start("/bin/bash", "-c", "trap 'sleep 0.3; exit 7' TERM; touch up; sleep 60 & wait")
        until("up")
        say(task.stop(30.0))
    """)  # fmt: skip
    assert (ended["exit_code"], ended["leftovers"], ended["clean"]) == (7, 0, True)


def test_stop_of_a_frozen_tree_ends_in_a_kill(tmp_path: Path) -> None:
    ended, left = run(tmp_path, """
        start("/bin/bash", "-c", "sleep 60 & kill -STOP $!; touch up; kill -STOP $$")
        until("up")
        say(task.stop(0.2), len(descendants()))
    """)  # fmt: skip
    assert (ended["signal"], ended["clean"], left) == (signal.SIGKILL, True, 0)


REFORKING = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("up", "w").close()
while True:
    if os.fork():
        os._exit(0)
    time.sleep(0.001)
"""


@pytest.mark.parametrize("how", ["task.stop(0.1)", "wait()"])
def test_one_that_forks_and_exits_every_millisecond_is_stopped(tmp_path: Path, how: str) -> None:
    ended, left = run(tmp_path, f"""
        start({sys.executable!r}, "-S", "-c", {REFORKING!r}, grace=0.1)
        until("up")
        say({how}, len(descendants()))
    """)  # fmt: skip
    assert (ended["exit_code"], ended["clean"], left) == (0, True, 0)


def test_a_tree_of_several_generations_is_killed_from_its_root_down(tmp_path: Path) -> None:
    (tmp_path / "deaf").write_text(
        "trap '' TERM; if [ $1 = 3 ]; then touch up; else bash deaf $(($1 + 1)); fi; sleep 60; :"
    )
    ended, left = run(tmp_path, """
        start("/bin/bash", "deaf", "0")
        until("up")
        say(task.stop(0.1), len(descendants()))
    """)  # fmt: skip
    assert (ended["signal"], ended["clean"], left) == (signal.SIGKILL, True, 0)


def test_stop_of_a_task_that_has_just_ended_tells_how_it_ended(tmp_path: Path) -> None:
    ended, again = run(tmp_path, """
        start("/bin/bash", "-c", "exit 5")
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        say(task.stop(1.0), task.stop(1.0))
    """)  # fmt: skip
    assert ended["exit_code"] == 5
    assert again is None


def test_a_process_dies_with_its_parent_also_when_that_is_killed(tmp_path: Path) -> None:
    child = (
        "import os, sys, time; from fleetcraft.process import die_with_parent; "
        "alive = die_with_parent(int(sys.argv[1])); "
        "open('child', 'w').write(f'{os.getpid()} {alive}\\n'); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c",
         "import os, subprocess, sys; "
         "subprocess.run([sys.executable, '-c', sys.argv[1], str(os.getpid())])", child],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (text := _text(tmp_path / "child")).endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid, alive = text.split()
    assert alive == "True"
    parent.kill()
    parent.wait()
    while process_id(int(pid)) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_parent_that_died_first_is_noticed(tmp_path: Path) -> None:
    # The pid of a process that is not the parent stands for a parent that is gone.
    [alive] = run(tmp_path, "say(die_with_parent(1 if os.getppid() != 1 else 2))")
    assert alive is False


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
