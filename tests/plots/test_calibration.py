"""The figure of a calibration shows what the record holds: bytes, owners, failures."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fleetcraft.calibration.records import Calibration, Choice, Failure, OwnerBytes, Verdict
from fleetcraft.errors import DataError
from fleetcraft.plots import calibration
from fleetcraft.plots.calibration_owners import MOST, Layers
from fleetcraft.plots.calibration_text import Unit
from tests.plots.made_calibration import (
    MIB,
    PHASES,
    budget_run,
    failed_trial,
    made_calibration,
    made_environment,
    made_phase,
    made_trial,
    skipped_trial,
)

REPOSITORY = Path(__file__).parents[2]
Draw = Callable[..., Figure]


@pytest.fixture
def draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Draw:
    """Draws a run without making the pixels, which takes most of the time."""
    figures: list[Figure] = []

    def keep(figure: Figure, folder: str | Path, name: str) -> tuple[str, str]:
        figures.append(figure)
        return ("", "")

    monkeypatch.setattr(calibration, "save_both", keep)

    def draw_it(run: Calibration, **words: str) -> Figure:
        calibration.plot_calibration(run, tmp_path, **words)
        return figures[-1]

    return draw_it


def panel(figure: Figure, batch: int) -> Axes:
    (found,) = [
        axes
        for axes in figure.get_axes()
        if axes.get_title(loc="left").startswith((f"batch {batch}:", f"batch {batch},"))
    ]
    return found


def heights(axes: Axes) -> dict[str, float]:
    """The top of each phase's stack, in the unit of the page."""
    labels = [text.get_text() for text in axes.get_xticklabels()]
    tops: dict[str, float] = {}
    for patch in axes.patches:
        if isinstance(patch, Rectangle) and patch.get_width() < 0.9:
            name = labels[round(patch.get_x() + patch.get_width() / 2)]
            tops[name] = max(tops.get(name, 0.0), patch.get_y() + patch.get_height())
    return tops


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


