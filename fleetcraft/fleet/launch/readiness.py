"""The checks before a submission: each says what it found, and whether that refuses a launch.

Not here: the submission. Invariant: what could not be checked is told apart from what is well, and
refuses a launch where a setting made the check a condition.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum

from fleetcraft.caches.records import Severity
from fleetcraft.config import Config
from fleetcraft.errors import (
    ConfigError,
    FleetError,
    SchedulerError,
    SpoolError,
    TryAgainLaterError,
    UsageError,
)
from fleetcraft.files import FileSystem
from fleetcraft.fleet.guard.verdict import Verdict, check_login, is_login_host, limits_from
from fleetcraft.fleet.launch.caches import launch_conflicts
from fleetcraft.fleet.launch.plan import LaunchPlan
from fleetcraft.fleet.renewal.demand import DemandReader
from fleetcraft.fleet.renewal.supply import committed_h, hours_of
from fleetcraft.fleet.shapes import Shape
from fleetcraft.identity import new_record_id
from fleetcraft.slurm import commands
from fleetcraft.slurm.accounting import Balance, balance
from fleetcraft.slurm.accounting import Status as Known
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.queue import my_jobs
from fleetcraft.spool.control import read_markers
from fleetcraft.spool.tree import SpoolTree, unreadable
from fleetcraft.trust import find_program
from fleetcraft.units import format_clock

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class CheckStatus(StrEnum):
    """What a check found: ``failed`` and ``unknown`` refuse a launch, the others do not."""

    OK = "ok"
    WARNING = "warning"
    NOT_CHECKED = "not_checked"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        name: What was looked at.
        status: What was found.
        text: The same in words.
        error: What a refusal raises; None of a check that does not refuse.
    """

    name: str
    status: CheckStatus
    text: str
    error: FleetError | None = None


def check_launch(
    config: Config, plan: LaunchPlan, polls: Polls, *, dry_run: bool, with_balance: bool = True
) -> list[Check]:
    """Runs every check; none raises, and none stands for another.

    Slurm is asked only about the balance and the queue, and only where ``balance.headroom_h`` is
    set.

    Args:
        config: The settings.
        plan: What is to be submitted.
        polls: How Slurm is asked.
        dry_run: Makes nothing, not even the folder of logs.
        with_balance: Whether the balance is among them.
    """
    tree = SpoolTree(config.spool_dir("outer"))
    checks = [
        _shape(config, plan),
        _sbatch(),
        _login_guard(config),
        *_spool(tree, plan),
        _scratch(config, plan, dry_run=dry_run),
        _project(config),
        _setup_file(config),
        _caches(config, tree),
        _balance(config, plan, polls) if with_balance else None,
    ]
    return [check for check in checks if check is not None]


def refuse(checks: list[Check]) -> None:
    """Raises the error of the first check that refuses; the others are among its facts.

    Raises:
        FleetError: One of them refuses.
    """
    for check in checks:
        if check.error is not None:
            check.error.facts["check"] = check.name
            raise check.error


def _ok(name: str, text: str) -> Check:
    return Check(name=name, status=CheckStatus.OK, text=text)


def _warning(name: str, text: str) -> Check:
    return Check(name=name, status=CheckStatus.WARNING, text=text)


def _failed(name: str, error: FleetError) -> Check:
    return Check(name=name, status=CheckStatus.FAILED, text=error.message, error=error)


def _unknown(name: str, error: FleetError) -> Check:
    return Check(name=name, status=CheckStatus.UNKNOWN, text=error.message, error=error)


def _shape(config: Config, plan: LaunchPlan) -> Check:
    limit = config.values["slurm.max_nodes"].value
    if limit is not None and plan.nodes > int(limit):
        return _failed(
            "nodes",
            UsageError(
                f"{plan.nodes} nodes are more than slurm.max_nodes allows ({limit}, "
                f"{config.values['slurm.max_nodes'].source}); nothing was submitted",
                hint=f"ask for at most -N {limit}",
            ),
        )
    return _ok("nodes", f"{plan.nodes} nodes for {format_clock(plan.time_s)}")


def _sbatch() -> Check:
    path = find_program("sbatch")
    if path is None:
        return _failed(
            "sbatch",
            SchedulerError(
                "sbatch is not on PATH, so nothing can be submitted from here",
                hint="call this on a login node, or load the Slurm module; without Slurm there is "
                "fleetcraft run",
            ),
        )
    return _ok("sbatch", path)


