"""``fleetcraft telemetry plot``: the figures it writes, what it says of them, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest
from matplotlib.figure import Figure

from fleetcraft.spool.tree import SpoolTree
from tests.cli.conftest import Fleet, environment
from tests.telemetry.journals import Launch, depth
from tests.telemetry.traces import (
    BEGIN_S,
    archive_row,
    archived,
    bare_row,
    our_row,
    write_archive,
    write_ours,
)

READING = "[2026-07-17 14:03:23] util=48% (13/27 GPUs) free_idle=3 pending=5\n"


@pytest.fixture
def telemetry(fleet: Fleet) -> Path:
    """The telemetry folder of a scratch tree: one host with two GPUs at work."""
    folder = fleet.root / "telemetry"
    folder.mkdir(exist_ok=True)
    rows = [our_row(30 * k, gpu=gpu) for k in range(10) for gpu in range(2)]
    gpus = [{"index": n, "uuid": f"GPU-n1-{n}", "name": "NVIDIA A100-SXM4-40GB"} for n in range(2)]
    write_ours(folder, rows, sidecar={"interval_s": 30.0, "gpus": gpus})
    return folder


@pytest.fixture
def no_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are laid out and filed, but empty: for what is not about their looks."""

    def write_nothing(figure: Figure, file: IO[bytes], **options: object) -> None:
        file.write(b"")

    monkeypatch.setattr(Figure, "savefig", write_nothing)


def stamped(*figures: str) -> list[str]:
    """Figures with their origins, sorted."""
    return sorted([*figures, *(f"{name}.origin.json" for name in figures)])


def worker_of(fleet: Fleet, which: str = "taskq") -> Launch:
    launch = Launch(SpoolTree(str(fleet.root / which)), BEGIN_S, gpus=2, slots=1)
    launch.write("arrive", BEGIN_S, slots=1, gpus=2, host="n1", job="7")
    return launch


