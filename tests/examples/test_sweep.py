"""The demo's workload, run as a user runs it: each script a process of its own."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fleetcraft.video import read_encoder_record, read_video

pytest.importorskip("torch")

REPOSITORY = Path(__file__).parents[2]
SWEEP = REPOSITORY / "docs" / "examples" / "sweep"

Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Runs a script of the sweep in an empty folder."""

    def run(name: str, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [sys.executable, "-W", "error", str(SWEEP / name), *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        assert result.returncode == code, result.stderr
        return result

    return run


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = spec_from_file_location("sweep_model", SWEEP / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def csv_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def document(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def test_a_clip_is_generated_scored_and_summarized(script: Script, tmp_path: Path) -> None:
    for seed in (0, 1):
        script("generate.py", "--seed", seed, "--steps", 3, "--out", f"clips/{seed}.mp4")
        script("score.py", "--clip", f"clips/{seed}.mp4", "--out", f"scores/{seed}.json")
    script("time_pass.py", "--seed", 0, "--steps", 2, "--repeats", 2, "--out", "scores/t.json")
    script("summarize.py", "--scores", "scores", "--out", "report")

    about = document(tmp_path / "clips" / "1.json")
    assert (about["seed"], about["steps"], about["prompt"]) == (1, 3, "ember")
    assert read_video(tmp_path / "clips" / "1.mp4").frames.shape == (about["frames"], 64, 96, 3)
    assert read_encoder_record(tmp_path / "clips" / "1.mp4").settings.threads == 1

    metrics = document(tmp_path / "scores" / "1.json")["metrics"]
    assert metrics["sharpness"] > 0
    assert metrics["motion"] > 0

    rows = csv_rows(tmp_path / "report" / "summary.csv")
    assert [row["name"] for row in rows] == ["0", "1"]
    assert float(rows[1]["motion"]) == metrics["motion"]
    page = (tmp_path / "report" / "summary.md").read_text()
    assert "Sweep: 2 clips" in page
    assert "over 2 runs" in page
    assert (tmp_path / "report" / "summary.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_file_again(script: Script, tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mp4"):
        script("generate.py", "--seed", 5, "--steps", 2, "--out", name)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_the_timed_pass_writes_every_time_and_their_median(script: Script, tmp_path: Path) -> None:
    script("time_pass.py", "--seed", 0, "--steps", 1, "--repeats", 3, "--out", "t.json")
    timing = document(tmp_path / "t.json")
    assert len(timing["times_s"]) == 3
    assert timing["median_s"] == sorted(timing["times_s"])[1]
    assert (timing["batch"], timing["threads"], len(timing["warmup_s"])) == (1, 1, 1)


def test_fetching_prompts_fails_once_and_succeeds_on_the_retry(
    script: Script, tmp_path: Path
) -> None:
    first = script("fetch_prompt.py", "--out", "prompts.json", code=1)
    assert "not ready" in first.stderr
    assert not (tmp_path / "prompts.json").exists()
    script("fetch_prompt.py", "--out", "prompts.json")
    script("generate.py", "--seed", 2, "--steps", 1, "--prompts", "prompts.json", "--out", "c.mp4")
    assert document(tmp_path / "c.json")["prompt"] == "lagoon"


def test_a_broken_clip_is_bad_data_and_leaves_no_score(script: Script, tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").touch()
    result = script("score.py", "--clip", "clip.mp4", "--out", "score.json", code=7)
    assert result.stderr.startswith("error: cannot read clip.mp4: the file is empty")
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "score.json").exists()


def test_a_folder_without_scores_is_bad_data(script: Script) -> None:
    assert "no scores" in script("summarize.py", "--scores", ".", "--out", "r", code=7).stderr


def test_files_that_are_no_scores_are_counted_and_a_missing_clip_is_allowed(
    script: Script, tmp_path: Path
) -> None:
    (tmp_path / "other.json").write_text('{"schema": "something/1"}')
    (tmp_path / "broken.json").write_text("{")
    score = {"schema": "sweep.score/1", "name": "a", "clip": "gone.mp4", "steps": None}
    (tmp_path / "a.json").write_text(json.dumps({**score, "metrics": {"motion": 1.5}}))
    result = script("summarize.py", "--scores", ".", "--out", "report")
    assert "1 clips, 0 timed, 2 files skipped" in result.stdout
    assert "broken.json" in result.stderr
    assert "skipped: 2" in (tmp_path / "report" / "summary.md").read_text()
    rows = csv_rows(tmp_path / "report" / "summary.csv")
    assert (rows[0]["steps"], rows[0]["motion"]) == ("", "1.5")


def test_noise_of_a_sample_does_not_depend_on_its_batch_or_place(model: ModuleType) -> None:
    alone = model.initial_noise([7])[0]
    together = model.initial_noise([3, 7, 11])
    assert alone.equal(together[1])
    assert together[[2, 1, 0]].equal(model.initial_noise([11, 7, 3]))
    assert not together[0].equal(together[1])


def test_a_clip_does_not_depend_on_the_other_clips_of_its_batch(model: ModuleType) -> None:
    flow = model.FlowModel()
    alone = flow.sample([7], ["lagoon"], 4)[0]
    together = flow.sample([3, 7], ["ember", "lagoon"], 4)[1]
    assert np.allclose(alone.numpy(), together.numpy(), atol=1e-5)


def test_more_steps_bring_the_latent_nearer_to_the_variance_of_its_scene(
    model: ModuleType,
) -> None:
    flow = model.FlowModel()
    spread = [float(flow.sample([1], ["ember"], steps).std()) for steps in (2, 8, 32)]
    assert spread == sorted(spread)


def test_a_clip_is_a_picture_and_not_noise(model: ModuleType) -> None:
    clip = model.FlowModel().sample([0], ["aurora"], 8)[0].numpy()
    neighbours = np.abs(np.diff(clip, axis=2)).mean()
    assert clip.min() >= 0
    assert clip.max() <= 1
    assert neighbours < 0.25 * clip.std()
    assert hashlib.sha256(clip[0].tobytes()) != hashlib.sha256(clip[12].tobytes())
