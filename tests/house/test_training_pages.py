"""The pages of training and rollouts have every key, class, reason and variable of the code.

Not here: what the pages' commands do (test_documents.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from fleetcraft.rollouts import records as rollouts
from fleetcraft.rollouts.transaction.records import TransactionState
from fleetcraft.training.checkpoint import claims
from fleetcraft.training.checkpoint import records as checkpoints
from fleetcraft.training.plan import run_file
from fleetcraft.training.records import Crash, Epoch, Keeper, NodeEnd
from fleetcraft.training.supervision.journal import Event
from tests.house.test_calibration_pages import documented

REPO = Path(__file__).resolve().parents[2]
FORMAT = (REPO / "docs/training-format.md").read_text()
TRAINING = (REPO / "docs/training.md").read_text()
ROLLOUTS = (REPO / "docs/rollouts.md").read_text()
NOT_IN_THE_FILE = {"folder", "sha256"}


@pytest.mark.parametrize(
    ("heading", "record"),
    [
        ("epoch", Epoch),
        ("keeper", Keeper),
        ("end on a node", NodeEnd),
        ("manifest", checkpoints.Manifest),
        ("rank", checkpoints.RankDone),
        ("part", checkpoints.PartEntry),
        ("file", checkpoints.FileEntry),
        ("declared end", claims.DeclaredEnd),
        ("resume claim", claims.ResumeClaim),
        ("settings", rollouts.Settings),
        ("record", rollouts.Record),
        ("member", rollouts.Member),
        ("intent", rollouts.Intent),
        ("commit", rollouts.Commit),
        ("beat", rollouts.Beat),
    ],
)
def test_every_field_of_a_file_is_documented(heading: str, record: type[msgspec.Struct]) -> None:
    rows = re.search(rf"^\| {heading} \|.*\n\|---.*\n((?:\|.*\n)+)", FORMAT, re.MULTILINE)
    assert rows is not None
    names = re.findall(r"^\| `(\w+)` \|", rows[1], re.MULTILINE)
    expected = list(record.__struct_encode_fields__)
    if record is checkpoints.Manifest:
        expected = [name for name in expected if name not in NOT_IN_THE_FILE]
    assert names == expected


def test_every_class_of_a_crash_is_documented() -> None:
    assert documented("class", TRAINING) == [crash.value for crash in Crash]


def test_every_reason_of_the_quarantine_is_documented() -> None:
    assert documented("reason", ROLLOUTS) == [reason.value for reason in rollouts.Refusal]


def test_every_state_of_a_transaction_is_documented() -> None:
    on_the_way = [state for state in TransactionState if state is not TransactionState.ROLLED_BACK]
    assert documented("state", ROLLOUTS) == [state.name for state in on_the_way]


def test_every_event_of_a_supervisor_is_documented() -> None:
    assert sorted(documented("event", FORMAT)) == sorted(event.value for event in Event)


def test_every_variable_of_a_command_is_documented() -> None:
    given = set()
    for room in ("launching", "supervision", "checkpoint"):
        for module in (REPO / "fleetcraft/training" / room).glob("*.py"):
            given |= set(re.findall(r"\bFLEET_[A-Z_]*[A-Z]\b", module.read_text()))
    assert set(documented("variable", FORMAT)) == given


def test_every_key_of_a_run_file_is_documented() -> None:
    assert documented("run file", FORMAT) == list(run_file._RUN)
    page = FORMAT[FORMAT.index("### Run file") : FORMAT.index("### Events")]
    for table in (run_file._PROGRESS, run_file._LADDER, run_file._KNOB, run_file._BUDGETS):
        assert [key for key in table if key not in page] == []
    assert run_file.KNOB_VARIABLE in page


def test_the_run_file_of_the_page_is_that_of_the_example() -> None:
    shown = re.search(r"^```yaml\n(.*?)^```", TRAINING, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert shown[1] == (REPO / "docs/examples/train/run.yaml").read_text()
