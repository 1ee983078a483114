"""Archives: proved from the destination's bytes, whole under their name or not there at all.

Not here: the command; tests/cli/test_evidence_archive.py has that.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fleetcraft.errors import DataError, FleetError, UsageError
from fleetcraft.evidence.files.archive import archive, verify_archive
from fleetcraft.evidence.files.copying import ChangedError, NoRoomError
from fleetcraft.evidence.files.manifest import make_manifest, read_manifest
from fleetcraft.evidence.files.receipts import read_receipt, write_receipt
from fleetcraft.evidence.files.verifying import RefutedError, Verdict
from fleetcraft.evidence.records import Level
from fleetcraft.files import BulkFileSystem
from tests.crash.disturbing import folder_in_memory
from tests.evidence.folders import FILES, Cut, DisturbedFS, flip_a_bit, frozen, plant


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder in memory: hundreds of archives are forced to disk here."""
    with folder_in_memory() as made:
        yield made


def beside(final: Path) -> list[str]:
    """What is left in the folder of an archive, apart from itself."""
    return sorted(set(os.listdir(final.parent)) - {final.name, "set"})


def test_an_archive_holds_the_files_their_manifest_and_a_receipt(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    done = archive(manifest, str(tmp_path / "set"), str(tmp_path / "deep/er/arch"))
    final = tmp_path / "deep/er/arch"
    assert sorted(os.listdir(final)) == ["data", "manifest.json", "receipt.json"]
    for name, data in FILES.items():
        assert (final / "data" / name).read_bytes() == data
        assert stat.S_IMODE((final / "data" / name).stat().st_mode) & 0o222 == 0
    assert read_manifest(str(final / "manifest.json")).root_sha256 == manifest.root_sha256
    assert read_receipt(str(final / "receipt.json")) == msgspec.structs.replace(
        done.receipt,
        document_sha256=read_receipt(str(final / "receipt.json")).document_sha256,
    )
    assert done.receipt.counts == dict.fromkeys(["listed", "sized", "hashed", "reread"], 3)
    assert sum(done.receipt.how.values()) == 3
    assert done.receipt.place.type
    assert beside(final) == []


def test_others_may_read_a_copy_only_if_they_could_read_the_source(tmp_path: Path) -> None:
    folder = plant(tmp_path / "set", {"open": b"1", "private": b"2"})
    (folder / "open").chmod(0o644)
    (folder / "private").chmod(0o600)
    archive(make_manifest(str(folder), name="s"), str(folder), str(tmp_path / "arch"))
    modes = [
        stat.S_IMODE((tmp_path / "arch/data" / name).stat().st_mode) for name in ("open", "private")
    ]
    assert modes == [0o444, 0o400]


def test_the_set_of_the_seed_is_counted_to_the_file_and_byte(room: Path) -> None:
    """Source: the caching project archived 515 files of 39,376,860 bytes together."""
    count, total = 515, 39_376_860
    share, rest = divmod(total, count)
    (room / "set").mkdir()
    for number in range(count):
        with (room / "set" / f"candidate-{number:03d}.jsonl").open("wb") as file:
            file.write(b"%d\n" % number)
            file.truncate(share + (number < rest))
    manifest = make_manifest(str(room / "set"), name="caching")
    receipt = archive(manifest, str(room / "set"), str(room / "arch")).receipt
    assert (receipt.files, receipt.bytes) == (515, 39_376_860)
    assert receipt.counts == {"listed": 515, "sized": 515, "hashed": 515, "reread": 515}


def test_an_archive_that_is_there_is_verified_again_and_stays(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    first = archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"))
    again = archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"))
    assert (first.already, again.already) == (False, True)
    assert again.receipt.nonce == first.receipt.nonce


def test_an_archive_can_itself_be_archived(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    archive(manifest, str(tmp_path / "set"), str(tmp_path / "one"))
    there = read_manifest(str(tmp_path / "one/manifest.json"))
    done = archive(there, str(tmp_path / "one/data"), str(tmp_path / "two"))
    assert done.receipt.root_sha256 == manifest.root_sha256


@pytest.mark.parametrize("what", ["file", "folder", "archive"])
def test_whatever_else_has_the_name_is_left_alone(what: str, tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    final = tmp_path / "arch"
    if what == "file":
        final.write_bytes(b"mine")
    elif what == "folder":
        final.mkdir()
    else:
        other = frozen(tmp_path / "other", {"x": b"1"})
        archive(other, str(tmp_path / "other"), str(final))
    with pytest.raises(UsageError, match="something else is already at"):
        archive(manifest, str(tmp_path / "set"), str(final))
    assert beside(final) == (["other"] if what == "archive" else [])


def test_a_destination_inside_the_source_is_refused(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    (tmp_path / "way").symlink_to("set")
    for inside in ("set", "set/arch", "way/arch"):
        with pytest.raises(UsageError, match="lies inside"):
            archive(manifest, str(tmp_path / "set"), str(tmp_path / inside))


# -------------------------------------------------------------------------- a source that differs


@pytest.mark.parametrize(
    ("harm", "change"),
    [
        (lambda at: (at / "run.log").unlink(), "removed"),
        (lambda at: (at / "run.log").write_bytes(b"longer than it was"), "sized"),
        (lambda at: ((at / "run.log").unlink(), (at / "run.log").symlink_to("/etc/hostname")),
         "symlink"),
    ],
)  # fmt: skip
def test_a_source_that_differs_is_refuted_before_anything_is_copied(
    harm: Callable[[Path], object], change: str, tmp_path: Path
) -> None:
    manifest = frozen(tmp_path / "set")
    harm(tmp_path / "set")
    with pytest.raises(RefutedError) as refused:
        archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"))
    assert [each["change"] for each in refused.value.differences] == [change]
    assert "run.log" in refused.value.message
    assert os.listdir(tmp_path) == ["set"]


def test_a_bit_that_flipped_in_the_source_is_refuted_with_the_name_of_the_file(
    tmp_path: Path,
) -> None:
    manifest = frozen(tmp_path / "set")
    flip_a_bit(tmp_path / "set/clips/one.mp4", 4000)
    with pytest.raises(RefutedError, match=r"changed 'clips/one\.mp4'"):
        archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"))
    assert os.listdir(tmp_path) == ["set"]


def test_files_beside_those_of_the_manifest_are_not_copied(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    plant(tmp_path / "set", {"later.csv": b"1", "RUN.log": b"", "a\nb": b""})
    (tmp_path / "set/link").symlink_to("/etc")
    archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"))
    assert sorted(os.listdir(tmp_path / "arch/data")) == ["a.csv", "clips", "run.log"]


class GrowingFS(BulkFileSystem):
    """The source is appended to while it is copied."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def write(self, fd: int, data: bytes | memoryview) -> None:
        super().write(fd, data)
        with self.path.open("ab") as file:
            file.write(b"more")


def test_a_source_that_grows_while_it_is_copied_is_an_error_that_names_it(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set", {"run.log": b"so far"})
    with pytest.raises(ChangedError, match=r"run\.log changed while it was read"):
        archive(
            manifest, str(tmp_path / "set"), str(tmp_path / "arch"),
            fs=GrowingFS(tmp_path / "set/run.log"),
        )  # fmt: skip
    assert os.listdir(tmp_path) == ["set"]


# --------------------------------------------------------------------------- a disk that misbehaves


class FlippingFS(BulkFileSystem):
    """The destination stores one bit of one write wrongly, and says nothing."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def write(self, fd: int, data: bytes | memoryview) -> None:
        stored = bytearray(data)
        if self.left == 0:
            stored[len(stored) // 2] ^= 16
        self.left -= 1
        super().write(fd, bytes(stored))


@pytest.mark.parametrize("at", range(len(FILES)))
def test_a_destination_that_lies_is_refuted_and_gets_no_name(at: int, tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    with pytest.raises(RefutedError) as refused:
        archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"), fs=FlippingFS(at))
    assert [(d["change"], d["path"]) for d in refused.value.differences] == [
        ("changed", sorted(FILES)[at])
    ]
    assert os.listdir(tmp_path) == ["set"]


class ForgetfulFS(BulkFileSystem):
    """Stores a small record wrongly, and says nothing."""

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        super().create(path, data.replace(b"1", b"2"), mode=mode, durable=durable)


def test_a_record_that_reads_differently_publishes_nothing(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    with pytest.raises(DataError, match="does not read as it was written"):
        archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"), fs=ForgetfulFS())
    assert os.listdir(tmp_path) == ["set"]


class NotingFS(BulkFileSystem):
    """Writes down what is done to the destination, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, str]] = []

    def seal(self, fd: int, mode: int = 0o444) -> None:
        self.done.append(("seal", os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))
        super().seal(fd, mode)

    def forget_cached(self, fd: int) -> None:
        self.done.append(("forget", os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))
        super().forget_cached(fd)

    def open_source(self, path: str, *, direct: bool = False) -> int:
        if ".partial/" in path:
            self.done.append(("reread", os.path.basename(path)))
        return super().open_source(path, direct=direct)

    def sync_folder(self, path: str) -> None:
        self.done.append(("sync", re.sub(r"\.\w{8}\.partial", "", os.path.basename(path))))
        super().sync_folder(path)

    def rename_new(self, source: str, destination: str) -> None:
        self.done.append(("rename", os.path.basename(destination)))
        super().rename_new(source, destination)


def test_everything_is_on_disk_before_it_is_reread_and_before_it_gets_its_name(
    tmp_path: Path,
) -> None:
    fs = NotingFS()
    manifest = frozen(tmp_path / "set", {"a": b"1", "d/b": b"2"})
    archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"), fs=fs)
    # Who has no direct reads is advised once more, and then opens once more.
    order = [step for step in dict.fromkeys(fs.done) if step != ("sync", tmp_path.name)]
    assert order == [
        ("seal", "a"), ("forget", "a"), ("seal", "b"), ("forget", "b"),
        ("sync", "d"), ("sync", "data"),
        ("reread", "a"), ("reread", "b"),
        ("sync", "arch"), ("rename", "arch"),
    ]  # fmt: skip
    assert fs.done[-1] == ("sync", tmp_path.name)


class FullFS(BulkFileSystem):
    """A disk with so much room, which only the write finds out."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, fd: int, data: bytes | memoryview) -> None:
        super().write(fd, data[: self.room])
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_up_in_the_copy_publishes_nothing(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    with pytest.raises(NoRoomError, match="nothing was published") as refused:
        archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"), fs=FullFS(3000))
    assert refused.value.exit_code == 5
    assert refused.value.temporary == ""
    assert os.listdir(tmp_path) == ["set"]
    archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with 1 MiB and twelve inodes."""
    place = tmp_path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=12", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_real_disk_that_fills_up_has_nothing_under_the_name(
    small_disk: Path, tmp_path: Path
) -> None:
    large = frozen(tmp_path / "large", {"x": b"1" * (2 << 20)})
    with pytest.raises(NoRoomError) as refused:
        archive(large, str(tmp_path / "large"), str(small_disk / "arch"))
    assert refused.value.needed_bytes == 2 << 20
    assert refused.value.free_bytes is not None
    many = frozen(tmp_path / "many", {f"{number}": b"1" for number in range(30)})
    with pytest.raises(NoRoomError):
        archive(many, str(tmp_path / "many"), str(small_disk / "arch"))
    assert os.listdir(small_disk) == []
    few = frozen(tmp_path / "few", {"1": b"1"})
    receipt = archive(few, str(tmp_path / "few"), str(small_disk / "arch")).receipt
    assert receipt.place.type == "tmpfs"
    assert receipt.not_checked == ("this file system is memory: there is no disk to read from",)


# ------------------------------------------------------------------------------- crashes and errors

SMALL = {"a": b"12", "d/b": b"3"}


def steps_of(room: Path) -> int:
    counting = DisturbedFS(0, "cut")
    manifest = frozen(room / "set", SMALL)
    archive(manifest, str(room / "set"), str(room / "0/arch"), fs=counting)
    assert counting.steps > 40
    return counting.steps


@pytest.mark.parametrize("how", ["cut", "cut after"])
def test_a_crash_at_any_step_leaves_it_whole_or_absent_and_a_second_call_completes(
    how: str, room: Path
) -> None:
    manifest = frozen(room / "set", SMALL)
    for at in range(1, steps_of(room) + 1):
        final = room / f"{at}/arch"
        with pytest.raises(Cut):
            archive(manifest, str(room / "set"), str(final), fs=DisturbedFS(at, how))
        if final.exists():
            assert verify_archive(str(final), Level.HASHED).verdict is Verdict.VERIFIED, at
        done = archive(manifest, str(room / "set"), str(final))
        assert verify_archive(str(final), Level.HASHED).verdict is Verdict.VERIFIED, at
        assert sorted(map(os.path.basename, done.left_over)) == beside(final), at


@pytest.mark.parametrize("code", ["EIO", "ENOSPC", "ESTALE"])
def test_an_error_at_any_step_is_told_and_leaves_nothing_half_done(code: str, room: Path) -> None:
    manifest = frozen(room / "set", SMALL)
    for at in range(1, steps_of(room) + 1):
        final = room / f"{at}/arch"
        try:
            archive(manifest, str(room / "set"), str(final), fs=DisturbedFS(at, code))
        except FleetError as error:
            named = [os.path.basename(error.temporary)] if error.temporary else []
        except OSError:
            named = []  # before anything was made
        else:
            named = []
            assert verify_archive(str(final), Level.HASHED).verdict is Verdict.VERIFIED, at
        assert not final.parent.exists() or beside(final) == named, at
        if final.exists():
            assert verify_archive(str(final), Level.HASHED).verdict is Verdict.VERIFIED, at
        else:
            archive(manifest, str(room / "set"), str(final))


class LyingFS(BulkFileSystem):
    """Performs the rename, and reports that it failed."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def rename_new(self, source: str, destination: str) -> None:
        super().rename_new(source, destination)
        raise OSError(self.code, os.strerror(self.code), source)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.EEXIST])
def test_a_rename_that_happened_although_it_was_reported_as_failed_is_found(
    code: int, tmp_path: Path
) -> None:
    manifest = frozen(tmp_path / "set")
    done = archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"), fs=LyingFS(code))
    assert not done.already
    assert verify_archive(str(tmp_path / "arch"), Level.HASHED).verdict is Verdict.VERIFIED


class OvertakenFS(BulkFileSystem):
    """Somebody else publishes under the name just before the rename."""

    def __init__(self, other: Callable[[], object]) -> None:
        super().__init__()
        self.other = other

    def rename_new(self, source: str, destination: str) -> None:
        self.other()
        super().rename_new(source, destination)


def test_of_two_calls_at_once_one_publishes_and_both_are_right(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    source, final = str(tmp_path / "set"), str(tmp_path / "arch")
    fs = OvertakenFS(lambda: archive(manifest, source, final))
    assert archive(manifest, source, final, fs=fs).already
    assert beside(tmp_path / "arch") == []


def test_a_source_that_differs_makes_no_folders_above_the_archive(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    (tmp_path / "set/run.log").unlink()
    with pytest.raises(RefutedError):
        archive(manifest, str(tmp_path / "set"), str(tmp_path / "deep/arch"))
    assert os.listdir(tmp_path) == ["set"]


def test_whoever_is_overtaken_by_something_else_says_so(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    final = tmp_path / "arch"
    fs = OvertakenFS(final.mkdir)
    with pytest.raises(UsageError, match="something else"):
        archive(manifest, str(tmp_path / "set"), str(final), fs=fs)
    assert beside(final) == []


# ----------------------------------------------------------------------------- what happens to it


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    manifest = frozen(tmp_path / "set")
    archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"))
    return tmp_path / "arch"


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda at: flip_a_bit(at / "data/clips/one.mp4", 77), ("changed", "clips/one.mp4")),
        (lambda at: plant(at, {"data/new": b"1"}), ("added", "new")),
        (lambda at: plant(at, {"new": b"1"}), ("added", "../new")),
        (lambda at: (at / "data/a.csv").unlink(), ("removed", "a.csv")),
        (lambda at: (at / "data/a.csv").rename(at / "data/b.csv"), ("renamed", "b.csv")),
        (lambda at: flip_a_bit(at / "receipt.json", 30), ("record", "receipt.json")),
        (lambda at: (at / "receipt.json").unlink(), ("record", "receipt.json")),
    ],
)
def test_whatever_happens_to_an_archive_is_seen(
    harm: Callable[[Path], object], expected: tuple[str, str], archived: Path
) -> None:
    harm(archived)
    found = verify_archive(str(archived), Level.REREAD)
    assert found.verdict is Verdict.REFUTED
    assert [(each.change.value, each.path) for each in found.differences] == [expected]


@pytest.mark.parametrize("code", ["EIO", "ESTALE"])
def test_an_archive_that_cannot_be_read_is_never_refuted(code: str, archived: Path) -> None:
    counting = DisturbedFS(0, code)
    verify_archive(str(archived), Level.REREAD, fs=counting)
    for at in range(2, counting.steps + 1):  # the first is the manifest itself
        found = verify_archive(str(archived), Level.REREAD, fs=DisturbedFS(at, code))
        assert (found.verdict, found.differences) == (Verdict.UNVERIFIABLE, ()), at
    with pytest.raises(DataError, match="cannot use the manifest"):
        verify_archive(str(archived), Level.REREAD, fs=DisturbedFS(1, code))


class UnreadableFS(BulkFileSystem):
    """One source cannot be read to its end."""

    def read_into(self, fd: int, buffer: memoryview) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("set/run.log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read_into(fd, buffer)


def test_a_source_that_cannot_be_read_is_named_and_not_the_destination(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    with pytest.raises(DataError, match=r"cannot read .*set/run\.log: Input/output error"):
        archive(manifest, str(tmp_path / "set"), str(tmp_path / "arch"), fs=UnreadableFS())
    with pytest.raises(DataError, match=r"cannot be read: 'run\.log' \(Input/output error\)"):
        make_manifest(str(tmp_path / "set"), name="set", fs=UnreadableFS())


def test_a_manifest_of_an_archive_that_was_changed_cannot_be_used(archived: Path) -> None:
    flip_a_bit(archived / "manifest.json", 200)
    with pytest.raises(DataError, match=r"manifest\.json"):
        verify_archive(str(archived), Level.HASHED)


@pytest.mark.parametrize(("old", "new"), [(b'"files": 3', b'"files": 4'), (b"{\n", b"{ \n")])
def test_a_receipt_that_was_edited_and_can_still_be_read_does_not_count(
    old: bytes, new: bytes, archived: Path
) -> None:
    path = archived / "receipt.json"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    found = verify_archive(str(archived), Level.LISTED)
    assert [each.found for each in found.differences] == [
        "its text is not the one that was written"
    ]


def test_a_receipt_of_another_archive_does_not_count(archived: Path, tmp_path: Path) -> None:
    other = msgspec.structs.replace(
        read_receipt(str(archived / "receipt.json")), root_sha256="0" * 64
    )
    (archived / "receipt.json").chmod(0o600)
    (archived / "receipt.json").write_bytes(write_receipt(other))
    found = verify_archive(str(archived), Level.LISTED)
    assert [each.found for each in found.differences] == ["it is the receipt of another manifest"]


def test_a_damaged_archive_is_refuted_when_it_is_archived_to_again(
    archived: Path, tmp_path: Path
) -> None:
    flip_a_bit(archived / "data/run.log")
    manifest = frozen(tmp_path / "set")
    with pytest.raises(RefutedError, match="is damaged: changed 'run.log'"):
        archive(manifest, str(tmp_path / "set"), str(archived))


def test_an_archive_whose_files_lie_elsewhere_is_refuted(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("a")
    manifest = make_manifest(str(source), name="kept")
    copied = Path(archive(manifest, str(source), str(tmp_path / "archive")).folder)
    shutil.rmtree(copied / "data")
    (copied / "data").symlink_to(source)

    found = verify_archive(str(copied), Level.REREAD)

    assert [(each.change, each.path) for each in found.differences] == [("symlink", "../data")]
    with pytest.raises(RefutedError, match="is damaged"):
        archive(manifest, str(source), str(copied))
