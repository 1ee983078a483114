"""What a training script writes about its progress, seen as bytes and through the reader."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetcraft import progress_phase, report_progress
from fleetcraft.identity import process_id, this_host
from fleetcraft.layout.runs import progress_file
from fleetcraft.training.progress import writing
from fleetcraft.training.progress.reading import ProgressReader
from fleetcraft.training.records import ProcessRecord, RankProgress


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLEET_PROGRESS", str(tmp_path))
    for variable in ("RANK", "SLURM_PROCID", "WORLD_SIZE", "SLURM_NTASKS", "FLEET_LAUNCH_NONCE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(writing, "_told", writing._Told())
    return tmp_path


def lines(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    text = Path(progress_file(str(folder), rank)).read_text()
    return [json.loads(line) for line in text.splitlines() if line]


def look(folder: Path) -> dict[int, RankProgress]:
    reader = ProgressReader(str(folder))
    ranks = reader.look()
    assert reader.trouble == ""
    assert dict(reader.rejected) == {}
    return ranks


def test_the_first_line_says_who_reports_and_only_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("FLEET_LAUNCH_NONCE", "abc")
    assert report_progress(1, name="drafter-1")
    assert report_progress(2)
    hello, first, second = lines(folder, 3)
    place = this_host()
    assert hello == {
        "hello": 1, "rank": 3, "name": "drafter-1", "pid": os.getpid(),
        "start_ticks": process_id(os.getpid()).start_ticks,  # type: ignore[union-attr]
        "host": place.host, "boot_id": place.boot_id, "pid_namespace": place.pid_namespace,
        "nonce": "abc", "world_size": 6, "phase": "", "at": hello["at"],
    }  # fmt: skip
    assert (first["step"], second["step"]) == (1, 2)


def test_a_report_is_read_back_whole(folder: Path) -> None:
    report_progress(
        690,
        tokens=32_768,
        loss=2.5,
        queues={"q_pre": (50, 50), "q_hs": 26},
        metrics={"acceptance": 0.71},
        device_memory_bytes=90 << 30,
        name="drafter-1",
    )
    rank = look(folder)[0]
    process = process_id(os.getpid())
    assert process is not None
    assert rank.process == ProcessRecord(place=this_host(), process=process, nonce="")
    assert (rank.name, rank.step, rank.tokens, rank.loss) == ("drafter-1", 690, 32_768, 2.5)
    assert rank.queues == {"q_pre": (50, 50), "q_hs": (26, None)}
    assert rank.metrics == {"acceptance": 0.71}
    assert rank.device_memory_bytes == 90 << 30


def test_every_line_is_json_also_when_the_loss_is_not_a_number(folder: Path) -> None:
    report_progress(1, loss=float("nan"), metrics={"norm": float("inf")})
    strict = lines(folder)[1]
    assert (strict["loss"], strict["metrics"]) == ("nan", {"norm": "inf"})
    rank = look(folder)[0]
    assert rank.loss is not None
    assert math.isnan(rank.loss)
    assert rank.metrics == {"norm": math.inf}


def test_elements_of_arrays_are_numbers_too(folder: Path) -> None:
    report_progress(np.int64(7), tokens=np.float32(3), loss=np.float64(0.5))  # type: ignore[arg-type]
    rank = look(folder)[0]
    assert (rank.step, rank.tokens, rank.loss) == (7, 3, 0.5)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"RANK": "2", "SLURM_PROCID": "5"}, 2),
        ({"SLURM_PROCID": "5"}, 5),
        ({"RANK": "none"}, 0),
        ({}, 0),
    ],
)
def test_the_rank_is_that_of_the_launcher(
    folder: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], rank: int
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    report_progress(1)
    assert [path.name for path in folder.iterdir()] == [f"rank-{rank:05d}.jsonl"]


def test_a_phase_lasts_from_the_begin_of_its_block_to_its_end_and_phases_nest(
    folder: Path,
) -> None:
    with progress_phase("load"):
        assert look(folder)[0].phase == "load"
        with pytest.raises(ZeroDivisionError), progress_phase("eval"):  # also when it fails
            1 / (look(folder)[0].phase != "eval")
        assert look(folder)[0].phase == "load"
    assert look(folder)[0].phase == ""


def test_a_forked_process_says_who_it_is(folder: Path) -> None:
    script = (
        "import os; from fleetcraft import report_progress; report_progress(1); child = os.fork()\n"
        "report_progress(2 if child else 3); child and os.waitpid(child, 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    hellos = [line["pid"] for line in lines(folder) if "hello" in line]
    assert len(set(hellos)) == 2
    assert sorted(line["step"] for line in lines(folder) if "step" in line) == [1, 2, 3]


def test_a_line_that_was_cut_short_takes_no_other_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_progress(1, name="drafter-1")
    with progress_phase("save"):
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:9]))  # a full disk
        assert report_progress(2) is False
        monkeypatch.setattr(os, "write", real)
        assert report_progress(3)
        reader = ProgressReader(str(folder))
        rank = reader.look()[0]
    assert (rank.step, rank.name, rank.phase, rank.bad_lines) == (3, "drafter-1", "save", 1)


def test_a_script_never_fails_because_of_what_it_reports(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost:
        def __index__(self) -> int:
            raise MemoryError("the device is lost")

    assert report_progress(1, loss=Lost()) is False  # type: ignore[arg-type]
    monkeypatch.setenv("FLEET_PROGRESS", str(folder / "gone"))
    assert report_progress(1) is False
    with progress_phase("save"):
        pass
    monkeypatch.delenv("FLEET_PROGRESS")
    assert report_progress(1) is False
    assert list(folder.iterdir()) == []


def test_a_pipe_in_place_of_the_file_makes_nobody_wait(folder: Path) -> None:
    os.mkfifo(progress_file(str(folder), 0))
    assert report_progress(1) is False


def test_lines_of_many_processes_in_one_file_stay_whole(folder: Path) -> None:
    script = (
        "from fleetcraft import report_progress\n"
        "for step in range(300): report_progress(step, tokens=1, loss=0.5)"
    )
    started = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    rank = look(folder)[0]
    assert (rank.lines, rank.tokens) == (3 * 301, 900)


class FakeCuda:
    def __init__(self, *, begun: bool, peak: int = 0) -> None:
        self.begun, self.peak, self.asked = begun, peak, 0

    def is_initialized(self) -> bool:
        return self.begun

    def max_memory_allocated(self) -> int:
        self.asked += 1
        if not self.begun:
            raise AssertionError("this would have begun CUDA")
        if self.peak < 0:
            raise RuntimeError("the device is lost")
        return self.peak


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [
        (FakeCuda(begun=True, peak=5 << 30), 5 << 30),
        (FakeCuda(begun=False), None),
        (FakeCuda(begun=True, peak=-1), None),
    ],
)
def test_device_memory_is_torchs_peak_where_it_uses_a_device_already(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, expected: int | None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert report_progress(1)
    assert look(folder)[0].device_memory_bytes == expected


def test_reporting_loads_no_torch(folder: Path) -> None:
    script = (
        "import sys; from fleetcraft import report_progress; assert report_progress(1);"
        "heavy = {'torch', 'numpy', 'pandas', 'matplotlib', 'pynvml', 'rich', 'click', 'psutil'};"
        "sys.exit(str(heavy & sys.modules.keys()) if heavy & sys.modules.keys() else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
