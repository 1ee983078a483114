"""A spool for each test, on the real file system but without forced writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from fleetcraft.spool import setup
from fleetcraft.spool.tree import SpoolTree
from tests.quick_fs import QuickFS

# A busy machine is no reason to fail.
settings.register_profile("spool", deadline=None, max_examples=80)
settings.load_profile("spool")


@pytest.fixture
def tree(tmp_path: Path) -> SpoolTree:
    made = SpoolTree(str(tmp_path / "taskq"), QuickFS())
    setup.set_up(made)
    return made
