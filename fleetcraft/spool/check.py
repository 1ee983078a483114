"""The examination of a spool: is every identity in exactly one state, and is all of it readable?

Two scans; a fault counts only when both see it, since tasks move while they are listed.
Invariant: looking changes nothing, and repair does only what is safe beside living workers.
"""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from dataclasses import dataclass, field

from fleetcraft.errors import DataError, FleetError
from fleetcraft.layout import LANES, RECORD_SUFFIX, State, parse_claim, parse_log, task_of
from fleetcraft.spool import leases
from fleetcraft.spool.enqueue import complete_publication, holder_id
from fleetcraft.spool.record import Outcome, Record, closing_lines, parse
from fleetcraft.spool.tree import SpoolTree, describe_problem

_AT_A_TIME = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong.

    ``kind`` is a stable word for programs, ``detail`` a sentence for people.
    """

    kind: str
    name: str
    path: str
    detail: str


@dataclass(kw_only=True)
class CheckReport:
    """What an examination found.

    Attributes:
        tasks: Number of identities.
        faults: What both scans saw.
        notices: Harmless leftovers, such as a torn history line or an enqueue cut short.
        repaired: What ``repair`` did.
    """

    tasks: int = 0
    faults: list[Fault] = field(default_factory=list)
    notices: list[Fault] = field(default_factory=list)
    repaired: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def check(tree: SpoolTree, *, repair: bool = False) -> CheckReport:
    """Examines a spool.

    Costs a read and a look for each record, and two listings of every folder for each quarter of a
    million tasks: so many are held in memory at a time. Where faults are found, twice that.

    Args:
        tree: The spool.
        repair: Publish what an enqueue left behind, link a missing name again, remove a temporary
            file whose name holds another id.
    """
    first = _look(tree)
    if not first.faults and not (repair and first.notices):
        return first
    report = _look(tree)
    keys = {(fault.kind, fault.name, fault.path) for fault in first.faults}
    report.faults = [f for f in report.faults if (f.kind, f.name, f.path) in keys]
    if repair:
        _repair(tree, report)
    return report


def _look(tree: SpoolTree) -> CheckReport:
    """One look at everything, a part of the tasks after the other."""
    report = CheckReport()
    count = sum(map(len, tree.fs.scan(tree.paths.names)))
    parts = 1 + count // _AT_A_TIME
    for part in range(parts):
        scan = _Scan(tree, part, parts)
        report.tasks += len(scan.names)
        report.faults += scan.faults
        report.notices += scan.notices
    return report


class _Scan:
    """One look at a part of the tasks, by their names; the first part has what belongs to none."""

    def __init__(self, tree: SpoolTree, part: int, parts: int) -> None:
        self.tree = tree
        self._part = part
        self._parts = parts
        self.faults: list[Fault] = []
        self.notices: list[Fault] = []
        paths = tree.paths
        lanes = [paths.lane(lane) for lane in LANES]
        self._folders = (paths.waiting, *lanes, paths.done, paths.failed)
        # A bit for each folder that a task was seen in: a million paths would be 100 MB.
        self._seen: dict[str, int] = {}
        self._claims: dict[str, list[str]] = {}
        # Records first, names after: a task enqueued meanwhile then has a name, at least.
        self._list_records()
        # No task's name begins with a dot; .nfs* and .probe-* do.
        self.names = {
            name
            for name in tree.each(paths.names)
            if self._is_mine(name) and not name.startswith(".")
        }
        temporary = set(tree.fs.listdir(paths.tmp)) if part == 0 else set()
        self._check_places()
        self._check_temporary(temporary)
        self._check_logs()
        if part == 0:
            self._check_journals()

    def _is_mine(self, name: str) -> bool:
        return self._parts == 1 or zlib.crc32(os.fsencode(name)) % self._parts == self._part

    def _paths_of(self, name: str) -> list[str]:
        seen = self._seen.get(name, 0)
        found = [
            f"{folder}/{name}{RECORD_SUFFIX}"
            for bit, folder in enumerate(self._folders)
            if seen & 1 << bit
        ]
        return found + self._claims.get(name, [])

    def _check_places(self) -> None:
        for name in sorted(self.names):
            if len(self._paths_of(name)) != 1:
                self._check_presence(name)
        for name in sorted(self._seen.keys() | self._claims.keys()):
            for path in self._paths_of(name):
                self._check_record(name, path)

    def _fault(self, kind: str, name: str, path: str, detail: str) -> None:
        self.faults.append(Fault(kind=kind, name=name, path=path, detail=detail))

    def _notice(self, kind: str, name: str, path: str, detail: str) -> None:
        self.notices.append(Fault(kind=kind, name=name, path=path, detail=detail))

    def _list_records(self) -> None:
        paths = self.tree.paths
        for bit, folder in enumerate(self._folders):
            if folder == paths.done:
                self._list_claims()  # after what is claimable, and before what has ended
            for file in self.tree.each(folder):
                name = task_of(file)
                if not name:
                    if folder != paths.pending or file not in ("first", "last"):
                        self._stray(folder, file)
                elif self._is_mine(name):
                    self._seen[name] = self._seen.get(name, 0) | 1 << bit

    def _list_claims(self) -> None:
        folder = self.tree.paths.running
        for file in self.tree.fs.listdir(folder):
            claimed = parse_claim(file)
            if claimed is None:
                self._stray(folder, file)
            elif self._is_mine(claimed[0]):
                self._claims.setdefault(claimed[0], []).append(f"{folder}/{file}")

    def _stray(self, folder: str, file: str) -> None:
        if self._part:
            return
        path = f"{folder}/{file}"
        # NFS keeps removed files that are still open under such names until they are closed, and
        # an init that was cut short leaves its probe.
        report = self._notice if file.startswith((".nfs", ".probe-")) else self._fault
        report("stray_file", file, path, f"{path} is no task record of this folder")

    def _check_presence(self, name: str) -> None:
        found = self._paths_of(name)
        if not found and self.tree.locate(name) is not None:
            return
        if len(found) > 1:
            places = [path for path in found if self.tree.fs.exists(path)]
            if len(places) > 1:
                where = ", ".join(os.path.relpath(path, self.tree.paths.root) for path in places)
                self._fault("in_two_states", name, places[0], f"{name} is in {where}")
            return
        self._check_unpublished(name)

    def _check_unpublished(self, name: str) -> None:
        path = self.tree.paths.name(name)
        try:
            holder = holder_id(self.tree, name)
        except FileNotFoundError:
            return
        except (OSError, FleetError) as error:
            self._fault("bad_identity", name, path, f"{path}: {describe_problem(error)}")
            return
        if self.tree.fs.exists(self.tree.paths.temporary(holder)):
            detail = f"the enqueue of {name} was cut short; enqueue it again or repair"
            self._notice("unpublished", name, self.tree.paths.temporary(holder), detail)
        elif self.tree.locate(name) is None:
            self._fault("record_missing", name, path, f"{name} has a name, but no record anywhere")

    def _check_record(self, name: str, path: str) -> None:
        tree = self.tree
        try:
            data, facts = tree.read_with_facts(path)
            record = parse(data)
        except FileNotFoundError:
            return
        except (OSError, FleetError) as error:
            self._fault("unreadable_record", name, path, f"{path}: {describe_problem(error)}")
            return
        if record.spec.name != name:
            detail = f"{path} says that it is {record.spec.name!r}"
            self._fault("wrong_name", name, path, detail)
        if name not in self.names and not tree.fs.exists(tree.paths.name(name)):
            self._fault("name_missing", name, path, f"{path} has no entry in names/")
        elif not self._same_identity(name, facts, record):
            self._fault("identity_differs", name, path, f"names/{name} belongs to another record")
        if record.damaged:
            detail = f"{path} has {record.damaged} history lines that cannot be read"
            self._notice("damaged_history", name, path, detail)
        self._check_history(name, path, record)

    def _same_identity(self, name: str, facts: os.stat_result, record: Record) -> bool:
        try:
            link = self.tree.fs.lstat(self.tree.paths.name(name))
            if (link.st_dev, link.st_ino) == (facts.st_dev, facts.st_ino):
                return True
            return not stat.S_ISREG(link.st_mode) and holder_id(self.tree, name) == record.id
        except FileNotFoundError:
            return True  # it moved; the other scan decides
        except (OSError, DataError):
            return False

    def _check_history(self, name: str, path: str, record: Record) -> None:
        attempts = [line for line in closing_lines(record) if line.attempt]
        numbers = [line.attempt for line in attempts]
        if numbers != sorted(set(numbers)):
            self._fault("attempts_disordered", name, path, f"{path}: attempts run {numbers}")
        if any(line.outcome is Outcome.COMPLETED for line in attempts[:-1]):
            self._fault("ran_after_completion", name, path, f"{path} ran again after completing")

    def _check_temporary(self, temporary: set[str]) -> None:
        tree = self.tree
        for record_id in sorted(temporary):
            path = tree.paths.temporary(record_id)
            try:
                record = tree.read(path)
                holder = holder_id(tree, record.spec.name)
            except FileNotFoundError:
                if tree.fs.exists(path):
                    detail = f"{path} was written by an enqueue that took no name"
                    self._notice("unnamed_temporary", record_id, path, detail)
                continue
            except (OSError, FleetError) as error:
                self._notice("bad_temporary", record_id, path, describe_problem(error))
                continue
            if holder != record.id:
                detail = f"{path} lost its name {record.spec.name!r} to another record"
                self._notice("lost_temporary", record.spec.name, path, detail)

    def _check_logs(self) -> None:
        for file in self.tree.each(self.tree.paths.logs):
            parsed = parse_log(file)
            path = f"{self.tree.paths.logs}/{file}"
            if parsed is None:
                if self._part == 0:
                    self._notice("stray_file", file, path, f"{path} is no attempt's log")
            elif (
                self._is_mine(parsed[0])
                and parsed[0] not in self.names
                and not self.tree.fs.exists(self.tree.paths.name(parsed[0]))
            ):
                self._fault("log_without_task", parsed[0], path, f"{path} belongs to no task")

    def _check_journals(self) -> None:
        for file in self.tree.fs.listdir(self.tree.paths.workers):
            if not file.endswith(".jsonl"):
                continue
            _, damaged = leases.read_journal(self.tree, file[: -len(".jsonl")])
            path = f"{self.tree.paths.workers}/{file}"
            if damaged > 1:  # the last line may be torn
                detail = f"{path} has {damaged} lines that cannot be read"
                self._fault("damaged_journal", file, path, detail)


def _repair(tree: SpoolTree, report: CheckReport) -> None:
    for notice in list(report.notices):
        done = False
        if notice.kind == "unpublished":
            with contextlib.suppress(OSError, FleetError):
                done = complete_publication(tree, notice.name)
        elif notice.kind == "lost_temporary":
            with contextlib.suppress(FileNotFoundError):
                tree.fs.unlink(notice.path)
                done = True
        if done:
            report.notices.remove(notice)
            report.repaired.append(notice)
    for fault in list(report.faults):
        if fault.kind == "name_missing" and _link_again(tree, fault):
            report.faults.remove(fault)
            report.repaired.append(fault)


def _link_again(tree: SpoolTree, fault: Fault) -> bool:
    location = tree.locate(fault.name)
    if location is None or location.state is State.RUNNING:
        return False
    try:
        tree.fs.link(location.path, tree.paths.name(fault.name))
    except OSError:
        return False
    return True
