"""Fuzzed readers, with few and always the same values; `python -m tests.fuzz` tries many."""

from __future__ import annotations

import pytest

from tests.fuzz import engine
from tests.fuzz.target import Target
from tests.fuzz.targets import of_part

EXAMPLES = 20
TARGETS = [target for part in ("training", "rollouts") for target in of_part(part)]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_reader_returns_a_value_or_raises_what_it_documents(target: Target) -> None:
    engine.check(target, EXAMPLES)
