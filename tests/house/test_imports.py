"""The rules of the house that no linter knows: light starts, short modules, links that lead on.

Not here: which floor may import which; that is import-linter's, in pyproject.toml.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

REPO = Path(__file__).resolve().parents[2]
MODULES = sorted((REPO / "fleetcraft").rglob("*.py"))

LONGEST_MODULE = 400
EMPTY_WORDS = {"utils", "helpers", "common", "manager"}

# Runs the command line in its process and says last which of the heavy modules that loaded.
WHAT_IT_LOADS = """
import json, sys
from fleetcraft.cli.main import main
heavy = ["torch", "pandas", "matplotlib", "pynvml", "rich"]
sys.argv[0] = "fleetcraft"
try:
    code = main()
except SystemExit as stopped:
    code = stopped.code
print()
print(json.dumps({"code": code or 0, "loaded": [name for name in heavy if name in sys.modules]}))
"""


@pytest.mark.parametrize("command", ["--help", "enqueue --help"])
def test_help_starts_without_the_heavy_libraries(command: str, tmp_path: Path) -> None:
    report, output = start_fleetcraft(command.split(), tmp_path)
    assert report == {"code": 0, "loaded": []}
    assert "enqueue" in output


def test_enqueue_publishes_a_task_without_the_heavy_libraries(tmp_path: Path) -> None:
    start_fleetcraft(["init", "--root", "scratch"], tmp_path)
    report, _ = start_fleetcraft(["enqueue", "-n", "light", "true"], tmp_path)
    assert report == {"code": 0, "loaded": []}
    assert list(tmp_path.glob("scratch/taskq/pending/**/light.sh"))


def test_every_module_says_what_lives_in_it() -> None:
    silent = [
        str(module.relative_to(REPO)) for module in MODULES if len(docstring_lines(module)) < 2
    ]
    assert silent == []


def test_a_module_is_short_or_gives_its_reason() -> None:
    long_ones = [
        str(module.relative_to(REPO))
        for module in MODULES
        if len(module.read_text().splitlines()) > LONGEST_MODULE
        and not any(line.startswith("Length:") for line in docstring_lines(module))
    ]
    assert long_ones == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    paths = [module.relative_to(REPO).with_suffix("") for module in MODULES]
    assert [str(path) for path in paths if EMPTY_WORDS & set(path.parts)] == []


def test_the_package_is_marked_as_typed() -> None:
    assert (REPO / "fleetcraft/py.typed").is_file()


def test_every_relative_link_of_the_documents_leads_somewhere() -> None:
    folders = (REPO / "docs", REPO / "skills")
    pages = [REPO / "README.md", REPO / "AGENTS.md"]
    pages += [page for folder in folders for page in sorted(folder.rglob("*.md"))]
    dead = [
        f"{page.relative_to(REPO)}: {link}"
        for page in pages
        if page.is_file()
        for link in relative_links(page.read_text())
        if not (page.parent / link).exists()
    ]
    assert dead == []


def test_links_are_found_in_prose_and_not_in_code() -> None:
    text = """
        [a](docs/a.md) ![b](b.png "title") [c](<with space.md>) [d](d.md#part)
        [e]: e%20e.md
        [f](https://example.org/f) [g](#here) [h](mailto:h@example.org) `[i](i.md)`
        ```bash
        [[ -f $x ]](j.md)
        ```
    """
    assert relative_links(text) == ["docs/a.md", "b.png", "with space.md", "d.md", "e e.md"]


def start_fleetcraft(arguments: list[str], folder: Path) -> tuple[dict[str, Any], str]:
    """Runs one command in a fresh process, in a project folder with `scratch` as its root."""
    done = subprocess.run(
        [sys.executable, "-c", WHAT_IT_LOADS, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(REPO),
            "PROJECT": str(folder),
            "PROJECT_SCRATCH": str(folder / "scratch"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


def docstring_lines(module: Path) -> list[str]:
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    return [line for line in text.splitlines() if line.strip()]


def relative_links(markdown: str) -> list[str]:
    """The files that a page links to, without the part after `#`."""
    prose = re.sub(r"^\s*```.*?^\s*```|`[^`\n]*`", "", markdown, flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?:<([^>]+)>|([^)\s]+))[^)]*\)|^\s*\[[^\]]+\]:\s+(\S+)", prose, re.M)
    targets = [next(filter(None, groups)).partition("#")[0] for groups in links]
    return [unquote(link) for link in targets if link and not re.match(r"[a-z]+:", link)]
