"""Keepers: how a trial's process begins, and that none outlives who watches it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from fleetcraft.calibration.trial import cgroup, starting
from fleetcraft.calibration.trial.entering import Entry
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.calibration.trial.starting import Keeper, KeeperLostError
from fleetcraft.errors import ConfigError
from tests.calibration.trial.standin import PROGRAM


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    made = Keeper((PROGRAM,))
    yield made
    made.close()


def order_in(folder: Path, **fields: Any) -> Order:
    given: dict[str, Any] = {"family": "x", "batch": 2, "passes": (Pass.MEMORY,), **fields}
    order = Order(folder=str(folder), **given)
    folder.mkdir(parents=True, exist_ok=True)
    Path(starting.order_path(order)).write_bytes(msgspec.json.encode(order))
    return order


def entry_in(folder: Path, **fields: Any) -> Entry:
    order = order_in(folder, **fields)
    return Entry(
        order=starting.order_path(order),
        journal=order.journal,
        log=starting.log_path(order),
        program=PROGRAM,
        fresh=order.device != "cpu",
    )


def events(folder: Path) -> list[dict[str, Any]]:
    try:
        lines = (folder / "journal.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def wait_until(met: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := met()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)
    return found


# ------------------------------------------------------------------------------ how it begins


@pytest.mark.parametrize("device", ["cpu", "cuda"], ids=["forked", "fresh"])
def test_a_trial_begins_alone_limited_and_bound_to_its_keeper(
    keeper: Keeper, tmp_path: Path, device: str
) -> None:
    pid = keeper.start(entry_in(tmp_path, fault="look", device=device))
    ended = keeper.wait(60.0)
    assert ended is not None
    assert ended.exit_code == 0
    told = json.loads(next(e["note"] for e in events(tmp_path) if e["event"] == "progress"))
    assert told["pid"] == pid
    assert told["sid"] == pid  # a session and a process group of its own
    assert told["death"] == signal.SIGKILL  # sent by the kernel when the keeper dies
    assert told["stdin"] == "/dev/null"
    assert told["core"] == 0
    assert int(told["oom_score"]) >= 800
    assert not told["torch"]
    # Neither pipe of the keeper's, which would hide its death.
    assert not [fd for fd in told["fds"] if fd.startswith(("pipe:", "anon_inode:"))]
    assert "words of the trial" in (tmp_path / "child.log").read_text()


def test_trials_of_one_keeper_share_nothing_but_what_it_loaded(
    keeper: Keeper, tmp_path: Path
) -> None:
    pids = set()
    for number in range(3):
        pids.add(keeper.start(entry_in(tmp_path / str(number))))
        ended = keeper.wait(60.0)
        assert ended is not None
        assert (ended.exit_code, ended.leftovers) == (0, 0)
    assert len(pids) == 3
    assert len([e for e in events(tmp_path / "2") if e["event"] == "begin"]) == 1


def test_the_usual_keeper_is_started_once_and_again_when_it_was_lost() -> None:
    first = starting.keeper_for("cpu", PROGRAM)
    assert starting.keeper_for("cpu", PROGRAM) is first
    first._process.kill()
    first._process.wait()
    second = starting.keeper_for("cpu", PROGRAM)
    assert second is not first
    assert second.alive
    starting.close_keepers((PROGRAM,))
    assert not second.alive


def test_a_program_that_cannot_be_loaded_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="no_such_program.*nothing was tried"):
        Keeper(("no_such_program",))


def test_a_trial_that_cannot_be_begun_is_one_sentence(keeper: Keeper, tmp_path: Path) -> None:
    entry = entry_in(tmp_path)
    (tmp_path / "child.log").mkdir()
    with pytest.raises(ConfigError, match="could not be started.*nothing was tried"):
        keeper.start(entry)
    (tmp_path / "child.log").rmdir()
    keeper.start(entry)
    assert keeper.wait(60.0) is not None


# ------------------------------------------------------------------------------ how it ends


def started_sleepers(folder: Path) -> list[int]:
    """The pids that the stand-in tells, once it has told both."""
    pids = [int(e["note"]) for e in events(folder) if e["event"] == "progress"]
    return pids if len(pids) == 2 else []


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_stopping_ends_the_whole_tree_also_what_has_left_its_group(
    keeper: Keeper, tmp_path: Path
) -> None:
    pid = keeper.start(entry_in(tmp_path, fault="sleepers"))
    pids = wait_until(lambda: started_sleepers(tmp_path), "both sleepers")
    ended = keeper.stop("enough", grace_s=0.3)
    assert ended is not None
    assert ended.clean
    assert ended.signal == signal.SIGTERM
    assert all(is_gone(one) for one in [pid, *pids])
    last = events(tmp_path)[-1]
    assert (last["event"], last["kind"], last["message"]) == ("failed", "Stopped", "enough")
    assert keeper.stop("again") is None


def test_a_torn_line_stays_on_its_own_when_a_stop_is_noted(keeper: Keeper, tmp_path: Path) -> None:
    keeper.start(entry_in(tmp_path, fault="stall"))
    wait_until(lambda: len(events(tmp_path)) >= 7, "its second phase")
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"event": "pro')
    keeper.stop("enough")
    *_, torn, last = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert torn == '{"event": "pro'
    assert json.loads(last)["message"] == "enough"


def test_a_trial_dies_with_its_keeper(keeper: Keeper, tmp_path: Path) -> None:
    pid = keeper.start(entry_in(tmp_path, fault="stall"))
    keeper._process.kill()
    with pytest.raises(KeeperLostError, match="gone"):
        keeper.wait(60.0)
    wait_until(lambda: is_gone(pid), "the trial's death")


def test_a_keeper_that_does_not_answer_is_ended_with_what_it_may_have_begun(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_START_WAIT_S", 0.2)
    monkeypatch.setattr(starting, "_KILL_WAIT_S", 0.2)
    os.kill(keeper._process.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(keeper._process.pid), "it stands still")

    with pytest.raises(KeeperLostError, match=r"said nothing for 0\.2 s"):
        keeper.start(entry_in(tmp_path, fault="stall"))

    assert not keeper.alive
    assert keeper.stop("again") is None
    keeper.close()


def is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


PARENT = """
import sys
from fleetcraft.calibration.family import Family
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.calibration.trial.run import run_trial
order = Order(family="x", batch=1, passes=(Pass.MEMORY,), folder=sys.argv[1], fault="sleepers")
run_trial(order, Family(key="x", cycle=print), program="tests.calibration.trial.standin")
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_a_parent_that_is_ended_and_the_folder_says_so(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "trial"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)],
        cwd=Path(__file__).parents[3],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: started_sleepers(folder), "both sleepers")
    tree = [process.pid for process in psutil.Process(parent.pid).children(recursive=True)]
    assert len(tree) >= 4  # keeper, trial, and what that started
    parent.send_signal(number)
    parent.communicate(timeout=60)
    wait_until(lambda: all(is_gone(pid) for pid in tree), "the end of all")
    last = events(folder)[-1]
    assert (last["event"], last["kind"]) == ("failed", "Stopped")
    expected = "interrupted: KeyboardInterrupt" if number == signal.SIGINT else "is gone"
    assert expected in last["message"]
    for place in cgroup.own_places().values():
        left = [name for name in os.listdir(place.folder) if f"-trial-{parent.pid}-" in name]
        assert left == []