def plot_process(
    place: str, out: Path, cwd: Path, *words: str, **env: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "fleetcraft", "telemetry", "plot"]
    return subprocess.run(
        [*command, place, "--out", str(out), *words],
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_figures_are_written_and_told_of(fleet: Fleet, telemetry: Path, tmp_path: Path) -> None:
    called = fleet.ok("telemetry", "plot", "--out", str(tmp_path / "new" / "figures"))
    lines = called.out.splitlines()
    assert [Path(line).name for line in lines[:2]] == ["fleet.png", "fleet.svg"]
    assert lines[2].startswith("fleet: 1 host, 2 GPUs, 20 samples, 0 rejected lines; panels heat")
    assert "left out queue (no queue depth in 0 journals of the spools)" in lines[2]
    assert all(Path(line).stat().st_size > 1000 for line in lines[:2])


@pytest.mark.usefixtures("no_pixels")
def test_json_has_every_number(fleet: Fleet, telemetry: Path, tmp_path: Path) -> None:
    launch = worker_of(fleet)
    for at in range(0, 300, 30):
        launch.write("depth", BEGIN_S + at, **depth(pending=3, running=1))
    with (telemetry / "n1_job7_20260717T120000Z.csv").open("a") as file:
        file.write("GPU is lost\n")
    value = fleet.ok("telemetry", "plot", str(telemetry), "--out", str(tmp_path), "--json").json
    assert value["schema"] == "fleetcraft.telemetry_plot/1"
    assert value["files"] == [str(tmp_path / "fleet.png"), str(tmp_path / "fleet.svg")]
    assert (value["hosts"], value["gpus"], value["samples"]) == (1, 2, 20)
    assert value["rejected"] == {"sentence": 1}
    assert value["panels"][:5] == ["heat_map", "utilization", "states", "queue_outer", "workers"]
    assert value["left_out"] == {}
    assert value["span"]["start"] == "2026-07-17T12:00:00Z"
    assert value["span"]["end"] == "2026-07-17T12:04:30Z"
    assert (value["span"]["zone"], value["span"]["cuts_s"]) == ("utc", [])
    assert value["states"]["working"] == 1.0
    assert value["energy_kwh"] == pytest.approx(2 * 250.5 * 270 / 3.6e6)
    assert value["mean_util_pct"] == 97.0
    assert (value["gaps"]["count"], value["gaps"]["biggest_s"]) == (0, None)


def test_the_same_input_gives_the_same_bytes_wherever_and_however_it_runs(
    telemetry: Path, fleet: Fleet, tmp_path: Path
) -> None:
    write_archive(telemetry, "$a$_中.csv", [archive_row(at) for at in (0, 30, 60, 900, 930)])
    launch = worker_of(fleet)
    for at in range(0, 300, 30):
        launch.write("depth", BEGIN_S + at, **depth(pending=5000, running=1))
    log = tmp_path / "controller.log"
    log.write_text(READING)
    there = tmp_path / "there"
    there.mkdir()
    (there / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\ntext.usetex: True\n")

    def draw(seed: str, cwd: Path) -> dict[str, bytes]:
        out = tmp_path / f"out{seed}"
        words = ("--controller-log", str(log))
        done = plot_process(str(telemetry), out, cwd, *words, PYTHONHASHSEED=seed)
        assert (done.returncode, done.stderr) == (0, "")
        return {path.name: path.read_bytes() for path in out.iterdir()}

    with ThreadPoolExecutor() as both:
        made = list(both.map(draw, ("1", "2"), (tmp_path, there)))
    assert sorted(made[0]) == stamped("controller.png", "controller.svg", "fleet.png", "fleet.svg")
    assert made[0] == made[1]


def test_an_empty_folder_is_bad_data_and_makes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    called = fleet("telemetry", "plot", str(empty), "--out", str(tmp_path / "out"))
    assert called.code == 7
    assert f"no telemetry file in {empty}; nothing was drawn" in called.err
    called = fleet("telemetry", "plot", str(tmp_path / "none"), "--out", "x", "--json")
    assert called.code == 2
    assert "nothing was read" in called.error["message"]
    assert not (tmp_path / "out").exists()


def test_files_without_a_sample_are_nothing_to_draw(fleet: Fleet, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    write_archive(folder, "a.csv", [])
    write_archive(folder, "b.csv", [])
    called = fleet("telemetry", "plot", str(folder), "--out", str(tmp_path / "out"), "--json")
    assert called.code == 1
    assert "no sample of a GPU in 2 files" in called.error["message"]
    assert "2 of them without a row" in called.error["message"]
    write_ours(folder, [bare_row(at, "host") for at in (0, 30)])
    called = fleet("telemetry", "plot", str(folder), "--out", str(tmp_path / "out"))
    assert called.code == 1
    assert "2 rows of hosts without a GPU" in called.err
    assert not (tmp_path / "out").exists()


def test_hosts_without_a_gpu_are_drawn_with_memory_and_load(fleet: Fleet, tmp_path: Path) -> None:
    folder = fleet.root / "telemetry"
    folder.mkdir(exist_ok=True)
    says = {"status": "no_nvml", "host_mem_total_mib": 1000, "host_mem_used_mib": 250}
    rows = [bare_row(at, "host", host_load=1.5, **says) for at in (0, 2, 4)]
    write_ours(folder, rows, sidecar={"interval_s": 2.0})
    launch = worker_of(fleet)
    launch.write("leave", BEGIN_S + 4)
    out = tmp_path / "out"
    value = fleet.ok("telemetry", "plot", "--out", str(out), "--json").json
    assert value["title"] == (
        "No GPU was seen on 1 host (no NVML); memory 25.0 % used, load 1.50 on average"
    )
    assert value["panels"][-2:] == ["host_memory", "host_load"]
    assert (value["span"]["bin_s"], value["span"]["bins"]) == (2.0, 3)
    assert (value["samples"], value["mean_util_pct"]) == (0, None)
    assert (out / "fleet.png").stat().st_size > 1000


@pytest.mark.usefixtures("no_pixels")
def test_only_the_wanted_span_is_drawn(fleet: Fleet, telemetry: Path, tmp_path: Path) -> None:
    words = ("telemetry", "plot", "--out", str(tmp_path / "out"), "--json")
    value = fleet.ok(*words, "--since", "2026-07-17T12:01", "--until", "2026-07-17T12:02Z").json
    assert value["samples"] == 4
    called = fleet(*words, "--since", "2026-07-18")
    assert called.code == 1
    assert "in this span of time" in called.error["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "yesterday"), "not a time"),
        (("--since", "2026-07-18", "--until", "2026-07-17"), "is not before"),
    ],
)
def test_a_span_that_is_none_is_a_usage_error(
    fleet: Fleet, telemetry: Path, words: tuple[str, ...], said: str
) -> None:
    called = fleet("telemetry", "plot", "--out", "x", *words)
    assert called.code == 2
    assert said in called.err


def test_a_place_that_cannot_be_made_is_a_usage_error(
    fleet: Fleet, telemetry: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    called = fleet("telemetry", "plot", "--out", str(tmp_path / "file"))
    assert called.code == 2
    assert "cannot make the folder" in called.err


@pytest.mark.usefixtures("no_pixels")
def test_a_controller_log_has_a_figure_of_its_own(
    fleet: Fleet, telemetry: Path, tmp_path: Path
) -> None:
    log = tmp_path / "controller.log"
    log.write_text(READING + READING.replace("48%", "50%") + "what\n")
    words = ("telemetry", "plot", "--out", str(tmp_path / "out"), "--controller-log", str(log))
    value = fleet.ok(*words, "--json").json
    told = value["controller"]
    assert (told["points"], told["inconsistent"], told["rejected"]) == (2, 1, {"unknown_line": 1})
    figures = ("controller.png", "controller.svg", "fleet.png", "fleet.svg")
    assert sorted(os.listdir(tmp_path / "out")) == stamped(*figures)
    origin = json.loads((tmp_path / "out/controller.png.origin.json").read_bytes())
    assert [(one["path"], one["kind"]) for one in origin["sources"]] == [
        ("../controller.log", "log"),
    ]


@pytest.mark.usefixtures("no_pixels")
def test_a_figure_that_could_not_be_drawn_is_named_and_the_answer_is_no(
    fleet: Fleet, telemetry: Path, tmp_path: Path
) -> None:
    log = tmp_path / "controller.log"
    log.write_text("nothing of the kind\n")
    words = ("telemetry", "plot", "--out", str(tmp_path / "out"), "--mfu")
    called = fleet(*words, "--controller-log", str(log))
    assert called.code == 1
    assert "no figure of controller: nothing to draw of" in called.err
    assert "no figure of mfu: no MFU to draw" in called.err
    assert sorted(os.listdir(tmp_path / "out")) == stamped("fleet.png", "fleet.svg")


@pytest.mark.usefixtures("no_pixels")
def test_families_that_reported_have_a_figure(
    fleet: Fleet, telemetry: Path, tmp_path: Path
) -> None:
    launch = worker_of(fleet)
    claim = launch.run("t1", BEGIN_S, BEGIN_S + 100, family="wan")
    reports = telemetry / "forwards"
    reports.mkdir()
    line = {"at": "2026-07-17T12:01:00Z", "forwards": 10, "flop": 6.24e15}
    (reports / f"7.0.0.{claim}.jsonl").write_text(json.dumps(line) + "\n")
    value = fleet.ok("telemetry", "plot", "--out", str(tmp_path / "out"), "--mfu", "--json").json
    (family,) = value["mfu"]["families"]
    assert family["family"] == "wan"
    # 6.24e15 FLOP in 100 s on two GPUs of 312 TFLOP/s
    assert family["mfu"] == pytest.approx(0.1)
    figures = ("fleet.png", "fleet.svg", "mfu.png", "mfu.svg")
    assert sorted(os.listdir(tmp_path / "out")) == stamped(*figures)
    origin = json.loads((tmp_path / "out/mfu.svg.origin.json").read_bytes())
    kinds = [one["kind"] for one in origin["sources"]]
    assert sorted(set(kinds)) == ["journal", "other", "telemetry"]


@pytest.mark.usefixtures("no_pixels")
def test_names_of_hosts_do_no_harm_on_a_terminal(fleet: Fleet, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    write_archive(folder, "\x1b[31mred.csv", [archive_row(0)])
    out = tmp_path / "\x1b[2Jout"
    called = fleet.ok("telemetry", "plot", str(folder), "--out", str(out))
    assert "\x1b" not in called.out + called.err


def test_the_archived_traces_are_drawn_with_their_numbers(tmp_path: Path, fleet: Fleet) -> None:
    folder = archived()
    words = ("--controller-log", str(folder / "controller.log"), "--json")
    called = fleet.ok("telemetry", "plot", str(folder / "hosts"), "--out", str(tmp_path), *words)
    value = called.json
    assert (value["hosts"], value["gpus"], value["samples"]) == (31, 30, 68244)
    assert value["span"]["zone"] == "none"
    assert value["span"]["start"] == "2026-07-10T19:42:17.676"
    assert value["energy_kwh"] == pytest.approx(272.491, abs=1e-3)
    assert value["controller"]["summaries"] == 102
    assert len(value["files"]) == 4
