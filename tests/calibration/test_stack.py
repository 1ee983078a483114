"""What a stack says of itself, in this process and as the program that workers start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.batch_table.records import allocator_settings
from fleetcraft.calibration.stack import cpu_name, describe_stack
from fleetcraft.errors import DeviceError, UsageError
from tests.worker.harness import REPO

torch = pytest.importorskip("torch")
PROGRAM = [sys.executable, "-m", "fleetcraft.calibration.stack", "--json"]


def ask(*words: str, **env: str) -> Any:
    done = subprocess.run(
        [*PROGRAM, *words],
        env={**os.environ, "PYTHONPATH": str(REPO), "CUDA_VISIBLE_DEVICES": "", **env},
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_cpu_is_called_by_its_model_and_has_no_memory_of_its_own() -> None:
    here = describe_stack("cpu")
    assert here.device == cpu_name()
    assert here.device.startswith("cpu ")
    assert here.device_mem_mib is here.power_limit_w is None
    assert here.torch == torch.__version__
    assert here.cpus == len(os.sched_getaffinity(0))
    assert here.python == ".".join(map(str, sys.version_info[:3]))


def test_the_attention_that_is_pinned_is_the_one_that_is_told() -> None:
    from fleetcraft.calibration.checks.sdpa import pinned, usable_backends

    usable = [name for name, why in usable_backends("cpu").items() if not why]
    assert "math" in usable
    for name in usable:
        with pinned(name, "cpu"):
            assert describe_stack("cpu").sdpa == name


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_auto_is_the_cpu_and_cuda_an_error() -> None:
    assert describe_stack("auto").device == cpu_name()
    with pytest.raises(DeviceError, match="cannot use 'cuda:1'"):
        describe_stack("cuda:1")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda1:", ""])
def test_a_device_of_no_name_is_an_error(device: str) -> None:
    with pytest.raises(UsageError, match="no device"):
        describe_stack(device)


def test_the_program_says_the_same_as_the_function() -> None:
    said = ask(PYTORCH_ALLOC_CONF="a:b", PYTORCH_CUDA_ALLOC_CONF="c:d")
    here = describe_stack("cpu")
    assert (said["device"], said["torch"], said["sdpa"]) == (here.device, here.torch, here.sdpa)
    assert said["alloc"] == "a:b"


def test_a_python_without_torch_says_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')\n")
    said = ask(PYTHONPATH=f"{tmp_path}:{REPO}")
    assert (said["torch"], said["device"]) == ("", cpu_name())


def test_a_torch_that_cannot_be_loaded_is_an_error_and_no_absence(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: not found')\n")
    said = ask(PYTHONPATH=f"{tmp_path}:{REPO}")
    assert "torch" not in said
    assert "libcudart" in said["error"]


def test_the_program_ends_at_its_limit_whatever_hangs(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)\n")
    done = subprocess.run(
        [*PROGRAM, "--limit", "0.2"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPO}"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode < 0
    assert done.stdout == b""


def test_the_first_variable_of_the_allocator_that_is_set_counts() -> None:
    old, new = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
    assert allocator_settings({}) == ""
    assert allocator_settings({old: "x"}) == "x"
    assert allocator_settings({old: "x", new: "y"}) == "y"
    assert allocator_settings({old: "x", new: ""}) == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD EPYC  9654\nmodel name\t: Other\n",
            "cpu AMD EPYC 9654",
        ),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", f"cpu {os.uname().machine} 0x41 0xd4f"),
        ("", f"cpu {os.uname().machine}"),
    ],
)
def test_a_processor_is_named_as_the_kernel_names_it(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_name(str(tmp_path / "cpuinfo")) == name
    assert cpu_name(str(tmp_path / "nowhere")) == f"cpu {os.uname().machine}"
