"""One browser for the tests that look at pages, and one page to look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.browser import Browser, program


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A real browser."""
    if program() is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a scratch tree can be made."""
    tmp_path.chmod(0o700)
    return tmp_path / "fleet"
