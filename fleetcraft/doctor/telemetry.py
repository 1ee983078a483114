"""The telemetry logger: may it write, and does it, where workers hold GPUs?

Reads the ends of files, as the live view does. Invariant: a logger that nothing was heard of is
silent, not dead; where no worker holds a GPU, none is missed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from shlex import quote

from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, advice, ok, unknown, wrong
from fleetcraft.identity import this_host
from fleetcraft.spool import leases
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.telemetry.live.files import Logged
from fleetcraft.units import counted

_SILENT_INTERVALS = 3
_FORGET_S = 3600.0
_YOUNG_S = 60.0
_SHOWN = 3


def check_logger(case: Case) -> Iterator[Finding]:
    """The settings, the folder, and the newest rows of nodes whose workers hold GPUs."""
    if not case.has_root:
        return
    config = case.config
    if not config.seconds("telemetry.interval_s"):
        source = config.values["telemetry.interval_s"].source
        yield advice(
            "logger",
            f"off: telemetry.interval_s is 0 ({source}), so utilization and energy are not known",
            "30 s",
            "unset it, or set telemetry.interval_s: 30",
        )
        return
    folder = config.telemetry_dir
    yield _folder(folder)
    yield from _loggers(case, folder)


def _folder(folder: str) -> Finding:
    try:
        facts = os.lstat(folder)
    except FileNotFoundError:
        return ok("folder", f"{folder}: the first logger makes it")
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        found = f"{folder}: a link, or others own or can write it, so that loggers refuse it"
        return wrong(
            "folder", found, "a private folder of this user", f"chmod go-w {quote(folder)}"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return wrong("folder", f"{folder} cannot be written", "", f"chmod u+rwx {quote(folder)}")
    return ok("folder", folder)


def _loggers(case: Case, folder: str) -> Iterator[Finding]:
    """Whether each node on which a worker holds GPUs has a logger that speaks."""
    from fleetcraft.telemetry.live.files import LiveTelemetry

    wanted = _places(case)
    if not wanted:
        yield ok("loggers", "no living worker holds GPUs, so none is missed")
        return
    look = LiveTelemetry(folder, _FORGET_S).look()
    if look.problem:
        yield unknown("loggers", look.problem)
        return
    heard = {(logged.node, logged.job): logged for logged in look.logged}
    yield judge_loggers(wanted, heard)
    if look.refused:
        yield advice("files", f"not read: {'; '.join(look.refused[:_SHOWN])}", "private files")


def judge_loggers(wanted: set[tuple[str, str]], heard: dict[tuple[str, str], Logged]) -> Finding:
    """Whether every node that should be heard of is.

    Args:
        wanted: Node and job of each living worker with GPUs.
        heard: The newest file of each node and job.
    """
    missing = sorted(f"{node} (job {job})" for node, job in wanted - heard.keys())
    silent = sorted(
        f"{node} (job {job}, {heard[node, job].age_s:.0f} s)"
        for node, job in wanted & heard.keys()
        if heard[node, job].age_s > _SILENT_INTERVALS * heard[node, job].interval_s
    )
    hint = "fleetcraft telemetry inspect tells of gaps; the worker's log says why a logger ended"
    expected = "a row within three intervals"
    if missing:
        found = f"no file of {_first(missing)}"
        return wrong("loggers", found, expected, hint)
    if silent:
        return wrong("loggers", f"nothing new of {_first(silent)}", expected, hint)
    return ok("loggers", f"{counted(len(wanted), 'node')} with fresh rows")


def _first(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _places(case: Case) -> set[tuple[str, str]]:
    """Node and job of each worker with GPUs whose lease is fresh, or that lives here."""
    here, places = this_host(), set()
    for which in ("outer", "gpu"):
        tree = SpoolTree(case.config.spool_dir(which), case.fs)
        if not os.path.isdir(tree.paths.workers):
            continue
        present = [one for one in leases.read_all(tree) if one.left_at is None and one.gpus]
        if not present:
            continue
        with leases.ages_on_mount(tree) as age_of:
            for lease in present:
                lives = leases.lives_here(lease, here)
                fresh = age_of(lease) <= leases.SILENT_INTERVALS * lease.interval_s
                is_young = lease.counter * lease.interval_s < _YOUNG_S  # its logger may begin yet
                if (lives or (lives is None and fresh)) and not is_young:
                    places.add((lease.host, lease.job))
    return places
