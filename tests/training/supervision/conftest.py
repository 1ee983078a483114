"""Scenes of which nothing is left alive after a test.

Not here: what a scene is; see `scenes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.supervision.scenes import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Makes scenes: the script that plays the run, and what differs in its plan."""
    made: list[Scene] = []

    def make(script: str, **plan: Any) -> Scene:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Scene(folder, script, **plan))
        return made[-1]

    yield make
    for one in made:
        one.kill_all()
