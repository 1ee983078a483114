"""The project: its settings, its batch table, its spools, and what was forgotten in them.

Everything is read, nothing is changed. Invariant: a worker of which this machine can tell nothing
is unknown, whatever its lease's age.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator, Mapping
from shlex import quote

from fleetcraft.batch_table.reading import read_table
from fleetcraft.config import FILE_NAME, SETTINGS, Config
from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, advice, ok, unknown, wrong
from fleetcraft.errors import FleetError
from fleetcraft.fleet.launch.readiness import refuse_strange_setup
from fleetcraft.identity import this_host
from fleetcraft.layout import LANES
from fleetcraft.spool import leases
from fleetcraft.spool.check import check
from fleetcraft.spool.control import read_markers
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.units import counted

_LIKE = 0.9
_SPOOLS = ("outer", "gpu")
_SHOWN = 3


def check_settings(case: Case) -> Iterator[Finding]:
    """Whether the settings can be read, and variables that were probably meant as some."""
    if case.problem is not None:
        error = case.problem
        yield wrong("settings", error.message, "settings that can be read", error.hint)
    else:
        yield _sources(case.config)
    yield from _variables(case.environ)


def _sources(config: Config) -> Finding:
    path = os.path.join(config.project_dir, FILE_NAME)
    site = config.text("site")
    from_site = f", site {site}" if site else ""
    if os.path.lexists(path):
        return ok("settings", f"{path}{from_site}")
    return ok(
        "settings", f"no {FILE_NAME} in {config.project_dir}{from_site}: options and defaults"
    )


def _variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that are nearly the name of a setting."""
    known = [name for setting in SETTINGS for name in setting.variables if "FLEET_" in name]
    for name in sorted(environ):
        if not name.startswith("FLEET_") or name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=_LIKE)
        if near:
            found = f"{name} is set, which is no setting; {near[0]} is one"
            yield advice("variables", found, "the name of a setting", f"export {near[0]}=...")


def check_project_folder(case: Case) -> Iterator[Finding]:
    """The folder in which commands run, and the file that batch scripts source."""
    config = case.config
    folder = config.project_dir
    mode = os.stat(folder).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        found = f"everybody can write {folder} ({stat.filemode(mode)}), where commands run"
        yield wrong("folder", found, "a folder of this user", f"chmod o-w {quote(folder)}")
    elif not os.access(folder, os.R_OK | os.X_OK):
        yield wrong(
            "folder", f"{folder} cannot be used", "to be readable", f"ls -ld {quote(folder)}"
        )
    else:
        yield ok("folder", folder)
    if setup := config.text("slurm.setup"):
        try:
            refuse_strange_setup(setup)
            yield ok("setup", setup)
        except FleetError as error:
            yield wrong("setup", error.message, "a file of this user", error.hint)


def check_batch_table(case: Case) -> Iterator[Finding]:
    """The frozen batch table: its hash, and who could have written it."""
    config = case.config
    path = config.text("batch.table")
    if not path:
        return
    if not os.path.lexists(path):
        if config.flag("batch.require"):
            found = f"no batch table at {path}, and batch.require is set"
            hint = case.call("calibrate run --help")
            yield wrong("batch table", found, "a frozen table", hint)
        else:
            yield ok("batch table", "none, and none is required")
        return
    try:
        table = read_table(path)
    except FleetError as error:
        yield wrong("batch table", error.message, "a table as it was frozen", error.hint)
        return
    rows = counted(len(table.families), "family", "families")
    yield ok("batch table", f"{rows}, hash {table.hash[:19]}... holds ({path})")


def check_spools(case: Case) -> Iterator[Finding]:
    """Each spool: safe, without forgotten markers, without workers that are gone."""
    if not case.has_root:
        return
    for which in _SPOOLS:
        tree = SpoolTree(case.config.spool_dir(which), case.fs)
        if not os.path.lexists(tree.paths.root):
            hint = case.call("init")
            yield wrong(f"{which} spool", f"no spool at {tree.paths.root}", "a spool", hint)
            continue
        try:
            tree.check_safe()
        except FleetError as error:
            yield wrong(f"{which} spool", error.message, "private folders", error.hint)
            continue
        yield from _spool(case, which, tree)


