"""The page of caches has every role, code and exported variable of the code.

Not here: what the page's commands do (test_documents.py).
"""

from __future__ import annotations

from pathlib import Path

from fleetcraft.caches.records import Code, Role
from fleetcraft.caches.roles import CHAINS
from tests.house.test_calibration_pages import documented

PAGE = (Path(__file__).resolve().parents[2] / "docs/caches.md").read_text()


def test_every_code_of_a_conflict_is_documented_and_no_other() -> None:
    assert documented("code", PAGE) == [code.value for code in Code]


def test_every_role_is_documented_with_the_variables_that_its_library_reads() -> None:
    rows = {
        row.split("`")[1]: row
        for row in PAGE.split("| role |")[1].split("\n\n")[0].splitlines()
        if row.startswith("| `")
    }
    assert set(rows) == {role.value for role in Role}
    for role in ("hf_home", "hub", "torch_hub", "triton", "extensions", "cuda"):
        for step in CHAINS[Role(role)].steps:
            assert f"`{step.variable}`" in rows[role], (role, step.variable)
