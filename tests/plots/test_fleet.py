"""The figures of a fleet show what the records hold, leave gaps open, and say what they lack."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from fleetcraft.errors import DataError
from fleetcraft.plots import controller, family_mfu, fleet
from fleetcraft.plots.style import drawable, house_style, new_figure, save_both
from fleetcraft.plots.time_scale import TimeScale, span_words
from fleetcraft.telemetry.figures.controller_log import ControllerLog, Point, read_controller_logs
from fleetcraft.telemetry.figures.time_axis import choose_axis
from fleetcraft.telemetry.figures.timeline import build_timeline
from fleetcraft.telemetry.figures.traces import measure, read_traces
from fleetcraft.telemetry.queue import Depth, Presence, Queue
from fleetcraft.telemetry.reading.sources import find_sources
from fleetcraft.telemetry.windows.family_mfu import Device, FamilyMfu, Mfu
from tests.telemetry.traces import (
    BEGIN_S,
    archive_row,
    archived,
    our_row,
    write_archive,
    write_ours,
)

Draw = Callable[..., tuple[Figure, fleet.Made]]


@pytest.fixture
def draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Draw:
    """Draws a folder of traces; the figure and what was made of it."""
    figures: list[Figure] = []
    real = False

    def keep(figure: Figure, folder: str | Path, name: str) -> tuple[str, str]:
        figures.append(figure)  # making the pixels takes most of the time, and most need none
        return save_both(figure, folder, name) if real else ("", "")

    for module in (fleet, controller, family_mfu):
        monkeypatch.setattr(module, "save_both", keep)

    def draw_it(
        folder: Path, queue: Queue | None = None, *, files: bool = False, **words: str
    ) -> tuple[Figure, fleet.Made]:
        nonlocal real
        real = files
        found = read_traces(find_sources(str(folder)).sources)
        queue = queue or Queue()
        line = build_timeline(found, queue)
        assert line is not None
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        made = fleet.plot_fleet(found, queue, line, measure(found), out, **words)
        return figures[-1], made

    draw_it.figures = figures  # type: ignore[attr-defined]
    return draw_it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "telemetry"
    place.mkdir()
    return place


def panel(figure: Figure, title: str) -> Axes:
    (found,) = [axes for axes in figure.get_axes() if axes.get_title(loc="left").startswith(title)]
    return found


def line_of(axes: Axes, label: str) -> np.ndarray:  # type: ignore[type-arg]
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return np.asarray(found.get_ydata(), float)


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


def all_texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]


def write_fleet(folder: Path, hosts: int, gpus: int, samples: int = 20) -> None:
    for host in range(hosts):
        rows = [
            our_row(30 * k, gpu=gpu, node=f"n{host}", util_pct=(7 * host + 11 * gpu + k) % 101)
            for k in range(samples)
            for gpu in range(gpus)
        ]
        write_ours(folder, rows, node=f"n{host:03d}")


# ----------------------------------------------------------------------------------------- data


def test_a_gap_is_open_in_the_heat_map_and_parts_every_line(folder: Path, draw: Draw) -> None:
    times = [*range(0, 300, 30), *range(480, 900, 30)]
    write_archive(folder, "a.csv", [archive_row(at, util_pct=50) for at in times])
    figure, _ = draw(folder)
    heat = panel(figure, "Utilization of each host").images[0].get_array()
    assert isinstance(heat, np.ma.MaskedArray)
    assert np.flatnonzero(np.ma.getmaskarray(heat)[0]).tolist() == [10, 11, 12, 13, 14, 15]
    assert set(heat.compressed()) == {50.0}
    drawn = line_of(panel(figure, "Utilization, %"), "a")
    assert np.flatnonzero(np.isnan(drawn[:-1])).tolist() == list(range(20, 32))


def test_zero_percent_looks_different_from_no_sample(folder: Path, draw: Draw) -> None:
    write_archive(folder, "a.csv", [archive_row(at, util_pct=0) for at in (0, 30, 60)])
    figure, _ = draw(folder)
    image = panel(figure, "Utilization of each host").images[0]
    idle, none = image.to_rgba(np.ma.masked_invalid(np.array([0.0, np.nan])))
    assert np.abs(idle[:3] - none[:3]).sum() > 1.5


def test_every_host_is_a_row_and_labels_are_thinned(folder: Path, draw: Draw) -> None:
    write_fleet(folder, hosts=76, gpus=1, samples=3)
    figure, _ = draw(folder)
    axes = panel(figure, "Utilization of each host")
    labels = [text.get_text() for text in axes.get_yticklabels()]
    heat = axes.images[0].get_array()
    assert heat is not None
    assert heat.shape[0] == 76
    assert 20 < len(labels) < 76
    assert labels[0] == "n000"
    assert figure.get_figheight() < 25


def test_few_gpus_are_rows_of_their_own_and_lines_instead_of_bands(
    folder: Path, draw: Draw
) -> None:
    write_fleet(folder, hosts=1, gpus=2, samples=5)
    figure, _ = draw(folder)
    heat = panel(figure, "Utilization of each GPU").images[0].get_array()
    assert heat is not None
    assert heat.shape[0] == 2
    drawn = line_of(panel(figure, "Utilization, %"), "n000 gpu 1")
    assert drawn[:2].tolist() == [11.0, 11.0]


def test_bands_are_the_quantiles_of_the_bins(folder: Path, draw: Draw) -> None:
    write_fleet(folder, hosts=9, gpus=1, samples=4)
    figure, _ = draw(folder)
    axes = panel(figure, "Utilization, %")
    values = [(7 * host) % 101 for host in range(9)]
    assert line_of(axes, "median GPU")[0] == np.median(values)
    assert line_of(axes, "mean of samples")[0] == pytest.approx(np.mean(values))
    assert len(axes.collections) == 2


def test_every_number_of_the_head_is_counted(folder: Path, draw: Draw) -> None:
    write_fleet(folder, hosts=3, gpus=2, samples=20)
    write_archive(folder, "z.csv", ["no row at all"])
    figure, made = draw(folder)
    said = words(figure)
    assert "4 hosts, 6 GPUs, 120 samples in 4 files (1 without a row)" in said
    assert "1 line rejected (1 sentence)" in said
    assert "2026-07-17 12:00:00 to 2026-07-17 12:09:30 (9 min 30 s), UTC" in said
    assert "0.238 kWh in 0.95 covered GPU hours (trapezoid of power, gaps left out)" in said
    assert made.title.startswith("6 GPUs on 3 hosts: at work in ")


def test_a_zone_that_was_not_recorded_is_not_called_utc(folder: Path, draw: Draw) -> None:
    write_archive(folder, "a.csv", [archive_row(at) for at in (0, 30)])
    figure, _ = draw(folder)
    assert "file-local time, zone not recorded" in words(figure)
    write_ours(folder, [our_row(0)])
    figure, _ = draw(folder)
    assert "UTC, and file-local time of 1 file without a zone" in words(figure)


# --------------------------------------------------------------------------------------- panels


def test_panels_without_data_are_left_out_with_their_reason(folder: Path, draw: Draw) -> None:
    write_ours(folder, [our_row(at, util_pct="", power_w="[N/A]") for at in (0, 30)])
    figure, made = draw(folder, no_queue="no spool here")
    assert made.panels == ("states", "memory")
    assert made.left_out == {
        "utilization": "no reading of utilization in any row",
        "power": "no reading of power in any row",
        "queue": "no spool here",
        "workers": "no spool here",
    }
    assert "queue and workers (no spool here)" in words(figure)
    assert "1 GPU on 1 host: utilization was never read" in words(figure)


def queue_of(pending: int, *, gpus: int = 4) -> Queue:
    depths = [
        Depth(
            t_s=BEGIN_S + at, spool=spool, waiting=0, pending=pending, running=2, done=0, failed=0
        )
        for at in range(0, 600, 30)
        for spool in ("outer", "inner")
    ]
    worker = Presence(
        spool="outer", host="n000", job="7", lease="x", start_s=BEGIN_S, end_s=BEGIN_S + 600,
        gpus=gpus,
    )  # fmt: skip
    return Queue(depths=depths, workers=[worker], damaged_lines=3, problems=["one is odd"])


def test_both_spools_and_workers_share_the_axis(folder: Path, draw: Draw) -> None:
    write_fleet(folder, hosts=1, gpus=2)
    figure, made = draw(folder, queue_of(5))
    assert made.panels == (
        *("heat_map", "utilization", "states", "queue_outer", "queue_inner"),
        *("workers", "memory", "power_total", "power"),
    )
    assert made.left_out == {}
    drawn = [axes for axes in figure.get_axes() if axes.get_title(loc="left")]
    assert len({axes.get_xlim() for axes in drawn}) == 1
    assert set(line_of(panel(figure, "Outer spool"), "pending")[:-1]) == {5.0}
    labels = panel(figure, "GPUs by state").get_legend_handles_labels()[1]
    assert "silent" in labels
    assert "Not all was read: one is odd; 3 damaged journal lines." in words(figure)


def test_gpus_that_are_held_while_nothing_waits_are_the_headline(folder: Path, draw: Draw) -> None:
    rows = [our_row(30 * k, gpu=gpu, util_pct=50 * gpu) for k in range(20) for gpu in range(2)]
    write_ours(folder, rows, node="n000")
    _, made = draw(folder, queue_of(0))
    assert made.title == "Both spools drained for 10 min: 4 GPUs allocated, 1 at work meanwhile"
    _, made = draw(folder, queue_of(0), title="My own")
    assert made.title == "My own"


def test_counts_that_differ_much_are_drawn_on_a_logarithmic_axis(folder: Path, draw: Draw) -> None:
    write_fleet(folder, hosts=1, gpus=1)
    figure, _ = draw(folder, queue_of(5000))
    assert panel(figure, "Outer spool").get_yscale() == "symlog"
    assert "logarithmic above 1" in panel(figure, "Outer spool").get_title(loc="left")
    figure, _ = draw(folder, queue_of(9))
    assert panel(figure, "Outer spool").get_yscale() == "linear"


def test_legends_lie_beside_the_data_and_no_text_is_small(folder: Path, draw: Draw) -> None:
    write_fleet(folder, hosts=8, gpus=4)
    figure, _ = draw(folder, queue_of(5))
    canvas = figure.canvas
    canvas.draw()
    legends = [legend for axes in figure.get_axes() if (legend := axes.get_legend())]
    assert len(legends) > 6
    width = figure.bbox.width
    for legend in legends:
        box = legend.get_window_extent()
        axes = legend.axes
        assert axes is not None
        assert box.x0 >= axes.bbox.x1
        assert box.x1 <= width
    assert min(text.get_fontsize() for text in all_texts(figure)) >= 7.0
    assert max(text.get_window_extent().x1 for text in figure.texts) <= width


def test_the_archived_traces_fit_on_one_cut_axis(draw: Draw) -> None:
    figure, made = draw(archived() / "hosts")
    heats = panel(figure, "Utilization of each host")
    assert len(heats.images) >= 4
    assert sum(image.get_array().shape[1] for image in heats.images) <= 1250  # type: ignore[union-attr]
    lengths = [text.get_text() for text in heats.texts]
    assert lengths[1] == "4 d 9 h"
    assert "stretches without any data" in words(figure)
    assert made.title.startswith(
        "30 GPUs on 30 hosts: at work in 70.8 % of samples, mean utilization 69.3 %"
    )


# ------------------------------------------------------------------------------ the scale of time


def test_a_second_is_equally_wide_on_both_sides_of_a_cut() -> None:
    axis = choose_axis([(0.0, 3600.0), (1e6, 1e6 + 7200.0)], interval_s=30.0)
    assert axis is not None
    scale = TimeScale(axis, 9.0)
    first, last = scale.spans()[0], scale.spans()[-1]
    assert (first[1] - first[0]) / (first[2].stop - first[2].start) == pytest.approx(
        (last[1] - last[0]) / (last[2].stop - last[2].start)
    )
    assert scale.place(5e5) is None
    (cut,) = scale.cuts()
    assert cut[2] == axis.cuts_s[0]
    assert (cut[0], cut[1]) == (first[1], last[0])


@pytest.mark.parametrize("length_s", [1.0, 120.0, 5400.0, 86400.0, 9e5, 6e7])
def test_ticks_have_room_and_say_their_date_once_a_day(length_s: float) -> None:
    axis = choose_axis([(BEGIN_S, BEGIN_S + length_s)], interval_s=30.0)
    assert axis is not None
    scale = TimeScale(axis, 9.0)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 24
    apart_in = np.diff([place for place, _ in ticks]) * 9.0 / scale.end
    assert (apart_in > 0.4).all()
    assert "2026" in ticks[0][1]
    dates = [text.split("\n")[1] for _, text in ticks if text.count("\n") and ":" in text]
    assert len(dates) == len(set(dates))


def test_clocks_that_are_wrong_by_millennia_are_drawn(folder: Path, draw: Draw) -> None:
    rows = ["2026/07/10 00:00:00.000,1,100,50,100", "9999/12/31 23:59:59.999,1,100,50,100",
            "0001/01/01 00:00:00.000,1,100,50,100"]  # fmt: skip
    text = "timestamp,mem_used_mib,mem_total_mib,util_pct,power_w\n" + "\n".join(rows) + "\n"
    (folder / "a.csv").write_text(text)
    _, made = draw(folder)
    assert "utilization" in made.panels


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (18720, "5 h 12 min"),
     (787050.439, "9 d 2 h")],
)  # fmt: skip
def test_lengths_of_time_are_said_in_two_units(seconds: float, said: str) -> None:
    assert span_words(seconds) == said


# ---------------------------------------------------------------------------------------- files


def test_a_figure_is_two_whole_files_without_date_or_version(folder: Path, draw: Draw) -> None:
    write_fleet(folder, hosts=2, gpus=1, samples=3)
    _, made = draw(folder, files=True)
    assert [os.path.basename(path) for path in made.files] == ["fleet.png", "fleet.svg"]
    assert sorted(os.listdir(os.path.dirname(made.files[0]))) == ["fleet.png", "fleet.svg"]
    assert imread(made.files[0]).shape[1] > 1800
    png, svg = (Path(path).read_bytes() for path in made.files)
    for word in (b"Software", b"Matplotlib v", b"tIME", b"<dc:date>"):
        assert word not in png
        assert word not in svg


HOSTILE = (
    "$x_1^2$", '<script>alert("1")&amp;', "a\x1b[31mred\nline", "中文主机", "_under\\alpha{",
    "rtl\u202eabc", "n" * 150, "bad\udcff",
)  # fmt: skip


def test_hostile_names_are_text_and_nothing_else(folder: Path, draw: Draw) -> None:
    for name in HOSTILE:
        write_archive(folder, f"{name}.csv", [archive_row(at) for at in (0, 30, 60)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure, made = draw(folder, files=True, title="$\\frac{1}{0$ <b>")
    labels = {text.get_text() for text in panel(figure, "Utilization of each").get_yticklabels()}
    assert {"$x_1^2$", '<script>alert("1")&amp;', "_under\\alpha{"} <= labels
    assert {"a\\x1b[31mred\\nline", "rtl\\u202eabc", "bad\\udcff"} <= labels
    root = ElementTree.parse(made.files[1]).getroot()
    texts = {
        "".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert labels <= texts
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_what_the_font_cannot_draw_is_spelled_out_and_long_names_keep_both_ends() -> None:
    assert drawable("node-7 µ °") == "node-7 µ °"
    assert drawable("é\t中") == "é\\t\\u4e2d"
    assert drawable("abcdefghijklmno", 7) == "abc…mno"


def test_what_a_matplotlibrc_says_changes_nothing(tmp_path: Path) -> None:
    import matplotlib as mpl

    def picture(name: str) -> bytes:
        with house_style():
            figure = new_figure(2, 1)
            figure.add_subplot().plot([1, 2], [1, 2])
            return Path(save_both(figure, tmp_path, name)[1]).read_bytes()

    plain = picture("a")
    with mpl.rc_context({"lines.linewidth": 9.0, "font.size": 30.0}):
        assert picture("b") == plain


# ----------------------------------------------------------------------- controller and families


def log_of(tmp_path: Path, *lines: str) -> ControllerLog:
    (tmp_path / "c.log").write_text("".join(f"{line}\n" for line in lines))
    return read_controller_logs([str(tmp_path / "c.log")])


def test_readings_of_a_controller_are_points_and_gaps_stay_open(tmp_path: Path, draw: Draw) -> None:
    stamps = ("10:00:00", "10:10:00", "10:20:00", "11:30:00", "11:40:00", "11:50:00")
    lines = [f"[2026-07-17 {at}] util=50% (2/4 GPUs) free_idle=1 pending=3" for at in stamps]
    wrong = "[2026-07-17 12:00:00] util=51% (2/4 GPUs) free_idle=1 pending=3"
    made = controller.plot_controller(log_of(tmp_path, *lines, wrong, "what"), tmp_path)
    figure = draw.figures[-1]  # type: ignore[attr-defined]
    drawn = line_of(panel(figure, "GPUs"), "working")
    np.testing.assert_equal(drawn, [2, 2, 2, np.nan, 2, 2, 2, 2])
    assert made.panels == ("gpus", "utilization", "pending")
    said = words(figure)
    assert "8 lines: 7 readings, 0 rolling summaries, 1 rejected (1 unknown line)" in said
    assert "1 percentage other than the floor" in said
    assert "2.0 of 4.0 GPUs at work (50 %) on average over 7 readings, 1.0 free idle" in said
    assert "zone not recorded" in said


def test_the_archived_controller_log_is_drawn_whole(tmp_path: Path, draw: Draw) -> None:
    log = read_controller_logs([str(archived() / "controller.log")])
    made = controller.plot_controller(log, tmp_path)
    figure = draw.figures[-1]  # type: ignore[attr-defined]
    assert made.panels == ("gpus", "utilization", "memory", "pending", "hosts")
    drawn = line_of(panel(figure, "GPUs"), "in all")
    assert np.isfinite(drawn).sum() == 198


def test_a_log_without_a_reading_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of them"):
        controller.plot_controller(ControllerLog(lines=3), tmp_path)


def test_one_reading_without_gpus_is_drawn(tmp_path: Path) -> None:
    point = Point(t_s=BEGIN_S, printed_pct=None, working=0, total=0, free_idle=None, pending=None)
    made = controller.plot_controller(ControllerLog(points=[point], lines=1), tmp_path)
    assert ElementTree.parse(made.files[1]).getroot().tag.endswith("svg")


def family(name: str, mfu: float | None, reason: str = "") -> FamilyMfu:
    device = Device(name="A100 $x$", gpu_s=7200.0, peak_flop_per_s=312e12, peak_source="a sheet")
    return FamilyMfu(
        family=name, mfu=mfu, reason=reason, flop=1e18, forwards=10, runs=3, runs_reporting=2,
        gpu_s=7200.0, gpu_s_without_reports=3600.0, training=False, devices=(device,),
    )  # fmt: skip


def test_a_family_without_a_number_has_its_reason_and_no_bar(tmp_path: Path, draw: Draw) -> None:
    mfu = Mfu(families=(family("a", 0.25), family("b", None, "no exact peak for X")))
    family_mfu.plot_family_mfu(mfu, (0.0, 3600.0), tmp_path)
    figure = draw.figures[-1]  # type: ignore[attr-defined]
    axes = panel(figure, "Estimated MFU")
    assert [patch.get_width() for patch in axes.patches] == [25.0]  # type: ignore[attr-defined]
    said = [text.get_text() for text in axes.texts]
    assert "no number: no exact peak for X" in said
    assert any("1e18 FLOP in 2 GPU hours" in text for text in said)
    assert "Estimated MFU of a: 25.0 %" in words(figure)
    assert "Assumed: FLOPs are what tasks reported" in words(figure)
    assert "312 TFLOP/s (a sheet)" in words(figure)


def test_no_family_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no MFU to draw"):
        family_mfu.plot_family_mfu(Mfu(), (0.0, 1.0), tmp_path)