def _spool(case: Case, which: str, tree: SpoolTree) -> Iterator[Finding]:
    pending = sum(len(tree.records(tree.paths.lane(lane))) for lane in LANES)
    yield ok(f"{which} spool", f"{counted(pending, 'pending task')}, {tree.paths.root}")
    spool = " --spool gpu" if which == "gpu" else ""
    yield from _markers(tree, which, pending, case.call(f"resume{spool}"))
    yield from _workers(tree, which, case.call(f"recover{spool}"))


def _markers(tree: SpoolTree, which: str, pending: int, hint: str) -> Iterator[Finding]:
    for marker, said in read_markers(tree).items():
        found = f"{marker} stands, {said}: no worker starts, and no fleet is launched"
        if pending:
            tasks = counted(pending, "pending task waits", "pending tasks wait")
            yield wrong(f"{which} spool: {marker}", f"{found}; {tasks}", "no marker", hint)
        else:
            yield advice(f"{which} spool: {marker}", found, "no marker", hint)


def _workers(tree: SpoolTree, which: str, hint: str) -> Iterator[Finding]:
    """Leases of workers that did not leave in order, and what they still hold."""
    held: dict[str, int] = {}
    for _, owner in tree.claims():
        held[owner.lease_name] = held.get(owner.lease_name, 0) + 1
    present = [one for one in leases.read_all(tree) if one.left_at is None and one.role == "worker"]
    here = this_host()
    gone = [lease for lease in present if leases.lives_here(lease, here) is False]
    name = f"{which} spool: workers"
    if holding := [lease for lease in gone if held.get(lease.name)]:
        tasks = counted(sum(held[lease.name] for lease in holding), "task")
        found = f"{_named(holding)} are gone and hold {tasks}"
        yield wrong(name, found, "claims of living workers alone", hint)
    yield from _silent(tree, name, [lease for lease in present if lease not in gone], held)
    orphans = sum(n for lease_name, n in held.items() if leases.read(tree, lease_name) is None)
    if orphans:
        found = f"{counted(orphans, 'claim')} of owners whose lease is missing"
        yield unknown(name, f"{found}: whether they live is not known", hint)


def _silent(
    tree: SpoolTree, name: str, present: list[Lease], held: Mapping[str, int]
) -> Iterator[Finding]:
    if not present:
        return
    silent = []
    with leases.ages_on_mount(tree) as age_of:
        for lease in present:
            if age_of(lease) > (leases.SILENT_INTERVALS + 1) * lease.interval_s:
                silent.append(lease)
    beating = len(present) - len(silent)
    if silent:
        tasks = counted(sum(held.get(lease.name, 0) for lease in silent), "task")
        found = f"{_named(silent)} are silent and hold {tasks}: whether they live is not known"
        yield unknown(name, found, "fleetcraft snapshot asks Slurm about their jobs")
    else:
        yield ok(name, f"{counted(beating, 'worker')} with a fresh lease")


def _named(found: list[Lease]) -> str:
    names = ", ".join(f"{lease.name} on {lease.host}" for lease in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{names}{more}"


def check_spool_records(case: Case) -> Iterator[Finding]:
    """Every record of every spool, as ``fleetcraft check`` examines them."""
    if not case.has_root:
        return
    for which in _SPOOLS:
        tree = SpoolTree(case.config.spool_dir(which), case.fs)
        name = f"{which} spool: records"
        try:
            report = check(tree.check_safe())
        except FleetError:
            continue  # told by `check_spools`
        spool = " --spool gpu" if which == "gpu" else ""
        hint = case.call(f"check{spool}")
        if report.faults:
            first = report.faults[0].detail
            found = f"{counted(len(report.faults), 'fault')}, the first: {first}"
            yield wrong(name, found, "every task in one state", hint)
        elif report.notices:
            kinds = ", ".join(sorted({notice.kind for notice in report.notices}))
            found = f"{counted(report.tasks, 'task')}; harmless leftovers: {kinds}"
            yield advice(name, found, "", hint)
        else:
            yield ok(name, f"{counted(report.tasks, 'task')}, each in one state")
