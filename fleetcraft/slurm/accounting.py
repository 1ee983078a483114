"""What an account has left, what its user may use at once, and jobs that the queue has forgotten.

Not here: whether that is enough. Invariant: what Slurm did not say is None with a reason; a limit
that is not set is told apart from one that could not be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from fleetcraft.errors import NoAnswerError, SchedulerError, UsageError
from fleetcraft.slurm.associations import (
    association,
    bookkeeping,
    default_account,
    my_name,
    qos_row,
    usual_qos,
)
from fleetcraft.slurm.polls import INTERVAL_S, PATIENCE_S, Polls
from fleetcraft.slurm.tables import BarTable, Row, amounts, count_or_none, duration_s_or_none

_SHARES = BarTable(
    program="sshare",
    columns=(
        ("Cluster", "Cluster"),
        ("Account", "Account"),
        ("User", "User"),
        ("GrpTRESMins", "GrpTRESMins"),
        ("GrpTRESRaw", "GrpTRESRaw"),
        ("TRESRunMins", "TRESRunMins"),
    ),
)
_RECORDED = BarTable(
    program="sacct", columns=(("JobIDRaw", "JobIDRaw"), ("Cluster", "Cluster"), ("State", "State"))
)
NO_ACCOUNTS = "this cluster keeps no accounts"


class Status(StrEnum):
    """How much is known: all; nothing because there is nothing to ask; nothing for now."""

    KNOWN = "known"
    NOT_CHECKED = "not_checked"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What an account has left of one resource, in hours of it (node-hours, GPU-hours).

    Attributes:
        status: ``not_checked`` without accounting or without a limit; ``unknown`` when Slurm did
            not answer or does not count here.
        reason: Why it is not known; else whose limit is the tightest.
        tres: The resource, as Slurm names it: ``node``, ``gres/gpu``, ``cpu``, ….
        limit_h: The tightest limit, of the user's association or an account above it.
        used_h: What has been used of that limit, as Slurm counts it: with its decay, and up to
            some minutes old.
        left_h: The difference; negative when more was used.
        running_h: What jobs running now will still use if they last to their limit, also those of
            other users under the same limit. It is not taken off ``left_h``.
        answered: False when Slurm was asked and did not answer.
    """

    status: Status
    reason: str
    tres: str
    limit_h: float | None = None
    used_h: float | None = None
    left_h: float | None = None
    running_h: float | None = None
    answered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a user may have at once; None where no limit is set, or none is known (see status).

    Attributes:
        status: As for a balance; ``not_checked`` without accounting.
        reason: Why nothing is known.
        account: The account that this is about.
        qos: The QOS that this is about; None when it could not be told which applies.
        max_jobs: Running at once.
        max_submit: In the queue at once, running ones included.
        max_nodes: Of all running jobs together.
        max_nodes_per_job: Of one job.
        max_wall_s: Walltime of one job.
        answered: False when Slurm was asked and did not answer.
    """

    status: Status
    reason: str = ""
    account: str | None = None
    qos: str | None = None
    max_jobs: int | None = None
    max_submit: int | None = None
    max_nodes: int | None = None
    max_nodes_per_job: int | None = None
    max_wall_s: int | None = None
    answered: bool = True


def keeps_accounts(polls: Polls, *, patience_s: float = PATIENCE_S) -> bool:
    """Whether this cluster keeps accounts at all (slurmdbd); asked at most every five minutes.

    Raises:
        SchedulerError: Slurm did not say.
    """
    return bookkeeping(polls, patience_s).keeps_accounts


def balance(
    polls: Polls,
    account: str,
    tres: str = "node",
    user: str | None = None,
    *,
    fresh: bool = False,
    max_age_s: float = INTERVAL_S,
    patience_s: float = PATIENCE_S,
) -> Balance:
    """What an account has left of one resource.

    The limit is ``GrpTRESMins`` of the user's association and of every account above it, the use
    what Slurm itself holds against it. Limits of a QOS are not looked at.

    Args:
        polls: Keeps polls apart.
        account: The account; ``""`` for the user's default account.
        tres: The resource.
        user: Whose association; this process's user if None.
        fresh: Only an answer that was asked for after this call.
        max_age_s: Oldest answer that will do, if not fresh.
        patience_s: How long each of the questions may take.

    Source: acct_policy.c of Slurm holds ``usage_tres_raw`` against ``grp_tres_mins``; sshare(1)
    prints them as GrpTRESRaw and GrpTRESMins, in minutes. Seen in 22.05: without
    priority/multifactor the use stays where it was.
    """
    try:
        kept = bookkeeping(polls, patience_s)
        if not kept.keeps_accounts:
            return Balance(status=Status.NOT_CHECKED, reason=NO_ACCOUNTS, tres=tres)
        user = user or my_name()
        account = account or default_account(polls, user, patience_s)
        answer = polls.ask(
            "sshare",
            ["sshare", "--parsable2", f"--users={user}", f"--format={_SHARES.format}"],
            fresh=fresh,
            max_age_s=max_age_s,
            patience_s=patience_s,
        )
        chain = list(_up_from(_SHARES.read(answer.text).rows, account, user))
    except SchedulerError as error:
        return Balance(status=Status.UNKNOWN, reason=error.message, tres=tres, answered=False)
    if not chain:
        reason = f"Slurm lists no association of user {user} with account {account}"
        return Balance(status=Status.UNKNOWN, reason=reason, tres=tres)
    limited = [row for row in chain if tres in amounts(row["GrpTRESMins"])]
    if not limited:
        return Balance(status=Status.NOT_CHECKED, reason=_no_limit(chain, account, tres), tres=tres)
    if not kept.counts_use:
        reason = f"use is not counted here (PriorityType={kept.priority})"
        return Balance(status=Status.UNKNOWN, reason=reason, tres=tres)
    return min((_balance(row, tres) for row in limited), key=_tightness)


def limits(
    polls: Polls,
    account: str = "",
    qos: str = "",
    user: str | None = None,
    *,
    patience_s: float = PATIENCE_S,
) -> Limits:
    """What a user may have at once under an account and QOS; asked at most every ten minutes.

    The association's limit and the QOS's are both reported as one, the smaller. Limits of a
    partition and of accounts above are not looked at.

    Args:
        polls: Keeps polls apart.
        account: The account; ``""`` for the user's default account.
        qos: The QOS; ``""`` for the association's default, or its only one, or ``normal``.
        user: Whose association; this process's user if None.
        patience_s: How long each of the questions may take.
    """
    try:
        kept = bookkeeping(polls, patience_s)
        if not kept.keeps_accounts:
            return Limits(status=Status.NOT_CHECKED, reason=NO_ACCOUNTS)
        user = user or my_name()
        account = account or default_account(polls, user, patience_s)
        row = association(polls, kept.cluster, account, user, patience_s)
        name = qos or usual_qos(row)
        of_qos = qos_row(polls, name, patience_s) if name else None
    except SchedulerError as error:
        return Limits(status=Status.UNKNOWN, reason=error.message, answered=False)
    both = [row, of_qos] if of_qos else [row]
    return Limits(
        status=Status.KNOWN,
        reason="" if of_qos else "it could not be told which QOS applies",
        account=account,
        qos=name if of_qos else None,
        max_jobs=_least(
            count_or_none(r.get(f, "")) for r in both for f in ("MaxJobs", "MaxJobsPU")
        ),
        max_submit=_least(
            count_or_none(r.get(f, "")) for r in both for f in ("MaxSubmit", "MaxSubmitPU")
        ),
        max_nodes=_least(
            amounts(r.get(f, "")).get("node") for r in both for f in ("GrpTRES", "MaxTRESPU")
        ),
        max_nodes_per_job=_least(amounts(r["MaxTRES"]).get("node") for r in both),
        max_wall_s=_least(duration_s_or_none(r["MaxWall"]) for r in both),
    )


def job_named(
    polls: Polls, name: str, *, days: int = 7, fresh: bool = True, patience_s: float = PATIENCE_S
) -> str:
    """The newest job of this user with a name in the last days, ended or not.

    A job reaches the accounting some seconds after its submission, so that "none" means little
    for a submission of the last minute.

    Args:
        polls: Keeps polls apart.
        name: Exactly this name, of letters, digits and ``_.-``.
        days: How far back.
        fresh: Only an answer that was asked for after this call.
        patience_s: How long this may take.

    Returns:
        Its job id; ``""`` when there is none.

    Raises:
        UsageError: The name is none that can be asked for.
        SchedulerError: There is no answer, or no accounting to ask.
    """
    if not name or not all(c.isalnum() or c in "_.-" for c in name) or not name.isascii():
        raise UsageError(f"no job name to ask for: {name!r}", name=name)
    if not keeps_accounts(polls, patience_s=patience_s):
        raise NoAnswerError("sacct", NO_ACCOUNTS)
    argv = [
        "sacct",
        "--allocations",
        "--parsable2",
        f"--user={os.geteuid()}",
        f"--name={name}",
        f"--starttime=now-{days}days",
        f"--format={_RECORDED.format}",
    ]
    answer = polls.ask("sacct", argv, fresh=fresh, patience_s=patience_s)
    ids = [count_or_none(row["JobIDRaw"]) for row in _RECORDED.read(answer.text).rows]
    if None in ids:
        raise NoAnswerError("sacct", "it lists a job without a number")
    return str(max(filter(None, ids))) if ids else ""


def _up_from(rows: list[Row], account: str, user: str) -> Iterator[Row]:
    """The user's rows of an account and those of the accounts above, from a tree.

    sshare writes the tree by leading spaces: a row belongs to the last one above it that has
    fewer of them.
    """
    above: list[tuple[int, Row]] = []
    for row in rows:
        name = row["Account"].lstrip(" ")
        depth = len(row["Account"]) - len(name)
        above = [(d, r) for d, r in above if d < depth]
        if row["User"] == user and name == account:
            yield from (r for _, r in above)
            yield row
        elif not row["User"]:
            above.append((depth, row))


def _balance(row: Row, tres: str) -> Balance:
    limit = amounts(row["GrpTRESMins"])[tres]
    used = amounts(row["GrpTRESRaw"]).get(tres)
    running = amounts(row["TRESRunMins"]).get(tres)
    name = row["Account"].strip()
    whose = f"user {row['User']} in account {name}" if row["User"] else f"account {name}"
    if used is None:
        reason = f"sshare does not say how much {tres} {whose} has used"
        return Balance(status=Status.UNKNOWN, reason=reason, tres=tres, limit_h=limit / 60)
    return Balance(
        status=Status.KNOWN,
        reason=f"limit of {whose}",
        tres=tres,
        limit_h=limit / 60,
        used_h=used / 60,
        left_h=(limit - used) / 60,
        running_h=None if running is None else running / 60,
    )


def _tightness(found: Balance) -> float:
    """What running jobs leave of it; an unknown one first: it may be the tightest."""
    return float("-inf") if found.left_h is None else found.left_h - (found.running_h or 0.0)


def _no_limit(chain: list[Row], account: str, tres: str) -> str:
    others = sorted({name for row in chain for name in amounts(row["GrpTRESMins"])})
    instead = f", only on {', '.join(others)}" if others else ""
    return f"account {account} has no limit on {tres}{instead}"


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
