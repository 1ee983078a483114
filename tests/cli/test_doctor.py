"""``fleetcraft doctor``: its answer, its exit code, and what it leaves behind."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from fleetcraft.doctor.findings import Examination, Finding, Verdict
from fleetcraft.view.doctor import doctor_shape, render_doctor
from fleetcraft.view.text import Paint
from tests.cli.conftest import Fleet


def files_below(root: Path) -> set[Path]:
    return set(root.rglob("*"))


def test_a_fresh_tree_is_fine_and_stays_as_it_is(fleet: Fleet) -> None:
    before = files_below(fleet.root)
    called = fleet("doctor", "--quick", "--json")
    value = called.json
    assert called.code == value["exit_code"] == 0, value
    assert value["schema"] == "fleetcraft.doctor/1"
    assert value["answer"] == "fine"
    assert value["counts"]["wrong"] == 0
    assert sum(value["counts"].values()) == len(value["findings"])
    assert "torch: torch" in value["left_out"]
    for finding in value["findings"]:
        assert set(finding) == {"section", "name", "verdict", "found", "expected", "hint"}
        assert finding["found"]
    assert {"python", "gpu", "slurm", "scratch", "clock", "caches", "quotas", "limits"} <= {
        finding["section"] for finding in value["findings"]
    }
    assert files_below(fleet.root) == before


def test_what_is_wrong_is_named_with_what_to_do(fleet: Fleet) -> None:
    fleet.root.chmod(0o777)
    called = fleet("doctor", "--quick", "--problems")
    assert called.code == 1
    lines = called.out.splitlines()
    assert any(line.startswith("  WRONG    place") for line in lines)
    assert any(f"hint: chmod go-w {shlex.quote(str(fleet.root))}" in line for line in lines)
    assert lines[-1].startswith("something has to be put right (")
    assert not any(line.startswith("  ok ") for line in lines)


def test_a_root_whose_name_is_no_text_is_checked_and_told(fleet: Fleet, tmp_path: Path) -> None:
    root = os.fsdecode(os.fsencode(tmp_path) + b"/r\xff")
    fleet.bare("--root", root, "init")
    called = fleet.bare("--root", root, "doctor", "--quick", "--json")
    assert called.code == 0, called.out
    assert "r\ufffd" in called.out
    assert fleet.bare("--root", root, "doctor", "--quick").code == 0


def test_without_a_project_it_still_checks_the_machine(bare_fleet: Fleet) -> None:
    called = bare_fleet.bare("doctor", "--quick", "--json")
    assert called.code == 0, called.out
    place = next(f for f in called.json["findings"] if f["section"] == "scratch")
    assert place["verdict"] == "advice"
    assert "--root DIR init" in place["hint"]


def test_where_nothing_can_be_checked_the_answer_is_unknown(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    called = fleet("doctor", "--json")
    assert called.code == 7
    assert called.json["answer"] == "unknown"


def finding(**given: object) -> Finding:
    return Finding(**{"section": "s", "name": "n", "verdict": Verdict.WRONG, "found": "f", **given})  # type: ignore[arg-type]


def examination(*findings: Finding) -> Examination:
    return Examination(host="node1", user=1, made_at="t", quick=False, findings=findings)


def test_words_of_files_and_programs_cannot_reach_the_terminal() -> None:
    hostile = "a\x1b[2J\nb\x9b1m"
    found = examination(finding(name=hostile, found=hostile, expected=hostile, hint=hostile))
    text = render_doctor(found, paint=Paint(False), width=80)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "\\x1b[2J" in text
    assert doctor_shape(found)["findings"][0]["found"] == hostile


def test_lines_are_wrapped_to_the_terminal_and_commands_stay_whole() -> None:
    command = f"fleetcraft --root /scratch/{'long/' * 30} init"
    found = examination(finding(found="many words " * 30, hint=command))
    text = render_doctor(found, paint=Paint(False), width=80)
    body = text.split("\n\n", maxsplit=1)[0].splitlines()
    assert all(len(line) <= 80 for line in body if "/scratch" not in line)
    assert f"/scratch/{'long/' * 30}" in text


def test_an_empty_examination_is_said_to_be_none() -> None:
    text = render_doctor(examination(), paint=Paint(False))
    assert text.startswith("unknown: nothing could be checked (0 findings on node1")
