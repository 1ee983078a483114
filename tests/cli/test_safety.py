"""Spools that cannot or must not be used: missing, closed, or in somebody else's hands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.cli.main import main
from tests.cli.conftest import REPO, Called, Fleet, environment

NOBODY = 65534
READING = [["status"], ["show", "a"], ["logs", "a"], ["check"], ["recover"], ["promote"]]
WRITING = [
    ["enqueue", "-n", "b", "true"],
    ["cancel", "a"],
    ["retry", "a"],
    ["drain"],
    ["stop"],
    ["resume"],
    ["run"],
    ["worker", "--idle", "0"],
]

# Several calls in one process, since its start is what takes long. Everything is imported first:
# nobody may not be able to read this Python's own files.
AS_NOBODY = f"""
import io, json, os, sys, pkgutil, importlib
import difflib, graphlib, hashlib, csv, traceback, shutil
import fleetcraft.cli, fleetcraft.spool, fleetcraft.view, fleetcraft.worker, fleetcraft.config
for package in (fleetcraft.cli, fleetcraft.spool, fleetcraft.view, fleetcraft.worker):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{{package.__name__}}.{{module.name}}")
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
os.chdir("/")
results, real = [], sys.stdout
for words in json.loads(sys.argv[1]):
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO()) for _ in range(2))
    code = fleetcraft.cli.main.main(words)
    texts = []
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    results.append([code, *texts])
json.dump(results, real)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, and that belongs to nobody."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        os.chown(folder, NOBODY, NOBODY)
        yield folder


def as_nobody(*calls: list[str]) -> list[Called]:
    """What each call does as a user of no rights, in one process."""
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, json.dumps(calls)],
        cwd=REPO,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return [Called(*result) for result in json.loads(done.stdout)]


def close_to_writing(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o500)


@pytest.mark.parametrize("words", READING + WRITING, ids=" ".join)
def test_a_missing_spool_is_refused_by_every_verb(bare_fleet: Fleet, words: list[str]) -> None:
    error = bare_fleet("--json", *words).error
    assert error["exit_code"] == 5
    assert error["message"].startswith(f"no spool at {bare_fleet.spool}")
    assert "init" in error["hint"]
    assert not bare_fleet.root.exists()


@pytest.mark.parametrize("words", READING + WRITING, ids=" ".join)
@pytest.mark.parametrize("folder", ["", "pending", "pending/first", "names", "cancel"])
def test_a_folder_that_others_can_write_is_refused_by_every_verb(
    fleet: Fleet, folder: str, words: list[str]
) -> None:
    path = fleet.spool / folder
    path.chmod(0o777)
    error = fleet("--json", *words).error
    assert (error["type"], error["exit_code"]) == ("UnsafeSpoolError", 5)
    assert f"refusing {path}" in error["message"]
    assert "others can write it" in error["message"]
    assert "chmod go-w" in error["hint"]


def test_a_folder_that_is_a_link_or_a_file_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    logs = fleet.spool / "logs"
    logs.rmdir()
    logs.symlink_to(tmp_path)
    assert "it is no folder" in fleet("status").err
    logs.unlink()
    logs.write_text("")
    assert fleet("status", "--json").error["exit_code"] == 5


def test_init_repairs_a_folder_that_is_gone(fleet: Fleet) -> None:
    (fleet.spool / "done").rmdir()
    assert fleet("status").code == 5
    assert fleet.ok("init", "--json").json["made"] == [str(fleet.spool / "done")]
    fleet.ok("status")


def test_somebody_elses_spool_is_refused_by_every_verb(open_folder: Path) -> None:
    root = open_folder / "fleet"
    assert main(["--root", str(root), "init"]) == 0
    for folder in (root, *root.rglob("*")):
        folder.chmod(0o755)
    verbs = [*READING, *WRITING, ["init"]]
    results = as_nobody(*(["--root", str(root), "--json", *words] for words in verbs))
    for words, called in zip(verbs, results, strict=True):
        assert called.error["exit_code"] == 5, words
        assert "belongs to user 0" in called.error["message"], words


def test_a_read_only_spool_can_be_read_and_refuses_the_rest_in_a_sentence(
    open_folder: Path,
) -> None:
    root = open_folder / "fleet"
    reach = ["--root", str(root)]
    made = as_nobody([*reach, "init"], [*reach, "enqueue", "-n", "a", "true"])
    assert [called.code for called in made] == [0, 0]
    close_to_writing(root)
    verbs = [*READING, *WRITING]
    results = as_nobody(*([*reach, *words] for words in verbs))
    for words, called in zip(verbs, results, strict=True):
        assert "Traceback" not in called.err, words
        if words in READING or words == ["resume"]:  # which finds nothing to remove
            assert called.code == (1 if words[0] == "logs" else 0), (words, called.err)
        elif words == ["retry", "a"]:
            assert "has not failed" in called.err
        else:
            assert called.code != 0, words
            assert "ermission denied" in called.err, words


def test_a_root_that_cannot_be_made_is_refused_in_a_sentence(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    (called,) = as_nobody(["--root", str(open_folder / "fleet"), "init"])
    assert called.code == 5
    assert called.err.startswith(f"error: cannot use {open_folder}/fleet: Permission denied")


def test_a_record_that_somebody_else_could_write_is_not_shown_as_good(
    fleet: Fleet,
) -> None:
    fleet.ok("enqueue", "-n", "a", "true")
    (fleet.spool / "pending/a.sh").chmod(0o766)
    assert fleet("show", "a", "--json").error["type"] == "UnsafeSpoolError"
    assert fleet("check", "--json").json["faults"][0]["kind"] == "unreadable_record"
