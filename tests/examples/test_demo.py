"""The demo as a newcomer runs it: published, drained by two workers, summed up, exit 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft import Spool

DEMO = Path(__file__).resolve().parents[2] / "docs" / "examples" / "sweep" / "demo.py"


def demo(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **more},
    )


@pytest.mark.timeout(900)
def test_the_demo_runs_the_whole_sweep_and_says_what_happened(tmp_path: Path) -> None:
    folder = tmp_path / "a demo"

    done = demo("--keep", str(folder), SPOOL_DIR=str(tmp_path / "nowhere"))

    assert done.returncode == 0, done.stdout + done.stderr
    spool = Spool(str(folder / "scratch" / "taskq"))
    assert spool.counts() == {"waiting": 0, "pending": 0, "running": 0, "done": 27, "failed": 0}
    assert spool.check().ok
    assert [a.outcome for a in spool.show("prompts").attempts] == ["failed", "completed"]
    assert spool.show("timed-pass").record.spec.timed
    results = folder / "results"
    assert len(list((results / "clips").glob("*.mp4"))) == 12
    scores = [json.loads(p.read_text()) for p in (results / "scores").glob("s*.json")]
    assert len({score["metrics"]["sharpness"] for score in scores}) == 12
    assert (results / "report" / "summary.png").read_bytes().startswith(b"\x89PNG")
    assert "2 attempts: failed, completed" in done.stdout
    assert "alone on this machine" in done.stdout
    assert "12 clips were scored" in done.stdout
    assert str(results / "report" / "summary.png") in done.stdout
    [telemetry] = (folder / "scratch" / "telemetry").glob("*.csv")
    assert telemetry.read_text().count("\n") > 2
    assert json.loads(telemetry.with_suffix(".json").read_text())["ended_at"]
    assert (results / "report" / "fleet.png").read_bytes().startswith(b"\x89PNG")
    assert (results / "report" / "fleet.svg").read_text().rstrip().endswith("</svg>")
    assert "telemetry plot --out report" in done.stdout
    assert "A sweep of video clips" in (results / "report" / "report.html").read_text()
    assert str(results / "report" / "fleet.png") in done.stdout


def test_the_demo_does_not_write_into_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")

    done = demo("--keep", str(tmp_path))

    assert done.returncode == 2
    assert "not an empty folder" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
