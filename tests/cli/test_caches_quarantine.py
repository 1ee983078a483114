"""``fleetcraft caches quarantine``: its words, JSON and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.caches.hub_caches import COMMIT, SHARDS, flip_a_bit, make_repo, sharded_model
from tests.cli.conftest import Fleet

WORDS = ("caches", "quarantine", "org/tiny")


@pytest.fixture
def hub(fleet: Fleet) -> Path:
    """The hub of tasks, with a corrupt shard."""
    hub = fleet.root / "caches/huggingface/hub"
    make_repo(hub, sharded_model())
    flip_a_bit(hub / "models--org--tiny/snapshots" / COMMIT / SHARDS[1])
    return hub


def test_a_corrupt_shard_is_set_aside_and_text_says_who_must_fetch(fleet: Fleet, hub: Path) -> None:
    dry = fleet.ok(*WORDS, SHARDS[1], "--dry-run", "--json").json
    said = fleet.ok(*WORDS, SHARDS[1], "--reason", "does not load").out

    assert (dry["moved"], dry["verdict"], dry["aside"]) == (False, "corrupt", None)
    assert f"set aside {SHARDS[1]} of org/tiny" in said
    assert "used by 1 snapshot" in said
    assert f"hf download org/tiny {SHARDS[1]} --revision {COMMIT}" in said
    assert len(list((fleet.root / "caches/quarantine").glob("*/content"))) == 1
    assert fleet(*WORDS, SHARDS[1]).code == 7


def test_the_json_has_digests_and_users(fleet: Fleet, hub: Path) -> None:
    made = fleet.ok(*WORDS, SHARDS[1], "--json").json

    assert made["schema"] == "fleetcraft.cache_quarantine/1"
    assert made["expected"] == made["blob"] != made["found"]
    assert [user["paths"] for user in made["users"]] == [[SHARDS[1]]]
    assert Path(made["aside"]).exists()


def test_a_good_file_stays(fleet: Fleet, hub: Path) -> None:
    called = fleet(*WORDS, "config.json", "--json")

    assert (called.code, called.error["facts"]["verdict"]) == (1, "proved")
    assert fleet(*WORDS, "config.json", "--anyway").code == 2
    assert fleet.ok(*WORDS, "config.json", "--anyway", "--reason", "edited").code == 0


def test_what_is_not_there_is_told(fleet: Fleet, hub: Path) -> None:
    assert fleet(*WORDS, "no.bin").code == 7
    assert fleet("caches", "quarantine", "org/none", "no.bin").code == 7
    assert fleet(*WORDS, "../../x").code == 2
