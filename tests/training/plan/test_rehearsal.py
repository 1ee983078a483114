"""A launch that is only to show what is built: real keepers, real commands, nothing left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fleetcraft.errors import ConfigError, TryAgainLaterError
from fleetcraft.layout.runs import AttemptPaths, RunPaths
from fleetcraft.locks import GenerationLock, LockHeldError
from fleetcraft.training.launching.epochs import Epochs
from fleetcraft.training.launching.sights import Whole
from fleetcraft.training.launching.start import launch
from fleetcraft.training.launching.stop import stop
from fleetcraft.training.plan.built import SCHEMA, BuiltModule, BuiltReport
from fleetcraft.training.plan.records import LadderPlan, RunPlan
from fleetcraft.training.plan.rehearsal import await_built, rehearse
from fleetcraft.training.records import EPOCH_SCHEMA, Epoch, EpochKind, Knob, StopResult

REPO = Path(__file__).resolve().parents[3]
TELL = """
import json, os, sys, time
folder = os.environ["FLEET_TRAIN_BUILT"]
assert os.environ["FLEET_PREFLIGHT"] == "1"
size = int(sys.argv[1])
for rank in range(int(sys.argv[2])):
    report = {"schema": "fleetcraft.train-built/1", "rank": rank, "world_size": size,
              "node": os.environ["CHUNK"]}
    path = os.path.join(folder, f"rank-{rank:05d}.json")
    with open(path + ".tmp", "w") as file:
        json.dump(report, file)
    os.replace(path + ".tmp", path)
print("told", flush=True)
if len(sys.argv) > 3:
    time.sleep(float(sys.argv[3]))
sys.exit(0)
"""


def plan(*words: str) -> RunPlan:
    return RunPlan(
        run="drafter",
        command=(sys.executable, "-c", TELL, *words),
        grace_s=1.0,
        inner_grace_s=0.0,
        look_s=0.05,
        ladder=LadderPlan(knobs=(Knob(name="chunk", value=8, floor=2, variable="CHUNK"),)),
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    return RunPaths(str(tmp_path / "runs" / "drafter"))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def alive_with(nonce: str) -> list[int]:
    """Processes that have the nonce of a launch in their environment."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and nonce.encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def test_a_command_that_tells_and_leaves_is_waited_for(run: RunPaths) -> None:
    looks: list[float] = []

    done = rehearse(run, plan("2", "2"), within_s=60.0, tick=looks.append)

    assert done.built.is_whole
    assert (done.why, done.stopped, done.is_clean) == ("", None, True)
    assert [report.node for report in done.built.reports] == ["8", "8"]  # the knob's first value
    assert os.path.commonpath([done.folder, run.archive]) == run.archive
    assert "told" in Path(done.log_paths[0]).read_text()
    assert looks == sorted(looks)


def test_a_command_that_would_train_on_is_stopped_and_nothing_of_it_is_left(run: RunPaths) -> None:
    done = rehearse(run, plan("2", "1", "1000"), within_s=2.0)

    assert not done.built.is_whole
    assert done.why.startswith("not every rank told within")
    assert done.stopped is not None
    assert done.stopped.result is StopResult.REAPED
    nonce = os.path.basename(os.path.dirname(done.folder))
    assert alive_with(nonce) == []


def test_a_command_that_ends_before_all_have_told_says_how(run: RunPaths) -> None:
    done = rehearse(run, plan("2", "1"), within_s=60.0)

    assert done.why == "the command ended before every rank had told (exit code 0)"
    assert done.stopped is None


def test_a_program_that_is_not_there_is_said(run: RunPaths) -> None:
    missing = msgspec.structs.replace(plan(), command=("no-such-program-anywhere",))

    done = rehearse(run, missing, within_s=60.0)

    assert "the command ended before every rank had told" in done.why
    assert "no-such-program-anywhere" in done.why


def test_nothing_is_started_while_a_supervisor_has_the_run(run: RunPaths) -> None:
    for folder in (os.path.dirname(run.folder), *run.folders()):
        os.mkdir(folder, 0o700)

    with (
        GenerationLock(run.lock, purpose="decides for run drafter").acquire(),
        pytest.raises(LockHeldError),
    ):
        rehearse(run, plan("1", "1"), within_s=1.0)

    assert os.listdir(run.archive) == []


def test_nothing_is_started_beside_a_launch_that_lives_without_a_supervisor(
    run: RunPaths,
) -> None:
    for folder in (os.path.dirname(run.folder), *run.folders()):
        os.mkdir(folder, 0o700)
    sleeping = msgspec.structs.replace(plan(), command=("sleep", "1000"))
    epoch = Epoch(
        schema=EPOCH_SCHEMA,
        number=1,
        generation=1,
        run=sleeping.run,
        kind=EpochKind.LAUNCHED,
        attempt=1,
        nonce="orphaned",
        at="2026-01-01T00:00:00Z",
        why="first",
        command=sleeping.command,
        command_sha256="0" * 64,
        environment_sha256="0" * 64,
    )
    assert Epochs(run).publish(epoch)
    orphan = launch(run.attempt(1), sleeping, epoch, environment={})
    until(lambda: orphan.look().whole is Whole.RUNNING)
    try:
        with pytest.raises(TryAgainLaterError, match="lives or may live"):
            rehearse(run, plan("1", "1"), within_s=1.0)
    finally:
        assert stop(orphan, grace_s=1.0).result is StopResult.REAPED

    assert rehearse(run, plan("1", "1"), within_s=60.0).built.is_whole


def test_without_a_scratch_tree_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no scratch tree"):
        rehearse(RunPaths(str(tmp_path / "nowhere/runs/a")), plan("1", "1"), within_s=1.0)

    assert os.listdir(tmp_path) == []


def test_a_run_can_be_rehearsed_again(run: RunPaths) -> None:
    first = rehearse(run, plan("1", "1"), within_s=60.0)
    second = rehearse(run, plan("1", "1"), within_s=60.0)

    assert first.folder != second.folder
    assert second.built.is_whole


def test_waiting_for_an_attempt_ends_when_the_last_rank_has_told(tmp_path: Path) -> None:
    paths = AttemptPaths(str(tmp_path))
    os.mkdir(paths.built)

    def tell(seconds: float) -> None:
        """Each look finds one rank more."""
        rank = len(os.listdir(paths.built))
        report = BuiltReport(
            schema=SCHEMA, rank=rank, world_size=2, modules={"policy": BuiltModule()}
        )
        Path(paths.built_file(rank)).write_bytes(msgspec.json.encode(report))

    assert await_built(paths, within_s=60.0, tick=tell).is_whole
    os.unlink(paths.built_file(0))
    assert not await_built(paths, within_s=0.0).is_whole
