"""Python, caches, telemetry and Slurm, as far as they can be judged without a cluster."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from fleetcraft.doctor.cache_paths import check_cache_files, check_caches, check_libraries
from fleetcraft.doctor.case import Case
from fleetcraft.doctor.environment import (
    check_fleetcraft,
    check_local_folders,
    check_packages,
    check_python,
)
from fleetcraft.doctor.findings import Finding, Verdict
from fleetcraft.doctor.scheduler import check_programs, judge_silence
from fleetcraft.doctor.telemetry import check_logger, judge_loggers
from fleetcraft.errors import NotAskedError, SlurmFailedError, SlurmTimeoutError
from fleetcraft.layout import Scratch
from fleetcraft.spool import leases
from fleetcraft.spool.leases import new_lease
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.telemetry.live.files import Logged


def by_name(findings: object) -> dict[str, Finding]:
    return {one.name: one for one in findings}  # type: ignore[attr-defined]


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    made = Scratch(str(tmp_path / "root"))
    for spool in (made.outer, made.inner):
        set_up(SpoolTree(spool))
    return made


def case_of(tmp_path: Path, **environ: str) -> Case:
    usual = {"FLEET_TELEMETRY_INTERVAL_S": "30", "PATH": os.environ["PATH"]}
    flags = {"root": str(tmp_path / "root"), "project_dir": str(tmp_path)}
    return Case(flags, {**usual, **environ})


# ----------------------------------------------------------------------------------- python


def test_this_python_and_its_packages_are_well(tmp_path: Path) -> None:
    case = case_of(tmp_path)
    for check in (check_python, check_fleetcraft, check_packages, check_local_folders):
        for found in check(case):
            assert found.verdict in (Verdict.OK, Verdict.ADVICE), found


def test_a_python_path_is_advice(tmp_path: Path) -> None:
    found = by_name(check_python(case_of(tmp_path, PYTHONPATH="/opt/modules/python")))
    assert found["PYTHONPATH"].verdict is Verdict.ADVICE


def test_a_missing_package_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fleetcraft.doctor.environment.requirements",
        lambda: (["msgspec", "no-such-package"], {"video": ["no-such-one"], "torch": ["msgspec"]}),
    )
    found = by_name(check_packages(case_of(tmp_path)))
    assert found["packages"].verdict is Verdict.WRONG
    assert found["packages"].found == "not installed: no-such-package"
    assert "installed: torch; not installed: video" in found["extras"].found


def test_another_installation_first_on_path_is_advice(tmp_path: Path) -> None:
    other = tmp_path / "fleetcraft"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    found = by_name(check_fleetcraft(case_of(tmp_path, PATH=str(tmp_path))))["on PATH"]
    # Only where this Python has a program of that name to compare it with.
    assert found.verdict is Verdict.ADVICE or str(other) in found.found


# ----------------------------------------------------------------------------------- caches


def test_two_names_of_the_hub_that_differ_are_wrong(tmp_path: Path, scratch: Scratch) -> None:
    case = case_of(tmp_path, HF_HUB_CACHE="/a/hub", HUGGINGFACE_HUB_CACHE="/b/hub", HOME="/nowhere")
    found = by_name(check_caches(case))
    assert found["hub: names differ"].verdict is Verdict.WRONG
    assert "HUGGINGFACE_HUB_CACHE" in found["hub: names differ"].found
    assert found["hub: names differ"].hint


def test_caches_of_a_fresh_tree_are_well(tmp_path: Path, scratch: Scratch) -> None:
    found = by_name(check_caches(case_of(tmp_path, HOME="/nowhere")))
    assert found["hub"].found.startswith(f"{scratch.caches}/huggingface/hub")
    assert Verdict.WRONG not in {one.verdict for one in found.values()}


def test_a_model_that_is_not_whole_is_advice(tmp_path: Path, scratch: Scratch) -> None:
    case = case_of(tmp_path, HOME="/nowhere")
    assert by_name(check_cache_files(case))["files"].found.startswith("no hub yet")
    commit = "a" * 40
    repo = Path(scratch.caches, "huggingface", "hub", "models--me--tiny")
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit / "config.json").symlink_to("../../blobs/gone")
    found = by_name(check_cache_files(case))["hub: snapshot incomplete"]
    assert found.verdict is Verdict.ADVICE
    assert "me/tiny" in found.found


def test_libraries_that_do_not_answer_are_unknown(tmp_path: Path, scratch: Scratch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    python.chmod(0o755)
    found = by_name(check_libraries(case_of(tmp_path, FLEET_BATCH_PYTHON=str(python))))
    assert found["libraries"].verdict is Verdict.UNKNOWN
    assert "broken" in found["libraries"].found


# -------------------------------------------------------------------------------- telemetry


def test_a_logger_that_is_turned_off_is_advice(tmp_path: Path, scratch: Scratch) -> None:
    found = by_name(check_logger(case_of(tmp_path, FLEET_TELEMETRY_INTERVAL_S="0")))
    assert found["logger"].verdict is Verdict.ADVICE


def test_a_folder_that_others_can_write_is_wrong(tmp_path: Path, scratch: Scratch) -> None:
    os.mkdir(scratch.telemetry)
    os.chmod(scratch.telemetry, 0o777)
    assert by_name(check_logger(case_of(tmp_path)))["folder"].verdict is Verdict.WRONG


def test_a_worker_with_gpus_that_nothing_is_logged_of_is_wrong(
    tmp_path: Path, scratch: Scratch
) -> None:
    tree = SpoolTree(scratch.outer)
    os.mkdir(scratch.telemetry, 0o700)
    young = new_lease(rank="0", interval_s=30.0, gpus=2)
    leases.publish(tree, young)
    assert by_name(check_logger(case_of(tmp_path)))["loggers"].verdict is Verdict.OK
    leases.publish(tree, msgspec.structs.replace(young, counter=10))
    found = by_name(check_logger(case_of(tmp_path)))["loggers"]
    assert found.verdict is Verdict.WRONG
    assert young.host in found.found


def test_a_logger_that_fell_silent_is_wrong_and_a_slow_one_is_not() -> None:
    def logged(age_s: float, interval_s: float) -> dict[tuple[str, str], Logged]:
        one = Logged(node="n1", job="7", file="f", age_s=age_s, interval_s=interval_s)
        return {("n1", "7"): one}

    wanted = {("n1", "7")}
    assert judge_loggers(wanted, logged(200.0, 30.0)).verdict is Verdict.WRONG
    assert judge_loggers(wanted, logged(200.0, 120.0)).verdict is Verdict.OK
    assert judge_loggers(wanted, {}).verdict is Verdict.WRONG


# ------------------------------------------------------------------------------------ slurm


def test_no_slurm_at_all_is_advice_and_half_of_it_is_wrong(tmp_path: Path) -> None:
    (found,) = check_programs(case_of(tmp_path, PATH=str(tmp_path)))
    assert found.verdict is Verdict.ADVICE
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    half = by_name(check_programs(case_of(tmp_path, PATH=str(tmp_path))))["programs"]
    assert half.verdict is Verdict.WRONG
    assert "sbatch" in half.found


def test_what_silence_of_the_controller_means() -> None:
    assert judge_silence(SlurmTimeoutError("scontrol", 15)).verdict is Verdict.WRONG
    assert judge_silence(NotAskedError("not our turn")).verdict is Verdict.UNKNOWN
    said = "sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host"
    assert judge_silence(SlurmFailedError("sinfo", 1, said)).verdict is Verdict.ADVICE
    refused = "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)"
    assert judge_silence(SlurmFailedError("scontrol", 1, refused)).verdict is Verdict.WRONG
