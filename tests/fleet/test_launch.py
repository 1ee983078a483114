"""Submitting a fleet: the exact sbatch line, from settings and options, and what sbatch then gets.

Not here: the checks before it, and what becomes of the job; tests/slurm/test_fleet.py has that.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from fleetcraft.config import Config, load
from fleetcraft.errors import ConfigError, UsageError
from fleetcraft.fleet.launch.plan import (
    Company,
    LaunchPlan,
    parse_walltime_s,
    plan_launch,
    submit_launch,
    template,
)
from fleetcraft.fleet.shapes import Mark, read_mark, root_mark
from tests.slurm.fakes import FakePrograms


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "a project"
    folder.mkdir()
    return folder


def settings(tmp_path: Path, project: Path, text: str = "", **environ: str) -> Config:
    (project / "fleet.yaml").write_text(text)
    flags = {"root": str(tmp_path / "it's a root"), "project_dir": str(project)}
    return load(flags, environ)


def options(plan: LaunchPlan) -> dict[str, str]:
    pairs = (option.partition("=") for option in plan.options)
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("05:00", 300),
        ("00:30:00", 1800),
        ("1-12", 129600),
        ("1-00:30", 88200),
        ("2-03:04:05", 183845),
        ("90m", 5400),
        ("45s", 45),
    ],
)
def test_a_walltime_is_read_as_sbatch_reads_it(text: str, seconds: int) -> None:
    assert parse_walltime_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0-0", "UNLIMITED", "-5", "1:2:3:4", "9999999", "1.5"])
def test_what_is_no_walltime_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_walltime_s(text)


def test_the_shown_line_is_what_a_shell_makes_of_the_very_words(
    tmp_path: Path, project: Path
) -> None:
    plan = plan_launch(settings(tmp_path, project), nodes=4, time_s=1800)
    assert shlex.split(plan.line) == plan.sbatch
    assert plan.sbatch[:2] == ["sbatch", "--parsable"]
    assert plan.script == template()
    assert Path(plan.script).name == "fleet.sbatch"


def test_a_fleet_has_its_nodes_whole_survives_a_lost_one_and_can_be_found_again(
    tmp_path: Path, project: Path
) -> None:
    config = settings(tmp_path, project)
    given = options(plan_launch(config, nodes=4, time_s=1800))
    assert given["--nodes"] == "4"
    assert given["--time"] == "00:30:00"
    assert {"--exclusive", "--no-kill", "--requeue"} <= set(given)
    assert given["--open-mode"] == "append"
    assert given["--output"] == f"{config.root}/logs/fleet-%j.log"
    assert given["--chdir"] == str(project)
    assert read_mark(given["--comment"]) == Mark(root_mark(config.root))


def test_only_the_job_id_is_put_into_the_name_of_the_log_whatever_the_root_is_called(
    tmp_path: Path,
) -> None:
    def plan(root: Path) -> LaunchPlan:
        flags = {"root": str(root), "project_dir": str(tmp_path)}
        return plan_launch(load(flags, {}), nodes=1, time_s=60)

    odd = plan(tmp_path / "100%j")
    assert options(odd)["--output"] == f"{tmp_path}/100%%j/logs/fleet-%j.log"
    assert odd.log_of("7") == f"{tmp_path}/100%j/logs/fleet-7.log"
    with pytest.raises(ConfigError, match="backslash"):
        plan(tmp_path / "back\\slash")


@pytest.mark.parametrize(
    ("time_s", "warning"), [(60, "6"), (600, "60"), (1800, "180"), (43200, "180")]
)
def test_the_warning_comes_at_most_a_tenth_of_the_walltime_before_its_end(
    tmp_path: Path, project: Path, time_s: int, warning: str
) -> None:
    plan = plan_launch(settings(tmp_path, project), nodes=1, time_s=time_s)
    assert options(plan)["--signal"] == f"B:USR1@{warning}"
    assert plan.arguments[plan.arguments.index("--warning") + 1] == warning


def test_without_a_warning_none_is_asked_for(tmp_path: Path, project: Path) -> None:
    config = settings(tmp_path, project, FLEET_SLURM_WARNING_S="0")
    assert "--signal" not in options(plan_launch(config, nodes=1, time_s=3600))


def test_site_facts_become_options_and_what_was_typed_comes_last(
    tmp_path: Path, project: Path
) -> None:
    text = """
