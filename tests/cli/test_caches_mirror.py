"""``fleetcraft caches mirror``: its words, JSON and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.caches.hub_caches import COMMIT, SHARDS, flip_a_bit, make_repo, sharded_model
from tests.cli.conftest import Fleet


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    hub = tmp_path / "mine"
    make_repo(hub, sharded_model(), listed=sharded_model())
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    return hub


def test_a_model_of_this_user_is_mirrored_and_again_copies_nothing(
    bare_fleet: Fleet, source: Path, tmp_path: Path
) -> None:
    to = tmp_path / "shared"

    said = bare_fleet.ok("caches", "mirror", "org/tiny", "--to", str(to))
    again = bare_fleet.ok("caches", "mirror", "org/tiny", "--to", str(to), "--json").json

    assert "mirrored org/tiny, commit 0123456789ab (main): 6 files" in said.out
    assert again["schema"] == "fleetcraft.cache_mirror/1"
    assert (again["copied"], again["already"], again["proved"]) == (0, 6, 6)
    assert again["folder"] == f"{to}/models--org--tiny/snapshots/{COMMIT}"


def test_the_default_destination_is_the_hub_of_tasks(
    fleet: Fleet, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")

    made = fleet.ok("caches", "mirror", "org/tiny", "--from", str(source), "--json").json

    assert made["hub_to"] == str(fleet.root / "caches/huggingface/hub")


def test_a_dry_run_says_what_would_be_copied(
    bare_fleet: Fleet, source: Path, tmp_path: Path
) -> None:
    words = ("caches", "mirror", "org/tiny", "--to", str(tmp_path / "shared"), "--dry-run")

    assert "would copy 6 blobs" in bare_fleet.ok(*words).out
    made = bare_fleet.ok(*words, "--json").json
    assert (made["to_copy"], made["copied"], (tmp_path / "shared").exists()) == (6, None, False)


def test_an_incomplete_source_is_bad_data(bare_fleet: Fleet, source: Path, tmp_path: Path) -> None:
    (source / "models--org--tiny/snapshots" / COMMIT / SHARDS[0]).unlink()

    called = bare_fleet("caches", "mirror", "org/tiny", "--to", str(tmp_path / "to"), "--json")

    assert (called.code, called.out) == (7, "")
    assert called.error["facts"]["missing"] == [SHARDS[0]]
    assert "hf download org/tiny --revision" in called.error["hint"]


def test_a_corrupt_source_is_bad_data(bare_fleet: Fleet, source: Path, tmp_path: Path) -> None:
    flip_a_bit(source / "models--org--tiny/snapshots" / COMMIT / SHARDS[0])

    called = bare_fleet("caches", "mirror", "org/tiny", "--to", str(tmp_path / "to"))

    assert called.code == 7
    assert f" caches quarantine org/tiny {SHARDS[0]} --hub {source}" in called.err


@pytest.mark.parametrize("words", [("org/a/b",), ("org/tiny", "--wait", "soon"), ()])
def test_words_that_are_off_are_a_usage_error(
    bare_fleet: Fleet, source: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert bare_fleet("caches", "mirror", *words, "--to", str(tmp_path / "to")).code == 2


def test_names_of_files_do_not_reach_the_terminal_raw(
    bare_fleet: Fleet, source: Path, tmp_path: Path
) -> None:
    make_repo(source, {"a\x1b[31mred.bin": b"x"}, folder="models--org--evil")

    called = bare_fleet("caches", "mirror", "org/evil", "--to", str(tmp_path / "to"))
    flip_a_bit(next((source / "models--org--evil/blobs").iterdir()), at=0)
    refused = bare_fleet("caches", "mirror", "org/evil", "--to", str(tmp_path / "to2"))

    assert "\x1b" not in called.out + called.err + refused.out + refused.err
    assert refused.code == 7
