"""Replacing a table: the one before stays beside it, and nobody's work is written over."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from fleetcraft.batch_table import TableWatch, make_table, read_table, write_table
from fleetcraft.errors import BatchRefusedError, DataError, TryAgainLaterError
from fleetcraft.files import FileSystem
from tests.batch_table.rows import ROW, changed, table

ONE, TWO = table(batch=1), table(batch=2)


def test_the_table_before_stays_beside_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "batch-table.yaml"
    assert write_table(str(path), ONE) == ""
    kept = write_table(str(path), TWO)
    assert kept == str(tmp_path / f"batch-table.{ONE.hash[7:19]}.yaml")
    assert read_table(kept) == ONE
    assert read_table(str(path)) == TWO
    assert write_table(str(path), TWO) == ""
    write_table(str(path), ONE)
    write_table(str(path), TWO)  # its history has that name by now
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["batch-table.yaml", *(f"batch-table.{t.hash[7:19]}.yaml" for t in (ONE, TWO))]
    )


def test_the_table_before_is_kept_also_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(_fs: FileSystem, source: str, destination: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, destination)

    path = tmp_path / "batch-table.yaml"
    write_table(str(path), ONE)
    before = path.read_bytes()
    monkeypatch.setattr(FileSystem, "link", no_links)
    kept = write_table(str(path), TWO)
    assert Path(kept).read_bytes() == before
    assert read_table(kept) == ONE


def test_a_table_that_was_written_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "t.yaml")
    write_table(path, ONE, replaces="")
    with pytest.raises(TryAgainLaterError, match="meanwhile"):
        write_table(path, TWO, replaces="")
    with pytest.raises(TryAgainLaterError):
        write_table(path, TWO, replaces=TWO.hash)
    assert read_table(path) == ONE
    write_table(path, TWO, replaces=ONE.hash)
    assert read_table(path) == TWO


def _add(path: str, name: str) -> None:
    while True:
        try:
            before = read_table(path)
            after = make_table({**before.families, name: ROW})
            write_table(path, after, replaces=before.hash)
        except TryAgainLaterError:
            continue
        return


def test_of_two_writers_at_a_time_neither_is_lost(tmp_path: Path) -> None:
    path = str(tmp_path / "t.yaml")
    write_table(path, make_table({}))
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(path, f"f{n}")) for n in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    assert [writer.exitcode for writer in writers] == [0] * 6
    assert sorted(read_table(path).families) == [f"f{n}" for n in range(6)]


def test_an_edited_table_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    write_table(str(path), ONE)
    path.write_text(path.read_text().replace("batch: 1", "batch: 9"))
    before = path.read_bytes()
    with pytest.raises(DataError, match="nothing was written over it") as caught:
        write_table(str(path), TWO)
    assert "mv " in caught.value.hint
    assert path.read_bytes() == before


def test_a_hash_that_is_not_that_of_the_rows_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing was written"):
        write_table(str(tmp_path / "t.yaml"), changed(ONE, hash=TWO.hash))
    assert not list(tmp_path.iterdir())


def test_a_watch_reads_again_only_when_the_file_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    watch = TableWatch(str(path))
    assert watch.look() is None
    write_table(str(path), ONE)
    first = watch.look()
    assert first == ONE
    assert watch.look() is first
    version = watch.version
    path.write_text(path.read_text().replace("batch: 1", "batch: 9"))
    for _ in range(2):
        with pytest.raises(BatchRefusedError, match="hash"):
            watch.look()
    assert watch.version == version + 1
    path.unlink()
    assert watch.look() is None


def test_a_watch_sees_that_only_the_permissions_were_mended(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    write_table(str(path), ONE)
    path.chmod(0o666)
    watch = TableWatch(str(path))
    with pytest.raises(BatchRefusedError, match="can write it"):
        watch.look()
    path.chmod(0o600)
    assert watch.look() == ONE


def test_a_watch_of_nothing_has_no_table() -> None:
    assert TableWatch("").look() is None


def test_a_watch_tells_that_a_table_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.yaml"
    write_table(str(path), ONE)
    watch = TableWatch(str(path))

    def out_of_descriptors(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patched:
        patched.setattr("fleetcraft.batch_table.reading.os.open", out_of_descriptors)
        for _ in range(2):
            with pytest.raises(DataError, match="Too many open files"):
                watch.look()
    refused_at = watch.version

    assert watch.look() == ONE
    assert watch.version == refused_at + 1  # by which a worker lets go what it had passed over