def in_panel(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


# ------------------------------------------------------------------------------------------ data


def test_every_bar_is_as_high_as_the_tracked_peak_of_its_phase(draw: Draw) -> None:
    run = made_calibration()
    figure = draw(run)
    for trial in run.trials:
        found = heights(panel(figure, trial.batch))
        expected = {phase.name: (phase.peak_bytes or 0) / MIB for phase in trial.phases}
        assert found == pytest.approx(expected)


def test_an_owner_has_one_colour_and_one_place_in_every_batch(draw: Draw) -> None:
    figure = draw(made_calibration())

    def colours_of(batch: int) -> list[object]:
        bars = [p for p in panel(figure, batch).patches if isinstance(p, Rectangle)]
        column = PHASES.index("backward2")
        mine = [b for b in bars if round(b.get_x() + b.get_width() / 2) == column]
        return [b.get_facecolor() for b in sorted(mine, key=lambda bar: bar.get_y())]

    assert colours_of(1) == colours_of(2) == colours_of(4)
    assert len(set(colours_of(1))) == len(colours_of(1)) > 4


def test_owners_beyond_seven_are_folded_and_no_byte_is_lost() -> None:
    owners = tuple(OwnerBytes(name=f"part{n}", bytes=(n + 1) * MIB) for n in range(11))
    phase = made_phase("load", 1, owners=owners, peak_bytes=66 * MIB)
    layers = Layers([made_trial(1, phases=(phase,))])
    assert [layer.label for layer in layers.layers][-1] == "other (4)"
    assert len(layers.layers) == MOST + 1
    assert sum(layers.bytes_of(phase)) == 66 * MIB
    assert layers.bytes_of(phase)[-1] == (1 + 2 + 3 + 4) * MIB


def test_what_nobody_owns_is_one_hatched_layer_whatever_its_scope() -> None:
    owners = (
        OwnerBytes(name="unowned:a", bytes=2 * MIB),
        OwnerBytes(name="unowned:b", bytes=3 * MIB),
        OwnerBytes(name="model", bytes=MIB),
    )
    phase = made_phase("load", 1, owners=owners, peak_bytes=6 * MIB)
    layers = Layers([made_trial(1, phases=(phase,))])
    assert [(layer.label, bool(layer.hatch)) for layer in layers.layers] == [
        ("model", False),
        ("unowned", True),
    ]
    assert layers.bytes_of(phase) == [MIB, 5 * MIB]


def test_gradients_are_a_lighter_shade_of_what_they_are_gradients_of() -> None:
    layers = {layer.name: layer.color for layer in Layers([made_trial(1)]).layers}
    model, gradient = (
        np.array([int(layers[name][place : place + 2], 16) for place in (1, 3, 5)])
        for name in ("model", "model.grad")
    )
    np.testing.assert_allclose(gradient, model + 0.55 * (255 - model), atol=1)


def test_what_the_allocator_held_beyond_the_owners_stands_on_top(draw: Draw) -> None:
    phases = (made_phase("load", 1, residual_bytes=5 * MIB),)
    figure = draw(made_calibration(made_trial(1, phases=phases)))
    assert heights(panel(figure, 1)) == {"load": pytest.approx(25.0 + 5.0)}
    labels = panel(figure, 1).get_legend_handles_labels()[1]
    assert "untracked (allocator)" in labels


def test_every_axis_starts_at_zero_and_is_shared(draw: Draw) -> None:
    figure = draw(made_calibration())
    limits = {panel(figure, batch).get_ylim() for batch in (1, 2, 4)}
    assert len(limits) == 1
    assert limits.pop()[0] == 0.0
    assert "All panels have one scale." in words(figure)


def test_batches_that_differ_much_have_a_scale_each_and_the_page_says_so(draw: Draw) -> None:
    figure = draw(made_calibration(made_trial(1), made_trial(64)))
    low, high = (panel(figure, batch).get_ylim() for batch in (1, 64))
    assert low[0] == high[0] == 0.0
    assert (panel(figure, 1).get_ylabel(), panel(figure, 64).get_ylabel()) == ("MiB", "GiB")
    assert low[1] < 1024 < 1024 * high[1]
    assert "Each panel has a scale of its own." in words(figure)


def test_a_phase_without_a_peak_has_no_bar_and_is_called_so(draw: Draw) -> None:
    phases = (
        made_phase("load", 1),
        made_phase("decode", 1, peak_bytes=None, owners=(), live_end_bytes=None),
    )
    figure = draw(made_calibration(made_trial(1, phases=phases)))
    assert set(heights(panel(figure, 1))) == {"load"}
    assert "not measured" in in_panel(panel(figure, 1))


def test_the_line_across_a_bar_is_what_lives_at_the_end(draw: Draw) -> None:
    run = made_calibration(made_trial(1))
    (lines,) = [
        found
        for found in panel(draw(run), 1).collections
        if isinstance(found, LineCollection) and found.get_segments()
    ]
    ends = [segment[0][1] for segment in lines.get_segments()]
    assert ends == pytest.approx([(p.live_end_bytes or 0) / MIB for p in run.trials[0].phases])


# -------------------------------------------------------------------------------------- failures


def test_a_failed_batch_is_marked_with_its_class_in_the_phase_where_it_failed(draw: Draw) -> None:
    axes = panel(draw(budget_run()), 2)
    assert "failed: device_oom.capacity in backward2 (autograd)" in axes.get_title(loc="left")
    (mark,) = [text for text in axes.texts if text.get_text() == "device_oom.capacity"]
    assert round(mark.get_position()[0]) == PHASES.index("backward2")
    assert in_panel(axes).count("not run") == 4


def test_a_mark_at_the_edge_stays_inside_the_panel(draw: Draw) -> None:
    for phase in ("load", "write"):
        trial = failed_trial(1, phase, phases=(made_phase("decode", 1),))
        figure = draw(made_calibration(trial))
        figure.canvas.draw()
        axes = panel(figure, 1)
        (mark,) = [text for text in axes.texts if text.get_text() == "device_oom.capacity"]
        box = mark.get_window_extent()
        assert axes.bbox.x0 <= box.x0
        assert box.x1 <= axes.bbox.x1


def test_a_skipped_batch_has_words_and_no_axis(draw: Draw) -> None:
    axes = panel(draw(budget_run()), 8)
    assert "skipped: device_oom.predicted" in axes.get_title(loc="left")
    assert in_panel(axes) == [
        "the preflight predicts 865.0 MiB in backward2, the budget is 250.0 MiB"
    ]
    assert not heights(axes)


def test_a_budget_is_a_line_where_it_is_near_and_words_where_it_is_far(draw: Draw) -> None:
    near = draw(budget_run())
    assert "budget 250.0 MiB" in panel(near, 1).get_legend_handles_labels()[1]
    heights_of_lines = [np.asarray(line.get_ydata()).tolist() for line in panel(near, 1).lines]
    assert [250.0, 250.0] in heights_of_lines
    far = draw(made_calibration(made_trial(1), device_budget_bytes=9000 * MIB))
    assert "budget 8.8 GiB" not in panel(far, 1).get_legend_handles_labels()[1]
    assert "The budget 8.8 GiB lies above every panel." in words(far)


def test_a_device_without_a_budget_is_limited_by_its_own_memory(draw: Draw) -> None:
    place = made_environment(device="Made Up GPU", device_mem_mib=200.0)
    run = made_calibration(made_trial(1, environment=place), device="cuda")
    assert "device 200.0 MiB" in panel(draw(run), 1).get_legend_handles_labels()[1]
    assert (
        "device"
        not in panel(draw(made_calibration(made_trial(1))), 1).get_legend_handles_labels()[1]
    )


def test_a_run_without_any_peak_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no phase of any trial has a measured peak"):
        calibration.plot_calibration(made_calibration(skipped_trial(2)), tmp_path)
    assert not os.listdir(tmp_path)


# ----------------------------------------------------------------------------------------- words


def test_the_headline_is_the_choice_with_its_reason_and_the_fault(draw: Draw) -> None:
    assert words(draw(made_calibration())).startswith(
        "toy: batch 2 was chosen: a larger one is not faster beyond noise\nbatch 4 gains 2.5 %"
    )
    none = Choice(batch=None, reason="first_failed")
    leak = made_trial(1, verdict=Verdict.FAILED, failure=Failure.OWNER_OUTLIVED, phase="probe")
    said = words(draw(made_calibration(leak, choice=none, fault="leak_probe_kv")))
    assert said.startswith("toy (with fault leak_probe_kv): no batch was chosen: the first batch")
    assert words(draw(made_calibration(), title="My own")).startswith("My own\ntoy: batch 2")


def test_rates_and_gains_stand_under_the_headline(draw: Draw) -> None:
    assert (
        "Samples per second, tracking off: batch 1: 3.20, batch 2: 4.00 (+25.0 %), "
        "batch 4: 4.10 (+2.5 %)"
    ) in words(draw(made_calibration()))


def test_the_highest_peak_of_a_batch_is_in_bold_and_called_peak(draw: Draw) -> None:
    bold = [t for t in panel(draw(made_calibration()), 2).texts if t.get_fontweight() == "bold"]
    assert [text.get_text() for text in bold] == ["peak 269"]


@pytest.mark.parametrize(
    ("largest", "name", "said"),
    [(700, "KiB", "0.68"), (5 * MIB, "MiB", "5.00"), (1500 * MIB, "GiB", "1.46"),
     (91 * 1024 * MIB, "GiB", "91.0"), (128 * MIB, "MiB", "128")],
)  # fmt: skip
def test_the_unit_suits_the_largest_number(largest: int, name: str, said: str) -> None:
    unit = Unit.for_bytes(largest)
    assert (unit.name, unit.number(largest)) == (name, said)


# -------------------------------------------------------------------------------------- the page


def test_no_text_lies_on_another_and_all_lie_on_the_page(draw: Draw) -> None:
    figure = draw(budget_run())
    figure.canvas.draw()
    for axes in figure.get_axes():
        texts = [t for t in axes.texts if t.get_text()]
        boxes = [text.get_window_extent() for text in texts]
        for place, box in enumerate(boxes):
            hits = [texts[n].get_text() for n in range(place) if boxes[n].overlaps(box)]
            assert not hits, (texts[place].get_text(), hits)
    legend = panel(figure, 1).get_legend()
    assert legend is not None
    assert legend.get_window_extent().x0 >= panel(figure, 1).bbox.x1
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_many_phases_with_long_names_do_not_run_into_one_another(draw: Draw) -> None:
    names = [f"a_rather_long_phase_{n}" for n in range(24)]
    phases = tuple(made_phase("load", 1, name=name) for name in names)
    figure = draw(made_calibration(made_trial(1, phases=phases), made_trial(2, phases=phases)))
    figure.canvas.draw()
    labels = [t.get_text() for t in panel(figure, 2).get_xticklabels()]
    assert labels[0].startswith("a_rath")
    assert len(labels) == 24
    foot = min(text.get_window_extent().y1 for text in figure.texts)
    assert min(t.get_window_extent().y0 for t in panel(figure, 2).get_xticklabels()) > foot
    assert {t.get_text() for t in panel(figure, 1).get_xticklabels()} == {""}


def test_batches_beyond_twelve_are_counted(draw: Draw) -> None:
    phases = (made_phase("load", 1),)
    figure = draw(made_calibration(*(made_trial(n, phases=phases) for n in range(1, 15))))
    assert "2 batches more have no panel." in words(figure)


HOSTILE = "$x_1^2$\x1b[31m</text><script>中"


def test_hostile_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    owners = (OwnerBytes(name=HOSTILE, bytes=MIB),)
    phase = made_phase("load", 1, name=HOSTILE, owners=owners, peak_bytes=MIB)
    run = made_calibration(made_trial(1, phases=(phase,)), family=HOSTILE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = calibration.plot_calibration(run, tmp_path)
    root = ElementTree.parse(made.files[1]).getroot()
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert "\x1b" not in Path(made.files[1]).read_text()


def test_two_processes_make_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "import sys; from tests.plots.made_calibration import budget_run\n"
        "from fleetcraft.plots.calibration import plot_calibration\n"
        "plot_calibration(budget_run(), sys.argv[1])"
    )
    found = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        subprocess.run(
            [sys.executable, "-c", script, str(folder)], cwd=REPOSITORY, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed}, timeout=120,
        )  # fmt: skip
        found.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert found[0] == found[1]
    assert set(found[0]) == {"peaks.png", "peaks.svg"}
    assert b"Matplotlib" not in found[0]["peaks.svg"]
