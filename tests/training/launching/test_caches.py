"""What a training command is told about caches: of its node, run and launch, apart from tasks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from fleetcraft.caches.scope import CacheSettings, Scope, environment_for
from fleetcraft.identity import this_host
from tests.training.launching.harness import Run, wait_until

NODE = this_host().host

CODE = """
import json, os
open("env%s" % os.environ["FLEET_EPOCH"], "w").write(json.dumps(dict(os.environ)))
os.makedirs(os.environ["TRITON_CACHE_DIR"] + "/k")
os.makedirs(os.environ["TORCHINDUCTOR_CACHE_DIR"], exist_ok=True)
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheSettings:
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "local").mkdir()
    return CacheSettings(root=str(tmp_path / "caches"), local=str(tmp_path / "local"))


def told(run: Run, epoch: int) -> dict[str, str]:
    found: dict[str, str] = json.loads((run.work / f"env{epoch}").read_text())
    return found


def test_each_launch_has_sources_of_its_own_and_follows_on_in_the_runs_graphs(
    run: Run, settings: CacheSettings, tmp_path: Path
) -> None:
    for _ in range(2):
        run.ended(run.launch(sys.executable, "-c", CODE, caches=settings))
    first, second = told(run, 1), told(run, 2)
    local = f"{tmp_path}/local/fleetcraft-{os.geteuid()}/caches/train"
    assert first["TRITON_CACHE_DIR"].startswith(f"{local}/triton/{NODE}/r1/1.")
    assert second["TRITON_CACHE_DIR"].startswith(f"{local}/triton/{NODE}/r1/2.")
    assert first["TORCHINDUCTOR_CACHE_DIR"] == second["TORCHINDUCTOR_CACHE_DIR"]
    assert first["TORCHINDUCTOR_CACHE_DIR"].startswith(f"{local}/inductor/{NODE}-r1-")
    assert first["HF_HUB_CACHE"] == f"{settings.root}/huggingface/hub"


def test_generated_sources_go_when_the_launch_has_ended_and_graphs_stay(
    run: Run, settings: CacheSettings
) -> None:
    started = run.launch(sys.executable, "-c", CODE, caches=settings)
    run.ended(started)
    found = told(run, 1)
    # The keeper tells the end first, so that nobody waits for the removal.
    wait_until(lambda: not os.path.exists(found["TRITON_CACHE_DIR"]), "the sources are gone")
    assert os.path.isdir(found["TORCHINDUCTOR_CACHE_DIR"])


def test_what_the_run_declares_wins_and_is_not_removed(
    run: Run, settings: CacheSettings, tmp_path: Path
) -> None:
    mine = {"TRITON_CACHE_DIR": str(tmp_path / "mine"), "HF_HOME": "/of/run"}
    run.ended(run.launch(sys.executable, "-c", CODE, caches=settings, environment=mine))
    found = told(run, 1)
    assert found["TRITON_CACHE_DIR"] == mine["TRITON_CACHE_DIR"]
    assert found["HF_HUB_CACHE"] == "/of/run/hub"
    assert os.path.isdir(f"{mine['TRITON_CACHE_DIR']}/k")


def test_a_run_supervised_inside_a_task_does_not_take_the_tasks_sources(
    run: Run, settings: CacheSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = Scope(node="n", run="outer", attempt="1.tok", slot="n-0")
    for name, text in environment_for(scope, dict(os.environ), settings).items():
        monkeypatch.setenv(name, text)
    run.ended(run.launch(sys.executable, "-c", CODE, caches=settings))
    found = told(run, 1)
    assert "/caches/train/triton/" in found["TRITON_CACHE_DIR"]
    assert "/caches/train/inductor/" in found["TORCHINDUCTOR_CACHE_DIR"]


def test_a_launch_that_is_told_nothing_gets_nothing(run: Run, settings: CacheSettings) -> None:
    started = run.launch("bash", "-c", 'echo "${TRITON_CACHE_DIR-none} ${HF_HUB_CACHE-none}"')
    run.ended(started)
    assert Path(started.paths.log(NODE)).read_text() == "none none\n"


def test_a_folder_of_somebody_else_is_not_used_for_what_is_compiled(
    run: Run, settings: CacheSettings, tmp_path: Path
) -> None:
    strange = tmp_path / "local" / f"fleetcraft-{os.geteuid()}"
    strange.mkdir()
    strange.chmod(0o777)
    command = 'echo "${TRITON_CACHE_DIR-none} ${TORCHINDUCTOR_CACHE_DIR-none} $HF_HOME"'
    started = run.launch("bash", "-c", command, caches=settings)
    run.ended(started)
    said = Path(started.paths.log(NODE)).read_text()
    assert said == f"none none {settings.root}/huggingface\n"
