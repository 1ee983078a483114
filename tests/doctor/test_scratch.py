"""The scratch tree: whose it is, what it lies on, what is free, what time it is there."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Verdict
from fleetcraft.doctor.mounts import describe, mount_of, room_on
from fleetcraft.doctor.scratch import (
    check_clock,
    check_mount,
    check_place,
    check_room,
    check_semantics,
    judge_bytes,
    judge_files,
    judge_mount,
    judge_place,
    judge_skew,
    measure_skew_s,
)
from fleetcraft.files import FileSystem
from fleetcraft.fleet.guard.procfs import Mount


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir(mode=0o700)
    return made


def case_of(root: Path, fs: FileSystem | None = None, **environ: str) -> Case:
    return Case({"root": str(root), "project_dir": str(root.parent)}, environ, fs)


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [
        (0o700, Verdict.OK),
        (0o750, Verdict.ADVICE),
        (0o755, Verdict.ADVICE),
        (0o770, Verdict.WRONG),
        (0o1777, Verdict.WRONG),
    ],
)
def test_who_else_can_write_or_look_decides(root: Path, mode: int, verdict: Verdict) -> None:
    root.chmod(mode)
    found = judge_place(str(root), root.stat())
    assert found.verdict is verdict
    assert (found.hint == "") is (verdict is Verdict.OK)


def test_a_tree_of_another_user_is_wrong(root: Path) -> None:
    found = judge_place(str(root), root.stat(), uid=os.geteuid() + 1)
    assert found.verdict is Verdict.WRONG
    assert f"belongs to user {os.geteuid()}" in found.found


def test_a_file_in_place_of_the_tree_is_wrong_and_nothing_more_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (found,) = check_place(case_of(file))
    assert found.verdict is Verdict.WRONG


def test_a_hint_can_be_copied_whatever_the_tree_is_called(tmp_path: Path) -> None:
    strange = tmp_path / "a b$(touch x)"
    (missing,) = check_place(case_of(strange))
    assert missing.hint == f"fleetcraft --root '{strange}' init"
    strange.mkdir()
    strange.chmod(0o777)
    found = judge_place(str(strange), strange.stat())
    assert found.hint == f"chmod go-w '{strange}'"


def test_a_parent_that_everybody_can_write_is_wrong(root: Path) -> None:
    root.parent.chmod(0o777)
    _, parent = check_place(case_of(root))
    assert parent.name == "parent"
    assert parent.verdict is Verdict.WRONG
    root.parent.chmod(0o1777)
    assert len(list(check_place(case_of(root)))) == 1


def test_a_tree_that_is_not_there_is_told_once_with_the_command_that_makes_it(
    tmp_path: Path,
) -> None:
    case = case_of(tmp_path / "none")
    (found,) = check_place(case)
    assert found.verdict is Verdict.WRONG
    assert found.hint == f"fleetcraft --root {tmp_path}/none init"
    for other in (check_mount, check_room, check_clock):
        assert list(other(case)) == []


def test_without_a_root_there_is_one_piece_of_advice(tmp_path: Path) -> None:
    (found,) = check_place(Case({"project_dir": str(tmp_path)}, {}))
    assert found.verdict is Verdict.ADVICE
    assert "nothing of it was checked" in found.found


def test_old_trial_folders_are_told_and_young_ones_may_be_in_use(root: Path) -> None:
    old, young = root / ".probe-old", root / ".probe-young"
    old.mkdir()
    young.mkdir()
    os.utime(old, (time.time() - 7200,) * 2)
    left = list(check_place(case_of(root)))[-1]
    assert left.name == "leftovers"
    assert left.found.startswith("1 trial folder")
    assert str(old) in left.hint


# ---------------------------------------------------------------------------------- the mount


def mount(kind: str, *options: str) -> Mount:
    return Mount(root="/", point="/scratch", kind=kind, options=frozenset(options))


@pytest.mark.parametrize(
    ("kind", "options", "in_cluster", "verdict"),
    [
        ("lustre", ("rw", "flock"), True, Verdict.OK),
        ("nfs4", ("rw", "vers=4.2"), True, Verdict.OK),
        ("ext4", ("rw",), True, Verdict.ADVICE),
        ("ext4", ("rw",), False, Verdict.OK),
        ("tmpfs", ("rw",), False, Verdict.ADVICE),
        ("overlay", ("rw",), False, Verdict.ADVICE),
        ("fuse.unheard", ("rw",), True, Verdict.OK),
        ("lustre", ("ro",), True, Verdict.WRONG),
    ],
)
def test_what_a_mount_is_good_for(
    kind: str, options: tuple[str, ...], in_cluster: bool, verdict: Verdict
) -> None:
    assert judge_mount(mount(kind, *options), in_cluster=in_cluster).verdict is verdict


def test_a_mount_is_described_by_type_place_and_telling_options() -> None:
    found = describe(mount("nfs", "rw", "noatime", "soft", "vers=3", "rsize=1048576"))
    assert found == "nfs at /scratch (noatime, soft, vers=3)"


def test_the_mount_of_a_path_is_the_deepest_that_holds_it(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    lines = [("/", "ext4"), (str(tmp_path), "nfs4"), (f"{tmp_path}/other", "lustre")]
    text = "".join(f"1 1 0:1 / {at} rw - {kind} none rw\n" for at, kind in lines)
    (proc / "self" / "mountinfo").write_text(text)
    found = mount_of(str(tmp_path / "here"), str(proc))
    assert found is not None
    assert found.kind == "nfs4"


def test_noatime_with_a_purge_by_idle_days_is_advice(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fleetcraft.doctor.scratch.mount_of", lambda path: mount("lustre", "rw", "noatime")
    )
    names = [found.name for found in check_mount(case_of(root, FLEET_STORAGE_PURGE_DAYS="10"))]
    assert names == ["mount", "access times"]
    assert [found.name for found in check_mount(case_of(root))] == ["mount"]


def test_a_spool_on_another_mount_is_tried_too(root: Path) -> None:
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == root.stat().st_dev:
        pytest.skip("there is no second mount that can be written")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        case = Case({"project_dir": str(root)}, {"FLEET_ROOT": str(root), "SPOOL_DIR": other})
        names = [found.name for found in check_semantics(case)]
        assert os.listdir(other) == []
    assert names.count("rename") == names.count("rename (outer spool)") == 1


def test_room_is_what_the_system_says_and_uncounted_files_are_not_zero(root: Path) -> None:
    room = room_on(str(root))
    assert 0 < room.free_bytes <= room.total_bytes
    assert judge_bytes(0, 100).verdict is Verdict.WRONG
    assert judge_bytes(1 << 20, 1 << 40).verdict is Verdict.ADVICE
    assert judge_bytes(1 << 40, 1 << 41).verdict is Verdict.OK
    assert judge_files(0, 100).verdict is Verdict.WRONG
    assert judge_files(99, 100_000).verdict is Verdict.ADVICE
    assert judge_files(None, None).found == "this file system does not count files"


# ---------------------------------------------------------------------------------- the clock


class Stamps(FileSystem):
    """A mount whose server's clock is so many seconds ahead."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__()
        self._ahead_s = ahead_s

    def lstat(self, path: str) -> os.stat_result:
        facts = super().lstat(path)
        stamped_s = facts.st_mtime + self._ahead_s
        os.utime(path, (stamped_s, stamped_s))
        return super().lstat(path)


@pytest.mark.parametrize("ahead_s", [0.0, 30.0, -30.0, 300.0])
def test_the_skew_is_what_the_server_stamps_apart_from_the_moment_it_took(
    root: Path, ahead_s: float
) -> None:
    assert measure_skew_s(Stamps(ahead_s), str(root)) == pytest.approx(ahead_s, abs=1.0)
    assert list(root.iterdir()) == []


def test_a_slow_file_system_is_not_a_wrong_clock(root: Path) -> None:
    ticks = iter([-10.0, 10.0, -20.0, 20.0, -5.0, 5.0])
    base_s = time.time()
    assert measure_skew_s(FileSystem(), str(root), lambda: base_s + next(ticks)) == 0.0


@pytest.mark.parametrize(
    ("skew_s", "verdict"),
    [(0.0, Verdict.OK), (-1.5, Verdict.OK), (3.0, Verdict.ADVICE), (-90.0, Verdict.WRONG)],
)
def test_how_far_clocks_may_be_apart(skew_s: float, verdict: Verdict) -> None:
    found = judge_skew(skew_s)
    assert found.verdict is verdict
    assert ("behind" in found.found) is (skew_s <= 0)
