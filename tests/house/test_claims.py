"""Sentences of the documents that name a number or an order which the code has, too.

Not here: tables (test_documents.py and the tests of single pages), and commands.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fleetcraft
from fleetcraft.fleet.allocation.lookout import _RETRY_S, LOOK_EVERY_S
from fleetcraft.layout import Scratch, parse_log

REPO = Path(__file__).resolve().parents[2]
OPERATIONS = (REPO / "docs/operations.md").read_text()
FORMAT = (REPO / "docs/spool-format.md").read_text()
README = (REPO / "README.md").read_text()
BENCHMARKS = REPO / "docs/benchmarks"


def test_operations_says_how_often_a_launcher_asks() -> None:
    assert LOOK_EVERY_S == 60.0
    assert "then once a minute" in OPERATIONS
    assert f"every {_RETRY_S:g} s while Slurm does not answer" in OPERATIONS


def test_a_log_with_a_padded_number_is_nobodys_as_the_page_says() -> None:
    assert "without leading zeros" in FORMAT
    assert parse_log("gen.1.log") == ("gen", 1)
    assert parse_log("gen.01.log") is None


def test_the_tree_of_the_format_page_has_every_room_of_the_layout() -> None:
    tree = FORMAT[FORMAT.index("## The tree") : FORMAT.index("One spool:")]
    rooms = {
        path.removeprefix("/r/").split("/")[0]
        for path in vars(Scratch("/r")).values()
        if path.startswith("/r/")
    }
    assert rooms
    drawn = set(re.findall(r"([\w.-]+)/", tree))
    assert rooms - drawn == set()


def test_the_readme_says_where_a_setting_comes_from_in_its_order() -> None:
    said = README[README.index("A value is taken from") :]
    order = (
        "an option", "FLEET_<SECTION>_<NAME>", "`fleet.yaml` in the project", "the site profile",
        "the default",
    )  # fmt: skip
    places = [said.index(word) for word in order]
    assert places == sorted(places)


def test_the_python_api_page_begins_with_every_public_name() -> None:
    first = (REPO / "docs/python-api.md").read_text().split("\n\n")[1]
    assert [name for name in fleetcraft.__all__ if name not in first] == []


@pytest.mark.parametrize(
    "page",
    [page for page in sorted(BENCHMARKS.glob("*.md")) if page.name != "README.md"],
    ids=lambda page: page.name,
)
def test_the_index_of_benchmarks_names_each_page_with_the_size_that_it_has(page: Path) -> None:
    """A page that was made by a quick or a partial run must not look like the whole one."""
    row = re.search(
        rf"^\| \[{re.escape(page.name)}\].*$", (BENCHMARKS / "README.md").read_text(), re.MULTILINE
    )
    assert row is not None
    made = re.search(r"^\| command \| `([^`]*)`", page.read_text(), re.MULTILINE)
    assert made is not None
    smaller = {word for word in made[1].split() if word in ("--quick", "--share", "--most")}
    assert smaller - set(row[0].replace("`", " ").split()) == set()
