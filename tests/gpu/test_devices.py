"""What GPUs are called, read once from a driver that the rig plays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.build import NoCompiler
from tests.rig.rig import Rig

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    try:
        made = Rig(tmp_path)
    except NoCompiler as missing:
        pytest.skip(str(missing))
    with made:
        yield made


def ask(env: dict[str, str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "fleetcraft.gpu.devices"],
        env={**os.environ, "PYTHONPATH": str(REPO), **env},
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_every_gpu_has_name_memory_limit_and_driver(rig: Rig) -> None:
    rig.set("driver", "535.161.08")
    rig.set("gpu.1.name", "NVIDIA GH200 480GB")
    rig.set("gpu.1.mem_total_mib", 97871)
    rig.set("gpu.1.power_limit_mw", 700000)
    gpus = ask(rig.env())["gpus"]
    assert len(gpus) == 2
    assert gpus[1]["name"] == "NVIDIA GH200 480GB"
    assert gpus[1]["mem_mib"] == 97871
    assert gpus[1]["power_limit_w"] == 700
    assert gpus[1]["driver"] == "535.161.08"
    assert gpus[0]["uuid"] != gpus[1]["uuid"]


def test_only_visible_gpus_are_told_in_cudas_order(rig: Rig) -> None:
    whole = ask(rig.env())["gpus"]
    assert ask({**rig.env(), "CUDA_VISIBLE_DEVICES": "1,0"})["gpus"] == whole[::-1]
    assert ask({**rig.env(), "CUDA_VISIBLE_DEVICES": whole[1]["uuid"]})["gpus"] == whole[1:]
    assert ask({**rig.env(), "CUDA_VISIBLE_DEVICES": ""}) == {"gpus": []}


def test_a_slice_has_its_own_memory(rig: Rig) -> None:
    rig.set("gpu.0.mig", 1)
    rig.set("gpu.0.mig.0.uuid", "MIG-1")
    rig.set("gpu.0.mig.0.mem_total_mib", 4864)
    (found,) = ask({**rig.env(), "CUDA_VISIBLE_DEVICES": "MIG-1"})["gpus"]
    assert (found["uuid"], found["mem_mib"]) == ("MIG-1", 4864)


def test_a_gpu_that_does_not_say_has_no_made_up_value(rig: Rig) -> None:
    rig.set("gpu.0.error.memory", 3)
    rig.set("gpu.0.error.name", 3)
    found = ask(rig.env())["gpus"][0]
    assert (found["name"], found["mem_mib"]) == ("", None)


def test_a_driver_that_refuses_is_an_error_and_none_is_no_gpu(rig: Rig, tmp_path: Path) -> None:
    rig.set("error.init", 999)
    assert "driver" in ask(rig.env())["error"]
    rig.set("error.init", 9)  # its module is not loaded
    assert ask(rig.env()) == {"gpus": []}
