"""What a hub cache has of a commit: files, proofs by name, and everything that may be wrong."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.caches.blobs import Verdict, scheme_of
from fleetcraft.caches.blobs import prove as prove_file
from fleetcraft.caches.hub import is_safe, parse_repo, parse_revision
from fleetcraft.caches.snapshots import FileState, prove, read_hub, read_repo, read_snapshot
from fleetcraft.errors import DataError, UsageError
from tests.caches.hub_caches import (
    COMMIT,
    INDEX,
    OTHER_COMMIT,
    SHARDS,
    flip_a_bit,
    make_repo,
    sharded_model,
    write_listing,
)

REPO = "org/tiny"


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    make_repo(tmp_path / "hub", sharded_model())
    return tmp_path / "hub"


def snapshot_folder(hub: Path) -> Path:
    return hub / "models--org--tiny" / "snapshots" / COMMIT


# -- proofs


def test_every_file_of_a_good_snapshot_is_proved_by_its_name(hub: Path) -> None:
    snapshot = read_snapshot(str(hub), REPO)

    proofs = prove(snapshot)

    assert snapshot.complete
    assert {proof.verdict for proof in proofs.values()} == {Verdict.PROVED}
    assert proofs[SHARDS[0]].found == hashlib.sha256(sharded_model()[SHARDS[0]]).hexdigest()
    assert snapshot.bytes == sum(map(len, sharded_model().values()))


def test_git_itself_names_a_small_file_as_we_expect_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": 1}\n')
    try:
        done = subprocess.run(
            ["git", "hash-object", str(path)], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("there is no git on this machine")

    assert prove_file(str(path), done.stdout.strip()).verdict is Verdict.PROVED


@pytest.mark.parametrize("path", [SHARDS[1], "config.json"])
def test_one_flipped_bit_is_corrupt_and_the_rest_stays_proved(hub: Path, path: str) -> None:
    flip_a_bit(snapshot_folder(hub) / path, at=3)

    proofs = prove(read_snapshot(str(hub), REPO), fresh=True)

    assert {p for p, proof in proofs.items() if proof.verdict is Verdict.CORRUPT} == {path}


@given(st.binary(max_size=300), st.integers(0, 299), st.integers(0, 7))
def test_no_single_bit_can_change_unseen(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, bit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "blob"
    sha1 = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    names = (hashlib.sha256(data).hexdigest(), sha1)
    path.write_bytes(data)
    assert {prove_file(str(path), name).verdict for name in names} == {Verdict.PROVED}
    if not data:
        return
    changed = bytearray(data)
    changed[at % len(data)] ^= 1 << bit
    path.write_bytes(changed)

    assert {prove_file(str(path), name).verdict for name in names} == {Verdict.CORRUPT}


def test_a_name_that_is_no_digest_proves_nothing(hub: Path) -> None:
    repo = hub / "models--org--tiny"
    (repo / "blobs/abc-2").write_bytes(b"x")
    (snapshot_folder(hub) / "odd.bin").symlink_to("../../blobs/abc-2")

    snapshot = read_snapshot(str(hub), REPO)

    assert snapshot.unproved == ("odd.bin",)
    assert prove(snapshot)["odd.bin"].verdict is Verdict.UNPROVABLE
    assert scheme_of("A" * 64) is None


def test_the_listing_proves_a_file_that_is_no_link(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"w" * 40}
    repo = make_repo(tmp_path, files, listed=files)
    for path, data in files.items():
        link = repo / "snapshots" / COMMIT / path
        link.unlink()
        link.write_bytes(data)

    snapshot = read_snapshot(str(tmp_path), REPO)

    assert snapshot.unproved == ()
    assert {proof.verdict for proof in prove(snapshot).values()} == {Verdict.PROVED}


# -- what is missing or strange


def test_an_index_that_names_absent_shards_is_seen(hub: Path) -> None:
    (snapshot_folder(hub) / SHARDS[2]).unlink()

    snapshot = read_snapshot(str(hub), REPO)

    assert (snapshot.missing_shards, snapshot.complete) == ((SHARDS[2],), False)
    assert SHARDS[2] in snapshot.troubles[0]


def test_shards_of_an_index_in_a_folder_lie_in_that_folder(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "w-1.safetensors", "b": "w-2.safetensors"}}
    make_repo(
        tmp_path,
        {"unet/w.safetensors.index.json": json.dumps(index).encode(), "unet/w-1.safetensors": b"1"},
    )

    assert read_snapshot(str(tmp_path), REPO).missing_shards == ("unet/w-2.safetensors",)


def test_a_format_that_was_left_out_is_not_missing(hub: Path) -> None:
    other = {"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}
    make_repo(hub, {"pytorch_model.bin.index.json": json.dumps(other).encode()})

    snapshot = read_snapshot(str(hub), REPO)

    assert snapshot.complete
    assert [index.path for index in snapshot.indexes if index.unused] == [
        "pytorch_model.bin.index.json"
    ]


def test_other_bin_files_do_not_excuse_missing_weights(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}
    files = {
        "pytorch_model.bin.index.json": json.dumps(index).encode(), "training_args.bin": b"t",
    }  # fmt: skip
    make_repo(tmp_path, files)

    assert not read_snapshot(str(tmp_path), REPO).complete


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../../../secret", "a/../../b", "", ".", "a\x00b", "a\\b"]
)
def test_an_index_whose_names_lead_out_is_a_fault(tmp_path: Path, name: str) -> None:
    make_repo(tmp_path, {INDEX: json.dumps({"weight_map": {"a": name}}).encode()})

    snapshot = read_snapshot(str(tmp_path), REPO)

    assert (snapshot.complete, snapshot.missing_shards) == (False, ())
    assert "leads out of the snapshot" in snapshot.troubles[0]


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"weight_map": 3}', b"\xff\xfe"])
def test_an_index_that_is_none_is_a_fault(tmp_path: Path, data: bytes) -> None:
    make_repo(tmp_path, {INDEX: data})

    assert "it is no index of weights" in read_snapshot(str(tmp_path), REPO).troubles[0]


def test_a_file_called_index_that_is_about_something_else_is_none(tmp_path: Path) -> None:
    make_repo(tmp_path, {"search.index.json": b'{"documents": 3}'})

    assert read_snapshot(str(tmp_path), REPO).complete


def test_a_link_without_its_blob_dangles_and_is_told_once(hub: Path) -> None:
    (snapshot_folder(hub) / SHARDS[0]).resolve().unlink()

    snapshot = read_snapshot(str(hub), REPO)

    assert [file.path for file in snapshot.in_state(FileState.DANGLING)] == [SHARDS[0]]
    assert len(snapshot.troubles) == 1
    assert prove(snapshot)[SHARDS[0]].verdict is Verdict.UNREADABLE


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../other", "../../refs/main"])
def test_a_link_that_leads_elsewhere_is_foreign_and_never_read(hub: Path, target: str) -> None:
    link = snapshot_folder(hub) / "config.json"
    link.unlink()
    link.symlink_to(target)

    snapshot = read_snapshot(str(hub), REPO)

    assert [file.path for file in snapshot.in_state(FileState.FOREIGN)] == ["config.json"]
    assert prove(snapshot)["config.json"].verdict is Verdict.UNREADABLE


@pytest.mark.parametrize("name", [b"new\nline.bin", b"\xff\xfe.bin", b"back\\slash"])
def test_a_name_that_no_repository_can_have_is_foreign(hub: Path, name: bytes) -> None:
    link = os.fsencode(snapshot_folder(hub)) + b"/" + name
    os.symlink(b"../../blobs/x", link)

    snapshot = read_snapshot(str(hub), REPO)

    assert [file.path for file in snapshot.in_state(FileState.FOREIGN)] == [os.fsdecode(name)]
    assert not snapshot.complete


def test_a_pipe_in_place_of_a_blob_does_not_hold_anyone(hub: Path) -> None:
    blob = (snapshot_folder(hub) / "config.json").resolve()
    blob.unlink()
    os.mkfifo(blob)

    snapshot = read_snapshot(str(hub), REPO)

    assert snapshot.in_state(FileState.FOREIGN)[0].path == "config.json"


def test_the_listing_of_a_commit_tells_what_was_never_fetched_and_what_is_short(hub: Path) -> None:
    files = sharded_model()
    listed = files | {"README.md": b"r", "config.json": files["config.json"] + b"more"}
    (hub / "models--org--tiny/trees").mkdir()
    write_listing(hub / "models--org--tiny", COMMIT, listed)

    snapshot = read_snapshot(str(hub), REPO)

    assert (snapshot.listed, snapshot.absent) == (True, ("README.md",))
    assert [f.path for f in snapshot.in_state(FileState.MISLINKED)] == ["config.json"]


def test_a_truncated_file_is_seen_without_reading_it(tmp_path: Path) -> None:
    files = {"model.safetensors": b"w" * 100}
    repo = make_repo(tmp_path, files, listed=files)
    blob = (repo / "snapshots" / COMMIT / "model.safetensors").resolve()
    blob.write_bytes(b"w" * 99)

    snapshot = read_snapshot(str(tmp_path), REPO)

    assert "99 bytes, expected 100" in snapshot.in_state(FileState.WRONG_SIZE)[0].detail
    assert prove(snapshot)["model.safetensors"].verdict is Verdict.CORRUPT


def test_a_listing_that_is_torn_says_nothing(hub: Path) -> None:
    (hub / "models--org--tiny/trees").mkdir()
    (hub / f"models--org--tiny/trees/{COMMIT}.json").write_text('{"format_ver')

    assert not read_snapshot(str(hub), REPO).listed


def test_downloads_that_have_not_ended_are_listed(hub: Path) -> None:
    (hub / "models--org--tiny/blobs/abc.1234.incomplete").write_bytes(b"half")

    assert read_snapshot(str(hub), REPO).incomplete == ("abc.1234.incomplete",)


def test_an_empty_snapshot_is_not_complete(hub: Path) -> None:
    (hub / f"models--org--tiny/snapshots/{OTHER_COMMIT}").mkdir()

    assert not read_snapshot(str(hub), REPO, OTHER_COMMIT).complete


# -- names


def test_a_revision_is_a_ref_a_commit_or_its_beginning(hub: Path) -> None:
    make_repo(hub, {"config.json": b"{1}"}, commit=OTHER_COMMIT, refs=("refs/pr/1",))
    found = [
        read_snapshot(str(hub), REPO, revision).commit
        for revision in (None, "main", "refs/pr/1", OTHER_COMMIT, OTHER_COMMIT[:8])
    ]

    assert found == [COMMIT, COMMIT, OTHER_COMMIT, OTHER_COMMIT, OTHER_COMMIT]
    assert [item.commit for item in read_repo(str(hub), parse_repo(REPO))] == [COMMIT, OTHER_COMMIT]


def test_a_ref_to_a_commit_that_is_not_here_names_what_is(hub: Path) -> None:
    (hub / "models--org--tiny/refs/main").write_text(OTHER_COMMIT)

    with pytest.raises(DataError, match="no snapshot of main here") as caught:
        read_snapshot(str(hub), REPO)

    assert COMMIT in caught.value.message


@pytest.mark.parametrize(
    "name",
    ["", "a/b/c", "../x", "org/..", "org--x", "/abs", "org/", "a b", "org/x.git", "-x", "org/x\n"],
)
def test_what_is_no_repository_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        parse_repo(name)


def test_a_folder_of_the_cache_names_its_repository() -> None:
    assert parse_repo("datasets--org--name").folder == "datasets--org--name"
    assert parse_repo("gpt2").folder == "models--gpt2"


@pytest.mark.parametrize("revision", ["../main", "/etc/passwd", "a//b", "", "x\ny"])
def test_a_revision_cannot_lead_out_of_the_refs(hub: Path, revision: str) -> None:
    with pytest.raises(UsageError):
        parse_revision(revision)
    with pytest.raises(UsageError):
        read_snapshot(str(hub), REPO, revision)


@given(st.text(alphabet="ab./\\\0\n~-", max_size=12))
def test_a_safe_path_stays_below_any_folder(path: str) -> None:
    if is_safe(path):
        assert os.path.normpath(f"/folder/{path}") == f"/folder/{path}"


def test_a_hub_is_read_whole_and_what_cannot_be_read_is_told(hub: Path) -> None:
    make_repo(hub, {"data.csv": b"1"}, folder="datasets--org--set")
    broken = hub / "models--org--broken"
    broken.mkdir()
    (broken / "snapshots").write_text("a file")

    snapshots, unread = read_hub(str(hub))

    assert [str(item.repo) for item in snapshots] == ["dataset org/set", REPO]
    assert len(unread) == 1


# -- oracles

_TRANSFORMERS = """
import os, sys, warnings
warnings.simplefilter("ignore")
hub, saved = map(__import__("pathlib").Path, sys.argv[1:])
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(hub))
from transformers import BertConfig, BertModel
from tests.caches.hub_caches import COMMIT, make_repo

