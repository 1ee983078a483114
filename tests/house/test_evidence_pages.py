"""The pages of evidence have every field, kind, level, check, verdict and exit code of the code.

Not here: what the pages' commands do (test_documents.py).
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from fleetcraft.cli.evidence import COMMANDS, evidence_command
from fleetcraft.evidence import records
from fleetcraft.evidence.files.archive import DATA, MANIFEST_FILE, RECEIPT_FILE
from fleetcraft.evidence.files.copying import How as Reading
from fleetcraft.evidence.files.manifest import FileEntry, Manifest
from fleetcraft.evidence.files.policy import Policy, Problem
from fleetcraft.evidence.files.receipts import Receipt
from fleetcraft.evidence.files.verifying import Change
from fleetcraft.evidence.release import finding, gate_file, gates, grid, grid_file
from fleetcraft.evidence.results import arms, comparing, sets
from fleetcraft.evidence.tracing.nodes import Standing
from fleetcraft.evidence.tracing.sameness import Sameness
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.view import evidence_results
from tests.house.test_calibration_pages import documented
from tests.house.test_documents import rows_of

REPO = Path(__file__).resolve().parents[2]
FORMAT_PAGE = REPO / "docs/evidence-format.md"
PAGE = REPO / "docs/evidence.md"
FORMAT = FORMAT_PAGE.read_text()
GUIDE = PAGE.read_text()


@pytest.mark.parametrize(
    ("heading", "record"),
    [
        ("producer", records.Producer),
        ("manifest", Manifest),
        ("entry", FileEntry),
        ("policy", Policy),
        ("receipt", Receipt),
        ("origin", records.Origin),
        ("source", records.Source),
        ("result", sets.Result),
        ("output", sets.OutputFile),
        ("comparison", comparing.Comparison),
        ("side", comparing.Arm),
        ("pair", comparing.Pair),
        ("grid", grid.Grid),
        ("script", grid.Script),
        ("state record", grid.StateRecord),
        ("decision", gates.Decision),
        ("predicate", gates.Decided),
        ("finding", finding.Finding),
        ("input", finding.Input),
    ],
)
def test_every_field_of_a_file_is_documented_in_its_order_and_no_other(
    heading: str, record: type[msgspec.Struct]
) -> None:
    assert first_words(FORMAT_PAGE, heading) == list(record.__struct_encode_fields__)


@pytest.mark.parametrize(
    ("heading", "page", "words"),
    [
        ("kind of file", FORMAT_PAGE, records.Kind),
        ("refused as", FORMAT_PAGE, Problem),
        ("way of reading", FORMAT_PAGE, Reading),
        ("kind of input", FORMAT_PAGE, finding.InputKind),
        ("level", PAGE, records.Level),
        ("difference", PAGE, Change),
        ("state", PAGE, grid.GridState),
        ("verdict", PAGE, Standing),
        ("answer", PAGE, Sameness),
    ],
)
def test_every_word_of_a_closed_set_is_documented_and_no_other(
    heading: str, page: Path, words: type[StrEnum]
) -> None:
    assert first_words(page, heading) == [word.value for word in words]


def test_every_reason_for_a_reject_is_documented_and_no_other() -> None:
    assert set(first_words(FORMAT_PAGE, "reject")) == set(evidence_results._REASONS)


def test_every_fact_by_which_arms_are_judged_is_documented_and_no_other() -> None:
    assert first_words(PAGE, "fact") == list(arms.FIELDS)


def test_every_key_of_a_grids_file_is_documented_and_no_other() -> None:
    assert first_words(FORMAT_PAGE, "in GRID.yaml") == list(grid_file._KEYS)


def test_every_check_of_a_gate_is_documented_with_its_fields_and_no_other() -> None:
    found = {
        check.strip("`"): (words_of(required), words_of(optional))
        for check, required, optional in rows_of(FORMAT_PAGE, "check")
    }
    assert found == {
        name: (list(row.required), list(row.optional)) for name, row in gate_file.CHECKS.items()
    }
    assert first_words(PAGE, "check") == list(gate_file.CHECKS)


def test_every_field_of_a_check_is_documented_and_no_other() -> None:
    assert first_words(FORMAT_PAGE, "field of a check") == list(gate_file._READERS)


def test_the_values_of_the_policy_are_as_documented() -> None:
    said = {field: words_of(value) for field, value in rows_of(FORMAT_PAGE, "policy")}
    written = msgspec.to_builtins(Policy(left_out=()))
    assert {f"`{key}`": [value] for key, value in written.items() if value} == {
        key: value for key, value in said.items() if value
    }


def test_every_schema_of_a_file_is_documented() -> None:
    of_files = [
        *(kind().schema for kind in (_manifest, _receipt)),
        records.ORIGIN_SCHEMA,
        sets.SCHEMA,
        comparing.SCHEMA,
        grid.GRID_SCHEMA,
        grid.STATE_SCHEMA,
        gates.SCHEMA,
    ]
    assert [schema for schema in of_files if f"`{schema}`" not in FORMAT] == []


def test_the_room_is_as_documented() -> None:
    room = EvidencePaths("/evidence")
    paths = [
        room.manifest("<name>"),
        room.receipt("<name>"),
        room.result_file("<set>", "<writer>"),
        room.grid_state("<name>", "<STATE>"),
        room.gate("<name>"),
    ]
    expected = [path.removeprefix("/evidence/") for path in paths]
    assert [row[0].strip("`") for row in rows_of(FORMAT_PAGE, "path")] == expected
    assert first_words(FORMAT_PAGE, "in an archive") == [MANIFEST_FILE, RECEIPT_FILE, f"{DATA}/"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_exit_codes_of_a_command_are_those_of_its_help(name: str) -> None:
    rows = {row[0].strip("`"): row[1] for row in rows_of(PAGE, "command")}
    assert set(re.findall(r"`(\d+)`", rows[name])) == codes_of(command_of(name))


def test_every_command_has_its_exit_codes_documented_and_no_other() -> None:
    assert sorted(first_words(PAGE, "command")) == sorted(COMMANDS)


# -------------------------------------------------------------------------------------- reading


def first_words(page: Path, heading: str) -> list[str]:
    """The words in code font in the first cells of a table, which must be the only one."""
    assert rows_of(page, heading)
    return documented(heading, page.read_text())


def words_of(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def command_of(name: str) -> click.Command:
    context = click.Context(evidence_command)
    found = evidence_command.get_command(context, name)
    assert found is not None
    return found


def codes_of(command: click.Command) -> set[str]:
    """The codes that a command's help names; of a group, those of all its commands."""
    if isinstance(command, click.Group):
        return set().union(*(codes_of(one) for one in command.commands.values()))
    exits: Any = getattr(command, "exits", "")
    return set(re.findall(r"^\s*(\d+) ", exits, re.MULTILINE))


def _manifest() -> Manifest:
    return Manifest(name="a", bytes=0, root_sha256="")


def _receipt() -> Receipt:
    return Receipt(name="a", root_sha256="", files=0, bytes=0, counts={}, how={}, nonce="")
