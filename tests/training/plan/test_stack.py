"""Versions of what a command runs with, read without importing it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from fleetcraft.training.plan.stack import (
    collect_stack,
    driver_version,
    interpreter_of,
    normal_name,
)

REPO = Path(__file__).resolve().parents[3]


def make_script(path: Path, first_line: str) -> Path:
    path.write_text(f"{first_line}\n")
    path.chmod(0o755)
    return path


def test_this_process_s_own_stack_is_read_from_what_installers_left() -> None:
    found = collect_stack(["msgspec", "PyYAML", "not-there-at-all"])

    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["interpreter"] == sys.executable
    assert found["msgspec"] == version("msgspec")
    assert found["pyyaml"] == version("pyyaml")
    assert "not-there-at-all" not in found


def test_a_star_stands_for_every_package() -> None:
    found = collect_stack(["*"])

    assert found["pytest"] == version("pytest")
    assert found["import-linter"] == version("import-linter")


def test_torch_and_its_cuda_are_read_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "torch-2.11.0+cu130.dist-info").mkdir()
    (tmp_path / "sglang-0.5.1.dist-info").mkdir()
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n"
    )
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('it was imported')\n")

    found = collect_stack(
        ["sglang"],
        command=[sys.executable, "train.py"],
        environ={**os.environ, "PYTHONPATH": str(tmp_path)},
    )

    assert (found["torch"], found["cuda"], found["sglang"]) == ("2.11.0+cu130", "13.0", "0.5.1")


def test_a_build_without_cuda_has_none(tmp_path: Path) -> None:
    (tmp_path / "torch-2.13.0+cpu.dist-info").mkdir()
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("cuda: Optional[str] = None\n")

    found = collect_stack(
        command=[sys.executable], environ={**os.environ, "PYTHONPATH": str(tmp_path)}
    )

    assert found["torch"] == "2.13.0+cpu"
    assert "cuda" not in found


def test_the_interpreter_is_that_of_the_command_s_first_program(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    os.symlink(sys.executable, folder / "python3.11")
    environ = {"PATH": str(folder)}
    python = str(folder / "python3.11")
    direct = make_script(folder / "torchrun", f"#!{sys.executable}")
    by_env = make_script(folder / "by-env", "#!/usr/bin/env python3.11")
    shell = make_script(folder / "train.sh", "#!/bin/bash")
    binary = folder / "binary"
    binary.write_bytes(b"\x7fELF")
    binary.chmod(0o755)

    assert interpreter_of(["python3.11", "x.py"], environ) == python
    assert interpreter_of([str(direct)], environ) == sys.executable
    assert interpreter_of(["torchrun"], environ) == sys.executable
    assert interpreter_of(["bin/torchrun"], environ, str(tmp_path)) == sys.executable
    assert interpreter_of([str(by_env)], environ) == python
    assert interpreter_of([str(shell)], environ) == ""
    assert interpreter_of([str(binary)], environ) == ""
    assert interpreter_of(["no-such-program"], environ) == ""
    assert interpreter_of([], environ) == ""


def test_a_command_whose_interpreter_cannot_be_told_has_no_versions(tmp_path: Path) -> None:
    script = make_script(tmp_path / "train.sh", "#!/bin/bash")

    assert set(collect_stack(["torch"], command=[str(script)])) <= {"driver"}


def test_an_interpreter_that_does_not_answer_has_no_versions(tmp_path: Path) -> None:
    broken = make_script(tmp_path / "python3", "#!/bin/false")

    assert set(collect_stack(command=[str(broken)])) <= {"driver"}


def test_the_driver_is_what_the_kernel_says(tmp_path: Path) -> None:
    told = tmp_path / "version"
    told.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Mon Jan 1\n")

    assert driver_version(str(told)) == "535.161.08"
    assert driver_version(str(tmp_path / "nowhere")) == ""


def test_names_of_packages_are_compared_in_their_normal_form() -> None:
    assert normal_name("Flash_Attn.x") == "flash-attn-x"


def test_neither_the_plan_nor_its_stack_loads_torch() -> None:
    code = (
        "import sys\n"
        "from fleetcraft.training.plan import budgets, built, ladder, preflight, rehearsal\n"
        "from fleetcraft.training.plan import run_file, stack, verification, inspection\n"
        "stack.collect_stack(['torch'])\n"
        "print([name for name in ('torch', 'numpy', 'pandas') if name in sys.modules])\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert said.stdout == "[]\n"
