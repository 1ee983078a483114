"""What prose names exists: files and tests in backticks, and anchors of other pages.

Not here: relative links (test_imports.py), and commands (test_documents.py, test_skills.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PAGES = [
    REPO / "README.md",
    REPO / "AGENTS.md",
    *sorted((REPO / "docs").rglob("*.md")),
    *sorted((REPO / "skills").rglob("*.md")),
]
_NAMED = re.compile(r"`((?:tests|fleetcraft|bin|infra|docs|skills)/[A-Za-z0-9_./-]*[A-Za-z0-9_])`")
_ANCHORED = re.compile(r"\]\(([^)\s#]*)#([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    named = set(_NAMED.findall(prose(page)))
    assert sorted(path for path in named if not (REPO / path).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_every_anchor_that_a_page_links_to_is_a_heading(page: Path) -> None:
    dead = [
        f"{target}#{anchor}"
        for target, anchor in _ANCHORED.findall(prose(page))
        if not target.startswith("http")
        and anchor not in anchors((page.parent / target) if target else page)
    ]
    assert dead == []


def test_anchors_are_made_as_on_the_web() -> None:
    text = "# The house: a `tour`\n## What it asks of Slurm\n## Where & why?\n## Where & why?\n"
    made = list(anchors_of(text))
    assert made == ["the-house-a-tour", "what-it-asks-of-slurm", "where--why", "where--why-1"]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^(\s*)(`{3,}).*?^\s*\2", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    return set(anchors_of(prose(page)))


def anchors_of(text: str) -> list[str]:
    made: list[str] = []
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        seen = sum(re.sub(r"-\d+$", "", one) == anchor for one in made)
        made.append(f"{anchor}-{seen}" if seen else anchor)
    return made
