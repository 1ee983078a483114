"""A gate's file is read whole, or what is wrong is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.errors import ConfigError
from fleetcraft.evidence.release.gate_file import CHECKS, Stage, read_gate_file
from fleetcraft.evidence.release.gates import EVALUATORS


def _write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    return str(path)


def test_stages_come_in_their_order_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    gate = read_gate_file(
        _write(
            tmp_path,
            "accounting:\n- {check: jobs_ended, jobs: [41, '42']}\n"
            "name: release-1\n"
            "semantic:\n- {check: metric, set: s, arm: a, metric: m, at_least: 1}\n"
            "mechanical:\n- {check: files, files: [a, {path: b, sha256: '%s'}]}\n"
            "- {check: files, files: [c], name: mine}\n- {check: files, files: [c]}\n" % ("0" * 64),
        )
    )

    assert [each.stage for each in gate.predicates] == [
        Stage.MECHANICAL, Stage.MECHANICAL, Stage.MECHANICAL, Stage.SEMANTIC, Stage.ACCOUNTING,
    ]  # fmt: skip
    assert [each.name for each in gate.predicates][:3] == ["files", "mine", "files-2"]
    assert gate.predicates[0].given["files"] == (("a", ""), ("b", "0" * 64))
    assert gate.predicates[4].given["jobs"] == ("41", "42")
    assert gate.predicates[3].given["at_least"] == 1.0


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("mechanical:\n- {check: files, files: [a]}\n", 1, "no name"),
        ("name: g\n", 1, "asks nothing"),
        ("name: g\nmechanical: []\n", 1, "asks nothing"),
        ("name: g\nmechancal: []\n", 2, "no 'mechancal'"),
        ("name: g\nmechanical:\n- {check: file, files: [a]}\n", 3, "no check is called 'file'"),
        ("name: g\nmechanical:\n- {files: [a]}\n", 3, "has no check"),
        ("name: g\nmechanical:\n- {check: files}\n", 3, "has no files"),
        ("name: g\nmechanical:\n- {check: files, files: []}\n", 3, "files is empty"),
        ("name: g\nmechanical:\n- {check: files, files: [a], x: 1}\n", 3, "no 'x'"),
        ("name: g\nmechanical:\n- {check: files, files: [{path: a, sha256: zz}]}\n", 3, "64 hex"),
        ("name: g\nmechanical:\n- {check: manifest, manifest: m, level: deep}\n", 3, "expected"),
        ("name: g\nsemantic:\n- {check: metric, set: s, arm: a, metric: m}\n", 3, "needs at_least"),
        (
            "name: g\nsemantic:\n- {check: metric, set: s, arm: a, metric: m, at_least: .nan}\n",
            3,
            "expected a number",
        ),
        ("name: g\naccounting:\n- {check: jobs_ended}\n", 3, "needs set or jobs"),
        (
            "name: g\nmechanical:\n- {check: files, files: [a], name: x}\n"
            "- {check: files, files: [a], name: x}\n",
            4,
            "two predicates are called 'x'",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"line {line}: .*{said}"):
        read_gate_file(_write(tmp_path, text))


def test_a_near_name_is_suggested(tmp_path: Path) -> None:
    text = "name: g\nmechanical:\n- {check: grid_complet, grid: g}\n"
    with pytest.raises(ConfigError) as told:
        read_gate_file(_write(tmp_path, text))
    assert told.value.hint == "did you mean 'grid_complete'?"


def test_every_check_of_the_table_is_answered_and_no_other() -> None:
    assert set(CHECKS) == set(EVALUATORS)
    assert all(row.sentence.endswith(".") for row in CHECKS.values())
