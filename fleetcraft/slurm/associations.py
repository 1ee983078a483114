"""Who may use what: the cluster's way of keeping accounts, and sacctmgr's tables about a user.

Not here: what follows for a fleet (`accounting`). Invariant: an association or QOS that is not
listed is an error, never one without limits.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

from fleetcraft.errors import NoAnswerError
from fleetcraft.slurm import commands
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.tables import BarTable, Row

_ASSOCIATIONS = BarTable(
    program="sacctmgr",
    columns=(
        ("Cluster", "Cluster"),
        ("Account", "Account"),
        ("User", "User"),
        ("Partition", "Partition"),
        ("MaxJobs", "MaxJobs"),
        ("MaxSubmit", "MaxSubmit"),
        ("MaxTRES", "MaxTRES"),
        ("GrpTRES", "GrpTRES"),
        ("MaxWall", "MaxWall"),
        ("QOS", "QOS"),
        ("DefaultQOS", "Def QOS"),
    ),
)
_QOS = BarTable(
    program="sacctmgr",
    columns=(
        ("Name", "Name"),
        ("MaxJobsPU", "MaxJobsPU"),
        ("MaxSubmitPU", "MaxSubmitPU"),
        ("MaxTRES", "MaxTRES"),
        ("MaxTRESPU", "MaxTRESPU"),
        ("GrpTRES", "GrpTRES"),
        ("MaxWall", "MaxWall"),
    ),
)
_USERS = BarTable(program="sacctmgr", columns=(("User", "User"), ("DefaultAccount", "Def Acct")))
_CONFIG_AGE_S = 300.0
_LIMITS_AGE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookkeeping:
    """How this cluster keeps accounts."""

    cluster: str
    type: str
    priority: str

    @property
    def keeps_accounts(self) -> bool:
        """Whether there is accounting at all."""
        return self.type == "accounting_storage/slurmdbd"

    @property
    def counts_use(self) -> bool:
        """Whether use is added up by the controller; priority/basic leaves it as it was."""
        return self.priority == "priority/multifactor"


def bookkeeping(polls: Polls, patience_s: float) -> Bookkeeping:
    """How this cluster keeps accounts; asked at most every five minutes.

    Raises:
        SchedulerError: Slurm did not say.
    """
    text = polls.ask(
        "scontrol", commands.CONFIG_QUESTION, max_age_s=_CONFIG_AGE_S, patience_s=patience_s
    ).text
    return Bookkeeping(
        cluster=commands.read_cluster_name(text),
        type=commands.read_setting(text, "AccountingStorageType"),
        priority=commands.read_setting(text, "PriorityType"),
    )


def my_name() -> str:
    """The name of this process's user.

    Raises:
        NoAnswerError: It has none here.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise NoAnswerError("sacctmgr", f"user {os.geteuid()} has no name here") from None


def _sacctmgr(
    polls: Polls, table: BarTable, what: str, where: list[str], patience_s: float
) -> list[Row]:
    argv = ["sacctmgr", "--parsable2", "--readonly", "show", what, *where, f"format={table.format}"]
    # A kind for each: they are asked every ten minutes, and one would have to wait for another.
    answer = polls.ask(f"sacctmgr-{what}", argv, max_age_s=_LIMITS_AGE_S, patience_s=patience_s)
    return table.read(answer.text).rows


def default_account(polls: Polls, user: str, patience_s: float) -> str:
    """The account that a user's jobs get when they name none.

    Raises:
        SchedulerError: Slurm did not say.
    """
    for row in _sacctmgr(polls, _USERS, "user", [f"name={user}"], patience_s):
        if row["User"] == user and row["DefaultAccount"]:
            return row["DefaultAccount"]
    raise NoAnswerError("sacctmgr", f"user {user} has no default account")


def association(polls: Polls, cluster: str, account: str, user: str, patience_s: float) -> Row:
    """A user's association with an account, the one for all partitions first.

    Raises:
        SchedulerError: There is none, or Slurm did not say.
    """
    rows = _sacctmgr(
        polls, _ASSOCIATIONS, "assoc", ["where", f"user={user}", f"cluster={cluster}"], patience_s
    )
    mine = [row for row in rows if row["User"] == user and row["Account"] == account]
    if not mine:
        reason = f"user {user} has no association with account {account}"
        raise NoAnswerError("sacctmgr", reason)
    return min(mine, key=lambda row: row["Partition"])


def qos_row(polls: Polls, name: str, patience_s: float) -> Row:
    """One QOS.

    Raises:
        SchedulerError: There is none of that name, or Slurm did not say.
    """
    for row in _sacctmgr(polls, _QOS, "qos", [], patience_s):
        if row["Name"] == name:
            return row
    raise NoAnswerError("sacctmgr", f"it does not list the QOS {name!r}")


def usual_qos(row: Row) -> str:
    """The QOS that a job of this association gets when it names none; empty if unclear."""
    if row["DefaultQOS"]:
        return row["DefaultQOS"]
    allowed = row["QOS"].split(",")
    if len(allowed) == 1:
        return allowed[0]
    return "normal" if "normal" in allowed else ""
