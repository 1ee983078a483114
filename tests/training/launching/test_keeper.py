"""A real keeper on this machine: what its command gets, and how its end is told."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from fleetcraft.errors import ConfigError
from fleetcraft.files import FileSystem
from fleetcraft.identity import this_host
from fleetcraft.training.launching.nonce_scan import find_by_nonce
from fleetcraft.training.launching.sights import Whole
from fleetcraft.training.launching.start import AttemptExistsError, launch
from fleetcraft.training.launching.stop import order_stop
from tests.training.launching.harness import DEAF, PLAIN, Run, wait_until

NODE = this_host().host


def test_a_command_that_ends_well_is_told_with_what_it_used(run: Run) -> None:
    started = run.launch("bash", "-c", "echo out; echo err >&2; exit 0")

    sight = run.ended(started)

    (end,) = sight.ends
    assert (end.exit_code, end.signal, end.clean, end.told_to_stop) == (0, None, True, False)
    assert end.max_rss_bytes > 100_000
    assert (sight.clean, sight.exit_zero) == (True, True)
    assert Path(started.paths.log(NODE)).read_text() == "out\nerr\n"


def test_an_exit_code_and_a_signal_are_told_apart(run: Run) -> None:
    seven = run.launch("bash", "-c", "exit 7")
    killed = run.launch("bash", "-c", "kill -9 $$")

    (end,) = run.ended(seven).ends
    (other,) = run.ended(killed).ends

    assert (end.exit_code, end.signal) == (7, None)
    assert (other.exit_code, other.signal) == (None, signal.SIGKILL)
    assert not run.ended(killed).exit_zero


def test_the_command_gets_what_identifies_it_and_where_it_reports(run: Run) -> None:
    code = "import json, os; json.dump(dict(os.environ), open('env', 'w'))"
    given = {"MINE": "1", "FLEET_LAUNCH_NONCE": "forged"}

    started = run.launch(sys.executable, "-c", code, environment=given)
    run.ended(started)

    env = json.loads((run.work / "env").read_text())
    paths = started.paths
    assert env["MINE"] == "1"
    assert env["FLEET_LAUNCH_NONCE"] == started.nonce
    assert (env["FLEET_RUN"], env["FLEET_EPOCH"]) == ("r1", "1")
    assert (env["FLEET_PROGRESS"], env["FLEET_TRAIN_BUILT"]) == (paths.progress, paths.built)
    assert env["TORCHELASTIC_ERROR_FILE"] == paths.error_file(NODE)
    assert "FLEET_NODE_RANK" not in env


def test_the_order_on_disk_holds_nothing_of_the_supervisors_own_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    started = run.launch("bash", "-c", 'echo "$SECRET_TOKEN"')
    run.ended(started)
    assert Path(started.paths.log(NODE)).read_text() == "hush\n"
    assert "hush" not in Path(started.paths.order).read_text()


def test_a_command_that_cannot_be_started_is_told_as_such(run: Run) -> None:
    missing = run.launch("no-such-program-here")
    no_folder = run.launch("true", directory=str(run.work / "gone"))

    (end,) = run.ended(missing).ends
    (other,) = run.ended(no_folder).ends

    assert (end.exit_code, end.signal, end.clean) == (None, None, True)
    assert "no-such-program-here" in end.why
    assert "gone" in other.why


def test_the_keeper_tells_who_it_is_before_the_command_runs(run: Run) -> None:
    code = f"import os; print(os.listdir({str(run.paths.attempt(1).nodes)!r}))"
    started = run.launch(sys.executable, "-c", code)
    sight = run.ended(started)
    assert f"{NODE}.keeper.json" in Path(started.paths.log(NODE)).read_text()
    (node,) = sight.nodes
    assert node.keeper is not None
    assert node.keeper.keeper.nonce == started.nonce
    assert node.keeper.keeper.place == this_host()


def test_an_order_to_stop_that_is_there_before_keeps_the_command_from_beginning(run: Run) -> None:
    plan = run.plan("bash", "-c", "touch began")
    epoch = run.epoch(plan.command)
    paths = run.paths.attempt(epoch.number)

    # The order comes between the making of the folders and the keeper's start.
    class Ordering(FileSystem):
        def create_log(self, path: str) -> int:
            order_stop(paths, by="a test")
            return super().create_log(path)

    started = launch(paths, plan, epoch, environment={}, fs=Ordering())
    run.launches.append(started)

    (end,) = run.ended(started).ends
    assert end.told_to_stop
    assert "before it began" in end.why
    assert not (run.work / "began").exists()


def test_a_number_is_launched_once(run: Run) -> None:
    plan = run.plan("true")
    epoch = run.epoch(plan.command)
    paths = run.paths.attempt(epoch.number)
    run.launches.append(launch(paths, plan, epoch, environment={}))
    with pytest.raises(AttemptExistsError, match="launched before, or was closed"):
        launch(paths, plan, epoch, environment={})
    run.ended(run.launches[-1])


def test_several_nodes_need_a_slurm_job(run: Run) -> None:
    plan = run.plan("true", nodes=2)
    epoch = run.epoch(plan.command)
    with pytest.raises(ConfigError, match="no Slurm job"):
        launch(run.paths.attempt(1), plan, epoch, environment={})
    assert not Path(run.paths.attempt(1).folder).exists()


def test_an_order_on_disk_alone_stops_it_within_its_grace(run: Run) -> None:
    started = run.python(DEAF)
    order_stop(started.paths, by="a test", grace_s=0.0)
    (end,) = run.ended(started).ends
    assert (end.told_to_stop, end.clean, end.signal) == (True, True, signal.SIGKILL)


def test_what_a_command_leaves_behind_is_stopped_before_its_end_is_told(run: Run) -> None:
    started = run.launch("bash", "-c", "setsid sleep 600 & setsid sleep 601 & exit 3")
    (end,) = run.ended(started).ends
    assert (end.exit_code, end.clean, end.leftovers) == (3, True, 2)
    wait_until(lambda: not find_by_nonce(started.nonce), "the keeper has left")


def test_a_warning_signal_of_slurm_does_not_end_the_keeper(run: Run) -> None:
    started = run.python(PLAIN)
    (node,) = started.look().nodes
    assert node.keeper is not None
    pid = node.keeper.keeper.process.pid
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        os.kill(pid, number)
    os.kill(pid, signal.SIGTERM)
    (end,) = run.ended(started).ends
    assert (end.told_to_stop, end.signal) == (True, signal.SIGTERM)


def test_a_keeper_that_is_killed_is_a_loss_and_no_end(run: Run) -> None:
    started = run.python(PLAIN)
    (node,) = started.look().nodes
    assert node.keeper is not None
    os.kill(node.keeper.keeper.process.pid, signal.SIGKILL)
    wait_until(lambda: started.look().whole is Whole.LOST, "the loss is seen")
    sight = started.look()
    assert sight.ends == ()
    assert "told no end" in sight.why
    assert find_by_nonce(started.nonce), "the command itself lives on, and is found by its nonce"


def test_records_that_cannot_be_read_make_a_launch_unknown(run: Run) -> None:
    started = run.python(PLAIN)
    Path(started.paths.ended("other")).write_bytes(b'{"node": "oth')
    sight = started.look()
    assert sight.whole is Whole.UNKNOWN
    assert "cannot be read" in sight.why
