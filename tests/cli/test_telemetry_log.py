"""``fleetcraft telemetry log`` and its launcher: words, folders, refusals, and how they end.

Not here: what a logger does before a driver or a disk that fails (tests/telemetry/test_logger.py).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.identity import this_host
from fleetcraft.layout import parse_telemetry_file
from tests.cli.conftest import REPO, Fleet, environment
from tests.rig import Rig
from tests.telemetry.loggers import until


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "rig").mkdir()
    with Rig(tmp_path / "rig") as made:
        yield made


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.csv"))


def start(fleet: Fleet, *words: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        fleet.command("telemetry", "log", *words),
        cwd=REPO,
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], number: int) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_without_words_it_logs_into_the_scratch_tree_under_the_local_job(
    fleet: Fleet, rig: Rig
) -> None:
    done = fleet.process("telemetry", "log", "--samples", "1", env=environment(**rig.env()))
    assert (done.returncode, done.stdout) == (0, "")
    folder = fleet.root / "telemetry"
    (file,) = files(folder)
    name = parse_telemetry_file(file.name)
    assert name is not None
    assert name.job == this_host().local_job
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert json.loads(file.with_suffix(".json").read_text())["interval_s"] == 30.0
    first, last = done.stderr.splitlines()
    assert first == f"telemetry: {file}, every 30 s, 2 GPUs"
    assert last == "telemetry: 2 rows written; ended: took the samples it was asked for"


def test_nodes_of_one_job_log_side_by_side_into_one_folder(
    fleet: Fleet, rig: Rig, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "telemetry"
    slurm = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "1", "SLURM_CLUSTER_NAME": "c1", **rig.env()}
    nodes = ["n1", "n2", "rack 1/../n3"]
    running = [start(fleet, str(folder), "0.1", SLURMD_NODENAME=node, **slurm) for node in nodes]
    until(lambda: sum(len(file.read_text().splitlines()) > 2 for file in files(folder)) == 3)
    assert [ended(one, signal.SIGTERM)[0] for one in running] == [0, 0, 0]
    sidecars = [json.loads(file.with_suffix(".json").read_text()) for file in files(folder)]
    assert {one["node"] for one in sidecars} == set(nodes)
    assert {(one["job_id"], one["step_id"], one["cluster"]) for one in sidecars} == {
        ("42", "1", "c1")
    }
    assert [parse_telemetry_file(file.name) is not None for file in files(folder)] == [True] * 3


def test_with_json_it_says_its_start_and_its_end_as_lines(fleet: Fleet, rig: Rig) -> None:
    process = start(fleet, "--json", str(fleet.root / "t"), "0.1", **rig.env())
    assert process.stdout
    started = json.loads(process.stdout.readline())
    code, out, err = ended(process, signal.SIGINT)
    (line,) = out.splitlines()
    assert (code, err) == (0, "")
    end = json.loads(line)
    assert started["schema"] == end["schema"] == "fleetcraft.telemetry_log/1"
    assert (started["event"], end["event"]) == ("started", "ended")
    assert started["path"] == end["path"] == str(files(fleet.root / "t")[0])
    assert (started["interval_s"], started["gpus"]) == (0.1, 2)
    assert started["driver"] == "535.161.08"
    assert (end["reason"], end["rows_lost"]) == ("interrupted", 0)
    assert end["rows_written"] >= 2


def test_a_second_one_is_refused_with_75(fleet: Fleet, rig: Rig, tmp_path: Path) -> None:
    folder = str(tmp_path / "t")
    first = start(fleet, folder, "0.1", **rig.env())
    until(lambda: bool(files(tmp_path / "t")))
    refused = fleet.process("telemetry", "log", folder, "--json")
    assert refused.returncode == 75
    error = json.loads(refused.stderr)["error"]
    assert error["facts"] == {"pid": first.pid, "file": str(files(tmp_path / "t")[0])}
    assert f"pid {first.pid} writes {tmp_path}" in error["message"]
    assert ended(first, signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["t", "soon"], 2, "INTERVAL: telemetry.interval_s is 'soon', expected seconds"),
        (["t", "0"], 2, "the interval is 0 s, expected 0.1 to 86400"),
        (["t", "0.01"], 2, "the interval is 0.01 s"),
        (["t", "nan"], 2, "is 'nan'"),
        (["t", "9d"], 2, "the interval is 777600 s"),
        (["t", "30", "more"], 2, "unexpected extra argument"),
        (["t", "--samples", "0"], 2, "'--samples'"),
    ],
)
def test_words_that_cannot_be_meant_are_refused(
    fleet: Fleet, words: list[str], code: int, message: str
) -> None:
    called = fleet("telemetry", "log", *words)
    assert called.code == code
    assert message in called.err
    assert not Path("t").exists()


def test_a_setting_of_zero_is_about_workers_and_not_about_who_calls_it(
    fleet: Fleet, rig: Rig
) -> None:
    env = environment(**{**rig.env(), "FLEET_TELEMETRY_INTERVAL_S": "0"})
    done = fleet.process("telemetry", "log", "--samples", "1", "--json", env=env)
    assert done.returncode == 0
    assert json.loads(done.stdout.splitlines()[0])["interval_s"] == 30.0


def test_without_a_place_it_says_how_to_name_one(fleet: Fleet) -> None:
    called = fleet.bare("telemetry", "log", "--json")
    assert called.code == 3
    assert called.error["facts"]["setting"] == "root"


def test_a_folder_that_others_can_write_is_refused_and_left_alone(
    fleet: Fleet, tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    refused = fleet.process("telemetry", "log", str(folder), "--samples", "1")
    assert refused.returncode == 5
    assert "somebody else owns it or can write it" in refused.stderr
    assert os.listdir(folder) == []


def test_the_help_says_how_it_ends(fleet: Fleet) -> None:
    out = fleet.bare("telemetry", "log", "--help").out
    assert out.partition("\n\n")[2].strip().startswith("Log this node's GPUs and host until")
    assert "75 another logger writes for this node and job" in out


def test_the_launcher_logs_like_the_command(rig: Rig, tmp_path: Path) -> None:
    launcher = REPO / "bin" / "gpu_telemetry.sh"
    if not (REPO / ".venv/bin/fleetcraft").exists() and shutil.which("fleetcraft") is None:
        pytest.skip("no fleetcraft is installed here")
    done = call(launcher, tmp_path / "t", "30", "--samples", "1", env=rig.env())
    assert done.returncode == 0, done.stderr
    (file,) = files(tmp_path / "t")
    assert json.loads(file.with_suffix(".json").read_text())["interval_s"] == 30.0
    assert call(launcher, "-h").stdout.startswith("usage: gpu_telemetry.sh [DIR [INTERVAL]]")


def call(*words: Any, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    return subprocess.run(
        [str(word) for word in words],
        env={**(env or os.environ), "PATH": path},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
