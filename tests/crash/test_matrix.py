"""A sample of the crash matrix: every protocol, with nearly each fault at a step of its own.

The whole is `python -m tests.crash`. Not here: the library that disturbs (`test_preload`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash import engine, page
from tests.crash.build import NoCompiler
from tests.crash.disturbing import REPO
from tests.crash.engine import Row
from tests.crash.faults import FAULTS, Fault, How, Operation, named
from tests.crash.protocols import MODULES
from tests.crash.serving import picked

SHARE = 0.001  # one step of each fault: at least one is always taken
ERRORS = ("EIO", "ENOSPC", "EACCES", "ESTALE", "EDQUOT")
# A rule of each part whose absence shows within a few trials; the whole matrix breaks them all.
BROKEN = (
    ("spool", "spool: finish, failed to pending", "move_before_the_line", "kill"),
    ("spool", "spool: cancel a pending one", "withdraw_the_lease_of_an_open_claim", "EIO"),
    ("submission", "submission: answered", "submit_before_recording", "kill-after"),
)


@pytest.fixture(autouse=True)
def _compiler() -> None:
    try:
        engine.library()
    except NoCompiler as error:
        pytest.skip(str(error))


def explained(rows: list[Row]) -> str:
    told = [f"{row.protocol}: {row.broken}" for row in rows if row.broken]
    told += [f"{row.protocol}: {trouble}" for row in rows for trouble in row.troubles[:2]]
    return "\n\n".join(told)


@pytest.mark.timeout(300)  # seconds on a quiet machine
@pytest.mark.parametrize("module", MODULES)
def test_nothing_is_lost_at_a_sample_of_the_steps_of_every_protocol(module: str) -> None:
    # One error stands for all that are reported of what was not done; each part has another one.
    spared = {name for name in ERRORS if name != ERRORS[MODULES.index(module) % len(ERRORS)]}
    faults = [fault for fault in FAULTS if fault.name not in spared]
    rows = engine.run(module, faults=faults, share=SHARE)
    assert all(row.holds for row in rows), explained(rows)
    assert all(row.points > len(faults) // 2 for row in rows), page.matrix(rows)
    assert sum(row.missed for row in rows) <= sum(row.points for row in rows) // 20


@pytest.mark.parametrize(("module", "protocol", "mutation", "faults"), BROKEN)
def test_the_matrix_shows_a_broken_rule(
    module: str, protocol: str, mutation: str, faults: str
) -> None:
    [row] = engine.run(
        module, protocols=[protocol], mutation=mutation, faults=named([faults]), stop_at_first=True
    )
    assert row.troubles


def test_the_same_steps_are_taken_each_time_and_at_least_one() -> None:
    operations = [Operation("write", "cls", "")] * 100 + [Operation("stat", "", "")] * 10
    killed, torn = FAULTS[0], named(["torn-kill"])[0]
    assert picked(operations, killed, 1.0, "a") == list(range(1, 111))
    assert picked(operations, torn, 1.0, "a") == list(range(1, 101))
    few = picked(operations, killed, 0.05, "a")
    assert few == picked(operations, killed, 0.05, "a")
    assert len(few) == 6
    assert len(picked(operations, killed, 0.0001, "a")) == 1
    assert picked([Operation("stat", "", "")], torn, 1.0, "a") == []


def test_a_word_names_faults_or_is_refused() -> None:
    assert [fault.name for fault in named(["EIO"])] == ["EIO"]
    assert [fault.name for fault in named(["kill"])] == ["kill-before", "kill-after", "torn-kill"]
    assert named([]) == FAULTS
    with pytest.raises(ValueError, match="no fault is called 'nonsense'"):
        named(["nonsense"])


def test_a_repeated_request_can_only_say_what_it_finds() -> None:
    said = Fault("done-but-ENOENT", "", How.LIE, 2)
    assert said.applies(Operation("renameat2", "cln", ""))
    assert not said.applies(Operation("write", "cls", ""))


def test_the_command_prints_the_matrix_and_writes_a_page(tmp_path: Path) -> None:
    out, said = tmp_path / "page.md", tmp_path / "said.json"
    words = ["--only", "spool: retry", "--share", "0.01", "--out", str(out), "--json", str(said)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash", *words, "--faults", "kill", "EIO", "--no-mutations"],
        cwd=REPO, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [row] = json.loads(said.read_text())["protocols"]
    assert row["protocol"] == "spool: retry"
    assert "| spool: retry |" in done.stdout
    text = out.read_text()
    assert text.startswith("# The crash matrix\n")
    assert "| spool: retry |" in text