def load():
    try:
        BertModel.from_pretrained("org/tiny", cache_dir=str(hub))
    except Exception:
        return "refused"
    return "loaded"

config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=8, vocab_size=50, max_position_embeddings=16)
BertModel(config).save_pretrained(saved, max_shard_size="2KB")
repo = make_repo(hub, {path.name: path.read_bytes() for path in saved.iterdir()})
whole = load()
last = sorted((repo / "snapshots" / COMMIT).glob("model-*.safetensors"))[-1]
os.rename(last, hub / "aside")
print(whole, load(), last.name)
os.rename(hub / "aside", last)
"""


def test_transformers_loads_what_is_called_complete_and_not_what_is_not(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    hub = tmp_path / "hub"
    done = subprocess.run(
        [sys.executable, "-c", _TRANSFORMERS, str(hub), str(tmp_path / "saved")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    whole, without, last = done.stdout.split()

    snapshot = read_snapshot(str(hub), REPO)

    assert (whole, snapshot.complete, len(snapshot.indexes[0].shards) > 1) == ("loaded", True, True)
    assert {proof.verdict for proof in prove(snapshot).values()} == {Verdict.PROVED}
    os.unlink(f"{snapshot.folder}/{last}")
    assert (without, read_snapshot(str(hub), REPO).missing_shards) == ("refused", (last,))
