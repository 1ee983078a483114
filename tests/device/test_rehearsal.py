"""run.sh without a GPU: it says so, and the same steps hold on the CPU beside a played driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig import Rig

RUN = Path(__file__).with_name("run.sh")
STEPS = (
    "log-while-working",
    "inspect",
    "rows-and-neighbours",
    "calibrate",
    "leak-is-named",
    "freeze",
    "check",
    "table-is-obeyed",
)


def call(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RUN, *words],
        env={**os.environ, "FLEET_PYTHON": sys.executable, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def test_without_a_gpu_it_says_so_and_proves_nothing(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here: run tests/device/run.sh itself")

    done = call(str(tmp_path))

    assert done.returncode == 75
    assert done.stdout.startswith("skipped: torch of ")
    assert "nothing was proved" in done.stdout


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("calibration")
def test_its_steps_hold_on_the_cpu_beside_a_played_driver(tmp_path: Path) -> None:
    settings = {"gpus": 1, "gpu.0.util": 87, "gpu.0.mem_used_mib": 1000}
    with Rig(tmp_path, settings=settings) as rig:
        variables = {**rig.env(), "FLEET_REHEARSAL": "cpu", "FLEET_BATCHES": "1"}
        done = call(str(tmp_path / "out"), **variables)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == list(STEPS)
    assert all(line.startswith("ok ") for line in done.stdout.splitlines())
