"""A family's file is somebody's own code: whatever it does when it is imported is told in words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fleetcraft.calibration.family import family, find_family
from fleetcraft.errors import ConfigError, UsageError


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("\nx = undefined", "NameError: name 'undefined' is not defined"),
        ("def cycle(", "was never closed"),
        ("import not_installed_anywhere", "No module named 'not_installed_anywhere'"),
        ("x = 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_imported_is_a_sentence_with_the_reason(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "odd_family.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        find_family(f"{path}:cycle")
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_what_a_file_says_of_its_own_family_passes_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "odd_family.py"
    path.write_text("from fleetcraft.calibration import family\nfamily('k', nothing=1)\n")
    with pytest.raises(UsageError, match="unknown argument 'nothing'"):
        find_family(f"{path}:cycle")


def test_a_key_that_is_no_text_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="5 is no text"):
        family(5)(lambda ctx, batch: None)  # type: ignore[arg-type]
