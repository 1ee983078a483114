"""Manifests: one text for one set of files, and no byte of it that can change unseen.

Not here: comparing them with files; that is in test_verifying.py.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.errors import DataError, UsageError
from fleetcraft.evidence.files.copying import ChangedError
from fleetcraft.evidence.files.manifest import (
    FileEntry,
    Manifest,
    make_manifest,
    parse_manifest,
    read_manifest,
    root_digest,
    write_manifest,
)
from fleetcraft.evidence.files.policy import Policy
from fleetcraft.evidence.records import Kind, Producer
from fleetcraft.files import BulkFileSystem
from tests.evidence.folders import FILES, frozen, plant


def test_a_manifest_names_every_file_with_its_facts_in_order(tmp_path: Path) -> None:
    found = frozen(tmp_path / "set")
    assert [entry.path for entry in found.files] == sorted(FILES)
    for entry in found.files:
        data = FILES[entry.path]
        assert (entry.size_bytes, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert found.bytes == sum(map(len, FILES.values()))
    assert [entry.kind for entry in found.files] == [Kind.TABLE, Kind.VIDEO, Kind.LOG]


def test_equal_files_have_one_root_digest_wherever_they_are(tmp_path: Path) -> None:
    one, other = frozen(tmp_path / "one"), frozen(tmp_path / "two" / "three")
    assert one.root_sha256 == other.root_sha256
    renamed = make_manifest(str(tmp_path / "one"), name="other")
    assert renamed.root_sha256 != one.root_sha256


def test_the_root_digest_is_over_lines_that_anybody_can_write(tmp_path: Path) -> None:
    found = frozen(tmp_path / "set", {"a.log": b"1"})
    digest = hashlib.sha256(b"1").hexdigest()
    policy = json.dumps(msgspec.to_builtins(Policy()), sort_keys=True, separators=(",", ":"))
    text = f'["fleetcraft.manifest/1","set",{policy}]\n["a.log",1,"{digest}","log",{{}}]\n'
    assert found.root_sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    found = frozen(tmp_path / "set")
    (tmp_path / "m.json").write_bytes(write_manifest(found))
    again = read_manifest(str(tmp_path / "m.json"))
    assert msgspec.structs.replace(again, document_sha256="") == found
    assert json.loads((tmp_path / "m.json").read_bytes())["root_sha256"] == found.root_sha256


NAMES = st.text(st.sampled_from("abcXY é."), min_size=1, max_size=6).filter(
    lambda text: text not in (".", "..")
)
ENTRIES = st.lists(
    st.builds(
        FileEntry,
        path=st.lists(NAMES, min_size=1, max_size=3).map("/".join),
        size_bytes=st.integers(0, 1 << 50),
        sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
        kind=st.sampled_from(Kind),
        producer=st.builds(Producer, job=st.text(max_size=3), attempt=st.integers(0, 9)),
    ),
    max_size=4,
    unique_by=lambda entry: entry.path.casefold(),
)


def written(entries: list[FileEntry]) -> bytes:
    files = tuple(sorted(entries, key=lambda entry: entry.path))
    return write_manifest(
        Manifest(
            name="n",
            files=files,
            bytes=sum(entry.size_bytes for entry in files),
            root_sha256=root_digest("n", Policy(), files),
        )
    )


@given(ENTRIES, st.data())
def test_no_bit_of_a_manifest_flips_unseen(entries: list[FileEntry], data: st.DataObject) -> None:
    text = written(entries)
    at, bit = data.draw(st.integers(0, len(text) - 1)), data.draw(st.integers(0, 7))
    flipped = bytearray(text)
    flipped[at] ^= 1 << bit
    with pytest.raises(DataError):
        parse_manifest(bytes(flipped), "m.json")


@given(ENTRIES, ENTRIES)
def test_different_entries_have_different_roots(one: list[FileEntry], two: list[FileEntry]) -> None:
    roots = {root_digest("n", Policy(), entries) for entries in (one, two)}
    assert (len(roots) == 1) == (one == two)


ENTRY = FileEntry(path="a", size_bytes=1, sha256="0" * 64)


@pytest.mark.parametrize(
    ("paths", "fault"),
    [
        (["../a"], "outside"),
        (["/etc/passwd"], "absolute"),
        (["a/./b"], "outside"),
        (["a//b"], "outside"),
        (["a\\b"], "outside"),
        (["a\nb"], "bad_name"),
        (["A/x", "a/y"], "case_collision"),
        (["A", "a"], "case_collision"),
        (["e\u0301", "é"], "case_collision"),
        (["b", "a"], "order"),
        (["a", "a"], "order"),
    ],
)
def test_a_manifest_with_right_digests_and_a_bad_path_is_refused(
    paths: list[str], fault: str
) -> None:
    files = tuple(msgspec.structs.replace(ENTRY, path=path) for path in paths)
    manifest = Manifest(
        name="n", files=files, bytes=len(files), root_sha256=root_digest("n", Policy(), files)
    )
    with pytest.raises(DataError) as refused:
        parse_manifest(write_manifest(manifest), "m.json")
    assert refused.value.fault == fault
    assert "nothing was checked" in refused.value.message


def test_an_edited_entry_is_told_as_such(tmp_path: Path) -> None:
    found = frozen(tmp_path / "set")
    edited = (msgspec.structs.replace(found.files[0], sha256="0" * 64), *found.files[1:])
    text = write_manifest(msgspec.structs.replace(found, files=edited))
    with pytest.raises(DataError, match="an entry, the name or the policy was changed"):
        parse_manifest(text, "m.json")


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"nonsense", b'{"schema":"other/1"}'])
def test_what_is_no_manifest_is_one_sentence(text: bytes) -> None:
    with pytest.raises(DataError, match="cannot use the manifest m"):
        parse_manifest(text, "m")


def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    for name in ("", "../up", "a b", "x" * 65):
        with pytest.raises(UsageError, match="bad name"):
            make_manifest(str(tmp_path), name=name)


def test_what_the_policy_refuses_is_named_each(tmp_path: Path) -> None:
    folder = plant(tmp_path / "set")
    (folder / "out").symlink_to("/etc")
    (folder / "link.csv").symlink_to("a.csv")
    os.mkfifo(folder / "pipe")
    plant(folder, {"clips/ONE.mp4": b"", "two\nlines": b"", "A.CSV/x": b""})
    os.mkdir(os.fsencode(folder) + b"/bad-\xff")
    with pytest.raises(DataError) as refused:
        make_manifest(str(folder), name="set")
    problems = {(each["path"], each["problem"]) for each in refused.value.problems}
    assert problems == {
        ("out", "symlink"),
        ("link.csv", "symlink"),
        ("pipe", "special_file"),
        ("clips/ONE.mp4", "case_collision"),
        ("clips/one.mp4", "case_collision"),
        ("A.CSV", "case_collision"),
        ("a.csv", "case_collision"),
        ("two\nlines", "bad_name"),
        ("bad-\udcff", "bad_name"),
    }
    assert "symbolic links: 'link.csv', 'out'" in refused.value.message


def test_a_hard_link_counts_as_a_file(tmp_path: Path) -> None:
    folder = plant(tmp_path / "set")
    os.link(folder / "a.csv", folder / "b.csv")
    found = make_manifest(str(folder), name="set")
    assert len(found.files) == len(FILES) + 1
    assert found.bytes == sum(map(len, FILES.values())) + len(FILES["a.csv"])


class ChangingFS(BulkFileSystem):
    """Lets something happen to the folder when the first file was read."""

    def __init__(self, happen: object) -> None:
        super().__init__()
        self.happen = happen

    def read_into(self, fd: int, buffer: memoryview) -> int:
        count = super().read_into(fd, buffer)
        happen, self.happen = self.happen, None
        if callable(happen):
            happen()
        return count


@pytest.mark.parametrize("what", ["grows", "is rewritten", "is gone", "comes"])
def test_a_folder_that_changes_while_it_is_frozen_is_an_error_that_names_it(
    what: str, tmp_path: Path
) -> None:
    folder = plant(tmp_path / "set")
    happens = {
        "grows": lambda: (folder / "a.csv").write_bytes(b"more than there was"),
        "is rewritten": lambda: (folder / "a.csv").write_bytes(b"a,b\n1,2\n"),
        "is gone": (folder / "a.csv").unlink,
        "comes": lambda: (folder / "new.csv").write_bytes(b"1"),
    }
    os.utime(folder / "a.csv", ns=(1, 1))
    with pytest.raises(ChangedError) as refused:
        make_manifest(str(folder), name="set", fs=ChangingFS(happens[what]))
    assert ("new.csv" if what == "comes" else "a.csv") in str(refused.value.path)


def test_progress_is_told_in_bytes_of_all(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    folder = plant(tmp_path / "set")
    found = make_manifest(str(folder), name="set", progress=lambda *at: told.append(at))
    assert told[-1] == (found.bytes, found.bytes)
    assert told == sorted(told)
