"""Origins: what `stamp` writes beside a file, what it refuses, and what `read_origin` refuses."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetcraft.errors import DataError, UsageError
from fleetcraft.evidence import stamp
from fleetcraft.evidence.records import Kind, Origin, Producer
from fleetcraft.evidence.tracing.origins import kind_of, read_origin
from fleetcraft.layout.evidence import origin_file
from tests.evidence.project import Flaky


@pytest.fixture
def figure(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/numbers.csv").write_text("a,b\n1,2\n")
    (tmp_path / "figures").mkdir()
    path = tmp_path / "figures/score.svg"
    path.write_text("<svg/>\n")
    return path


def numbers(figure: Path) -> Path:
    return figure.parent.parent / "data/numbers.csv"


def test_an_origin_says_what_a_figure_was_made_from(figure: Path) -> None:
    origin = stamp(str(figure), [str(numbers(figure))], made_by="python plot.py")
    assert read_origin(str(figure)) == origin
    assert msgspec.json.decode(Path(origin_file(str(figure))).read_bytes())["schema"] == (
        "fleetcraft.origin/1"
    )
    assert (origin.kind, origin.made_by) == (Kind.FIGURE, "python plot.py")
    assert origin.sha256 == hashlib.sha256(figure.read_bytes()).hexdigest()
    (source,) = origin.sources
    assert (source.path, source.kind) == ("../data/numbers.csv", Kind.TABLE)
    assert (source.size_bytes, source.sha256) == (
        numbers(figure).stat().st_size,
        hashlib.sha256(numbers(figure).read_bytes()).hexdigest(),
    )


def test_the_same_file_from_the_same_has_the_same_origin(figure: Path) -> None:
    source = (str(numbers(figure)), Kind.TELEMETRY)
    stamp(str(figure), [source], made_by="x")
    first = Path(origin_file(str(figure))).read_bytes()
    stamp(str(figure), [source], made_by="x")
    assert Path(origin_file(str(figure))).read_bytes() == first
    assert sorted(path.name for path in figure.parent.iterdir()) == [
        "score.svg",
        "score.svg.origin.json",
    ]


def test_an_origin_holds_no_absolute_path(figure: Path) -> None:
    stamp(str(figure), [str(numbers(figure))], made_by="x", producer=Producer(task="gen"))
    assert str(figure.parent.parent) not in Path(origin_file(str(figure))).read_text()


def test_inside_a_task_the_task_is_the_producer(
    figure: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("FLEET_TASK", "plot-1"),
        ("FLEET_ATTEMPT", "2"),
        ("FLEET_OWNER", "7.0.0.abc-1"),
        ("FLEET_ROOT", "/scratch/me"),
        ("FLEET_SPOOL", "/scratch/me/taskq"),
    ):
        monkeypatch.setenv(name, value)
    producer = stamp(str(figure), [], made_by="x").producer
    assert (producer.task, producer.attempt, producer.spool) == ("plot-1", 2, "taskq")


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["figures/score.svg"], "its own source"),
        (["data/numbers.csv", "figures/../data/numbers.csv"], "named twice"),
        (["data/numbers.csv.origin.json"], "an origin itself"),
    ],
)
def test_what_cannot_be_a_source_is_refused(
    figure: Path, sources: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(figure.parent.parent)
    with pytest.raises(UsageError, match=said):
        stamp("figures/score.svg", list(sources), made_by="x")
    assert not os.path.exists(origin_file(str(figure)))


def test_a_source_that_is_not_there_leaves_no_origin(figure: Path) -> None:
    with pytest.raises(DataError, match="gone.csv"):
        stamp(str(figure), [str(figure.parent / "gone.csv")], made_by="x")
    assert not os.path.exists(origin_file(str(figure)))


def test_a_pipe_is_no_source_and_is_not_waited_for(figure: Path) -> None:
    os.mkfifo(figure.parent / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        stamp(str(figure), [str(figure.parent / "pipe")], made_by="x")


@pytest.mark.parametrize("operation", ["create", "replace"])
def test_a_full_disk_leaves_the_origin_that_stood_there(figure: Path, operation: str) -> None:
    before = stamp(str(figure), [], made_by="before")
    fs = Flaky(operation, done=False, code=errno.ENOSPC)
    with pytest.raises(DataError, match="No space left"):
        stamp(str(figure), [str(numbers(figure))], made_by="after", fs=fs)
    assert read_origin(str(figure)) == before
    assert len(list(figure.parent.iterdir())) == 2


def test_a_rename_that_happened_though_it_was_reported_as_failed_counts(figure: Path) -> None:
    fs = Flaky("replace", done=True, code=errno.EIO)
    origin = stamp(str(figure), [str(numbers(figure))], made_by="x", fs=fs)
    assert read_origin(str(figure)) == origin


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("n1_job7_20270115T070000Z.csv", b"timestamp\n", Kind.TELEMETRY),
        ("window.json", b'{\n "kind": "gpu_telemetry_window"}', Kind.SUMMARY),
        ("comparison.json", b'{"schema": "fleetcraft.comparison/1"}', Kind.SUMMARY),
        ("calibration.json", b'{\n "schema": "fleetcraft.calibration/1"}', Kind.SUMMARY),
        ("late.json", b"[" + b" " * 9000 + b',"fleetcraft.calibration/1"]', Kind.SUMMARY),
        ("w.jsonl", b'{"sha256":"x","record":{"schema":"fleetcraft.result/1"}}', Kind.RESULTS),
        ("w.jsonl", b'{"event":"arrive"}\n', Kind.JOURNAL),
        ("t.sh", b"#!/usr/bin/env bash\n#FLEET name: t\n", Kind.TASK),
        ("t.sh", b"#!/usr/bin/env bash\necho\n", Kind.CODE),
        ("t.json", b"{}", Kind.OTHER),
        ("a.PNG", b"", Kind.FIGURE),
        ("clip.mp4", b"", Kind.VIDEO),
        ("batch-table.yaml", b"schema: fleetcraft.batch-table/1\n", Kind.TABLE),
        ("fleet.yaml", b"root: x\n", Kind.CONFIG),
    ],
)
def test_a_kind_is_told_by_name_and_first_bytes(
    tmp_path: Path, name: str, content: bytes, kind: Kind
) -> None:
    (tmp_path / name).write_bytes(content)
    assert kind_of(str(tmp_path / name)) is kind


def test_a_file_without_an_origin_has_none(figure: Path) -> None:
    assert read_origin(str(figure)) is None


@pytest.mark.parametrize("path", ["/etc/passwd", "", "a\0b"])
def test_an_origin_that_names_no_relative_path_is_refused(figure: Path, path: str) -> None:
    value = {"size_bytes": 1, "sha256": "x", "sources": [{"path": path, "size_bytes": 1}]}
    value["sources"][0]["sha256"] = "y"  # type: ignore[index]
    Path(origin_file(str(figure))).write_bytes(msgspec.json.encode(value))
    with pytest.raises(DataError, match="not relative"):
        read_origin(str(figure))


def test_an_origin_of_another_schema_is_refused(figure: Path) -> None:
    origin = Origin(schema="fleetcraft.origin/9", size_bytes=0, sha256="")
    Path(origin_file(str(figure))).write_bytes(msgspec.json.encode(origin))
    with pytest.raises(DataError, match="origin/9"):
        read_origin(str(figure))


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.binary(max_size=200) | st.just(b"[" * 5000))
def test_any_bytes_are_an_origin_or_refused(figure: Path, data: bytes) -> None:
    Path(origin_file(str(figure))).write_bytes(data)
    with contextlib.suppress(DataError):
        assert isinstance(read_origin(str(figure)), Origin)
