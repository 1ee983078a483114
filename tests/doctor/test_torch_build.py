"""Whether torch's build fits: judged from facts, and asked of real processes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from fleetcraft.doctor.driver import DriverFacts, Gpu
from fleetcraft.doctor.findings import Finding, Verdict
from fleetcraft.doctor.torch_build import (
    TorchFacts,
    ask_torch,
    judge_archs,
    judge_build,
    judge_cuda,
    judge_library_path,
    judge_torch,
)
from fleetcraft.gpu.nvml import Versions

H100 = Gpu(name="NVIDIA H100 80GB HBM3", mem_mib=81559.0, capability=(9, 0))


def driver(cuda: str = "12.8", *gpus: Gpu) -> DriverFacts:
    return DriverFacts(versions=Versions(cuda_version=cuda), gpus=gpus or (H100,))


def facts(**given: object) -> TorchFacts:
    usual: dict[str, object] = {
        "python": "3.12.1",
        "machine": "x86_64",
        "torch": "2.9.0",
        "cuda": "12.8",
        "archs": ("sm_80", "sm_90"),
        "is_available": True,
        "devices": (("NVIDIA H100 80GB HBM3", 9, 0),),
    }
    return TorchFacts(**{**usual, **given})  # type: ignore[arg-type]


def by_name(found: TorchFacts, of: DriverFacts) -> dict[str, Finding]:
    return {finding.name: finding for finding in judge_build(found, of)}


def test_a_build_that_fits_is_well_in_every_part() -> None:
    found = by_name(facts(), driver())
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert set(found) == {"CUDA build", "device", "GPU architectures"}


@pytest.mark.parametrize(
    ("built", "most", "is_available", "verdict"),
    [
        ("12.4", "12.8", True, Verdict.OK),
        ("12.8", "12.8", True, Verdict.OK),
        ("12.8", "13.0", True, Verdict.OK),
        ("12.8", "12.2", True, Verdict.ADVICE),
        ("13.0", "12.8", False, Verdict.WRONG),
        ("13.0", "12.8", True, Verdict.ADVICE),  # a package of forward compatibility
        ("13.0", "", True, Verdict.UNKNOWN),
    ],
)
def test_a_build_is_compared_with_the_newest_cuda_of_the_driver(
    built: str, most: str, is_available: bool, verdict: Verdict
) -> None:
    assert judge_cuda(facts(cuda=built, is_available=is_available), most).verdict is verdict


def test_a_cpu_build_on_a_gpu_node_is_wrong_and_aarch64_says_how_that_happens() -> None:
    found = by_name(facts(cuda="", machine="aarch64"), driver())
    assert list(found) == ["CUDA build"]
    assert found["CUDA build"].verdict is Verdict.WRONG
    assert "aarch64" in found["CUDA build"].found
    assert "pip install" in found["CUDA build"].hint
    assert "aarch64" not in by_name(facts(cuda=""), driver())["CUDA build"].found


def test_a_cpu_build_without_a_gpu_is_well() -> None:
    found = by_name(facts(cuda=""), DriverFacts(problem="no library", is_absent=True))
    assert found["device"].verdict is Verdict.OK


def test_a_driver_that_does_not_answer_leaves_the_build_unknown() -> None:
    found = by_name(facts(), DriverFacts(problem="it refuses"))
    assert found["device"].verdict is Verdict.UNKNOWN


def test_a_device_that_torch_does_not_use_is_wrong_with_torchs_own_words() -> None:
    said = "CUDA initialization: the NVIDIA driver on your system is too old"
    found = by_name(facts(is_available=False, devices=(), said=said), driver())
    assert found["device"].verdict is Verdict.WRONG
    assert said in found["device"].found


@pytest.mark.parametrize(
    ("archs", "capability", "verdict"),
    [
        (("sm_80", "sm_90"), (9, 0), Verdict.OK),
        (("sm_80",), (8, 6), Verdict.OK),
        (("sm_86",), (8, 0), Verdict.WRONG),
        (("sm_80",), (9, 0), Verdict.WRONG),
        (("sm_80", "compute_80"), (9, 0), Verdict.ADVICE),
        (("sm_90", "compute_120"), (8, 0), Verdict.WRONG),
        (("sm_90a",), (9, 0), Verdict.OK),
        (("sm_100a",), (10, 3), Verdict.WRONG),
        (("sm_100f",), (10, 3), Verdict.OK),
        (("sm_100f",), (12, 0), Verdict.WRONG),
        (("sm_120",), (12, 1), Verdict.OK),
        (("nonsense",), (9, 0), Verdict.WRONG),
        ((), (9, 0), Verdict.UNKNOWN),
    ],
)
def test_kernels_run_on_what_they_were_built_for(
    archs: tuple[str, ...], capability: tuple[int, int], verdict: Verdict
) -> None:
    assert judge_archs(archs, {capability}).verdict is verdict


def test_one_gpu_that_has_no_kernels_is_named_among_others() -> None:
    found = judge_archs(("sm_80",), {(8, 0), (9, 0)})
    assert found.verdict is Verdict.WRONG
    assert "capability 9.0" in found.found


def test_a_library_path_of_another_cuda_is_advice() -> None:
    found = judge_library_path("/opt/cuda-12.2/lib64:/usr/local/lib")
    assert found is not None
    assert found.verdict is Verdict.ADVICE
    assert found.found.startswith("/opt/cuda-12.2/lib64:")
    assert judge_library_path("/usr/local/lib:") is None


# ------------------------------------------------------------------------------ real processes


def program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_python_that_crashes_on_import_is_wrong_with_its_last_words(tmp_path: Path) -> None:
    crashing = program(tmp_path, "echo 'libcudart.so.12: cannot open' >&2; kill -SEGV $$")
    found = judge_torch(ask_torch(crashing), crashing)
    assert found.verdict is Verdict.WRONG
    assert "signal 11" in found.found
    assert "libcudart.so.12" in found.found


def test_what_libraries_print_does_not_hide_the_answer(tmp_path: Path) -> None:
    answer = '{"python":"3.12.1","torch":"2.9.0","cuda":"12.8"}'
    chatty = program(tmp_path, f"echo a banner; echo '{answer}'")
    assert ask_torch(chatty).torch == "2.9.0"


def test_a_python_without_torch_is_advice(tmp_path: Path) -> None:
    bare = program(tmp_path, f'exec {sys.executable} -S -I "$@"')
    asked = ask_torch(bare)
    assert asked.torch == ""
    assert not asked.problem
    assert judge_torch(asked, bare).verdict is Verdict.ADVICE


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_torch_of_this_python_says_what_it_is() -> None:
    asked = ask_torch(sys.executable)
    assert asked.torch[0].isdecimal()
    assert asked.is_available is not None
    assert judge_torch(asked, sys.executable).verdict is Verdict.OK
