"""The figure of a sweep is a real picture, and says what it leaves out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.image import imread

from fleetcraft.errors import DataError
from fleetcraft.plots import SweepRow, plot_sweep, sweep

REPOSITORY = Path(__file__).parents[2]


def row(index: int, **changes: object) -> SweepRow:
    frame = np.full((32, 48, 3), 40 * index % 255, np.uint8)
    fields = {
        "name": f"clip-{index}",
        "group": f"{index % 2} steps",
        "metrics": {"sharpness": 3.0 * index, "motion": 1.0 + index},
        "frame": frame,
    }
    return SweepRow(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Keeps every figure that is saved, and still saves it."""
    figures: list[Figure] = []
    save = sweep.save

    def keep(figure: Figure, out_path: str | Path) -> None:
        figures.append(figure)
        save(figure, out_path)

    monkeypatch.setattr(sweep, "save", keep)
    return figures


def axes_titled(figure: Figure, title: str) -> list[object]:
    return [axes for axes in figure.get_axes() if axes.get_title(loc="left") == title]


def texts(figure: Figure) -> str:
    return " ".join(text.get_text() for part in figure.subfigs for text in part.texts)


def test_a_sweep_becomes_one_png_and_no_other_file(tmp_path: Path) -> None:
    plot_sweep([row(index) for index in range(8)], tmp_path / "sweep.png", title="Eight")
    picture = imread(tmp_path / "sweep.png")
    assert picture.shape[1] > 1000
    assert picture.std() > 0.05
    assert os.listdir(tmp_path) == ["sweep.png"]


def test_an_absent_metric_is_drawn_as_nothing_and_not_as_zero(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    rows = [row(1), row(2, metrics={"motion": 5.0}), row(3)]
    plot_sweep(rows, tmp_path / "sweep.png")
    (axes,) = axes_titled(drawn[0], "sharpness")
    (dots,) = [item for item in axes.collections if isinstance(item, PathCollection)]  # type: ignore[attr-defined]
    assert sorted(np.asarray(dots.get_offsets())[:, 0]) == [3.0, 9.0]


def test_clips_without_pictures_or_metrics_are_still_counted(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    plot_sweep([row(1, frame=None), row(2, frame=None)], tmp_path / "a.png")
    plot_sweep([row(1, metrics={}), row(2, metrics={})], tmp_path / "b.png")
    assert "2 clips, 2 without a picture here" in texts(drawn[0])
    assert texts(drawn[1]).endswith("2 clips")


def test_what_does_not_fit_is_counted_in_words(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_sweep([row(index) for index in range(50)], tmp_path / "sweep.png")
    assert "50 clips, 26 without a picture here, 10 not in the panels" in texts(drawn[0])


def test_a_group_keeps_its_colour_in_the_sheet_and_in_the_panels(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    plot_sweep([row(0), row(1)], tmp_path / "sweep.png")
    (sheet,) = axes_titled(drawn[0], "clip-1")
    (panel,) = axes_titled(drawn[0], "motion")
    (dots,) = [item for item in panel.collections if isinstance(item, PathCollection)]  # type: ignore[attr-defined]
    assert tuple(dots.get_facecolor()[1]) == sheet.spines["top"].get_edgecolor()  # type: ignore[attr-defined]


def test_an_empty_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no clips"):
        plot_sweep([], tmp_path / "sweep.png")


def test_drawing_changes_nothing_for_other_users_of_matplotlib(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    plot_sweep([row(1)], tmp_path / "sweep.png")
    assert dict(mpl.rcParams) == before


def test_importing_the_package_does_not_load_matplotlib() -> None:
    script = "import sys, fleetcraft.plots; print('matplotlib' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert result.stdout.strip() == "False"
