"""The checks before a submission: what each refuses, and with which exit code.

Not here: a real balance; tests of accounting on a real Slurm have that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.config import Config, load
from fleetcraft.errors import FleetError
from fleetcraft.fleet.guard.verdict import check_login
from fleetcraft.fleet.launch import readiness
from fleetcraft.fleet.launch.plan import plan_launch
from fleetcraft.fleet.launch.readiness import Check, check_launch, judge_balance, refuse
from fleetcraft.slurm.accounting import Balance, Status
from fleetcraft.slurm.polls import Polls
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.store import Spool
from fleetcraft.spool.tree import SpoolTree
from tests.fleet.quiet_slurm import QuietSlurm


class Place:
    """A scratch tree, a project, and the checks of a launch from there."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.root.mkdir(mode=0o700)
        self.project = base / "project"
        self.project.mkdir()
        set_up(SpoolTree(str(self.root / "taskq")))
        self.spool = Spool(str(self.root / "taskq"), project_dir=str(self.project))

    def config(self, **environ: str) -> Config:
        return load({"root": str(self.root), "project_dir": str(self.project)}, environ)

    def check(
        self, *, nodes: int = 2, time_s: int = 1800, dry_run: bool = False, **environ: str
    ) -> dict[str, Check]:
        config = self.config(**environ)
        plan = plan_launch(config, nodes=nodes, time_s=time_s)
        checks = check_launch(config, plan, Polls(interval_s=0.01), dry_run=dry_run)
        assert len({check.name for check in checks}) == len(checks)
        return {check.name: check for check in checks}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    QuietSlurm(tmp_path, monkeypatch).write("sbatch", "exit 1")
    return Place(tmp_path)


def refused(check: Check) -> int:
    """The exit code with which it refuses."""
    with pytest.raises(FleetError) as caught:
        refuse([check])
    assert caught.value.message == check.text
    return caught.value.exit_code


def test_a_place_in_order_passes_and_gets_its_private_folder_of_logs(place: Place) -> None:
    checks = place.check()
    refuse(list(checks.values()))
    assert {name for name, check in checks.items() if check.status == "ok"} == {
        "nodes", "sbatch", "spool", "markers", "walltime", "scratch", "project", "caches",
    }  # fmt: skip
    assert {name for name, check in checks.items() if check.status == "not_checked"} == {
        "login guard",
        "balance",
    }
    assert (place.root / "logs").stat().st_mode & 0o777 == 0o700
    assert os.listdir(place.root / "logs") == []


def test_a_dry_run_writes_nothing(place: Place) -> None:
    before = sorted(str(path) for path in place.root.rglob("*"))
    assert place.check(dry_run=True)["scratch"].status == "ok"
    assert sorted(str(path) for path in place.root.rglob("*")) == before


@pytest.mark.parametrize("marker", ["DRAIN", "STOP"])
def test_a_marker_refuses(place: Place, marker: str) -> None:
    (place.root / "taskq" / marker).write_text('{"by":"me@here","reason":"maintenance"}')
    check = place.check()["markers"]
    assert refused(check) == 5
    assert marker in check.text
    assert "me@here" in check.text


def test_a_queue_smaller_than_the_fleet_and_tasks_too_long_for_it_are_only_warned_of(
    place: Place,
) -> None:
    place.spool.enqueue("short", "true", time_s=60)
    place.spool.enqueue("long", "true", time_s=7200)
    checks = place.check(nodes=3)
    assert checks["queue"].status == "warning"
    assert "2 tasks are pending" in checks["queue"].text
    assert checks["walltime"].status == "warning"
    assert checks["walltime"].text.startswith("1 of 2 tasks declare more time than 00:30:00")
    assert place.check(nodes=2, time_s=7200)["queue"].status == "ok"
    refuse(list(checks.values()))


def test_more_nodes_than_the_settings_allow_are_refused(place: Place) -> None:
    assert refused(place.check(nodes=9, FLEET_SLURM_MAX_NODES="8")["nodes"]) == 2
    assert place.check(nodes=8, FLEET_SLURM_MAX_NODES="8")["nodes"].status == "ok"


