"""What this user may have at once on this machine: processes, open files, locked memory, time.

The counting of processes is the guard's. Invariant: a limit that the settings made for login nodes
is held against this host only if it is one.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from fleetcraft.config import Config
from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, Verdict, advice, ok, unknown, wrong
from fleetcraft.fleet.guard import verdict as guard
from fleetcraft.slurm import commands
from fleetcraft.units import format_bytes, format_seconds

_FEW_OPEN_FILES = 4096
_TOO_FEW_OPEN_FILES = 256
_INFINIBAND = "/dev/infiniband"
_OF_THE_KERNEL = frozenset({"threads", "cgroup"})
_VERDICTS = {
    guard.Verdict.GO: Verdict.OK,
    guard.Verdict.CAUTION: Verdict.ADVICE,
    guard.Verdict.NO_GO: Verdict.WRONG,
    guard.Verdict.UNKNOWN: Verdict.UNKNOWN,
}


def check_processes(case: Case) -> Iterator[Finding]:
    """Processes and threads of this user against what the host and the settings allow."""
    config, host = case.config, os.uname().nodename
    report = guard.check_login(guard.limits_from(config))
    is_login = guard.is_login_host(config, host)
    for limit in report.limits:
        if is_login or limit.name in _OF_THE_KERNEL:
            yield judge_limit(limit, whole=report.is_complete)
    if report.unknowns:
        yield unknown("processes", "; ".join(report.unknowns), "fleetcraft guard shows the rest")
    yield from _login(config, case, host, is_login=is_login)


def judge_limit(limit: guard.Limit, *, whole: bool = True) -> Finding:
    """What one measure of the guard means.

    Args:
        limit: The measure.
        whole: Whether all processes were seen; else there may be more than was counted.
    """
    name = {"cgroup": "threads in the cgroup"}.get(limit.name, limit.name)
    if limit.found is None:
        return unknown(name, "they could not be counted", "fleetcraft guard")
    found = f"{'' if whole else 'at least '}{limit.found}"
    if limit.stop is None and limit.caution is None:
        return ok(name, f"{found}, not limited")
    expected = f"below {limit.caution} ({limit.source})"
    hint = "" if limit.verdict is guard.Verdict.GO else "fleetcraft guard shows what takes the most"
    return Finding(
        name=name, verdict=_VERDICTS[limit.verdict], found=found, expected=expected, hint=hint
    )


def _login(config: Config, case: Case, host: str, *, is_login: bool) -> Iterator[Finding]:
    hosts = config.text("login.hosts")
    if hosts:
        what = "a login node" if is_login else "no login node"
        yield ok("login node", f"{host} is {what} by login.hosts ({hosts})")
    elif commands.is_here() and "SLURM_JOB_ID" not in case.environ:
        yield advice(
            "login node",
            "login.hosts is not set, so launch and renew ask no guard",
            "the names of the login nodes",
            "set login.hosts in fleet.yaml or the site profile, such as 'login*'",
        )


def check_ulimits(case: Case) -> Iterator[Finding]:
    """The limits of this shell that its children inherit."""
    yield judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    if os.path.isdir(_INFINIBAND):
        yield judge_locked(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    yield from _finite("CPU time", resource.RLIMIT_CPU, "-t", format_seconds)
    yield from _finite("size of a file", resource.RLIMIT_FSIZE, "-f", format_bytes)
    yield from _finite("address space", resource.RLIMIT_AS, "-v", format_bytes)


def judge_open_files(soft: int, hard: int) -> Finding:
    """Whether a worker and what it runs can open enough files.

    Args:
        soft: The limit in force, RLIM_INFINITY for none.
        hard: What the user may raise it to.
    """
    if soft == resource.RLIM_INFINITY:
        return ok("open files", "not limited")
    may = "any number" if hard == resource.RLIM_INFINITY else str(hard)
    found = f"{soft} at a time; this user may raise it to {may}"
    expected = f"{_FEW_OPEN_FILES} or more: data loaders and collectives take many"
    hint = "ulimit -n $(ulimit -Hn), in the file that slurm.setup names, and in the shell"
    if soft < _TOO_FEW_OPEN_FILES:
        return wrong("open files", found, expected, hint)
    if soft < _FEW_OPEN_FILES:
        return advice("open files", found, expected, hint)
    return ok("open files", found)


def judge_locked(soft: int) -> Finding:
    """Whether memory can be locked, which RDMA does for every buffer."""
    if soft == resource.RLIM_INFINITY:
        return ok("locked memory", "not limited")
    return advice(
        "locked memory",
        f"{format_bytes(soft)} at most, and there is InfiniBand",
        "not limited, for RDMA",
        "ulimit -l unlimited; in jobs, PropagateResourceLimits of Slurm decides: ask the operators",
    )


def _finite(name: str, which: int, flag: str, words: object) -> Iterator[Finding]:
    soft, _ = resource.getrlimit(which)
    if soft == resource.RLIM_INFINITY:
        return
    shown = words(soft) if callable(words) else str(soft)
    yield advice(
        name,
        f"{shown} at most for each process",
        "not limited where workers run",
        f"ulimit {flag} unlimited; on a login node it is a rule of the site: use a job",
    )
