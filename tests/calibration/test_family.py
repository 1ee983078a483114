"""Families: what a description must be, and how one is found by the name that was typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fleetcraft.calibration.family import absolute_name, family, find_family
from fleetcraft.errors import ConfigError, UsageError

WHOLE = """
from fleetcraft.calibration import family

@family("mine/1")
def cycle(ctx, batch):
    pass

number = 5
"""


@pytest.fixture(autouse=True)
def same_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "my_family.py"
    path.write_text(text)
    return str(path)


def test_a_family_in_a_file_is_found_by_its_name(tmp_path: Path) -> None:
    place = file_of(tmp_path, WHOLE)

    assert find_family(f"{place}:cycle").key == "mine/1"
    assert absolute_name("my_family.py:cycle").startswith("/")
    with pytest.raises(UsageError) as refusal:
        find_family(f"{place}:number")
    assert refusal.value.hint == "families there: cycle"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("def :", "SyntaxError: "),
        ("import os\nos.environ['NOT_THERE_AT_ALL']", "KeyError: 'NOT_THERE_AT_ALL'"),
        ("open('/not/there/at/all')", "FileNotFoundError: "),
        ("1 / 0", "ZeroDivisionError: "),
    ],
)
def test_whatever_a_users_file_raises_is_one_sentence(
    tmp_path: Path, text: str, reason: str
) -> None:
    place = file_of(tmp_path, text)

    with pytest.raises(ConfigError, match="cannot import") as refusal:
        find_family(f"{place}:cycle")

    assert reason in refusal.value.message
    assert refusal.value.facts["path"] == place


def test_a_refusal_of_ours_inside_a_users_file_stays_what_it_is(tmp_path: Path) -> None:
    place = file_of(tmp_path, WHOLE.replace("mine/1", "/mine"))

    with pytest.raises(UsageError, match="family key '/mine' cannot be used"):
        find_family(f"{place}:cycle")


@pytest.mark.parametrize("name", ["dmeo", "nowhere.py:cycle", "not_there_at_all:cycle", ""])
def test_a_name_of_nothing_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError):
        find_family(name)


@pytest.mark.parametrize("key", ["", "a b", ".hidden", "a//b", "ä", "x" * 121])
def test_a_key_that_no_row_or_folder_could_have_is_refused(key: str) -> None:
    with pytest.raises(UsageError):
        family(key)(lambda ctx, batch: None)


def test_an_identity_that_no_hash_can_be_made_of_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be hashed"):
        family("x", identity={"model": object()})(lambda ctx, batch: None)


def test_each_field_of_the_identity_changes_its_hash_and_their_order_does_not() -> None:
    def hash_of(**identity: str) -> str:
        return family("x", identity=identity)(lambda ctx, batch: None).identity_hash

    assert hash_of(model="a", dtype="b") == hash_of(dtype="b", model="a")
    assert hash_of(model="a", dtype="b") != hash_of(model="a", dtype="c")