slurm:
  partition: gpu
  account: proj
  qos: long
  constraint: "a100&ib"
  gpus_per_node: 3
  extra: --reservation=x --mail-type='END,FAIL'
"""
    plan = plan_launch(
        settings(tmp_path, project, text), nodes=2, time_s=3600, extra=["--nice=5", "--exclude=n9"]
    )
    given = options(plan)
    assert given["--partition"] == "gpu"
    assert given["--account"] == "proj"
    assert given["--qos"] == "long"
    assert given["--constraint"] == "a100&ib"
    assert given["--gpus-per-node"] == "3"
    assert given["--mail-type"] == "END,FAIL"
    assert plan.options[-3:] == ("--mail-type=END,FAIL", "--nice=5", "--exclude=n9")


def test_what_stands_in_extra_has_to_be_quoted_as_for_a_shell(
    tmp_path: Path, project: Path
) -> None:
    config = settings(tmp_path, project, 'slurm:\n  extra: "--x=\'"\n')
    with pytest.raises(ConfigError, match="slurm.extra cannot be split"):
        plan_launch(config, nodes=1, time_s=3600)


def test_the_script_is_told_all_that_a_job_could_find_otherwise(
    tmp_path: Path, project: Path
) -> None:
    config = settings(
        tmp_path, project, "slurm:\n  setup: setup.sh\n", FLEET_SITE="generic", MAX_IDLE_MIN="5"
    )
    plan = plan_launch(config, nodes=2, time_s=3600, slots="gpu")
    words = list(plan.arguments)
    assert words[0] == f"FLEETCRAFT_PYTHON={sys.executable}"
    assert words[1] == f"FLEET_SLURM_SETUP={project}/setup.sh"
    pairs = dict(zip(words[2::2], words[3::2], strict=True))
    assert pairs["--root"] == config.root
    assert pairs["--project-dir"] == str(project)
    assert pairs["--site"] == "generic"
    assert pairs["--slots"] == "gpu"
    assert pairs["--idle"] == "300"


def test_spools_that_lie_elsewhere_are_named_one_by_one(tmp_path: Path, project: Path) -> None:
    text = f"root: {tmp_path}/root\nspool:\n  dir: {tmp_path}/elsewhere\n"
    (project / "fleet.yaml").write_text(text)
    plan = plan_launch(load({"project_dir": str(project)}, {}), nodes=1, time_s=3600)
    assert "--root" not in plan.arguments
    assert plan.arguments[1:4] == (
        f"FLEET_ROOT={tmp_path}/root",
        f"FLEET_SPOOL_DIR={tmp_path}/elsewhere",
        f"FLEET_SPOOL_GPU_DIR={tmp_path}/root/taskq_gpu",
    )


def test_a_renewal_carries_its_own_comment_name_and_partition(
    tmp_path: Path, project: Path
) -> None:
    plan = plan_launch(
        settings(tmp_path, project),
        nodes=8,
        time_s=43200,
        partition="long",
        comment="fleetcraft root=0123456789ab intent=x1",
        name="fleet-x1",
    )
    given = options(plan)
    assert given["--comment"] == "fleetcraft root=0123456789ab intent=x1"
    assert given["--job-name"] == "fleet-x1"
    assert given["--partition"] == "long"


def test_a_command_beside_the_workers_needs_nodes_that_are_there(
    tmp_path: Path, project: Path
) -> None:
    config = settings(tmp_path, project)
    company = Company(command="bash train.sh --x 'y z'", nodes=6, until_marker="/p/done")
    with pytest.raises(UsageError, match="wants 6 nodes of 4"):
        plan_launch(config, nodes=4, time_s=3600, company=company)
    words = plan_launch(config, nodes=10, time_s=3600, company=company).arguments
    assert words[-6:] == (
        *("--beside", "bash train.sh --x 'y z'"),
        *("--beside-nodes", "6"),
        *("--until-marker", "/p/done"),
    )


def test_sbatch_gets_exactly_the_line_that_was_shown(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = FakePrograms(tmp_path, monkeypatch)
    got = tmp_path / "got"
    programs.write("sbatch", f"printf '%s\\0' \"$@\" > '{got}'; echo 4711")
    plan = plan_launch(settings(tmp_path, project), nodes=4, time_s=1800)

    assert submit_launch(plan) == "4711"

    assert got.read_text().split("\0")[:-1] == plan.sbatch[1:]
