"""Computed paths against the libraries' own sources, run with the same environment.

The oracle is the installed library's text: all of huggingface_hub's constants, and the functions of
torch that need no torch. datasets and Triton are not installed; their rows are tested as written.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import string
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetcraft.caches.records import DEFAULT, Role, by_role, digest
from fleetcraft.caches.resolve import resolve
from fleetcraft.caches.roles import VARIABLES

HOME = "/home/me"
_HF = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_ASSETS_CACHE",
       "HUGGINGFACE_ASSETS_CACHE", "HF_XET_CACHE", "A", "B")  # fmt: skip
_PIECES = ("", "~", "~/x", "/scratch", "/a b", "$A", "${B}", "$NOT_SET", "x", "/", "..", "$A/$B")
_VALUE = st.lists(st.sampled_from(_PIECES), max_size=3).map("".join)


def environments(*names: str) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(names), _VALUE).map(lambda more: {"HOME": HOME, **more})


def source_of(package: str, path: str) -> Path:
    try:
        found = metadata.distribution(package).locate_file(path)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    return Path(str(found))


def in_environment(environ: dict[str, str], path: Path) -> dict[str, Any]:
    """The names that a library's module has when it is imported with this environment."""
    kept = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(environ)
        return runpy.run_path(str(path))
    finally:
        os.environ.clear()
        os.environ.update(kept)


@given(environments(*_HF))
@example({"HOME": HOME})
@example({"HOME": HOME, "HF_HOME": ""})
@example({"HOME": HOME, "HF_HOME": "$A", "A": "$B", "B": "/twice"})
@example({"HOME": HOME, "HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"})
def test_hub_paths_are_those_of_the_installed_huggingface_hub(environ: dict[str, str]) -> None:
    constants = in_environment(
        environ, source_of("huggingface_hub", "huggingface_hub/constants.py")
    )
    found = by_role(resolve(environ))
    assert found[Role.HF_HOME].path == constants["HF_HOME"]
    assert found[Role.HUB].path == constants["HF_HUB_CACHE"]
    assert found[Role.ASSETS].path == constants["HF_ASSETS_CACHE"]
    assert found[Role.XET].path == constants["HF_XET_CACHE"]
    # transformers 5 and diffusers take the hub's path, and put their modules beside it.
    assert found[Role.TRANSFORMERS].path == constants["HF_HUB_CACHE"]
    assert found[Role.MODULES].path == os.path.join(constants["HF_HOME"], "modules")


def functions_of(path: Path, names: set[str], given_names: dict[str, Any]) -> dict[str, Any]:
    """Some functions and plain constants of a module, without importing it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name in names)
        or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant))
    ]
    tree.body = list(kept)
    exec(compile(tree, str(path), "exec"), given_names)
    return given_names


@given(environments("TORCH_HOME", "XDG_CACHE_HOME", "A"))
def test_torch_hub_is_where_the_installed_torch_looks(environ: dict[str, str]) -> None:
    names = functions_of(source_of("torch", "torch/hub.py"), {"_get_torch_home"}, {"os": os})
    kept = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(environ)
        home = names["_get_torch_home"]()
    finally:
        os.environ.clear()
        os.environ.update(kept)
    assert by_role(resolve(environ))[Role.TORCH_HUB].path == os.path.join(home, "hub")


@pytest.mark.parametrize(
    "environ",
    [{}, {"USER": "ann"}, {"LOGNAME": "b/o:b", "USER": "ann"}, {"TMPDIR": "{tmp}"},
     {"TMP": "{tmp}", "USERNAME": "x"}],
)  # fmt: skip
def test_inductors_default_is_that_of_the_installed_torch(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import getpass

    path = source_of("torch", "torch/_inductor/runtime/cache_dir_utils.py")
    for name in ("TMPDIR", "TEMP", "TMP", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environ.items():
        monkeypatch.setenv(name, text.replace("{tmp}", str(tmp_path)))
    monkeypatch.setattr(tempfile, "tempdir", None)
    modules = {"os": os, "re": re, "getpass": getpass, "tempfile": tempfile}
    names = functions_of(path, {"default_cache_dir"}, {**modules, "is_fbcode": lambda: False})
    assert by_role(resolve(os.environ))[Role.INDUCTOR].path == names["default_cache_dir"]()


def test_what_decided_and_what_lost_is_told() -> None:
    environ = {"HOME": HOME, "HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}
    hub = by_role(resolve(environ))[Role.HUB]
    assert (hub.path, hub.decided_by) == ("/a", "HF_HUB_CACHE")
    assert [(lost.variable, lost.path, lost.same_role) for lost in hub.overridden] == [
        ("HUGGINGFACE_HUB_CACHE", "/b", True),
        ("HF_HOME", "/c/hub", False),
    ]
    assert by_role(resolve({"HOME": HOME}))[Role.HUB].decided_by == DEFAULT


def test_transformers_cache_decides_before_version_5_and_not_after() -> None:
    environ = {"HOME": HOME, "TRANSFORMERS_CACHE": "/t", "HF_HUB_CACHE": "/h"}
    old = by_role(resolve(environ, versions={"transformers": "4.57.1"}))[Role.TRANSFORMERS]
    new = by_role(resolve(environ, versions={"transformers": "5.24.0"}))[Role.TRANSFORMERS]
    assert (old.path, old.library) == ("/t", "transformers 4.57.1")
    assert (new.path, new.library) == ("/h", "transformers 5.24.0")
    assert [lost.variable for lost in new.overridden] == ["TRANSFORMERS_CACHE"]


def test_datasets_takes_a_dollar_as_it_stands_where_the_hub_does_not() -> None:
    environ = {"HOME": HOME, "HF_HOME": "$SCRATCH/hf", "SCRATCH": "/scratch"}
    found = by_role(resolve(environ))
    assert found[Role.HUB].path == "/scratch/hf/hub"
    assert found[Role.DATASETS].path == "$SCRATCH/hf/datasets"


@pytest.mark.parametrize(
    ("environ", "path", "decided_by"),
    [
        ({}, f"{HOME}/.triton/cache", DEFAULT),
        ({"TRITON_HOME": "/n"}, "/n/.triton/cache", "TRITON_HOME"),
        ({"TRITON_HOME": "/n", "TRITON_CACHE_DIR": "/t"}, "/t", "TRITON_CACHE_DIR"),
    ],
)
def test_triton_looks_at_its_own_folder_before_its_home(
    environ: dict[str, str], path: str, decided_by: str
) -> None:
    triton = by_role(resolve({"HOME": HOME, **environ}))[Role.TRITON]
    assert (triton.path, triton.decided_by) == (path, decided_by)


@given(st.dictionaries(st.sampled_from(sorted(VARIABLES)), st.text(string.printable, max_size=20)))
def test_every_role_has_one_path_whatever_is_set(environ: dict[str, str]) -> None:
    found = resolve(environ, home=HOME)
    assert [one.role for one in found] == list(Role)
    assert len(digest(found)) == 64


def test_the_digest_is_of_shared_paths_alone() -> None:
    plain = digest(resolve({"HOME": HOME}))
    assert digest(resolve({"HOME": HOME, "TRITON_CACHE_DIR": "/n1"})) == plain
    assert digest(resolve({"HOME": HOME, "HF_HUB_CACHE": "/other"})) != plain


def test_the_libraries_are_not_loaded_by_resolving() -> None:
    code = (
        "import sys, fleetcraft.caches.check, fleetcraft.caches.ask, fleetcraft.caches.scope\n"
        "print([n for n in ('torch','huggingface_hub','transformers') if n in sys.modules])"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    assert said == "[]\n"
