"""What tests of caches share: a folder in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.disturbing import folder_in_memory


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder in memory: the tests of crash points force much to disk."""
    with folder_in_memory() as folder:
        yield folder