# ------------------------------------------------------------------------------ limits


@pytest.fixture
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "own_places", dict)


@pytest.mark.usefixtures("no_groups")
def test_without_a_group_memory_is_limited_by_the_data_segment_and_that_is_said(
    tmp_path: Path,
) -> None:
    group, limits = starting.confine(order_in(tmp_path, host_budget_bytes=1 << 28))
    assert group.places == {}
    assert limits.data_bytes == 1 << 28
    (note,) = limits.notes
    assert "RLIMIT_DATA" in note


@pytest.mark.usefixtures("no_groups")
def test_a_limit_of_processes_that_cannot_be_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with pytest.raises(ConfigError, match="cannot be limited to 12 processes.*nothing was tried"):
        starting.confine(order_in(tmp_path, pids_limit=12))


@pytest.mark.usefixtures("no_groups")
def test_for_other_users_processes_are_limited_by_rlimit_nproc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_ignores_process_limits", lambda: False)
    _, limits = starting.confine(order_in(tmp_path, pids_limit=12))
    assert limits.processes == 12
    assert "RLIMIT_NPROC" in limits.notes[0]


def test_without_limits_nothing_is_weaker_than_asked(tmp_path: Path) -> None:
    group, limits = starting.confine(order_in(tmp_path))
    group.remove()
    assert limits == starting.Confinement()
