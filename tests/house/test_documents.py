"""What the documents say is so: their commands run, and their tables match the code.

A page is worked through from top to bottom in a private folder of its own, which looks like a
checkout. Fenced blocks:

- ``console``: each line that starts with ``$ `` is a command (``> `` continues it); what follows is
  its output, stdout and stderr as they come. Where output is shown it must match: ``...`` in a line
  stands for any text, a line ``...`` for any lines. A command ends with exit code 0, or with the
  code that its comment ``# exit N`` names.
- ``bash`` and ``python``: run as a whole, and end with exit code 0.

``<!-- not run: REASON -->`` in the line before a block leaves it out. Other blocks are not run.

Not here: links (test_imports.py), and docs/benchmarks, each page of which records one measurement.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from fleetcraft import Outcome, TaskSpec, errors
from fleetcraft.cli.main import VERBS
from fleetcraft.layout import State
from fleetcraft.spool.directives import DIRECTIVES
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.record import SPENDING, HistoryLine, OutputFact
from fleetcraft.spool.store import Spool
from fleetcraft.spool.views import AttemptView, TaskView
from fleetcraft.worker.local_fleet import run_local
from fleetcraft.worker.settings import WorkerExit, WorkerSettings
from tests.slurm.cluster import missing, sandbox

REPO = Path(__file__).resolve().parents[2]
FORMAT = REPO / "docs/spool-format.md"
PAGES = [
    REPO / "README.md",
    REPO / "AGENTS.md",
    *sorted((REPO / "docs").glob("*.md")),
    *sorted((REPO / "docs/examples").glob("*/README.md")),
    *sorted((REPO / "skills").glob("*/SKILL.md")),
]
CODES_OF_NO_CLASS = {0, 70, 141}  # done; a defect; a reader that went away
LANGUAGES = ("console", "bash", "python")
MARK = "@@ended@@"
RUN_TIMEOUT_S = 400


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block: its language, its lines, where it stands, and why it is not run."""

    language: str
    lines: tuple[str, ...]
    line_number: int
    not_run: str = ""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command with what the page says of its output and its exit code."""

    command: str
    shown: tuple[str, ...]
    exit_code: int
    line_number: int


# ------------------------------------------------------------------------- commands of the pages


@pytest.mark.timeout(RUN_TIMEOUT_S + 60)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page.read_text()) if block.language in LANGUAGES]
    steps = [step for block in blocks if not block.not_run for step in steps_of(block)]
    if not steps:
        return
    skip_what_this_machine_lacks(page)
    folder = checkout_like_folder(page, tmp_path)
    try:
        said = work_through(steps, folder, tmp_path)
    finally:
        if (folder / "cluster").exists():  # a page that failed half-way has not stopped it
            sandbox("stop", "--purge", "--dir", folder / "cluster")
    assert [complaint for step, told in said if (complaint := compare(step, *told))] == []
    assert len(said) == len(steps), f"the shell ended after {said[-1][0].command if said else ''}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_a_block_that_is_not_run_gives_its_reason(page: Path) -> None:
    text = page.read_text()
    left_out = [block for block in blocks_of(text) if block.not_run]
    assert all(len(block.not_run.split()) > 3 for block in left_out)
    assert text.count("<!-- not run") == len(left_out)


def test_blocks_are_told_apart() -> None:
    text = (
        "```console\n$ true  # exit 0\n$ cat <<E\n> a\n> E\na\n```\n"
        "<!-- not run: it takes an hour -->\n```bash\nsleep 3600\n```\n```json\n{}\n```\n"
    )
    console, bash, other = blocks_of(text)
    assert [step.command for step in steps_of(console)] == ["true  # exit 0", "cat <<E\na\nE"]
    assert [step.shown for step in steps_of(console)] == [(), ("a",)]
    assert (bash.not_run, other.language) == ("it takes an hour", "json")


@pytest.mark.parametrize(
    ("shown", "output", "matches"),
    [
        ("a b", "a b", True),
        ("a b", "a c", False),
        ("a", "a\nb", False),
        ("...\nb", "x\ny\nb", True),
        ("...\nb", "b", True),
        ("a ... s", "a 1.5 s", True),
        ("a ... s", "a 1.5 m", False),
        ("a\n...", "a", True),
        ("(a|b)", "a", False),
    ],
)
def test_shown_output_is_compared(shown: str, output: str, matches: bool) -> None:
    assert fits(tuple(shown.split("\n")), output) is matches


# ------------------------------------------------------------------------------ tables and lists


def test_every_directive_is_documented_and_no_other() -> None:
    assert first_cells(FORMAT, "key") == list(DIRECTIVES)


def test_every_field_of_a_history_line_is_documented_and_no_other() -> None:
    assert sorted(first_cells(FORMAT, "field")) == sorted(HistoryLine.__struct_fields__)
    assert first_cells(FORMAT, "output field") == list(OutputFact.__struct_fields__)


def test_every_field_of_a_lease_is_documented_and_no_other() -> None:
    assert sorted(first_cells(FORMAT, "lease field")) == sorted(Lease.__struct_fields__)


def test_every_outcome_is_documented_with_whether_it_spends() -> None:
    rows = rows_of(FORMAT, "outcome")
    assert {row[0]: row[2] == "yes" for row in rows} == {
        f"`{outcome}`": outcome in SPENDING for outcome in Outcome
    }


def test_the_glossary_names_every_outcome_and_state() -> None:
    glossary = {row[0]: row[1] for row in rows_of(REPO / "docs/glossary.md", "word")}
    assert set(re.findall(r"`(\w+)`", glossary["outcome"])) == {o.value for o in Outcome}
    assert set(re.findall(r"`(\w+)`", glossary["state"])) == {s.value for s in State}


def test_the_readme_names_every_exit_code_and_no_other() -> None:
    documented = {
        int(code)
        for row in rows_of(REPO / "README.md", "code")
        for code in re.findall(r"`(\d+)`", row[0])
    }
    of_errors = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.FleetError)
    }
    assert documented == CODES_OF_NO_CLASS | of_errors | {int(code) for code in WorkerExit}


def test_the_readme_names_every_verb() -> None:
    words = set(re.findall(r"[a-z]+", (REPO / "README.md").read_text()))
    assert sorted(set(VERBS) - words) == []


def test_journals_hold_the_documented_events_with_their_fields(tmp_path: Path) -> None:
    # Arrange: a task that ends well, and one that fails.
    root = tmp_path / "scratch"
    root.mkdir(mode=0o700)
    spool = Spool.create(f"{root}/taskq", project_dir=str(tmp_path))
    spool.enqueue("good", "true")
    spool.enqueue("bad", "false")

    # Act
    run_local(WorkerSettings(spool_dir=spool.root, root=str(root)), 1, lambda event: None)

    # Assert
    journals = [
        json.loads(line)
        for path in Path(spool.root, "workers").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    found = {event["event"]: sorted(set(event) - {"event", "at"}) for event in journals}
    documented = {
        row[0].strip("`"): sorted(re.findall(r"`(\w+)`", row[1]))
        for row in rows_of(FORMAT, "event")
    }
    assert found.items() <= documented.items()
    assert documented.keys() - found.keys() <= {"note"}  # an undisturbed run may have none


def test_the_python_api_page_names_every_method_and_field() -> None:
    text = (REPO / "docs/python-api.md").read_text()
    methods = [name for name in vars(Spool) if not name.startswith("_")]
    names = [*methods, *TaskSpec.__struct_fields__]
    names += [field.name for kind in (TaskView, AttemptView) for field in fields(kind)]
    assert [name for name in names if f"`{name}" not in text and f".{name}" not in text] == []


# -------------------------------------------------------------------------------------- reading


def blocks_of(markdown: str) -> list[Block]:
    """Every fenced block of a page."""
    found: list[Block] = []
    lines = markdown.split("\n")
    number = 0
    while number < len(lines):
        fence = re.fullmatch(r"(\s*)(`{3,})(\w*)", lines[number])
        if fence is None:
            number += 1
            continue
        indent, ticks, language = fence.groups()
        end = lines.index(f"{indent}{ticks}", number + 1)
        before = re.fullmatch(r"\s*<!-- not run: (.+) -->", lines[number - 1]) if number else None
        found.append(
            Block(
                language=language,
                lines=tuple(line.removeprefix(indent) for line in lines[number + 1 : end]),
                line_number=number + 1,
                not_run=before[1] if before else "",
            )
        )
        number = end + 1
    return found


def steps_of(block: Block) -> list[Step]:
    """The commands of a block, in order."""
    if block.language == "bash":
        script = "\n".join(("set -e", *block.lines))
        return [step(f"(\n{script}\n)", (), block.line_number)]
    if block.language == "python":
        program = "\n".join(block.lines)
        return [step(f"python - <<'{MARK}'\n{program}\n{MARK}", (), block.line_number)]
    steps: list[Step] = []
    command: list[str] = []
    shown: list[str] = []
    began = 0
    for number, line in enumerate((*block.lines, "$ "), block.line_number + 1):
        if line.startswith("$ "):
            if command:
                steps.append(step("\n".join(command), tuple(shown), began))
            command, shown, began = [line[2:]], [], number
        elif line.startswith("> ") and not shown:
            command.append(line[2:])
        else:
            shown.append(line)
    return steps


def step(command: str, shown: tuple[str, ...], line_number: int) -> Step:
    code = re.search(r"# exit (\d+)$", command)
    return Step(
        command=command,
        shown=shown,
        exit_code=int(code[1]) if code else 0,
        line_number=line_number,
    )


def rows_of(page: Path, first_heading: str) -> list[list[str]]:
    """The rows of the one table whose first column has this heading."""
    tables = re.findall(
        rf"^\| {re.escape(first_heading)} \|.*\n\|[-:| ]+\|\n((?:\|.*\|\n)+)",
        page.read_text() + "\n",
        re.MULTILINE,
    )
    assert len(tables) == 1, f"{page.name} has {len(tables)} tables that begin with {first_heading}"
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in tables[0].splitlines()
    ]


def first_cells(page: Path, first_heading: str) -> list[str]:
    return [row[0].strip("`") for row in rows_of(page, first_heading)]


# -------------------------------------------------------------------------------------- running


def skip_what_this_machine_lacks(page: Path) -> None:
    text = page.read_text()
    if page.parent.parent.name == "examples" or "cp docs/examples/" in text:
        pytest.importorskip("torch", reason="the example's model needs torch")
        pytest.importorskip("av", reason="the example writes video files")
    if "fleetcraft evidence export" in text:
        pytest.importorskip("bagit", reason="bags are validated by the bagit library")
    if "infra/slurm/sandbox start" in text and (lacking := missing(accounting="--acc" in text)):
        pytest.skip(lacking)


def checkout_like_folder(page: Path, tmp_path: Path) -> Path:
    """Where a page's commands run: a copy of an example's folder, or what looks like a checkout."""
    folder = tmp_path / "work"
    if page.parent.parent.name == "examples":
        shutil.copytree(page.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        folder.mkdir()
        for name in ("bin", "docs", "infra"):
            (folder / name).symlink_to(REPO / name)
    return folder


def work_through(
    steps: list[Step], folder: Path, tmp_path: Path
) -> list[tuple[Step, tuple[str, int]]]:
    """Runs the commands in one shell, so that variables and folders carry over."""
    parts = [f"{{ {step.command}\n}} 2>&1; printf '\\n{MARK}%d\\n' $?\n" for step in steps]
    script = tmp_path / "page.sh"
    script.write_text("".join(parts))
    done = subprocess.run(
        ["bash", script],
        cwd=folder,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    outputs = re.findall(rf"(.*?)\n{MARK}(\d+)\n", done.stdout, re.DOTALL)
    told = [(output.strip("\n"), int(code)) for output, code in outputs]
    assert not done.stderr, done.stderr
    return list(zip(steps, told, strict=False))


def environment(tmp_path: Path) -> dict[str, str]:
    """Ours, with this environment's Python and fleetcraft first on PATH."""
    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    more = {}
    if not (programs / "fleetcraft").exists():  # run from a checkout that is not installed
        shim = tmp_path / "programs" / "fleetcraft"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fleetcraft "$@"\n')
        shim.chmod(0o755)
        path = f"{shim.parent}{os.pathsep}{path}"
        more["PYTHONPATH"] = str(REPO)
    return {**os.environ, **more, "PATH": path, "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}


def compare(step: Step, output: str, exit_code: int) -> str:
    """What is wrong with a command's output or exit code; empty when nothing is."""
    where = f"line {step.line_number}: {step.command}"
    if exit_code != step.exit_code:
        return f"{where}\nended with {exit_code}, expected {step.exit_code}:\n{output}"
    if step.shown and not fits(step.shown, output):
        return f"{where}\nprinted:\n{output}\nexpected:\n" + "\n".join(step.shown)
    return ""


def fits(shown: tuple[str, ...], output: str) -> bool:
    """Whether an output is what a page shows of it."""
    pattern = ""
    for line in shown:
        if line == "...":
            pattern += r"(?:[^\n]*\n)*"
        else:
            pattern += ".*".join(re.escape(part) for part in line.split("...")) + r" *\n"
    return re.fullmatch(pattern, output.rstrip("\n") + "\n") is not None
