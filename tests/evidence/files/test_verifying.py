"""Verifying a folder against its manifest: every kind of difference, at every level.

Not here: archives and bags.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.evidence.files.copying import Place
from fleetcraft.evidence.files.manifest import make_manifest
from fleetcraft.evidence.files.verifying import LEVELS, Verdict, Verification, verify
from fleetcraft.evidence.records import Level
from fleetcraft.files import BulkFileSystem
from tests.evidence.folders import FILES, DisturbedFS, flip_a_bit, frozen, plant

READS = (Level.HASHED, Level.REREAD)


def changes(found: Verification) -> list[tuple[str, str]]:
    return [(each.change.value, each.path) for each in found.differences]


@pytest.mark.parametrize("level", LEVELS)
def test_an_untouched_folder_is_verified_at_the_level_that_was_asked(
    level: Level, tmp_path: Path
) -> None:
    manifest = frozen(tmp_path / "set")
    found = verify(manifest, str(tmp_path / "set"), level)
    assert (found.verdict, found.level) == (Verdict.VERIFIED, level)
    reached = LEVELS[: LEVELS.index(level) + 1]
    assert found.counts == dict.fromkeys([each.value for each in reached], len(FILES))
    assert sum(found.how.values()) == (len(FILES) if level in READS else 0)
    assert bool(found.not_checked) == (level is not Level.REREAD or bool(found.place.caveat))


Harm = Callable[[Path], object]
HARMS: dict[str, tuple[Harm, list[tuple[str, str]], tuple[Level, ...]]] = {
    "added": (lambda at: plant(at, {"b/new": b""}), [("added", "b/new")], LEVELS),
    "removed": (lambda at: (at / "run.log").unlink(), [("removed", "run.log")], LEVELS),
    "grown": (
        lambda at: (at / "run.log").write_bytes(b"longer now\n"),
        [("sized", "run.log")],
        LEVELS[1:],
    ),
    "flipped": (lambda at: flip_a_bit(at / "run.log", 2), [("changed", "run.log")], READS),
    "renamed": (
        lambda at: (at / "run.log").rename(at / "clips/ran.log"),
        [("renamed", "clips/ran.log")],
        READS,
    ),
    "renamed unseen": (
        lambda at: (at / "run.log").rename(at / "clips/ran.log"),
        [("added", "clips/ran.log"), ("removed", "run.log")],
        LEVELS[:2],
    ),
    "case": (
        lambda at: (at / "run.log").rename(at / "RUN.log"), [("case", "RUN.log")], LEVELS[:2],
    ),
    "link": (
        lambda at: ((at / "run.log").unlink(), (at / "run.log").symlink_to("a.csv")),
        [("symlink", "run.log")],
        LEVELS,
    ),
    "link of a folder": (
        lambda at: ((at / "clips").rename(at.parent / "c"), (at / "clips").symlink_to("../c")),
        [("removed", "clips/one.mp4"), ("symlink", "clips")],
        LEVELS,
    ),
    "pipe": (
        lambda at: ((at / "run.log").unlink(), os.mkfifo(at / "run.log")),
        [("special_file", "run.log")],
        LEVELS,
    ),
    "collision": (
        lambda at: plant(at, {"RUN.log": b"1"}),
        [("added", "RUN.log"), ("case_collision", "RUN.log"), ("case_collision", "run.log")],
        LEVELS,
    ),
    "bad name": (lambda at: plant(at, {"a\nb": b""}), [("bad_name", "a\nb")], LEVELS),
    "a folder in its place": (
        lambda at: ((at / "run.log").unlink(), plant(at, {"run.log/x": b"done"})),
        [("added", "run.log/x"), ("removed", "run.log")],
        LEVELS,
    ),
    "nothing but an empty folder": (lambda at: (at / "empty").mkdir(), [], LEVELS),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_every_harm_is_named_with_its_kind_and_path(harm: str, tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    act, expected, levels = HARMS[harm]
    act(tmp_path / "set")
    for level in levels:
        found = verify(manifest, str(tmp_path / "set"), level)
        assert changes(found) == expected, level
        assert found.verdict is (Verdict.REFUTED if expected else Verdict.VERIFIED)


def test_two_files_that_changed_places_are_both_named(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set", {"a": b"12", "b": b"34"})
    plant(tmp_path / "set", {"a": b"34", "b": b"12"})
    assert changes(verify(manifest, str(tmp_path / "set"), Level.HASHED)) == [
        ("changed", "a"),
        ("changed", "b"),
    ]


def test_of_several_copies_each_is_renamed_once(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set", {"a": b"same", "b": b"same", "c": b"same"})
    (tmp_path / "set/a").rename(tmp_path / "set/x")
    (tmp_path / "set/b").unlink()
    found = verify(manifest, str(tmp_path / "set"), Level.HASHED)
    assert changes(found) == [("removed", "b"), ("renamed", "x")]


def test_what_was_left_out_is_passed_over_unless_everything_is_looked_at(tmp_path: Path) -> None:
    folder = plant(tmp_path / "set", {**FILES, "m.json": b"1"})
    manifest = make_manifest(str(folder), name="set", left_out=["m.json"])
    assert verify(manifest, str(folder), Level.LISTED).verdict is Verdict.VERIFIED
    found = verify(manifest, str(folder), Level.LISTED, everything=True)
    assert changes(found) == [("added", "m.json")]


def test_a_folder_that_is_not_there_is_unverifiable_and_not_refuted(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    found = verify(manifest, str(tmp_path / "gone"), Level.HASHED)
    assert (found.verdict, found.differences) == (Verdict.UNVERIFIABLE, ())
    assert "No such file" in found.unread[0].reason


@pytest.mark.parametrize("code", ["EIO", "ESTALE", "EACCES"])
def test_whatever_cannot_be_read_is_never_verified(code: str, tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    folder = str(tmp_path / "set")
    counting = DisturbedFS(0, code)
    verify(manifest, folder, Level.REREAD, fs=counting)
    assert counting.steps > 3 * len(FILES)
    for at in range(1, counting.steps + 1):
        found = verify(manifest, folder, Level.REREAD, fs=DisturbedFS(at, code))
        assert found.verdict is Verdict.UNVERIFIABLE, at
        assert found.differences == (), at
        assert found.unread, at


class NoDirectFS(BulkFileSystem):
    """A mount without O_DIRECT; it refuses at the opening or at the reading."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at
        self.forgotten = 0
        self._direct: set[int] = set()

    def open_source(self, path: str, *, direct: bool = False) -> int:
        if direct and self.at == "open":
            raise OSError(errno.EINVAL, "no direct reads", path)
        fd = super().open_source(path)
        (self._direct.add if direct else self._direct.discard)(fd)
        return fd

    def read_into(self, fd: int, buffer: memoryview) -> int:
        if fd in self._direct:
            raise OSError(errno.EINVAL, "no direct reads")
        return super().read_into(fd, buffer)

    def forget_cached(self, fd: int) -> None:
        self.forgotten += 1
        super().forget_cached(fd)


@pytest.mark.parametrize("at", ["open", "read"])
def test_without_direct_reads_it_says_what_the_reread_was(at: str, tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    fs = NoDirectFS(at)
    found = verify(manifest, str(tmp_path / "set"), Level.REREAD, fs=fs)
    assert found.verdict is Verdict.VERIFIED
    assert found.how == {"advised": len(FILES)}
    assert fs.forgotten == len(FILES)
    assert "3 of the files had no direct reads" in found.not_checked[0]


def test_a_mount_in_memory_or_behind_a_server_is_said_to_be_one() -> None:
    assert Place(type="ext4").caveat == ""
    assert "memory" in Place(type="tmpfs").caveat
    assert "server" in Place(type="lustre").caveat
    assert "server" in Place(type="").caveat


def test_a_level_that_is_none_is_a_defect_of_the_caller(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    with pytest.raises(ValueError, match="no level"):
        verify(manifest, str(tmp_path / "set"), Level.NONE)
