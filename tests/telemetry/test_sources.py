"""Which files there are at a place, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.errors import DataError
from fleetcraft.telemetry.reading.sources import find_sources
from tests.telemetry.traces import archive_row, our_row, write_archive, write_ours


def test_sources_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        write_archive(tmp_path, name, [])
    (tmp_path / "forwards").mkdir()
    found = find_sources(str(tmp_path))
    assert [source.name for source in found.sources] == ["a.csv", "b.csv"]
    assert found.refused == ()


def test_node_job_and_start_come_from_the_name(tmp_path: Path) -> None:
    write_ours(tmp_path, [], node="a_jobb", job="71")
    (source,) = find_sources(str(tmp_path)).sources
    assert (source.node, source.job, source.started) == ("a_jobb", "71", "20260717T120000Z")


def test_an_archive_is_called_by_its_stem_and_has_no_job(tmp_path: Path) -> None:
    path = write_archive(tmp_path, "host04.csv", [archive_row(0)])
    for place in (tmp_path, path):
        (source,) = find_sources(str(place)).sources
        assert (source.node, source.job, source.path) == ("host04", "", str(path))
        assert (source.sidecar, source.sidecar_problem) == (None, "")


def test_a_sidecar_tells_interval_inventory_and_end(tmp_path: Path) -> None:
    gpus = [{"index": 0, "uuid": "GPU-1", "name": "A", "mem_total_mib": 40960.0, "mig": ["MIG-1"]}]
    write_ours(
        tmp_path,
        [our_row(0)],
        sidecar={"interval_s": 10.0, "ended_at": None, "gpus": gpus, "driver": None},
    )
    (source,) = find_sources(str(tmp_path)).sources
    assert source.sidecar is not None
    assert (source.sidecar.interval_s, source.sidecar.ended_at) == (10.0, None)
    assert source.sidecar.gpus[0].uuid == "GPU-1"
    assert source.sidecar.expected_gpus is None


@pytest.mark.parametrize("interval_s", [0, -5, None])
def test_an_interval_that_cannot_be_is_none(tmp_path: Path, interval_s: object) -> None:
    write_ours(tmp_path, [], sidecar={"interval_s": interval_s})
    (source,) = find_sources(str(tmp_path)).sources
    assert source.sidecar is not None
    assert source.sidecar.interval_s is None


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"\xff\xfe", b'{"interval_s": "soon"}', b"[" * 100_000]
)
def test_a_damaged_sidecar_is_a_problem_and_the_rows_are_still_a_source(
    tmp_path: Path, text: bytes
) -> None:
    write_ours(tmp_path, [our_row(0)]).with_suffix(".json").write_bytes(text)
    (source,) = find_sources(str(tmp_path)).sources
    assert source.sidecar is None
    assert source.sidecar_problem.startswith("sidecar not understood")


def test_a_missing_sidecar_is_a_problem_of_our_files_alone(tmp_path: Path) -> None:
    write_ours(tmp_path, [])
    write_archive(tmp_path, "host01.csv", [])
    problems = {
        source.node: source.sidecar_problem for source in find_sources(f"{tmp_path}").sources
    }
    assert problems == {"n1": "no sidecar", "host01": ""}


def test_json_beside_an_archive_is_no_sidecar(tmp_path: Path) -> None:
    write_archive(tmp_path, "host01.csv", []).with_suffix(".json").write_text('{"interval_s": 1}')
    (source,) = find_sources(str(tmp_path)).sources
    assert source.sidecar is None


def test_what_is_no_regular_file_is_refused_and_the_others_are_found(tmp_path: Path) -> None:
    write_archive(tmp_path, "good.csv", [])
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "nowhere.csv").symlink_to(tmp_path / "gone")
    write_archive(tmp_path, "._host.csv", [])
    found = find_sources(str(tmp_path))
    assert [source.name for source in found.sources] == ["good.csv"]
    assert {os.path.basename(path): reason for path, reason in found.refused} == {
        "folder.csv": "not a regular file",
        "pipe.csv": "not a regular file",
        "nowhere.csv": "No such file or directory",
        "._host.csv": "a hidden file",
    }


def test_a_sidecar_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(write_ours(tmp_path, [our_row(0)]).with_suffix(".json"))
    (source,) = find_sources(str(tmp_path)).sources
    assert "no regular file" in source.sidecar_problem


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    write_archive(tmp_path, "a.csv", []).chmod(0)
    assert find_sources(str(tmp_path)).refused == (
        (str(tmp_path / "a.csv"), "no permission to read it"),
    )


def test_a_place_that_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file or directory; nothing was read") as caught:
        find_sources(str(tmp_path / "gone"))
    assert caught.value.hint