def test_without_sbatch_the_hint_says_where_to_go(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    check = place.check()["sbatch"]
    assert refused(check) == 4
    assert check.error is not None
    assert "login node" in check.error.hint


@pytest.mark.parametrize("folder", ["taskq", "logs", "."])
def test_folders_that_others_can_write_are_refused(place: Place, folder: str) -> None:
    path = place.root / folder
    path.mkdir(exist_ok=True)
    path.chmod(0o770)
    refusing = [check for check in place.check().values() if check.error is not None]
    assert [refused(check) for check in refusing] == [5]
    assert str(path) in refusing[0].text


def test_no_spool_is_refused_with_the_command_that_makes_one(place: Place) -> None:
    (place.root / "taskq").rename(place.root / "gone")
    check = place.check()["spool"]
    assert refused(check) == 5
    assert "is missing" in check.text


def test_a_setup_file_that_others_can_write_is_refused(place: Place) -> None:
    setup = place.project / "setup.sh"
    setup.write_text("true\n")
    assert place.check(FLEET_SLURM_SETUP=str(setup))["setup"].status == "ok"
    setup.chmod(0o666)
    assert refused(place.check(FLEET_SLURM_SETUP=str(setup))["setup"]) == 5
    assert refused(place.check(FLEET_SLURM_SETUP=str(setup) + ".no")["setup"]) == 5


# ------------------------------------------------------------------------------------ login node


def guarded(place: Place, **limits: str) -> Check:
    hosts = f"{os.uname().nodename} other*"
    return place.check(FLEET_LOGIN_HOSTS=hosts, **limits)["login guard"]


def test_a_host_that_is_no_login_node_is_not_guarded(place: Place) -> None:
    check = place.check(FLEET_LOGIN_HOSTS="certainly-not-this-*")["login guard"]
    assert check.status == "ok"


def test_on_a_login_node_no_go_refuses_and_caution_only_warns(place: Place) -> None:
    many = {f"FLEET_GUARD_{what}": "100000" for what in ("SSH_STOP", "SSH_CAUTION")}
    stop = guarded(place, **many, FLEET_GUARD_PROCESSES_STOP="1")
    assert stop.status == "failed"
    assert refused(stop) == 75
    many["FLEET_GUARD_PROCESSES_STOP"] = "100000"
    caution = guarded(place, **many, FLEET_GUARD_PROCESSES_CAUTION="1")
    assert caution.status in ("warning", "unknown")  # processes of others may hide behind hidepid


def test_on_a_login_node_that_cannot_be_looked_at_nothing_is_launched(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., object] = check_login
    monkeypatch.setattr(readiness, "check_login", lambda limits: real(limits, "/nowhere"))
    check = guarded(place)
    assert check.status == "unknown"
    assert refused(check) == 75


# --------------------------------------------------------------------------------------- balance


def balance(left_h: float | None = 100.0, running_h: float | None = 10.0) -> Balance:
    return Balance(
        status=Status.KNOWN, reason="limit of account proj", tres="node", limit_h=500.0,
        used_h=400.0, left_h=left_h, running_h=running_h,
    )  # fmt: skip


def test_a_fleet_that_leaves_the_headroom_passes() -> None:
    assert judge_balance(balance(), headroom_h=20.0, cost_h=50.0, waiting_h=20.0).status == "ok"


def test_a_fleet_that_would_eat_into_the_headroom_is_refused() -> None:
    check = judge_balance(balance(), headroom_h=20.5, cost_h=50.0, waiting_h=20.0)
    assert check.status == "failed"
    assert refused(check) == 1
    assert "20.0 would stay" in check.text


@pytest.mark.parametrize(
    ("found", "cost_h", "waiting_h"),
    [
        (Balance(status=Status.UNKNOWN, reason="sshare did not answer", tres="node"), 1.0, 0.0),
        (balance(left_h=None), 1.0, 0.0),
        (balance(running_h=None), 1.0, 0.0),
        (balance(), None, 0.0),
        (balance(), 1.0, None),
    ],
)
def test_where_a_headroom_is_set_what_is_not_known_refuses(
    found: Balance, cost_h: float | None, waiting_h: float | None
) -> None:
    check = judge_balance(found, headroom_h=1.0, cost_h=cost_h, waiting_h=waiting_h)
    assert check.status == "unknown"
    assert refused(check) == 4


def test_an_account_without_a_limit_is_not_checked_and_blocks_nothing() -> None:
    found = Balance(status=Status.NOT_CHECKED, reason="this cluster keeps no accounts", tres="node")
    check = judge_balance(found, headroom_h=1.0, cost_h=1.0, waiting_h=None)
    assert check.status == "not_checked"


def test_a_slurm_that_fails_is_an_unknown_balance_only_where_a_headroom_is_set(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    assert place.check()["balance"].status == "not_checked"
    check = place.check(FLEET_BALANCE_HEADROOM_H="10")["balance"]
    assert check.status == "unknown"
    assert refused(check) == 4


# -- caches


def test_two_names_of_the_hub_that_differ_refuse_a_launch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/a")
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", "/b")
    check = place.check()["caches"]
    assert refused(check) == 3
    assert "HUGGINGFACE_HUB_CACHE says /b" in check.text
    assert "nothing was submitted" in check.text


def test_a_conflict_that_may_do_no_harm_is_only_warned_of(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFORMERS_CACHE", "/t")
    check = place.check()["caches"]
    assert (check.status, check.error) == ("warning", None)
    assert "fleetcraft caches check shows what to do" in check.text


def test_where_sources_lie_on_this_host_says_nothing_of_a_compute_node(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetcraft.caches import mounts

    table = (mounts.Mount("/", "nfs4"),)
    monkeypatch.setattr(mounts, "read_mounts", lambda: table)
    assert place.check()["caches"].status == "ok"
    monkeypatch.setenv("TRITON_CACHE_DIR", "/local/disk/of/nodes")
    assert place.check()["caches"].status == "warning"  # all attempts share it
    shared = place.project / "triton"
    shared.mkdir()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(shared))
    check = place.check()["caches"]
    assert refused(check) == 3
    assert f"generates its sources at {shared}" in check.text


def test_a_setting_of_quotas_that_cannot_be_split_refuses(place: Place) -> None:
    check = place.check(FLEET_STORAGE_QUOTA="'open")["caches"]
    assert refused(check) == 3