def _login_guard(config: Config) -> Check:
    name = "login guard"
    host = os.uname().nodename
    if not config.text("login.hosts"):
        text = "login.hosts is not set, so no host is known as a login node"
        return Check(name=name, status=CheckStatus.NOT_CHECKED, text=text)
    if not is_login_host(config, host):
        return _ok(name, f"{host} is no login node by login.hosts")
    report = check_login(limits_from(config))
    reasons = "; ".join(report.reasons)
    if report.verdict is Verdict.GO:
        return _ok(name, f"{report.processes} processes on {host}: go")
    if report.verdict is Verdict.CAUTION:
        return _warning(name, f"caution on {host}: {reasons}")
    hint = "fleetcraft guard shows what takes the most; end it, or wait, then launch again"
    text = f"{host} has no room for a launch: {reasons}; nothing was submitted"
    if report.verdict is Verdict.NO_GO:
        return _failed(name, TryAgainLaterError(text, hint=hint))
    text = f"whether {host} has room is not known: {reasons}; nothing was submitted"
    return _unknown(name, TryAgainLaterError(text, hint=hint))


def _spool(tree: SpoolTree, plan: LaunchPlan) -> list[Check]:
    try:
        tree.check_safe()
        return [_ok("spool", tree.paths.root), _markers(tree), *_queue(tree, plan)]
    except FleetError as error:
        return [_failed("spool", error)]
    except OSError as error:
        return [_failed("spool", unreadable(tree.paths.root, error))]


def _markers(tree: SpoolTree) -> Check:
    for name, said in read_markers(tree).items():
        return _failed(
            "markers",
            SpoolError(
                f"{tree.paths.root} has a {name} marker, {said}; nothing was submitted",
                hint="fleetcraft resume removes it",
                marker=name,
            ),
        )
    return _ok("markers", "neither DRAIN nor STOP stands")


def _queue(tree: SpoolTree, plan: LaunchPlan) -> list[Check]:
    """Whether there is work for all nodes, and whether it fits into the walltime."""
    waiting = len(tree.records(tree.paths.waiting))
    demand = DemandReader(tree, None).look()
    text = f"{demand.pending} tasks are pending and {waiting} wait for others"
    few = demand.pending + waiting < plan.nodes
    queue = _warning("queue", f"{text}, for {plan.nodes} nodes") if few else _ok("queue", text)
    read = sum(demand.kinds.values())
    long = sum(n for kind, n in demand.kinds.items() if (kind.time_s or 0) > plan.time_s)
    unread = f"; {demand.unread} were not read" if demand.unread else ""
    clock = format_clock(plan.time_s)
    if long:
        text = f"{long} of {read} tasks declare more time than {clock}: this fleet leaves them"
        return [queue, _warning("walltime", f"{text}{unread}")]
    return [queue, _ok("walltime", f"no task declares more time than {clock}{unread}")]


def _scratch(config: Config, plan: LaunchPlan, *, dry_run: bool) -> Check:
    """The root and its folder of logs: visible, private, writable."""
    name = "scratch"
    fs = FileSystem()
    try:
        for folder in (config.root, plan.logs):
            if folder == plan.logs and not fs.exists(folder):
                if dry_run:
                    return _ok(name, f"{config.root}; its folder of logs is made at a launch")
                fs.make_folder(folder)
            facts = os.stat(folder)
            if facts.st_uid != os.geteuid() or facts.st_mode & _WRITABLE_BY_OTHERS:
                error = SpoolError(
                    f"others own or can write {folder} (mode {stat.filemode(facts.st_mode)}); "
                    "nothing was submitted",
                    hint=f"chmod go-w {folder}, or choose a root of your own",
                    path=folder,
                )
                return _failed(name, error)
        if not dry_run:
            _probe(fs, plan.logs)
    except OSError as error:
        return _failed(name, unreadable(error.filename or config.root, error))
    return _ok(name, config.root)


def _probe(fs: FileSystem, folder: str) -> None:
    """Whether a file can be made there: access(2) does not know of a full quota."""
    path = f"{folder}/.probe-{new_record_id()}"
    fs.create(path, b"probe\n")
    fs.unlink(path)


def _project(config: Config) -> Check:
    name, folder = "project", config.project_dir
    try:
        mode = os.stat(folder).st_mode
    except OSError as error:
        return _failed(name, unreadable(folder, error))
    if not os.path.isdir(folder) or not os.access(folder, os.R_OK | os.X_OK):
        why = f"cannot use the project directory {folder}; nothing was submitted"
        return _failed(name, SpoolError(why))
    if mode & stat.S_IWOTH:
        return _warning(name, f"everybody can write {folder}, where commands run")
    if not os.access(folder, os.W_OK):
        return _warning(name, f"{folder} cannot be written")
    return _ok(name, folder)


