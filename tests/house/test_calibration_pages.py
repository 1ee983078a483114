"""The pages of calibration have every key, class, event and argument of the code, and no other.

Not here: what the pages' commands do (test_documents.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from fleetcraft.batch_table.records import VARIABLES, Row
from fleetcraft.calibration import records
from fleetcraft.calibration.family import Family
from fleetcraft.calibration.trial.context import Context
from fleetcraft.calibration.trial.journal import Event

REPO = Path(__file__).resolve().parents[2]
FORMAT = (REPO / "docs/calibration-format.md").read_text()
PAGE = (REPO / "docs/calibration.md").read_text()


def documented(heading: str, page: str = FORMAT) -> list[str]:
    """The words in code font in the first cells of the table below a header's first cell."""
    table = re.search(rf"^\| {re.escape(heading)} \|.*\n\|---.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert table is not None, heading
    first_cells = (row.split("|")[1] for row in table[1].splitlines())
    return [word for cell in first_cells for word in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize(
    ("heading", "record"),
    [
        ("run", records.Calibration),
        ("trial", records.Trial),
        ("phase", records.PhaseRecord),
        ("owner", records.OwnerBytes),
        ("check", records.Check),
        ("choice", records.Choice),
        ("environment", records.Environment),
        ("row", Row),
    ],
)
def test_every_key_of_a_record_is_documented_in_its_order_and_no_other(
    heading: str, record: type[msgspec.Struct]
) -> None:
    fields = [field.encode_name for field in msgspec.structs.fields(record)]

    assert documented(heading) == fields


def test_every_event_of_a_journal_is_documented_and_no_other() -> None:
    assert documented("event") == list(Event)


def test_every_class_is_documented_and_no_other() -> None:
    assert set(documented("class", PAGE)) == set(records.Failure)


def test_every_variable_of_a_task_is_documented_and_no_other() -> None:
    assert set(documented("variable")) == set(VARIABLES)


def test_every_argument_of_a_family_is_documented_and_no_other() -> None:
    of_the_demo_alone = {"cycle", "batch_axis", "faults"}

    assert set(documented("of `family`", PAGE)) == set(Family.__struct_fields__) - of_the_demo_alone


def test_what_is_documented_of_a_context_is_there() -> None:
    words = [word.partition("(")[0] for word in documented("of `ctx`", PAGE)]
    context = Context()

    assert words
    assert [word for word in words if not hasattr(context, word)] == []
