"""Files near their purge age, by the newest of their times, and the records that refer to them."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetcraft.caches.purge import GoneFile, near_purge, referred_files
from fleetcraft.evidence.files.archive import archive
from fleetcraft.evidence.files.keeping import keep_manifest, keep_receipt
from fleetcraft.evidence.files.manifest import make_manifest
from fleetcraft.layout.evidence import EvidencePaths, origin_file
from fleetcraft.view.caches_models import purge_shape, render_purge
from fleetcraft.view.text import Paint

DAY_S = 86400.0
NOW_S = time.time() + 100 * DAY_S
"""All files of these tests are about a hundred days old: the time of change cannot be set."""


def aged(path: Path, days: float, *, read_days: float | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 10)
    read_s = NOW_S - (days if read_days is None else read_days) * DAY_S
    os.utime(path, (read_s, NOW_S - days * DAY_S))
    return path


def test_the_newest_of_the_times_counts(tmp_path: Path) -> None:
    changed = aged(tmp_path / "changed", 5)
    read = aged(tmp_path / "read", 400, read_days=6)
    aged(tmp_path / "new", 1)

    report = near_purge([str(tmp_path)], 10, NOW_S, warn_days=4)

    found = {item.path: (item.newest, round(item.idle_days)) for item in report.near}
    kept = os.statvfs(tmp_path).f_flag & os.ST_NOATIME == 0
    expected = {str(changed): ("mtime", 5)} | ({str(read): ("atime", 6)} if kept else {})
    assert {path: found[path] for path in expected} == expected
    assert (report.looked_at, report.atime_kept) == (3, kept)


def test_what_is_due_has_less_than_no_days_left(tmp_path: Path) -> None:
    aged(tmp_path / "old", 500)

    (item,) = near_purge([str(tmp_path)], 10, NOW_S).near

    # 500 days by its own times; by that of its last change, which nobody can set, a hundred.
    assert (item.newest, round(item.idle_days), round(item.left_days)) == ("ctime", 100, -90)


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = aged(tmp_path / "outside/big", 500)
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/link").symlink_to(outside.parent)
    (tmp_path / "inside/file").symlink_to(outside)

    assert near_purge([str(tmp_path / "inside")], 10, NOW_S).looked_at == 0


def test_what_cannot_be_looked_at_is_unknown(tmp_path: Path) -> None:
    file = aged(tmp_path / "file", 500)

    report = near_purge([f"{file}/below"], 10, NOW_S)

    assert (len(report.unknown), report.looked_at) == (1, 0)


def test_a_bounded_list_keeps_what_records_refer_to_and_then_the_oldest(tmp_path: Path) -> None:
    for n in range(20):
        aged(tmp_path / f"f{n:02d}", n + 10)
    wanted = str(tmp_path / "f00")

    report = near_purge(
        [str(tmp_path)], 40, NOW_S, warn_days=5, referred={wanted: ("m.json",)}, most=3
    )

    assert [os.path.basename(item.path) for item in report.near] == ["f00", "f19", "f18"]
    assert (report.near_files, report.near[0].referred_by) == (20, ("m.json",))


def test_evidence_names_what_it_refers_to(tmp_path: Path) -> None:
    evidence = EvidencePaths(str(tmp_path / "evidence"))
    clip, row, csv = (tmp_path / name for name in ("out/clip.mp4", "results/r.json", "t/node.csv"))
    figure = tmp_path / "plots/figure.png"
    write(evidence.manifest("kept"), {"folder": "../../results", "files": [{"path": "r.json"}]})
    line = {"sha256": "0", "record": {"outputs": [{"path": "../../../out/clip.mp4"}]}}
    write(evidence.result_file("set", "w"), line, b"\n{torn")
    write(origin_file(str(figure)), {"sources": [{"path": "../t/node.csv"}]})

    found = referred_files(evidence, beside=[str(figure.parent)])

    assert found == {
        str(row): (evidence.manifest("kept"),),
        str(clip): (evidence.result_file("set", "w"),),
        str(csv): (origin_file(str(figure)),),
    }


def test_real_records_are_understood(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("a")
    made = make_manifest(str(tmp_path / "data"), name="kept")
    evidence = EvidencePaths(str(tmp_path / "evidence"))
    record = msgspec.structs.replace(made, folder="../../data")
    write(evidence.manifest("kept"), msgspec.to_builtins(record))

    assert list(referred_files(evidence)) == [str(tmp_path / "data/a.txt")]


def test_what_was_archived_and_proved_is_not_referred_to_any_more(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    kept = tmp_path / "data/a.txt"
    kept.write_text("a")
    evidence = EvidencePaths(str(tmp_path / "evidence"))
    made = make_manifest(str(tmp_path / "data"), name="kept")
    keep_manifest(evidence, made, str(tmp_path / "data"))
    figure = origin_file(str(tmp_path / "evidence/figure.svg"))
    write(figure, {"sources": [{"path": "../data/a.txt", "sha256": made.files[0].sha256}]})
    assert len(referred_files(evidence)[str(kept)]) == 2

    keep_receipt(evidence, archive(made, str(tmp_path / "data"), str(tmp_path / "archive")).receipt)

    assert referred_files(evidence) == {}
    write(figure, {"sources": [{"path": "../data/a.txt", "sha256": "0" * 64}]})
    assert referred_files(evidence) == {str(kept): (figure,)}


def test_a_file_that_a_record_refers_to_and_that_is_gone_is_told(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")

    report = near_purge([gone], 10, NOW_S, referred={gone: ("m.json",)})

    assert (report.gone, report.near_files) == ((GoneFile(path=gone, referred_by=("m.json",)),), 0)


def test_text_and_json_name_files_and_records_without_raw_escapes(tmp_path: Path) -> None:
    old = aged(tmp_path / "old\x1b[31m.csv", 500)
    gone = str(tmp_path / "gone")
    referred = {str(old): ("m.json", "n.json"), gone: ("m.json",)}
    report = near_purge([str(tmp_path), gone], 10, NOW_S, referred=referred)

    text = render_purge(report, "evidence", paint=Paint(on=False))
    shape = purge_shape(report)

    assert "evidence: 1 file of 1 idle for 7 days or more, 10 B" in text
    assert "due  idle 100" in text
    assert "<- m.json and 1 more" in text
    assert f"gone {gone}  <- m.json" in text
    assert "\x1b" not in text
    assert shape["near"][0]["referred_by"] == ["m.json", "n.json"]
    assert shape["gone"] == [{"path": gone, "referred_by": ["m.json"]}]


def test_a_file_that_vanishes_meanwhile_says_nothing_about_those_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        aged(tmp_path / f"old-{number}", 500)
    second = os.listdir(tmp_path)[1]
    ask = os.statvfs

    def purge_the_second(path: str) -> os.statvfs_result:
        (tmp_path / second).unlink()
        return ask(path)

    monkeypatch.setattr(os, "statvfs", purge_the_second)

    assert near_purge([str(tmp_path)], 10, NOW_S).looked_at == 3


def test_lists_are_bounded_and_say_what_they_leave_out(tmp_path: Path) -> None:
    for number in range(4):
        aged(tmp_path / f"old-{number}", 500)
    lost = [str(tmp_path / f"gone-{number}") for number in range(3)]
    referred = {path: ("m.json",) for path in lost}
    report = near_purge([str(tmp_path), *lost], 10, NOW_S, referred=referred)

    text = render_purge(report, "hub", paint=Paint(on=False), limit=1)
    shape = purge_shape(report, limit=1)

    assert "... and 3 more\n" in text
    assert text.endswith("... and 2 more that are gone")
    assert (len(shape["near"]), shape["near_left_out"]) == (1, 3)
    assert (len(shape["gone"]), shape["gone_left_out"]) == (1, 2)
    every = render_purge(report, "hub", paint=Paint(on=False), limit=None)
    assert "more" not in every.splitlines()[1:]
    assert sum("old-" in line for line in every.splitlines()) == 4


def write(path: str, value: object, more: bytes = b"") -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).write_bytes(msgspec.json.encode(value) + more)


def test_evidence_in_a_tree_that_a_link_leads_to_refers_to_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    deep = tmp_path / "home/me/project"
    deep.mkdir(parents=True)
    (deep / "scratch").symlink_to(tmp_path / "scratch")
    (tmp_path / "group").mkdir()
    file = aged(tmp_path / "group/a.txt", 9)
    evidence = EvidencePaths(str(deep / "scratch/evidence"))
    keep_manifest(evidence, make_manifest(str(tmp_path / "group"), name="kept"), str(file.parent))

    referred = referred_files(evidence)
    report = near_purge(referred, 10, NOW_S, referred=referred)

    assert list(referred) == [str(file)]
    assert report.gone == ()


def test_records_that_cannot_be_listed_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("a")
    evidence = EvidencePaths(str(tmp_path / "evidence"))
    keep_manifest(
        evidence, make_manifest(str(tmp_path / "data"), name="kept"), str(tmp_path / "data")
    )
    scandir = os.scandir

    def stale(path: str) -> Any:
        if path == evidence.manifests:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", stale)
    unread: list[str] = []

    assert referred_files(evidence, unread=unread) == {}
    assert len(unread) == 1
    assert evidence.manifests in unread[0]
