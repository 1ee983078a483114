"""What was imported is no garbage: without it in sight, collecting at phase borders is cheap."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch._dynamo  # noqa: F401  # the first dispatch mode would load it


@pytest.fixture(autouse=True, scope="module")
def imported_modules_are_no_garbage() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
