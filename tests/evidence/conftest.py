"""What every test of evidence starts from.

Not here: fixtures of one subject; they are in its own file.
"""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def no_torch_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record names the libraries that its process has loaded, and an earlier test may have."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
