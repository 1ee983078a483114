"""``fleetcraft stream wandb``: what it prints, how it ends, and W&B's own files behind it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Fleet, environment
from tests.streaming.material import SECRET, Run, numbers, rows_of
from tests.telemetry.journals import iso
from tests.telemetry.trees import inventory, lines, write_file

STUB = Path(__file__).resolve().parents[1] / "streaming" / "stub"
HAS_WANDB = importlib.util.find_spec("wandb") is not None
needs_wandb = pytest.mark.skipif(not HAS_WANDB, reason="wandb is not installed")


@pytest.fixture
def run(fleet: Fleet) -> Run:
    made = Run(fleet.root)
    made.launch()
    made.steps(1, 5)
    return made


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """W&B replaced by ours, whose service is this folder."""
    service = tmp_path / "service"
    service.mkdir()
    monkeypatch.syspath_prepend(str(STUB))
    monkeypatch.setenv("PYTHONPATH", str(STUB))
    monkeypatch.setenv("STUB_WANDB", str(service))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return service


@needs_wandb
def test_runs_and_windows_go_into_files_that_wandb_can_upload(fleet: Fleet, run: Run) -> None:
    t_s = (time.time() - 1800) // 300 * 300
    rows = lines(t_s + 30, 10, util_pct=90)
    sidecar = {"interval_s": 30, "started_at": iso(t_s), "gpus": inventory(0)}
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(t_s))
    csv = write_file(fleet.root / "telemetry", "n1", rows, sidecar=sidecar, started=stamp)
    os.utime(csv, (t_s + 300, t_s + 300))
    value = fleet.ok("stream", "wandb", "--offline", "--once", "--summaries", "--json").json
    assert (value["schema"], value["offline"]) == ("fleetcraft.stream/1", True)
    told = {one["kind"]: one for one in value["streams"]}
    assert (told["run"]["stream"], told["run"]["sent"], told["run"]["waiting"]) == ("distill", 5, 0)
    assert told["fleet"]["sent"] == 1
    assert value["upload"].startswith("wandb sync ")
    assert numbers(rows_of(Path(told["run"]["folder"]))) == [0, 1, 2, 3, 4]
    (window,) = rows_of(Path(told["fleet"]["folder"]))
    assert (window["fleet/utilization_pct"], window["_timestamp"]) == (90, t_s + 300)
    again = fleet.ok("stream", "wandb", "--offline", "--once").out  # nothing new: no library loaded
    assert "run distill  0 sent  5 in all  W&B run distill-" in again


@needs_wandb
def test_a_person_reads_a_line_for_each_run_and_how_to_upload(fleet: Fleet, run: Run) -> None:
    run.report(1, {"nothing": 1})
    text = fleet.ok("stream", "wandb", "distill", "--offline", "--once", "--project", "video").out
    first, second = text.splitlines()
    assert first.startswith("  run distill  5 sent  5 in all  not sent: 1 says nothing known; W&B")
    assert second.startswith("upload, where there is a network: wandb sync ")
    assert "/streams/wandb/video/runs/distill/files" in second


def test_without_runs_it_says_so(fleet: Fleet, stub: Path) -> None:
    fleet.root.mkdir(exist_ok=True)
    assert fleet.ok("stream", "wandb", "--once").out == "nothing to send: no run is there yet\n"


def test_a_service_that_is_gone_is_exit_75_and_keeps_all(
    fleet: Fleet, run: Run, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_FAIL", "init")
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    called = fleet("stream", "wandb", "--once", "--json")
    assert (called.code, called.out) == (75, "")
    assert "nothing was lost" in called.error["message"]
    assert SECRET not in called.err
    monkeypatch.delenv("STUB_FAIL")
    assert fleet.ok("stream", "wandb", "--once", "--json").json["streams"][0]["sent"] == 5


def test_without_the_extra_one_sentence_says_what_to_install(
    fleet: Fleet, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    called = fleet("stream", "wandb", "--offline", "--once")
    assert called.code == 3
    assert "hint: pip install 'fleetcraft[wandb]'" in called.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--project", "a/b"], "not a usable --project"),
        (["--entity", "../me"], "not a usable --entity"),
        (["--window", "0"], "not a usable window"),
        (["--every", "0"], "not a usable pause"),
        (["distil"], "did you mean distill?"),
        (["--every", "soon"], "soon"),
    ],
)
def test_words_that_do_not_do_are_named(
    fleet: Fleet, run: Run, stub: Path, words: list[str], said: str
) -> None:
    called = fleet("stream", "wandb", "--once", *words)
    assert called.code == 2
    assert said in called.err


@needs_wandb
def test_a_mode_that_turns_wandb_off_is_told_and_offline_is_taken_from_it(
    fleet: Fleet, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert fleet("stream", "wandb", "--once").code == 3
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert fleet.ok("stream", "wandb", "--once", "--json").json["offline"] is True
    monkeypatch.delenv("WANDB_MODE")
    called = fleet("stream", "wandb", "--once")
    assert called.code == 2
    assert "offline before" in called.err


def test_a_process_that_follows_tells_each_look_and_leaves_in_order_when_told(
    fleet: Fleet, run: Run, stub: Path
) -> None:
    process = subprocess.Popen(
        fleet.command("stream", "wandb", "--every", "1", "--json"),
        env={**environment(), "PYTHONPATH": str(STUB), "STUB_WANDB": str(stub)},
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert (first["streams"][0]["sent"], first["streams"][0]["waiting"]) == (5, 5)
    run.steps(6, 2)
    while json.loads(process.stdout.readline())["streams"][0]["sent"] < 7:
        pass
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    (rows,) = stub.glob("distill-*.jsonl")
    assert len(rows.read_text().splitlines()) == 7
    assert fleet.ok("stream", "wandb", "--once", "--json").json["streams"][0]["waiting"] == 0
