"""Who holds memory on a GPU, on the driver rig."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetcraft.gpu import processes
from fleetcraft.gpu.processes import MemoryUse, MemoryWatch
from tests.rig import Rig

GIB = 1 << 30
PROGRAM = """
import json, os, sys
from fleetcraft.errors import DeviceError
from fleetcraft.gpu.processes import MemoryWatch, gpu_of
try:
    watch = MemoryWatch(gpu_of(sys.argv[1]))
except DeviceError as error:
    print(json.dumps({"error": error.message}))
else:
    use = watch.read()
    watch.close()
    print(json.dumps({"used": use.used_bytes, "total": use.total_bytes,
        "pids": sorted(use.by_pid), "others": use.others_bytes([os.getpid()])}))
"""


def ask(rig: Rig, device: str = "cuda:1") -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, device], env=rig.env(), capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_what_others_hold_is_what_is_used_less_ones_own(tmp_path: Path) -> None:
    settings = {
        "gpus": 2, "gpu.1.mem_used_mib": 4096, "gpu.1.mem_total_mib": 8192, "gpu.1.processes": 2,
        "gpu.1.process_mem_mib": 1024,
    }  # fmt: skip
    with Rig(tmp_path, settings=settings) as rig:
        told = ask(rig)
    assert (told["used"], told["total"]) == (4 * GIB, 8 * GIB)
    assert os.getpid() in told["pids"]  # type: ignore[operator]  # the rig names caller and parent
    assert told["others"] == 3 * GIB


def test_a_process_that_the_driver_does_not_name_knows_nothing_of_others(tmp_path: Path) -> None:
    settings = {"gpus": 2, "gpu.1.mem_used_mib": 4096, "gpu.1.processes": 0}
    with Rig(tmp_path, settings=settings) as rig:
        assert ask(rig)["others"] is None


def test_a_driver_without_the_question_says_nothing(tmp_path: Path) -> None:
    settings = {"gpus": 2, "gpu.1.error.processes": 3, "gpu.1.error.memory": 3}
    with Rig(tmp_path, settings=settings) as rig:
        told = ask(rig)
    assert told == {"used": None, "total": None, "pids": [], "others": None}


def test_a_gpu_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"gpus": 2}) as rig:
        assert ask(rig, "cuda:2") == {"error": "cuda:2 is not there: 2 GPUs are visible"}


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (MemoryUse(used_bytes=100, by_pid={7: 30, 8: 20, 9: 50}), 50),
        (MemoryUse(used_bytes=40, by_pid={7: 30, 8: 20}), 0),  # shared pages are counted twice
        (MemoryUse(used_bytes=100, by_pid={7: 30, 8: None}), None),
        (MemoryUse(used_bytes=100, by_pid={9: 50}), None),
        (MemoryUse(by_pid={7: 30}), None),
    ],
)
def test_what_cannot_be_told_apart_is_unknown(use: MemoryUse, expected: int | None) -> None:
    assert use.others_bytes({7, 8}) == expected


@pytest.mark.parametrize("then", [20, 120], ids=["given back", "taken"])
def test_what_a_process_gives_back_or_takes_between_two_questions_is_nobody_elses(
    monkeypatch: pytest.MonkeyPatch, then: int
) -> None:
    used = iter([100, then])

    class Changing:
        """A driver whose only process holds all that is used, each time that it is asked."""

        binding = SimpleNamespace()

        def ask(self, name: str, *arguments: object) -> tuple[int, Any]:
            if name == "nvmlDeviceGetMemoryInfo":
                return 0, SimpleNamespace(total=200, used=next(used))
            held = [SimpleNamespace(pid=7, usedGpuMemory=then)]
            return 0, held if "Processes" in name else None

    monkeypatch.setattr(processes, "Library", Changing)
    assert MemoryWatch("GPU-0").read().others_bytes([7]) == 0
