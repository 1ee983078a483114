"""A frozen window: what it holds, and that it is never replaced by another."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.errors import DataError, UsageError
from fleetcraft.telemetry.windows import freeze as freezing
from fleetcraft.telemetry.windows.freeze import freeze
from fleetcraft.telemetry.windows.span import window_at
from fleetcraft.telemetry.windows.summary import Read, summarize
from tests.telemetry.journals import iso
from tests.telemetry.trees import inventory, lines, write_file

T = 1_800_000_000.0
END = T + 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "telemetry"
    for node in ("n1", "n2"):
        sidecar = {"interval_s": 30, "started_at": iso(T - 60), "gpus": inventory(0)}
        write_file(place, node, lines(T + 30, 10, util_pct=60), sidecar=sidecar)
    return place


def kept(folder: Path, **options: object) -> Read:
    window = window_at(300, iso(END), now_s=END)
    return summarize(str(folder), window, keep=True, **options)  # type: ignore[arg-type]


def frozen(folder: Path, path: Path, **options: object) -> dict[str, Any]:
    read = kept(folder, **options)
    assert read.evidence is not None
    freeze(str(path), read.summary, read.evidence, read.folder)
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def test_it_holds_the_window_its_observations_and_the_hash_of_each_source(
    folder: Path, tmp_path: Path
) -> None:
    value = frozen(folder, tmp_path / "w.json")
    assert (value["kind"], value["schema_version"]) == ("gpu_telemetry_window", 3)
    assert value["window"]["seconds"] == 300
    assert (value["summary"]["end"], value["summary"]["zone"]) == ("2027-01-15T08:05:00Z", "UTC")
    assert value["summary"]["fleet"]["mean_util_pct"] == 60
    assert value["thresholds"]["active_pct"] == 5
    (first, _) = value["sources"]
    data = (folder / first["path"]).read_bytes()
    assert first["prefix_bytes"] == len(data)
    assert first["sha256"] == hashlib.sha256(data).hexdigest()
    assert (first["kinds"], first["rejected"], first["rows_in_window"]) == ({"gpu": 10}, {}, 10)
    (observed, _) = value["observations"]
    assert observed["t_s"] == [T + 30 * n for n in range(1, 11)]
    assert observed["util_pct"] == 60  # a column of one value is that value
    assert observed["energy_j"] is None


def test_half_a_line_at_the_end_is_not_in_the_prefix(folder: Path, tmp_path: Path) -> None:
    path = next(folder.glob("n1*.csv"))
    whole = path.read_bytes()
    path.write_bytes(whole + b"2027-01-15T08:0")
    source = frozen(folder, tmp_path / "w.json")["sources"][0]
    assert source["prefix_bytes"] == len(whole)
    assert source["sha256"] == hashlib.sha256(whole).hexdigest()
    assert source["rejected"] == {"torn_tail": 1}


def test_the_same_window_frozen_again_is_the_same_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    assert frozen(folder, path) == frozen(folder, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["telemetry", "w.json"]


def test_another_window_does_not_replace_it(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    frozen(folder, path)
    before = path.read_bytes()
    write_file(folder, "n3", lines(T + 30, 10))
    with pytest.raises(DataError, match="another file has that name; it was left as it is"):
        frozen(folder, path)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot freeze the window"):
        frozen(folder, tmp_path / "nowhere" / "w.json")


def test_a_source_whose_name_is_no_text_is_refused_in_words(tmp_path: Path, folder: Path) -> None:
    (first, *_) = folder.glob("*.csv")
    first.rename(first.with_name("n\udcff.csv"))
    with pytest.raises(DataError, match="name is no text.*nothing was written"):
        frozen(folder, tmp_path / "w.json")
    assert not (tmp_path / "w.json").exists()


def test_no_path_of_this_machine_is_in_it(folder: Path, tmp_path: Path) -> None:
    (folder / "bad_job7_20270115T070000Z.csv").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = elsewhere / "w.json"
    value = frozen(folder, path, spools={"outer": str(tmp_path / "taskq")})
    assert value["folder"] == "../telemetry"
    assert value["summary"]["queue"]["problems"]
    assert value["refused"] == [["bad_job7_20270115T070000Z.csv", "not a regular file"]]
    assert str(tmp_path) not in path.read_text()


def test_a_folder_below_its_own_is_told_by_its_way_from_there(folder: Path, tmp_path: Path) -> None:
    assert frozen(folder, tmp_path / "w.json")["folder"] == "telemetry"
    assert frozen(folder, folder / "w.json")["folder"] == "."


def test_a_folder_that_shares_nothing_but_the_root_is_not_told(folder: Path) -> None:
    assert freezing._way(str(folder), "/proc/self") == ""


def test_a_window_of_too_many_rows_is_refused_before_anything_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "MAX_ROWS", 19)
    with pytest.raises(UsageError, match="a window of 20 rows is too large"):
        frozen(folder, tmp_path / "w.json")
    assert not (tmp_path / "w.json").exists()


def test_a_person_can_read_it(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    frozen(folder, path)
    text = path.read_text().splitlines()
    assert max(map(len, text)) < 600
    assert any(row.strip().startswith('"mean_util_pct": 60.0') for row in text)


def _failing(path_ends: str, real: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """A call of the system that fails for one path, so often, and then works again."""
    left = [times]

    def call(path: Any, *words: Any, **named: Any) -> Any:
        if str(path).endswith(path_ends) and left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *words, **named)

    return call


def test_a_sidecar_that_could_not_be_read_is_named_in_the_window(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(folder.glob("n1*.json")).name
    monkeypatch.setattr(os, "open", _failing(name, os.open))
    value = frozen(folder, tmp_path / "w.json")
    ((said, why),) = value["refused"]
    assert said == name
    assert why.startswith("sidecar not read: Input")
    assert value["summary"]["files_refused"] == 1


def test_reports_of_forward_calls_that_could_not_be_read_are_named_in_the_window(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "forwards").mkdir()
    (folder / "forwards" / "7.0.0.abc.jsonl").mkdir()
    value = frozen(folder, tmp_path / "w.json")
    assert [name for name, _ in value["refused"]] == ["7.0.0.abc.jsonl"]


def test_a_folder_that_cannot_be_looked_at_for_a_moment_is_no_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat
    monkeypatch.setattr(os, "stat", _failing("telemetry", real))
    with pytest.raises(DataError, match="nothing was read"):
        frozen(folder, tmp_path / "w.json")
    assert not (tmp_path / "w.json").exists()
