"""``fleetcraft caches fill``: its words, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.caches.hub_caches import COMMIT, make_repo, sharded_model
from tests.cli.conftest import Fleet


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    """What a download leaves behind, without a download; it also prints."""
    make_repo(tmp_path / "origin", sharded_model(), listed=sharded_model())
    script = f'echo loud; cp -a "{tmp_path}/origin/." "$HF_HUB_CACHE/"'
    return ("--", "sh", "-c", script)


def test_a_model_is_filled_once_and_stdout_has_one_value(
    fleet: Fleet, command: tuple[str, ...]
) -> None:
    first = fleet.process("caches", "fill", "org/tiny", "--json", *command)
    second = fleet.ok("caches", "fill", "org/tiny", "--json", *command)

    assert first.returncode == 0, first.stderr
    made = json.loads(first.stdout)
    assert (made["schema"], made["ran"], made["proved"]) == ("fleetcraft.cache_fill/1", True, 6)
    hub = f"{fleet.root}/caches/huggingface/hub"
    assert made["folder"] == f"{hub}/models--org--tiny/snapshots/{COMMIT}"
    assert "loud" in first.stderr
    assert (second.json["ran"], second.json["level"]) == (False, "sized")
    assert "nothing was downloaded" in fleet.ok("caches", "fill", "org/tiny", *command).out


def test_a_command_that_fails_is_a_no(fleet: Fleet) -> None:
    called = fleet("caches", "fill", "org/tiny", "--json", "--", "false")

    assert (called.code, called.error["facts"]["returned"]) == (1, 1)
    assert called.error["type"] == "CommandFailedError"


def test_a_command_that_fetches_something_else_is_bad_data(fleet: Fleet) -> None:
    assert fleet("caches", "fill", "org/tiny", "--", "true").code == 7


@pytest.mark.parametrize("words", [("org/tiny",), ("../x", "--", "true"), ("a/b", "--", "no-such")])
def test_words_that_are_off_are_a_usage_error(fleet: Fleet, words: tuple[str, ...]) -> None:
    assert fleet("caches", "fill", *words).code == 2


def test_a_hub_needs_no_scratch_tree(
    bare_fleet: Fleet, tmp_path: Path, command: tuple[str, ...]
) -> None:
    hub = tmp_path / "hub"

    bare_fleet.ok("caches", "fill", "org/tiny", "--hub", str(hub), *command)

    assert not bare_fleet.root.exists()
    assert list(hub.glob(".locks/fleetcraft/filled/models--org--tiny@*.json"))
