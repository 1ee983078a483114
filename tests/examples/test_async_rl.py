"""The example of asynchronous RL: three ranks are one, and a kill of each part changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleetcraft.training.checkpoint import CheckpointStore, Kind, Level

torch = pytest.importorskip("torch", reason="torch is not installed")

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "docs" / "examples" / "async_rl"
FLEETCRAFT = [sys.executable, "-m", "fleetcraft"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
TOLERANCE = 1e-12
"""Largest difference of any weight, whose largest are about 3: float64 sums in another order."""
VERSIONS = 4
UNITS_A_VERSION = 8  # of 4 samples, from each of 2 producers: 64 records


def run(*words: str, cwd: Path = EXAMPLE) -> None:
    done = subprocess.run(list(words), check=False, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


def weights(path: Path) -> dict[str, Any]:
    return dict(torch.load(path, weights_only=True))


def furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.timeout(300)
def test_three_ranks_with_uneven_shares_and_masked_steps_move_the_policy_as_one_does(
    tmp_path: Path,
) -> None:
    run(sys.executable, str(HERE / "parity.py"), str(tmp_path / "one"))
    run(*TORCHRUN, str(HERE / "parity.py"), str(tmp_path / "three"))

    one, three = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "three"))
    assert three["share"] == [22, 21, 21]
    assert one["masked"] == three["masked"]
    assert one["unmasked"] == three["unmasked"]
    assert all(masked > 0 for masked in one["masked"])
    assert three["loss"] == pytest.approx(one["loss"], abs=TOLERANCE)
    moved = furthest(weights(tmp_path / "one.pt"), weights(tmp_path / "three.pt"))
    assert moved <= TOLERANCE


class Fleet:
    """Three tasks in a spool of their own, drained by three workers."""

    def __init__(self, base: Path, trainer: list[str]) -> None:
        self.root = base / "scratch"
        self.queue = self.root / "rollouts" / "count"
        self.checkpoints = base / "checkpoints"
        self._log = (base / "log").open("wb")
        self._fleetcraft("init")
        shared = ["--queue", str(self.queue), "--checkpoints", str(self.checkpoints)]
        for stream in ("a", "b"):
            self._enqueue(
                f"producer-{stream}", sys.executable, "produce.py", *shared, "--stream", stream,
                "--units", str(UNITS_A_VERSION * VERSIONS), "--lockstep", str(UNITS_A_VERSION),
            )  # fmt: skip
        self._enqueue("trainer", *trainer, "train.py", *shared, "--versions", str(VERSIONS))
        self.workers = subprocess.Popen(
            [*self._words("run"), "--workers", "3"], stdout=self._log, stderr=self._log
        )

    def _words(self, *words: str) -> list[str]:
        return [*FLEETCRAFT, "--root", str(self.root), *words]

    def _fleetcraft(self, *words: str) -> str:
        return subprocess.run(
            self._words(*words), check=True, capture_output=True, text=True, cwd=EXAMPLE
        ).stdout

    def _enqueue(self, name: str, *words: str) -> None:
        self._fleetcraft(
            "enqueue", "-n", name, "--retries", "2", "--project-dir", str(EXAMPLE), "--", *words
        )

    def version(self) -> int:
        return len(list((self.queue / "commits").glob("v*.json")))

    def await_(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 120
        while not ready():
            assert self.workers.poll() is None, f"the workers left before {what}: {self.said()}"
            assert time.monotonic() < deadline, f"no {what}: {self.said()}"
            time.sleep(0.05)

    def kill(self, *words: str, **environment: str) -> int:
        """Ends the Python process of this fleet whose command line has these words."""
        for process in psutil.Process(self.workers.pid).children(recursive=True):
            try:
                line, environ = process.cmdline(), process.environ()
            except psutil.Error:
                continue
            if "-u" in line or line[:1] == [sys.executable]:
                fits = all(word in line for word in words)
                if fits and all(environ.get(key) == value for key, value in environment.items()):
                    process.kill()
                    return process.pid
        raise AssertionError(f"no process {words} of the fleet")

    def said(self) -> str:
        self._log.flush()
        logs = (self.root / "taskq" / "logs").glob("*.log")
        return "\n".join(path.read_text()[-2000:] for path in [Path(self._log.name), *logs])

    def show(self, *words: str) -> Any:
        return json.loads(self._fleetcraft(*words, "--json"))

    def final_weights(self) -> dict[str, Any]:
        newest = CheckpointStore(self.checkpoints).newest(kind=Kind.EXACT, level=Level.HASHES)
        assert newest is not None
        assert newest.step == VERSIONS
        return weights(Path(newest.folder) / "rank-00000" / "weights.pt")

    def close(self) -> None:
        if self.workers.poll() is None:
            self.workers.terminate()
            self.workers.wait(60)
        self._log.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, list[str]], Fleet]]:
    fleets: list[Fleet] = []

    def begin(name: str, trainer: list[str]) -> Fleet:
        (tmp_path / name).mkdir()
        fleets.append(Fleet(tmp_path / name, trainer))
        return fleets[-1]

    yield begin
    for fleet in fleets:
        fleet.close()


@pytest.mark.timeout(600)
def test_a_fleet_whose_parts_are_all_killed_once_ends_with_the_same_policy(
    start: Callable[[str, list[str]], Fleet],
) -> None:
    whole = start("whole", TORCHRUN)
    assert whole.workers.wait(200) == 0, whole.said()

    cut = start("cut", TORCHRUN)
    cut.await_(lambda: cut.version() >= 1, "version 1")
    cut.kill("train.py", RANK="0")
    cut.await_(lambda: cut.version() >= 2, "version 2")
    cut.kill("produce.py", "a")
    cut.await_(lambda: cut.version() >= 3, "version 3")
    cut.kill("produce.py", "b")
    assert cut.workers.wait(200) == 0, cut.said()

    for name in ("trainer", "producer-a", "producer-b"):
        task = cut.show("show", name)
        assert task["state"] == "done"
        assert [each["outcome"] for each in task["attempts"]] == ["failed", "completed"]
    for fleet in (whole, cut):
        audit = fleet.show("rollouts", "audit", str(fleet.queue))
        assert (audit["ok"], audit["committed"], audit["duplicates"]) == (True, 64 * VERSIONS, 0)
        assert audit["quarantined"] == 0
    assert furthest(whole.final_weights(), cut.final_weights()) == 0.0  # to the last bit
    assert os.listdir(cut.queue / "pending") == []
