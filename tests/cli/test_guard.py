"""``fleetcraft guard`` and ``bin/login_guard.sh``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import REPO, Fleet, environment

LOOSE = {
    f"FLEET_GUARD_{name}_{end}": "1000000"
    for name in ("PROCESSES", "SSH")
    for end in ("CAUTION", "STOP")
}
EXIT_CODES = {"go": 0, "caution": 1, "no-go": 2, "unknown": 3}
GUARD = [sys.executable, "-m", "fleetcraft", "guard"]
LAUNCHER = [str(REPO / "bin/login_guard.sh")]
TRACED = "clone,clone3,fork,vfork,kill,tkill,tgkill,pidfd_send_signal"


@pytest.fixture
def guard(bare_fleet: Fleet) -> Fleet:
    """No scratch tree: the guard needs none."""
    return bare_fleet


def test_the_answer_is_one_value_and_its_exit_code_says_the_same(guard: Fleet) -> None:
    called = guard.bare("guard", "--json")
    value = called.json
    assert value["schema"] == "fleetcraft.guard/1"
    assert called.code == value["exit_code"] == EXIT_CODES[value["verdict"]]
    assert value["processes"] >= 1
    assert value["threads"] >= value["processes"]
    assert set(value["limits"]) >= {"processes", "threads", "ssh"}
    for limit in value["limits"].values():
        assert set(limit) == {"found", "caution", "stop", "ceiling", "source", "verdict"}
    assert value["includes_itself"]
    assert {"name", "kind", "processes", "threads", "pids"} == set(value["causes"][0])
    assert sum(cause["processes"] for cause in value["causes"]) <= value["processes"]


def test_far_below_every_limit_it_is_go(guard: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LOOSE.items():
        monkeypatch.setenv(name, value)
    called = guard.bare("guard")
    assert called.code == 0, called.out
    assert re.match(r"go: \d+ process(es)? with this one, \d+ threads?, ", called.out)
    assert called.err == ""


def test_no_go_says_the_limit_where_it_is_from_and_what_takes_most(
    guard: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_GUARD_PROCESSES_STOP", "1")
    called = guard.bare("guard")
    assert called.code == 2
    first, *rest = called.out.splitlines()
    assert re.match(r"no-go: \d+ process(es)?, stop at 1 \(environment FLEET_GUARD_", first)
    assert any(re.match(r" +found +caution +stop +at most +from$", line) for line in rest)
    assert any(re.match(r"  processes +\d+ +25 +1 +- +environment", line) for line in rest)
    assert "what they are, worst first" in rest
    assert called.err.startswith("hint: end what is not needed")


def test_the_list_of_causes_is_bounded_and_says_so(guard: Fleet) -> None:
    value = guard.bare("guard", "--json", "--limit", "0").json
    assert value["causes"] == []
    assert value["causes_left_out"] >= 1
    assert (
        f"... and {value['causes_left_out']} more" not in guard.bare("guard", "--limit", "99").out
    )


def test_wrong_settings_are_no_go_ahead(guard: Fleet) -> None:
    Path("fleet.yaml").write_text("guard:\n  processes_stop: many\n")
    assert guard.bare("guard", "--json").error["exit_code"] == 3
    assert guard.bare("guard", "--jsno").code == 2


@pytest.mark.parametrize("command", [GUARD, LAUNCHER], ids=["guard", "login_guard.sh"])
def test_where_no_process_list_can_be_read_it_is_unknown(command: list[str]) -> None:
    done = call_without_proc(command)
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        3,
        "unknown: cannot list the processes: "
        "'/proc' lists none: is the process file system mounted there?",
    )
    assert re.search(r"\n  processes +- +25 +40 ", done.stdout)
    assert len(done.stderr.splitlines()) == 1  # the hint

    done = call_without_proc([*command, "--json"])
    value = json.loads(done.stdout)
    assert (done.returncode, value["verdict"], value["exit_code"]) == (3, "unknown", 3)
    assert (value["processes"], value["threads"], value["ssh_clients"]) == (None, None, None)
    assert len(value["unknowns"]) == 1
    assert done.stderr == ""


@pytest.mark.parametrize("command", [GUARD, LAUNCHER], ids=["guard", "login_guard.sh"])
def test_it_starts_no_process_or_thread_and_signals_none(
    command: list[str], tmp_path: Path
) -> None:
    skip_without_launcher(command)
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = tmp_path / "log"
    traced = ["strace", "-f", "-qq", "-e", f"trace={TRACED}", "-o", str(log)]

    # A trace that does not see a shell start a process would prove nothing.
    shell = subprocess.run(
        [*traced, "sh", "-c", "true & wait"], capture_output=True, text=True, check=False
    )
    if shell.returncode:
        pytest.skip(f"strace cannot trace here: {shell.stderr.strip()}")
    assert re.search(r"clone|fork", log.read_text())

    done = subprocess.run([*traced, *command], env=environment(), capture_output=True, check=False)
    assert done.returncode in EXIT_CODES.values(), done.stderr
    assert log.read_text() == ""


def test_it_loads_nothing_that_could_start_something() -> None:
    code = (
        "import sys; from fleetcraft.cli.main import main; main(['guard']);"
        "print(sorted({'psutil', 'subprocess', 'multiprocessing', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def call_without_proc(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Calls a command where `/proc` is an empty folder."""
    skip_without_launcher(command)
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    start = ["unshare", *user, "--mount", "sh", "-c"]
    mount = "mount -t tmpfs none /proc"
    tried = subprocess.run([*start, mount], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no namespace of mounts can be made here: {tried.stderr.strip()}")
    return subprocess.run(
        [*start, f'{mount} && exec "$@"', "sh", *command],
        env=environment(),
        cwd=REPO,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def skip_without_launcher(command: list[str]) -> None:
    if command[0] == LAUNCHER[0]:
        names = (REPO / ".venv/bin/fleetcraft", REPO / ".venv/bin/python")
        if not all(os.access(name, os.X_OK) for name in names):
            pytest.skip("there is no environment in .venv")
