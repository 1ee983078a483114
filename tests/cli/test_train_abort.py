"""``fleetcraft train abort``: the marker, put once, and renamed when it is cleared."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fleetcraft.errors import FleetError
from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import RunPaths
from fleetcraft.training.supervision.entry import make_folders
from fleetcraft.training.supervision.overview import clear_abort, put_abort
from tests.cli.conftest import Fleet


@pytest.fixture
def paths(fleet: Fleet) -> RunPaths:
    paths = RunPaths(str(fleet.root / "runs" / "distill"))
    make_folders(paths, FileSystem())
    return paths


def test_the_marker_says_why_and_who_and_stays_as_it_was_first_put(
    fleet: Fleet, paths: RunPaths
) -> None:
    first = fleet.ok("train", "abort", "distill", "--reason", "shard 7", "--json").json
    second = fleet.ok("train", "abort", "distill", "--reason", "another", "--json").json

    assert (first["stands"], first["changed"], second["changed"]) == (True, True, False)
    marker = json.loads(Path(paths.abort_marker).read_text())
    assert marker["reason"] == "shard 7"
    assert f"process {os.getpid()}" in marker["requester"]


def test_clearing_keeps_the_marker_under_a_dated_name(fleet: Fleet, paths: RunPaths) -> None:
    fleet.ok("train", "abort", "distill", "--reason", "shard 7")

    cleared = fleet.ok("train", "abort", "distill", "--clear", "--json").json
    again = fleet.ok("train", "abort", "distill", "--clear").out

    assert not os.path.exists(paths.abort_marker)
    assert json.loads(Path(cleared["path"]).read_text())["reason"] == "shard 7"
    assert again == "distill: no ABORT stood\n"


def test_a_reason_is_asked_for_and_an_unknown_run_is_no_run(fleet: Fleet, paths: RunPaths) -> None:
    assert fleet("train", "abort", "distill").code == 2
    assert fleet("train", "abort", "distill", "--clear", "--reason", "x").code == 2
    assert fleet("train", "abort", "other", "--reason", "x").code == 2


def test_a_rename_that_was_reported_as_failed_is_found_out(paths: RunPaths) -> None:
    class Lying(FileSystem):
        def rename_new(self, source: str, destination: str) -> None:
            super().rename_new(source, destination)
            raise FileNotFoundError(2, "No such file or directory", source)

    put_abort(paths, "shard 7")

    assert clear_abort(paths, fs=Lying()) is not None
    assert clear_abort(paths, fs=Lying()) is None


def test_what_is_not_known_of_the_marker_is_an_error(paths: RunPaths) -> None:
    class Broken(FileSystem):
        def create(
            self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False
        ) -> None:
            raise OSError(5, "Input/output error")

    with pytest.raises(FleetError, match="whether it stands is not known"):
        put_abort(paths, "shard 7", fs=Broken())
