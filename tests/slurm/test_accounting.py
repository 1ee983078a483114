"""Balances and limits are known, not checked or unknown, and never guessed."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from fleetcraft.errors import NoAnswerError, SchedulerError, UsageError
from fleetcraft.slurm.accounting import (
    Balance,
    Limits,
    Status,
    balance,
    job_named,
    keeps_accounts,
    limits,
)
from fleetcraft.slurm.polls import Polls
from tests.slurm.cluster import Cluster
from tests.slurm.fakes import FakePrograms, recorded

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    """A site whose programs say what a real one has said."""
    made = FakePrograms(tmp_path, monkeypatch)
    made.says("scontrol", recorded("22.05", "scontrol-config"))
    made.says("sshare", recorded("22.05", "sshare"))
    for table in ("assoc", "qos", "user"):
        (tmp_path / f"{table}.txt").write_text(recorded("22.05", f"sacctmgr-{table}"))
    made.write("sacctmgr", f'cat "{tmp_path}/$4.txt"')
    return made


@pytest.fixture
def polls(tmp_path: Path) -> Polls:
    return Polls(str(tmp_path / "polls"), interval_s=0)


def test_the_tightest_limit_counts(fakes: FakePrograms, polls: Polls) -> None:
    assert balance(polls, "proj", user="root") == Balance(
        status=Status.KNOWN,
        reason="limit of user root in account proj",
        tres="node",
        limit_h=50 / 60,
        used_h=23 / 60,
        left_h=27 / 60,
        running_h=17 / 60,
    )


def test_an_account_is_bound_by_those_above_it(fakes: FakePrograms, polls: Polls) -> None:
    found = balance(polls, "sub", user="root")

    assert (found.status, found.reason) == (Status.KNOWN, "limit of account proj")
    assert found.left_h == pytest.approx(77 / 60)


def test_another_resource_has_its_own_limit(fakes: FakePrograms, polls: Polls) -> None:
    cpus = balance(polls, "proj", "cpu", user="root")
    gpus = balance(polls, "proj", "gres/gpu", user="root")

    assert cpus.left_h == pytest.approx((5000 - 32) / 60)
    assert (gpus.status, gpus.left_h) == (Status.NOT_CHECKED, None)
    assert gpus.reason == "account proj has no limit on gres/gpu, only on cpu, node"


def test_without_an_account_the_default_one_is_meant(fakes: FakePrograms, polls: Polls) -> None:
    found = balance(polls, "", user="root")

    assert (found.status, found.reason) == (Status.NOT_CHECKED, "account root has no limit on node")


def test_an_account_that_is_not_this_users_is_unknown(fakes: FakePrograms, polls: Polls) -> None:
    found = balance(polls, "other", user="root")

    assert (found.status, found.left_h) == (Status.UNKNOWN, None)
    assert "no association of user root with account other" in found.reason


@pytest.mark.parametrize(
    ("version", "name"),
    [("22.05", "scontrol-config-without-accounting"), ("23.11", "scontrol-config")],
)
def test_without_accounting_nothing_is_checked(
    version: str, name: str, fakes: FakePrograms, polls: Polls
) -> None:
    fakes.says("scontrol", recorded(version, name))

    assert not keeps_accounts(polls)
    assert balance(polls, "proj", user="root").status is Status.NOT_CHECKED
    assert limits(polls, "proj", user="root") == Limits(
        status=Status.NOT_CHECKED, reason="this cluster keeps no accounts"
    )
    assert fakes.calls("sshare") == fakes.calls("sacctmgr") == []
    with pytest.raises(NoAnswerError, match="keeps no accounts"):
        job_named(polls, "x")


def test_use_that_is_not_counted_is_unknown(fakes: FakePrograms, polls: Polls) -> None:
    config = recorded("22.05", "scontrol-config").replace("multifactor", "basic")
    fakes.says("scontrol", config)

    found = balance(polls, "proj", user="root")

    assert (found.status, found.left_h) == (Status.UNKNOWN, None)
    assert "PriorityType=priority/basic" in found.reason


def test_a_use_that_is_not_told_makes_the_balance_unknown(
    fakes: FakePrograms, polls: Polls
) -> None:
    fakes.says("sshare", recorded("22.05", "sshare").replace("node=23,", ""))

    found = balance(polls, "proj", user="root")

    assert (found.status, found.left_h) == (Status.UNKNOWN, None)


@pytest.mark.parametrize("program", ["scontrol", "sshare"])
@pytest.mark.parametrize("body", ["", "exit 1", "echo 'sshare: error: x' >&2", "echo Account"])
def test_a_balance_that_is_not_answered_is_unknown(
    program: str, body: str, fakes: FakePrograms, polls: Polls
) -> None:
    fakes.write(program, body)

    found = balance(polls, "proj", user="root")

    assert (found.status, found.left_h, found.used_h) == (Status.UNKNOWN, None, None)
    assert "nothing was concluded" in found.reason


def test_limits_of_association_and_qos_are_one(fakes: FakePrograms, polls: Polls) -> None:
    assert limits(polls, "proj", user="root") == Limits(
        status=Status.KNOWN,
        account="proj",
        qos="normal",
        max_jobs=3,
        max_submit=9,
        max_nodes=96,
        max_nodes_per_job=None,
        max_wall_s=86400,
    )


def test_limits_of_a_qos_that_is_not_listed_are_unknown(fakes: FakePrograms, polls: Polls) -> None:
    found = limits(polls, "proj", "gold", user="root")

    assert (found.status, found.max_jobs) == (Status.UNKNOWN, None)
    assert "'gold'" in found.reason


def test_where_the_qos_is_unclear_only_the_association_counts(
    fakes: FakePrograms, polls: Polls, tmp_path: Path
) -> None:
    file = tmp_path / "assoc.txt"
    file.write_text(file.read_text().replace("|normal|", "|gold,silver|"))

    found = limits(polls, "proj", user="root")

    assert (found.status, found.qos, found.max_jobs, found.max_nodes) == (
        Status.KNOWN,
        None,
        7,
        None,
    )
    assert found.reason == "it could not be told which QOS applies"


@pytest.mark.parametrize("table", ["assoc", "qos", "user"])
def test_limits_that_are_not_answered_are_unknown(
    table: str, fakes: FakePrograms, polls: Polls, tmp_path: Path
) -> None:
    (tmp_path / f"{table}.txt").unlink()

    found = limits(polls, user="root")

    assert (found.status, found.max_jobs, found.max_submit) == (Status.UNKNOWN, None, None)
    assert "sacctmgr failed" in found.reason


def test_limits_are_asked_for_every_ten_minutes_at_most(fakes: FakePrograms, polls: Polls) -> None:
    assert limits(polls, "proj", user="root") == limits(polls, "proj", user="root")

    assert len(fakes.calls("sacctmgr")) == 2


@pytest.mark.parametrize(
    ("printed", "job_id"),
    [
        ("JobIDRaw|Cluster|State\\n", ""),
        ("JobIDRaw|Cluster|State\\n7|lab|CANCELLED by 0\\n12|lab|PENDING\\n9|lab|RUNNING\\n", "12"),
    ],
)
def test_the_newest_job_of_a_name_is_found(
    printed: str, job_id: str, fakes: FakePrograms, polls: Polls
) -> None:
    fakes.write("sacct", f"printf '{printed}'")

    assert job_named(polls, "fleet-x7") == job_id
    [call] = fakes.calls("sacct")
    assert "--name=fleet-x7" in call.words.split()


@pytest.mark.parametrize(
    "body", ["", "exit 1", "echo 7", "printf 'JobIDRaw|Cluster|State\\n||\\n'"]
)
def test_no_answer_of_sacct_is_not_no_job(body: str, fakes: FakePrograms, polls: Polls) -> None:
    fakes.write("sacct", body)

    with pytest.raises(SchedulerError):
        job_named(polls, "fleet-x7")


@pytest.mark.parametrize("name", ["", "a,b", "a b", "ä", "x;y"])
def test_only_a_plain_job_name_is_asked_for(name: str, fakes: FakePrograms, polls: Polls) -> None:
    with pytest.raises(UsageError):
        job_named(polls, name)


# -- the real Slurm


def test_a_real_account_has_a_balance_limits_and_jobs(
    accounting_cluster: Cluster, polls: Polls, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = accounting_cluster
    monkeypatch.setattr(os, "environ", dict(slurm.env))
    slurm.run("sacctmgr", "-i", "modify", "account", "proj", "set", "GrpTRESMins=node=6000")
    slurm.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxTRESPU=node=3")
    where = ("where", f"name={ME}", "account=proj")
    slurm.run("sacctmgr", "-i", "modify", "user", *where, "set", "MaxSubmitJobs=40")
    job_id = slurm.submit(
        "--account=proj", "--nodes=2", "--time=60", "--job-name=fleet-x7", script="sleep 600"
    )
    slurm.wait_for_job(job_id, "RUNNING")
    slurm.wait_for(
        "the limit and the job are seen", lambda: bool(balance(polls, "proj", fresh=True).running_h)
    )

    found = balance(polls, "proj")
    assert (found.status, found.limit_h) == (Status.KNOWN, 100)
    assert found.used_h is not None
    assert 0 <= found.used_h < 100
    assert found.left_h == pytest.approx(100 - found.used_h)
    assert found.running_h == pytest.approx(2, abs=0.2)
    assert balance(polls, "proj", "gres/gpu").status is Status.NOT_CHECKED
    assert balance(polls, "nope").status is Status.UNKNOWN

    allowed = limits(polls, "proj")
    assert (allowed.status, allowed.account, allowed.qos) == (Status.KNOWN, "proj", "normal")
    assert (allowed.max_submit, allowed.max_nodes, allowed.max_jobs) == (40, 3, None)

    slurm.wait_for("sacct knows it", lambda: job_named(polls, "fleet-x7") == job_id)
    assert job_named(polls, "fleet-none") == ""

    slurm.run("sacctmgr", "-i", "modify", "account", "proj", "set", "GrpTRESMins=node=-1")
    slurm.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxTRESPU=node=-1")
    slurm.run("sacctmgr", "-i", "modify", "user", *where, "set", "MaxSubmitJobs=-1")


def test_a_real_cluster_without_accounting_is_not_checked(
    cluster: Cluster, polls: Polls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(cluster.env))

    assert balance(polls, "proj").status is Status.NOT_CHECKED
    assert limits(polls).status is Status.NOT_CHECKED


def test_the_tightest_limit_is_the_one_that_running_jobs_leave_least_of(
    fakes: FakePrograms, polls: Polls
) -> None:
    fakes.says(
        "sshare",
        "Cluster|Account|User|GrpTRESMins|GrpTRESRaw|TRESRunMins\n"
        "lab|root||||\n"
        "lab| proj||node=60000|node=54000|node=5400\n"
        "lab|  proj|root|node=5700|node=0|node=0\n",
    )
    found = balance(polls, "proj", user="root")
    assert (found.reason, found.left_h, found.running_h) == ("limit of account proj", 100.0, 90.0)
