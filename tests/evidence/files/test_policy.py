"""What a file is, by declaration, by what it says of itself, and by its name; and who made it.

Not here: what is refused; test_manifest.py has that.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from fleetcraft.evidence.appending import append
from fleetcraft.evidence.files.manifest import make_manifest
from fleetcraft.evidence.files.policy import folded, kind_by_glob, name_problem
from fleetcraft.evidence.files.producers import files_of_results
from fleetcraft.evidence.records import Kind, Origin, Producer
from fleetcraft.layout.evidence import EvidencePaths, origin_file
from tests.evidence.folders import plant


def test_the_first_glob_that_matches_counts() -> None:
    globs = [("clips/*", Kind.VIDEO), ("*.txt", Kind.LOG), ("*", Kind.OTHER)]
    assert kind_by_glob("clips/deep/x.txt", globs) is Kind.VIDEO
    assert kind_by_glob("deep/x.txt", globs) is Kind.LOG
    assert kind_by_glob("x", globs) is Kind.OTHER
    assert kind_by_glob("x", globs[:2]) is None


def test_names_that_a_file_system_without_case_confuses_fold_to_one() -> None:
    assert folded("STRASSE") == folded("straße")
    assert folded("E\u0301") == folded("é")
    assert folded("a") != folded("b")


@pytest.mark.parametrize("path", ["a", "a b/c", "é.csv", "-x", "a%0Ab", ".hidden", "...", "日本/1"])
def test_plain_names_are_allowed(path: str) -> None:
    assert name_problem(path) is None


# ----------------------------------------------------------------------------------- producers

MADE_BY = Producer(task="clip-7", attempt=2, job="123", step="4")


def stamped(folder: Path, of: bytes) -> None:
    origin = Origin(
        kind=Kind.FIGURE,
        size_bytes=len(of),
        sha256=hashlib.sha256(of).hexdigest(),
        producer=MADE_BY,
    )
    Path(origin_file(str(folder / "plot.dat"))).write_bytes(msgspec.json.encode(origin))


def test_an_origin_says_who_made_the_file_beside_it_and_what_it_is(tmp_path: Path) -> None:
    folder = plant(tmp_path / "set", {"plot.dat": b"picture"})
    stamped(folder, b"picture")
    (plot,) = [e for e in make_manifest(str(folder), name="s").files if e.path == "plot.dat"]
    assert (plot.kind, plot.producer) == (Kind.FIGURE, MADE_BY)


def test_an_origin_of_other_content_says_nothing(tmp_path: Path) -> None:
    folder = plant(tmp_path / "set", {"plot.dat": b"another picture"})
    stamped(folder, b"picture")
    (plot,) = [e for e in make_manifest(str(folder), name="s").files if e.path == "plot.dat"]
    assert (plot.kind, plot.producer) == (Kind.OTHER, Producer())


def test_a_declared_kind_wins_over_what_an_origin_says(tmp_path: Path) -> None:
    folder = plant(tmp_path / "set", {"plot.dat": b"picture"})
    stamped(folder, b"picture")
    found = make_manifest(str(folder), name="s", kinds=[("*.dat", Kind.TABLE)])
    assert found.files[0].kind is Kind.TABLE


def test_result_records_of_the_scratch_tree_say_who_made_their_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = plant(tmp_path / "set", {"clip.dat": b"moving picture", "other.dat": b"x"})
    room = EvidencePaths(str(tmp_path / "root" / "evidence"))
    (tmp_path / "root").mkdir()
    monkeypatch.setenv("FLEET_TASK", "clip-7")
    append(
        "s", arm="full", seed=1, metrics={"score": 1.0},
        outputs=[folder / "clip.dat"], root=str(tmp_path / "root"),
    )  # fmt: skip
    records = files_of_results(room)
    assert len(records) == 1
    found = make_manifest(str(folder), name="s", records=records)
    assert [entry.producer.task for entry in found.files] == ["clip-7", ""]


def test_records_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    broken = {"a.jsonl": b'{"sha256":"' + b"\xff" * 90, "x.origin.json": b"\xff{", "x": b"1"}
    found = make_manifest(str(plant(tmp_path / "set", broken)), name="s")
    assert all(entry.producer == Producer() for entry in found.files)
