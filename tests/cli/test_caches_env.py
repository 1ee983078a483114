"""``fleetcraft caches env``: what a shell evaluates, and whom generated sources belong to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fleetcraft.caches.roles import VARIABLES
from tests.cli.conftest import Fleet


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "FLEET_TASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")


def test_a_shell_evaluates_it_whatever_the_paths_are_called(fleet: Fleet) -> None:
    text = fleet.ok("caches", "env", "--run", "sweep", "--attempt", "1", "--node", "n1").out
    script = f'{text}\nprintf "%s\\n" "$HF_HUB_CACHE" "$TRITON_CACHE_DIR"'
    said = subprocess.check_output(["bash", "-c", script], text=True, timeout=30).splitlines()
    assert said[0] == f"{fleet.root}/caches/huggingface/hub"  # the root has a space and a quote
    assert said[1].endswith("/caches/task/triton/n1/sweep/1")


def test_the_six_that_every_wrapper_declares_are_there(fleet: Fleet) -> None:
    said = fleet.ok("caches", "env", "--run", "a", "--json").json
    assert said["schema"] == "fleetcraft.caches-env/1"
    assert said["variables"].keys() >= {
        "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
    }  # fmt: skip


def test_two_calls_without_an_attempt_share_no_sources(fleet: Fleet) -> None:
    paths = {
        fleet.ok("caches", "env", "--json").json["variables"]["TRITON_CACHE_DIR"] for _ in range(2)
    }
    assert len(paths) == 2


def test_a_slurm_job_is_its_own_attempt_and_a_requeued_one_another(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    assert fleet.ok("caches", "env", "--json").json["attempt"] == "41.0"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert fleet.ok("caches", "env", "--json").json["attempt"] == "41.2"


@pytest.mark.parametrize("option", ["--run", "--attempt", "--node", "--slot"])
@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", "-x", "a b"])
def test_a_name_that_leads_elsewhere_is_refused(fleet: Fleet, option: str, name: str) -> None:
    called = fleet("caches", "env", f"{option}={name}")
    if name == "" and option != "--slot":
        assert called.code == 0  # as if it were not given
        return
    assert called.code == 2
    assert called.out == ""
    assert option in called.err


def test_it_prints_also_where_workers_export_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_CACHES_EXPORT", "false")
    assert "export HF_HOME=" in fleet.ok("caches", "env").out


def test_without_a_root_it_refuses(bare_fleet: Fleet) -> None:
    called = bare_fleet.bare("caches", "env")
    assert called.code == 3
    assert called.out == ""


def test_a_local_folder_that_others_can_write_is_refused(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    private = tmp_path / f"fleetcraft-{os.geteuid()}"
    private.mkdir()
    private.chmod(0o777)
    monkeypatch.setenv("FLEET_CACHES_LOCAL", str(tmp_path))
    called = fleet("caches", "env")
    assert (called.code, called.out) == (5, "")
    assert str(private) in called.err
