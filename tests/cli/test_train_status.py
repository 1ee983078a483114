"""``fleetcraft train status``: one run as a block, many as a table, and what cannot be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import RunPaths
from fleetcraft.locks import GenerationLock
from fleetcraft.training.records import (
    Crash,
    Diagnosis,
    Knob,
    QueueDepth,
    QueueStanding,
    RankState,
    Rung,
    RungKind,
    Standing,
    State,
)
from fleetcraft.training.supervision.entry import make_folders
from fleetcraft.training.supervision.status_file import Status, StatusFile
from tests.cli.conftest import Fleet, environment

DRAFTERS = Status(
    run="distill",
    state=State.SUSPECT,
    why="2 of 4 ranks gone: drafter-1, drafter-2",
    since_s=12.0,
    generation=1,
    epoch=3,
    attempt=2,
    standing=Standing.DEAD_RANK,
    standing_why="step 690 stands",
    step=690,
    end_step=2000,
    loss=2.1,
    metrics={"accept": 0.61},
    steps_per_s=0.0,
    tokens_per_s=6900.0,
    tokens_slope=-40.0,
    throughput_ratio=0.32,
    throughput_words="0.32: one of three drafters alive",
    expected="4 x 32,768 tokens / 6,900 tok/s = 19.0 s a step",
    quiet_s=420.0,
    queues=(
        QueueDepth(name="q_pre", depth=50, capacity=50, standing=QueueStanding.SATURATED),
        QueueDepth(name="q_hs", depth=26, capacity=50, standing=QueueStanding.BALANCED),
    ),
    queues_verdict="balanced",
    ranks=(
        RankState(rank=0, name="trainer", alive=True, step=690, rss_bytes=3 << 30),
        RankState(
            rank=1, name="drafter-1", alive=False, device_memory_bytes=90 << 30, last_line="\x1b[2J"
        ),
        RankState(rank=2, name="drafter-2", alive=None),
    ),
    dead=(1,),
    eta_s=(3600.0, 5400.0),
    rung=Rung(kind=RungKind.KNOB, knob="max_anchors", before=1024, after=768),
    knobs=(Knob(name="max_anchors", value=768, floor=256),),
    restarts=1,
    diagnosis=Diagnosis(crash=Crash.CUDA_OOM, ranks=(1,), advice=("reduce one knob",)),
    comparison=("throughput before: 16.4k tokens/s",),
)


def write(fleet: Fleet, status: Status) -> RunPaths:
    paths = RunPaths(str(fleet.root / "runs" / status.run))
    make_folders(paths, FileSystem())
    assert StatusFile(paths.status, nonce="n").write(status)
    return paths


@pytest.mark.parametrize(
    ("slope", "words"),
    [(152_340.0, "+152,340 tokens/s a minute"), (-0.00001, "-0.000 tokens/s a minute")],
)
def test_a_slope_is_a_number_that_can_be_read(fleet: Fleet, slope: float, words: str) -> None:
    write(fleet, msgspec.structs.replace(DRAFTERS, tokens_slope=slope))
    assert words in fleet.ok("train", "status", "distill").out


def test_one_run_is_shown_whole(fleet: Fleet) -> None:
    write(fleet, DRAFTERS)

    text = fleet.ok("train", "status", "distill").out

    for words in (
        "distill: SUSPECT for 12.0 s, 2 of 4 ranks gone",
        "690 of 2000, last 7 min 00 s ago",
        "6,900 tokens/s",
        "-40 tokens/s a minute",
        "0.32: one of three drafters alive, provisional",
        "q_pre 50 of 50 (saturated), q_hs 26 of 50 (balanced); balanced",
        "1 h 00 min to 1 h 30 min (provisional)",
        "3, max_anchors 1024 -> 768, max_anchors=768, 1 restart",
        "CUDA_OOM, rank 1; reduce one knob",
        "throughput before: 16.4k tokens/s",
        "3.0 GiB",
        "90.0 GiB",
        "accept",
    ):
        assert words in text, words
    lines = text.splitlines()
    dead = next(line for line in lines if "drafter-1" in line and "dead" in line)
    assert lines.index(dead) < next(
        number for number, line in enumerate(lines) if line.split()[1:3] == ["trainer", "yes"]
    )
    assert "\\x1b[2J" in text
    assert "\x1b" not in text


def test_what_was_not_measured_is_a_dash_and_never_zero(fleet: Fleet) -> None:
    write(fleet, Status(run="distill", state=State.WARMUP))

    text = fleet.ok("train", "status", "distill").out

    for name in ("step", "loss", "throughput", "queues", "ETA", "checkpoint"):
        (line,) = [line for line in text.splitlines() if line.split()[:1] == [name]]
        assert line.split()[1:] == ["-"], line


def test_several_runs_are_a_table_that_says_how_many_it_leaves_out(fleet: Fleet) -> None:
    for name in ("a", "b", "c"):
        write(fleet, msgspec.structs.replace(DRAFTERS, run=name))

    text = fleet.ok("train", "status", "--limit", "2").out
    value = fleet.ok("train", "status", "--json", "--limit", "2").json

    assert "... and 1 more runs" in text
    assert [run["run"] for run in value["runs"]] == ["a", "b"]
    assert value["left_out"] == 1
    assert value["schema"] == "fleetcraft.train-status/1"
    assert value["runs"][0]["status"]["step"] == 690


def test_no_run_is_no_error_and_an_unknown_name_is_one(fleet: Fleet) -> None:
    assert fleet.ok("train", "status").out == "no runs\n"
    write(fleet, DRAFTERS)

    called = fleet("train", "status", "distil")

    assert called.code == 2
    assert "did you mean distill?" in called.err


def test_a_status_that_cannot_be_read_is_shown_as_such_beside_the_others(fleet: Fleet) -> None:
    write(fleet, DRAFTERS)
    torn = write(fleet, msgspec.structs.replace(DRAFTERS, run="torn"))
    Path(torn.status).write_text("{")

    value = fleet.ok("train", "status", "--json").json
    text = fleet.ok("train", "status", "torn").out

    assert [run["status"] is None for run in value["runs"]] == [False, True]
    assert "cannot read the status" in text


def test_who_supervises_is_told_from_the_lock_not_from_an_old_file(fleet: Fleet) -> None:
    paths = write(fleet, DRAFTERS)
    before = fleet.ok("train", "status", "--json").json["runs"][0]
    with GenerationLock(paths.lock, purpose="distill").acquire():
        during = fleet.ok("train", "status", "--json").json["runs"][0]
    after = fleet.ok("train", "status", "--json").json["runs"][0]

    assert [one["supervised"] for one in (before, during, after)] == [False, True, False]
    assert f"process {os.getpid()}" in during["supervisor"]


def test_watching_prints_again_and_again_until_it_is_interrupted(fleet: Fleet) -> None:
    write(fleet, DRAFTERS)
    words = fleet.command("train", "status", "--watch", "--interval", "0.2", "--json")
    child = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(2)]

    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)

    assert child.returncode == 0
    assert [json.loads(line)["runs"][0]["run"] for line in lines] == ["distill"] * 2


@pytest.mark.parametrize("refused", ["create", "replace"])
def test_a_status_that_cannot_be_written_leaves_the_old_one(
    fleet: Fleet, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write(fleet, DRAFTERS)
    fs = FileSystem()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fs, refused, refuse)
    file = StatusFile(paths.status, nonce="m", fs=fs)

    assert not file.write(msgspec.structs.replace(DRAFTERS, step=700))
    assert "No space left" in file.trouble
    assert fleet.ok("train", "status", "--json").json["runs"][0]["status"]["step"] == 690