def _caches(config: Config, tree: SpoolTree) -> Check:
    """Whether the environment that the job inherits leads all its tasks to the same caches."""
    name = "caches"
    try:
        found = launch_conflicts(config, tree)
    except FleetError as error:
        return _failed(name, error)
    if not found:
        return _ok(name, "no conflict")
    first, more = found[0], len(found) - 1
    text = f"{first.text}{f' (and {more} more conflicts)' if more else ''}"
    if first.severity is Severity.ERROR:
        hint = f"{first.hint}; fleetcraft caches check shows all"
        refusal = ConfigError(f"{text}; nothing was submitted", hint=hint, code=first.code.value)
        return _failed(name, refusal)
    return _warning(name, f"{text}; fleetcraft caches check shows what to do")


def _setup_file(config: Config) -> Check | None:
    path = config.text("slurm.setup")
    if not path:
        return None
    try:
        refuse_strange_setup(path)
    except FleetError as error:
        return _failed("setup", error)
    return _ok("setup", path)


def refuse_strange_setup(path: str) -> None:
    """Refuses a ``slurm.setup`` that cannot be read, or that another user than root could write.

    Raises:
        SpoolError: It is not to be sourced.
    """
    try:
        facts = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & _WRITABLE_BY_OTHERS:
        raise SpoolError(
            f"refusing slurm.setup {path}: another user owns or can write it; nothing was started",
            hint=f"chmod go-w {path}, or use a file of your own",
            path=path,
        )


def _balance(config: Config, plan: LaunchPlan, polls: Polls) -> Check:
    name = "balance"
    headroom = config.values["balance.headroom_h"].value
    if headroom is None:
        text = "balance.headroom_h is not set, so no balance is required"
        return Check(name=name, status=CheckStatus.NOT_CHECKED, text=text)
    if not commands.is_here():
        error = SchedulerError("the balance cannot be asked for: Slurm is not here")
        return _unknown(name, error)
    account = config.text("balance.account") or config.text("slurm.account")
    tres = config.text("balance.tres")
    found = balance(polls, account, tres)
    waiting_h = None
    if found.status is Known.KNOWN:
        try:
            # Asked for now: a fleet of a moment ago is in no older answer.
            jobs = my_jobs(polls, fresh=True).jobs.values()
        except SchedulerError as error:
            text = f"what waiting jobs may cost is not known: {error.message}"
            return _unknown(name, SchedulerError(f"{text}; nothing was submitted"))
        waiting_h = committed_h(jobs, account, tres, waiting=True)
    return judge_balance(
        found, headroom_h=float(headroom), cost_h=_cost_h(config, plan), waiting_h=waiting_h
    )


def _cost_h(config: Config, plan: LaunchPlan) -> float | None:
    gpus = config.values["slurm.gpus_per_node"].value
    shape = Shape(plan.nodes, plan.time_s)
    gpus_per_node = None if gpus is None else int(gpus)
    return hours_of(shape, config.text("balance.tres"), gpus_per_node)


def judge_balance(
    found: Balance, *, headroom_h: float, cost_h: float | None, waiting_h: float | None
) -> Check:
    """Whether what is left after this fleet and the present jobs stays above the headroom.

    Args:
        found: The account's balance.
        headroom_h: Hours that must stay.
        cost_h: What the fleet may cost at most; None when that cannot be told.
        waiting_h: The same of this user's waiting jobs.
    """
    name = "balance"
    hint = "fleetcraft snapshot shows the balance; lower -N or --time, or balance.headroom_h"
    if found.status is Known.NOT_CHECKED:
        return Check(name=name, status=CheckStatus.NOT_CHECKED, text=found.reason)
    if found.status is Known.UNKNOWN or found.left_h is None:
        text = f"the balance is not known ({found.reason}), and balance.headroom_h is set"
        return _unknown(name, SchedulerError(f"{text}; nothing was submitted", hint=hint))
    running_h = found.running_h
    if cost_h is None or running_h is None or waiting_h is None:
        what = "this fleet" if cost_h is None else "present jobs"
        text = f"what {what} may cost in {found.tres} hours is not known, and a headroom is set"
        return _unknown(name, SchedulerError(f"{text}; nothing was submitted", hint=hint))
    promised_h = running_h + waiting_h
    stays_h = found.left_h - promised_h - cost_h
    sums = (
        f"{found.left_h:.1f} {found.tres} hours are left, {promised_h:.1f} are promised to "
        f"running and waiting jobs, this fleet takes up to {cost_h:.1f}"
    )
    if stays_h < headroom_h:
        text = f"{sums}: {stays_h:.1f} would stay, and balance.headroom_h is {headroom_h:g}"
        return _failed(name, FleetError(f"{text}; nothing was submitted", hint=hint))
    return _ok(name, f"{sums}; {stays_h:.1f} stay, {headroom_h:g} have to")
