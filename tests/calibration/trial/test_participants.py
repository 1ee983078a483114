from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleetcraft.calibration.records import Failure
from fleetcraft.calibration.trial import leash
from fleetcraft.calibration.trial.findings import TrialFailedError
from fleetcraft.calibration.trial.participants import Participants

SLEEPS = "print('ready', flush=True); import time; time.sleep(300)"
REPO = Path(__file__).parents[3]


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def start(tmp_path, told):
    def start(patience_s: float = 60.0, **programs: str) -> Participants:
        return Participants(
            {name: [sys.executable, "-c", program] for name, program in programs.items()},
            folder=str(tmp_path / "p"),
            phase="draft",
            patience_s=patience_s,
            tell=lambda **fields: told.append(fields),
        )

    return start


def until(condition, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def alive(told: list[dict[str, Any]]) -> list[int]:
    return [event["pid"] for event in told if psutil.pid_exists(event["pid"])]


def test_participants_that_end_well_are_done(start, told):
    with start(a="print('step 7')", b="pass") as group:
        pass

    statuses = group.statuses()
    assert [str(status) for status in statuses.values()] == ["done", "done"]
    assert statuses["a"].progress == "step 7"
    states = [(event["name"], event["state"]) for event in told]
    assert {("a", "alive"), ("a", "done"), ("b", "alive"), ("b", "done")} <= set(states)
    assert alive(told) == []


def test_one_that_dies_while_another_goes_on_is_named_with_its_last_line(start, told):
    dies = "import sys; print('step 690', flush=True); sys.exit('CUDA out of memory')"

    with pytest.raises(TrialFailedError) as raised, start(drafter0=SLEEPS, drafter1=dies):
        pass

    finding = raised.value.finding
    assert finding.failure is Failure.PARTIAL
    assert (finding.phase, finding.owner) == ("draft", "drafter1")
    assert "1 of 2 participants died" in finding.message
    assert "drafter1 (exit 1) after 'step 690', saying 'CUDA out of memory'" in finding.message
    assert "drafter0 alive" in finding.message
    assert alive(told) == []


def test_one_that_dies_when_the_others_are_done_is_partial_too(start):
    with pytest.raises(TrialFailedError, match="the others: a done"), start(a="", b="exit(1)"):
        pass


def test_all_dead_is_no_partial_death(start):
    group = start(a="exit(1)", b="import os; os.abort()")

    with pytest.raises(RuntimeError, match="all 2 participants are dead"), group:
        pass


def test_a_signal_is_named(start):
    killed = "import os; os.kill(os.getpid(), 9)"

    with pytest.raises(TrialFailedError, match="b \\(SIGKILL\\)"), start(a=SLEEPS, b=killed):
        pass


def test_one_that_is_silent_for_longer_than_allowed_has_stalled(start, told):
    chatty = "import time\nwhile True: print('on', flush=True); time.sleep(0.05)"

    group = start(patience_s=1.5, chatty=chatty, mute=SLEEPS)

    with pytest.raises(TrialFailedError) as raised, group:
        pass

    assert raised.value.finding.failure is Failure.STALLED
    assert raised.value.finding.owner == "mute"
    assert "its last was 'ready'" in raised.value.finding.message
    assert alive(told) == []


def test_a_program_that_is_not_there_is_dead_with_the_reason(tmp_path):
    group = Participants(
        {"ghost": ["/no/such/program"]},
        folder=str(tmp_path),
        phase="draft",
        patience_s=60,
        tell=lambda **_: None,
    )

    with pytest.raises(RuntimeError, match="/no/such/program: No such file"), group:
        pass


def test_an_exception_in_the_block_leaves_nothing_running_children_included(start, told, tmp_path):
    note = tmp_path / "pid"
    forks = (
        "import subprocess, sys, time, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        # Its own line must stay the last one: the child has nothing to say there.
        "quiet = {'stdout': subprocess.DEVNULL}\n"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEPS!r}], **quiet)\n"
        f"open({str(note)!r}, 'w').write(str(child.pid)); print('forked', flush=True)\n"
        "time.sleep(300)"
    )

    def cycle() -> None:
        with start(stubborn=forks) as group:
            until(lambda: group.statuses()["stubborn"].progress == "forked")
            raise KeyError

    with pytest.raises(KeyError):
        cycle()

    assert alive(told) == []
    until(lambda: not psutil.pid_exists(int(note.read_text())))


def test_participants_die_with_a_starter_that_is_killed(tmp_path):
    note = tmp_path / "pid"
    program = (
        "import os, sys, time\n"
        "from fleetcraft.calibration.trial.participants import Participants\n"
        f"commands = {{'a': [sys.executable, '-c', {SLEEPS!r}]}}\n"
        f"tell = lambda **f: open({str(note)!r}, 'w').write(str(f['pid']))\n"
        f"folder = {str(tmp_path)!r}\n"
        "with Participants(commands, folder=folder, phase='', patience_s=60, tell=tell): pass\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", program], cwd=REPO)
    out = tmp_path / "0-a.out"
    until(lambda: out.exists() and out.read_text() == "ready\n")

    starter.send_signal(signal.SIGKILL)
    starter.wait(timeout=30)

    pid = int(note.read_text())
    until(lambda: not psutil.pid_exists(pid))


def test_a_command_whose_starter_is_gone_already_is_not_run(tmp_path):
    ran = tmp_path / "ran"
    touch = f"open({str(ran)!r}, 'w')"

    ended = subprocess.run(
        [sys.executable, leash.__file__, str(os.getpid() + 1), sys.executable, "-c", touch],
        check=False,
        timeout=30,
    )

    assert ended.returncode == 1
    assert not ran.exists()
