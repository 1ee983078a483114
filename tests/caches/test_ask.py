"""Libraries of another Python are asked: real ones, and programs that hang, lie, shout or die."""

from __future__ import annotations

import os
import stat
import sys
from importlib import metadata
from pathlib import Path

import pytest

from fleetcraft.caches.ask import ask
from fleetcraft.caches.records import Role, by_role
from fleetcraft.caches.resolve import resolve


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def package(folder: Path, name: str, files: dict[str, str], version: str = "9.9") -> None:
    """A library as pip leaves it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path, text in {"__init__.py": "", **files}.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(text)


def test_the_installed_libraries_say_what_was_computed(tmp_path: Path) -> None:
    try:
        versions = {name: metadata.version(name) for name in ("huggingface_hub", "transformers")}
    except metadata.PackageNotFoundError:
        pytest.skip("huggingface_hub and transformers are not installed")
    environ = {**os.environ, "HF_HOME": "$WHERE/hf", "WHERE": str(tmp_path), "HF_HUB_CACHE": "~/h"}
    asked = ask("", environ)
    assert asked.answered, asked.why
    assert versions.items() <= asked.versions.items()
    computed = by_role(resolve(environ, versions=asked.versions))
    told = {role: path for role, path in asked.paths.items() if role is not Role.DATASETS}
    assert {Role.HUB, Role.HF_HOME, Role.TRANSFORMERS, Role.MODULES} <= told.keys()
    assert told == {role: computed[role].path for role in told}


def test_triton_and_datasets_are_asked_where_they_are_installed(tmp_path: Path) -> None:
    triton = "import os\nclass cache: dir = os.environ['TRITON_CACHE_DIR']\n"
    package(tmp_path, "triton", {"knobs.py": triton}, "3.7.1")
    package(tmp_path, "datasets", {"config.py": "HF_DATASETS_CACHE = '/of/datasets'\n"})
    environ = {"PYTHONPATH": str(tmp_path), "TRITON_CACHE_DIR": "/of/triton", "PATH": os.defpath}
    asked = ask(sys.executable, environ)
    assert asked.paths[Role.TRITON] == "/of/triton"
    assert asked.paths[Role.DATASETS] == "/of/datasets"
    assert asked.versions["triton"] == "3.7.1"


def test_a_library_that_cannot_be_imported_is_a_problem_of_its_own(tmp_path: Path) -> None:
    package(tmp_path, "triton", {"knobs.py": "raise RuntimeError('no driver')\n"})
    package(tmp_path, "datasets", {"config.py": "print('hello')\nHF_DATASETS_CACHE = '/d'\n"})
    asked = ask(sys.executable, {"PYTHONPATH": str(tmp_path), "HF_HOME": "/x"})
    assert asked.answered
    assert asked.problems == {"triton": "RuntimeError: no driver"}
    assert asked.paths[Role.DATASETS] == "/d"


def test_modules_of_the_current_folder_are_not_the_tasks_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "triton", {"knobs.py": "class cache: dir = '/wrong'\n"})
    monkeypatch.chdir(tmp_path)
    asked = ask(sys.executable, {"PATH": os.defpath})
    assert asked.paths.get(Role.TRITON) != "/wrong"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exec sleep 600", "did not answer within 0.5 s"),
        ("echo 'no such module' >&2; exit 3", "no such module"),
        ("exit 3", "ended with 3 and said nothing"),
        ("echo 'fleetcraft-caches:00:[{},{},{}]'", "said nothing"),
        ('printf "%s{not json\\n" "$3"', "cannot be read"),
        ('printf "%s[{\\"hub\\": 7}, {}, {}]\\n" "$3"', "cannot be read"),
    ],
)
def test_a_program_that_does_not_answer_is_unknown(tmp_path: Path, text: str, why: str) -> None:
    limit_s = 0.5 if "sleep" in text else 60.0
    asked = ask(program(tmp_path, text), {"PATH": os.defpath}, limit_s=limit_s)
    assert not asked.answered
    assert why in asked.why
    assert asked.paths == {}


def test_a_program_that_is_not_there_is_unknown() -> None:
    asked = ask("/nowhere/python", {})
    assert not asked.answered
    assert "cannot be started" in asked.why
