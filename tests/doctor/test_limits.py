"""Limits of this machine: judged as numbers, and counted for real."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, Verdict
from fleetcraft.doctor.limits import (
    check_processes,
    check_ulimits,
    judge_limit,
    judge_locked,
    judge_open_files,
)
from fleetcraft.fleet.guard.verdict import Limit

NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "verdict"),
    [
        (NONE, NONE, Verdict.OK),
        (65536, 65536, Verdict.OK),
        (1024, 65536, Verdict.ADVICE),
        (128, NONE, Verdict.WRONG),
    ],
)
def test_few_open_files_are_advice_and_very_few_wrong(
    soft: int, hard: int, verdict: Verdict
) -> None:
    assert judge_open_files(soft, hard).verdict is verdict


def test_locked_memory_has_to_be_unlimited_for_infiniband() -> None:
    assert judge_locked(NONE).verdict is Verdict.OK
    found = judge_locked(8 << 20)
    assert found.verdict is Verdict.ADVICE
    assert "8.0 MiB" in found.found


@pytest.mark.parametrize(
    ("found", "verdict"),
    [(None, Verdict.UNKNOWN), (10, Verdict.OK), (25, Verdict.ADVICE), (40, Verdict.WRONG)],
)
def test_a_measure_of_the_guard_keeps_its_meaning(found: int | None, verdict: Verdict) -> None:
    limit = Limit(name="processes", found=found, caution=25, stop=40, source="the profile")
    assert judge_limit(limit).verdict is verdict


def test_counts_that_may_be_too_low_say_so() -> None:
    limit = Limit(name="threads", found=10, caution=25, stop=40, source="ulimit -u 50")
    assert judge_limit(limit, whole=False).found == "at least 10"


def names(tmp_path: Path, **environ: str) -> dict[str, Finding]:
    case = Case({"project_dir": str(tmp_path)}, environ)
    return {finding.name: finding for finding in check_processes(case)}


def test_limits_of_login_nodes_are_held_against_login_nodes_alone(tmp_path: Path) -> None:
    environ = {"FLEET_GUARD_PROCESSES_STOP": "1", "FLEET_GUARD_PROCESSES_CAUTION": "1"}
    elsewhere = names(tmp_path, **environ, FLEET_LOGIN_HOSTS="nowhere-*")
    assert "no login node" in elsewhere["login node"].found
    assert not any(f.expected.startswith("below 1 ") for f in elsewhere.values())
    here = names(tmp_path, **environ, FLEET_LOGIN_HOSTS="*")
    assert "a login node" in here["login node"].found
    assert here["processes"].verdict is Verdict.WRONG
    assert "FLEET_GUARD_PROCESSES_STOP" in here["processes"].expected


def test_the_limits_of_this_shell_are_read(tmp_path: Path) -> None:
    found = {finding.name for finding in check_ulimits(Case({"project_dir": str(tmp_path)}, {}))}
    assert "open files" in found
