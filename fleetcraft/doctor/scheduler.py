"""Slurm from here: its programs, whether the controller answers, accounting, and this job.

Questions go through the same turns as those of all other commands. Invariant: a controller that
does not answer leaves what it would have said unknown; a machine without Slurm is no fault.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from fleetcraft.config import Config
from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, advice, ok, unknown, wrong
from fleetcraft.errors import NotAskedError, SchedulerError
from fleetcraft.slurm import commands
from fleetcraft.slurm.accounting import Status, limits
from fleetcraft.slurm.nodes import node_states
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.queue import my_jobs

_NEEDED = ("sbatch", "squeue", "srun", "sinfo", "scontrol", "scancel")
_FOR_ACCOUNTS = ("sacct", "sacctmgr", "sshare")
_PATIENCE_S = 40.0
_NODES_AGE_S = 60.0
_CONFIG_AGE_S = 300.0
# Source: what the programs of Slurm 22.05 to 24.05 print where there is no slurm.conf to be found.
_NOT_CONFIGURED = ("resolve_ctls_from_dns_srv", "configuration source")


def check_programs(case: Case) -> Iterator[Finding]:
    """Slurm's programs and their version."""
    missing = [name for name in _NEEDED if not _is_here(name, case)]
    if len(missing) == len(_NEEDED):
        yield advice(
            "programs",
            "Slurm is not here: fleetcraft run works without it, launch does not",
            "Slurm's programs, if this is a cluster",
            "load the site's Slurm module, or go to a login node",
        )
        return
    if missing:
        hint = "load the site's Slurm module, or put them on PATH"
        yield wrong("programs", f"not on PATH: {', '.join(missing)}", "all of them", hint)
    else:
        yield ok("programs", os.path.dirname(commands.find("squeue")))
    for_accounts = [name for name in _FOR_ACCOUNTS if not _is_here(name, case)]
    if for_accounts:
        found = f"not on PATH: {', '.join(for_accounts)}"
        yield advice("accounting programs", found, "", "without them no balance can be checked")


def _is_here(program: str, case: Case) -> bool:
    return shutil.which(program, path=case.environ.get("PATH")) is not None


def check_controller(case: Case) -> Iterator[Finding]:
    """Whether the controller answers, what it says of this fleet's settings, and of this job."""
    if not commands.is_here():
        return
    polls = Polls()
    try:
        config = polls.ask(
            "scontrol", commands.CONFIG_QUESTION, max_age_s=_CONFIG_AGE_S, patience_s=_PATIENCE_S
        ).text
        nodes = node_states(polls, max_age_s=_NODES_AGE_S, patience_s=_PATIENCE_S).nodes
    except SchedulerError as error:
        yield judge_silence(error)
        return
    cluster = commands.read_cluster_name(config)
    version = commands.read_setting(config, "SLURM_VERSION")
    down = sum(node.is_down for node in nodes.values())
    found = f"cluster {cluster}, Slurm {version}: {len(nodes)} nodes, {down} of them down"
    yield ok("controller", found)
    partitions = {name for node in nodes.values() for name in node.partitions}
    yield from _partition(case.config, partitions)
    yield from _gpus(case.config, [node.gpus for node in nodes.values()])
    yield from _this_job(case, polls)
    yield from _accounts(case.config, polls)


def judge_silence(error: SchedulerError) -> Finding:
    """What it means that the controller gave no answer.

    Args:
        error: Why there is none.
    """
    expected = "an answer"
    if isinstance(error, NotAskedError):
        return unknown("controller", error.message, error.hint)
    if any(words in error.message for words in _NOT_CONFIGURED):
        found = "Slurm is installed, and nothing here says which cluster it belongs to"
        hint = (
            "on a cluster, set SLURM_CONF or load the site's module; elsewhere nothing is missing"
        )
        return advice("controller", found, expected, hint)
    return wrong("controller", error.message, expected, error.hint or "scontrol ping")


def _partition(config: Config, known: set[str]) -> Iterator[Finding]:
    wanted = config.text("slurm.partition")
    if not wanted:
        return
    missing = sorted(set(wanted.split(",")) - known)
    source = config.values["slurm.partition"].source
    if missing:
        found = f"no node is in {', '.join(missing)} (slurm.partition, {source})"
        hint = f"set slurm.partition to one of: {', '.join(sorted(known)[:10])}"
        yield wrong("partition", found, "a partition with nodes", hint)
    else:
        yield ok("partition", f"{wanted} ({source})")


def _gpus(config: Config, found: list[int | None]) -> Iterator[Finding]:
    wanted = config.values["slurm.gpus_per_node"].value
    told = [count for count in found if count is not None]
    if wanted is None and any(told):
        yield advice(
            "GPUs of nodes",
            f"nodes have up to {max(told)} GPUs, and slurm.gpus_per_node is not set",
            "set, unless fleets need no GPU",
            "set slurm.gpus_per_node in fleet.yaml or the site profile",
        )
    elif wanted is not None and told and max(told) < int(wanted):
        text = f"slurm.gpus_per_node is {wanted}, and no node has more than {max(told)}"
        yield wrong("GPUs of nodes", text, "a number that some node has", "lower it")


def _this_job(case: Case, polls: Polls) -> Iterator[Finding]:
    job = case.environ.get("SLURM_JOB_ID", "")
    if not job:
        yield ok("this job", "not inside a job")
        return
    try:
        jobs = my_jobs(polls, max_age_s=_NODES_AGE_S, patience_s=_PATIENCE_S).jobs
    except SchedulerError as error:
        yield unknown("this job", f"whether job {job} runs is not known: {error.message}")
        return
    known = jobs.get(job)
    if known is None or known.is_over:
        yield advice(
            "this job",
            f"SLURM_JOB_ID says job {job}, which Slurm does not list as running",
            "variables of a job that runs",
            "a shell that outlived its job keeps them: unset them, or log in again",
        )
    else:
        yield ok("this job", f"inside job {job}, {known.state}")


def _accounts(config: Config, polls: Polls) -> Iterator[Finding]:
    """Whether Slurm keeps accounts, and whether this user may charge the one that is set."""
    account = config.text("slurm.account")
    found = limits(polls, account, config.text("slurm.qos"), patience_s=_PATIENCE_S)
    hint = "sacctmgr show assoc where user=$USER lists what this user may charge"
    if found.status is Status.KNOWN:
        qos = f", QOS {found.qos}" if found.qos else ""
        yield ok("accounting", f"this user may charge {found.account}{qos}")
    elif found.status is Status.NOT_CHECKED:
        hint = "balance.headroom_h cannot be checked, and no gate can ask sacct about ended jobs"
        yield advice("accounting", found.reason, "", hint)
    elif account and "no association" in found.reason:
        yield wrong("accounting", found.reason, f"an association with {account}", hint)
    else:
        yield unknown("accounting", found.reason, hint)
