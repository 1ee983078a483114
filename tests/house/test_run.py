"""The step list behind bin/test, on small repositories of its own: no step may flatter the sum.

Not here: whether the checks themselves pass; bin/test finds that out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import run

PASSES = "def test_it():\n    pass\n"
FAILS = "def test_it():\n    assert False\n"
SKIPS = "import pytest\n\n@pytest.mark.skip\ndef test_it():\n    pass\n"
SERIAL = "import pytest\n\n@pytest.mark.serial\ndef test_it():\n    pass\n"
# Fails the first time, as a test may whose machine was busy.
UNSTEADY = """
import pathlib

def test_it():
    seen = pathlib.Path(__file__).with_suffix(".seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
CONFIG = "[pytest]\nmarkers = serial: alone\n"


def both_calls(repo: Path, monkeypatch: pytest.MonkeyPatch, **tests: str) -> tuple[str, ...]:
    """What the two calls and the look at their sum complain of, and the closing line."""
    (repo / "pytest.ini").write_text(CONFIG)
    for name, text in tests.items():
        file = repo / "tests" / name.replace("__", "/test_")
        file = file.with_name(f"{file.name}.py" if "__" in name else f"test_{name}.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(run, "REPO", repo)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")  # it takes seconds to load
    calls = run.Pytest(repo)
    return calls.serial(), calls.parallel(), calls.any_ran(), calls.closing_line()


def test_without_serial_tests_that_call_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = both_calls(tmp_path, monkeypatch, a=PASSES)
    assert outcome == ("", "", "", "1 passed, 0 failed, 0 skipped")


def test_both_calls_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = both_calls(tmp_path, monkeypatch, a=SERIAL, b=PASSES, c=SKIPS)
    assert outcome == ("", "", "", "2 passed, 0 failed, 1 skipped")


def test_one_failing_test_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = both_calls(tmp_path, monkeypatch, a=PASSES, b=FAILS)
    assert outcome == ("", "exit code 1", "", "1 passed, 1 failed, 0 skipped")


def test_real_processes_get_one_more_run_alone_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *calls, closing = both_calls(tmp_path, monkeypatch, a=PASSES, worker__b=UNSTEADY)
    assert calls == ["", "", ""]
    assert closing.startswith("2 passed, 0 failed, 0 skipped\nUNSTEADY")
    assert closing.endswith("\n  tests/worker/test_b.py::test_it")


@pytest.mark.parametrize(
    "tests",
    [
        {"worker__a": FAILS},  # alone as well
        {"spool__a": UNSTEADY},  # a protocol may not fail once
        {"worker__a": UNSTEADY, "crash__b": UNSTEADY},
        {f"worker__{name}": UNSTEADY for name in "abcde"},  # too many for chance
    ],
)
def test_no_other_failure_is_forgiven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: dict[str, str]
) -> None:
    _, parallel, _, closing = both_calls(tmp_path, monkeypatch, **tests)
    assert parallel == "exit code 1"
    assert closing == f"0 passed, {len(tests)} failed, 0 skipped"


@pytest.mark.parametrize("tests", [{}, {"a": SKIPS}])
def test_a_run_without_a_test_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: dict[str, str]
) -> None:
    *_, any_ran, _closing = both_calls(tmp_path, monkeypatch, **tests)
    assert any_ran == "no test was run"


def test_shell_files_are_known_by_shebang_or_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "REPO", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / ".ci").mkdir()
    for name, first_line in {
        "bin/lib.sh": "# sourced",
        "bin/tool": "#!/usr/bin/env bash",
        "bin/other": "#! /bin/sh",
        "bin/python": "#!/usr/bin/env python3",
        "bin/words": "bash is not asked",
        ".ci/run": "#!/bin/bash",
    }.items():
        (tmp_path / name).write_text(first_line + "\n")
    found = [str(file) for file in run.shell_files()]
    assert found == ["bin/lib.sh", "bin/other", "bin/tool", ".ci/run"]
