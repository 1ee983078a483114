"""One spool as it changes: how much is in each state, who works, what runs where.

Looked at again and again, each time for little more than what changed. No record is read. Not here:
journals (`live_journals`) and what it all means (`live_state`). Invariant: a spool that cannot be
read is a problem in words, never an empty one.
"""

from __future__ import annotations

import os
import stat
import time

import msgspec

from fleetcraft.errors import SpoolError
from fleetcraft.identity import Owner
from fleetcraft.layout import LANES, RECORD_SUFFIX, State, parse_claim
from fleetcraft.spool import leases
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.tree import SpoolTree, describe_problem
from fleetcraft.telemetry.live.files import OLD_FACTOR
from fleetcraft.telemetry.live.journals import RATE_WINDOW_S, Journal, Rates, rates
from fleetcraft.telemetry.live.private_files import MountClock

NOT_THERE = "not there"
_LEASE_SUFFIX = ".json"
_OLD_AGAIN_S = 60.0
_MANY_NAMES = 20_000
_MANY_AGAIN_S = 30.0


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that has not left.

    Attributes:
        spool: ``outer`` or ``inner``.
        lease: Its promise.
        age_s: Since it was last renewed, by the clock of the file system; None when that could not
            be had.
    """

    spool: str
    lease: Lease
    age_s: float | None

    @property
    def is_silent(self) -> bool:
        """Whether it has missed its heartbeats."""
        limit_s = leases.SILENT_INTERVALS * self.lease.interval_s
        return self.age_s is not None and self.age_s > limit_s


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is held by a worker.

    Attributes:
        host: Empty when its worker's lease cannot be read.
        gpu: What its worker calls the GPU of the slot; empty for a whole node, or not known.
        slot: Its place in the worker.
        slots: How many its worker has; None when that is not known.
        started_at: ISO 8601 UTC; empty when it is not known.
        since: ``start`` when its journal has the start of the attempt, ``claim`` when only the
            time of the claim is known, by the clock of the file system.
        worker_is_silent: Whether its worker has missed its heartbeats, or has left.
    """

    spool: str
    task: str
    owner: str
    host: str = ""
    job: str = ""
    gpu: str = ""
    slot: str = ""
    slots: int | None = None
    started_at: str = ""
    since: str = ""
    worker_is_silent: bool = False


class SpoolLook(msgspec.Struct, kw_only=True):
    """One look at a spool.

    Attributes:
        name: ``outer`` or ``inner``.
        folder: Where it is.
        problem: Why it was not read; `NOT_THERE` when there is none.
        counts: Tasks by state.
        workers: Those that have not left, but for history.
        running: Tasks that are held by workers.
        rates: How many ended of late; None when nobody works.
        bytes_read: Of journals, by this look.
        damaged_lines: Of the journals that are followed.
    """

    name: str
    folder: str
    problem: str = ""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    workers: list[Worker] = msgspec.field(default_factory=list)
    running: list[Running] = msgspec.field(default_factory=list)
    rates: Rates | None = None
    bytes_read: int = 0
    damaged_lines: int = 0


class LiveSpool:
    """Follows a spool.

    Args:
        name: ``outer`` or ``inner``.
        folder: Where it is.
        forget_s: After how long without a word a worker counts no more.
    """

    def __init__(self, name: str, folder: str, forget_s: float) -> None:
        self._name = name
        self._tree = SpoolTree(folder)
        paths = self._tree.paths
        self._folders = {
            State.WAITING: [_Folder(paths.waiting)],
            State.PENDING: [_Folder(paths.lane(lane)) for lane in LANES],
            State.DONE: [_Folder(paths.done)],
            State.FAILED: [_Folder(paths.failed)],
        }
        self._leases = _Leases(self._tree, forget_s)
        self._journals: dict[str, Journal] = {}
        self._claims: dict[str, _Claim] = {}

    def look(self) -> SpoolLook:
        """Reads what is new.

        Costs a listing of each folder that changed, a look at each lease and journal of a worker
        that has not left, and one at each new claim. Raises nothing.
        """
        look = SpoolLook(name=self._name, folder=self._tree.paths.root)
        try:
            self._tree.check_safe()
            self._look(look)
        except SpoolError as error:
            there = os.path.lexists(look.folder)
            look.problem = error.message if there else NOT_THERE
        except OSError as error:
            look.problem = describe_problem(error)
        return look

    def _look(self, look: SpoolLook) -> None:
        self._follow_claims()
        look.counts = {
            state.value: sum(folder.count(self._tree) for folder in self._folders[state])
            if state in self._folders
            else len(self._claims)
            for state in State
        }
        self._leases.look({claim.lease_name for claim in self._claims.values()})
        look.workers = self._leases.workers(self._name)
        self._follow_journals(look)
        look.running = [
            self._running(claim) for claim in self._claims.values() if not self._commands(claim)
        ]

    def _follow_claims(self) -> None:
        claims = {}
        for name in self._tree.fs.listdir(self._tree.paths.running):
            claim = self._claims.get(name) or _claim(name)
            if claim is not None:
                claims[name] = claim
        self._claims = claims

    def _follow_journals(self, look: SpoolLook) -> None:
        paths = self._tree.paths
        self._journals = {
            name: self._journals.get(name) or Journal(paths.journal(name))
            for name in self._leases.with_news()
        }
        read = []
        for journal in self._journals.values():
            try:
                look.bytes_read += journal.look()
            except OSError:  # not begun yet; what it would tell is then not known
                continue
            read.append(journal)
            look.damaged_lines += journal.damaged
        look.rates = rates(read)

    def _commands(self, claim: _Claim) -> bool:
        """Whether a command such as ``cancel`` holds it for a moment, and nothing runs."""
        lease = self._leases.find(claim.lease_name)
        return lease is not None and lease.role != "worker"

    def _running(self, claim: _Claim) -> Running:
        owner = claim.owner
        lease = self._leases.find(claim.lease_name)
        journal = self._journals.get(claim.lease_name)
        started_at = journal.started.get(owner.token, "") if journal else ""
        since = "start" if started_at else ""
        if not started_at:
            started_at = claim.claimed_at(self._tree)
            since = "claim" if started_at else ""
        return Running(
            spool=self._name,
            task=claim.task,
            owner=str(owner),
            host=lease.host if lease else "",
            job=owner.job,
            gpu=_gpu_of_slot(lease, owner.slot),
            slot=owner.slot,
            slots=lease.slots if lease else None,
            started_at=started_at,
            since=since,
            worker_is_silent=self._leases.is_silent(claim.lease_name),
        )


def _gpu_of_slot(lease: Lease | None, slot: str) -> str:
    gpus = lease.slot_gpus if lease else ()
    return gpus[int(slot)] if slot.isdecimal() and int(slot) < len(gpus) else ""


class _Claim:
    """A file in ``running``; its name belongs to one claim for ever."""

    def __init__(self, file_name: str, task: str, owner: Owner) -> None:
        self._file_name = file_name
        self.task = task
        self.owner = owner
        self.lease_name = owner.lease_name
        self._claimed_at: str | None = None

    def claimed_at(self, tree: SpoolTree) -> str:
        """When it was made: its rename was the last change of the file's status (ctime)."""
        if self._claimed_at is None:
            self._claimed_at = ""
            try:
                facts = tree.fs.lstat(f"{tree.paths.running}/{self._file_name}")
            except OSError:
                return ""
            self._claimed_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(facts.st_ctime))
        return self._claimed_at


def _claim(file_name: str) -> _Claim | None:
    parsed = parse_claim(file_name)
    return _Claim(file_name, *parsed) if parsed else None


class _Folder:
    """How many records are in one folder, counted again when it changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen_ns = -1
        self._settled = False
        self._count = 0
        self._counted_s = 0.0

    def count(self, tree: SpoolTree) -> int:
        """Its records; of very many, as they were up to half a minute ago.

        Raises:
            OSError: It cannot be read.
        """
        here_s = time.monotonic()
        if self._count > _MANY_NAMES and here_s - self._counted_s < _MANY_AGAIN_S:
            return self._count
        seen_ns = tree.fs.lstat(self._path).st_mtime_ns
        changed = seen_ns != self._seen_ns
        if changed or not self._settled:
            # Two changes may have one time, so a folder counts as settled when it is seen twice.
            names = tree.fs.listdir(self._path)
            self._count = sum(1 for name in names if name.endswith(RECORD_SUFFIX))
            self._counted_s, self._seen_ns, self._settled = here_s, seen_ns, not changed
        return self._count


class _Known(msgspec.Struct):
    """What is known of one lease."""

    seen: tuple[int, int, int] = (0, 0, 0)
    lease: Lease | None = None
    written_s: float = 0.0
    looked_s: float = 0.0
    is_history: bool = False


class _Leases:
    """The leases of a spool, each read again when it was replaced."""

    def __init__(self, tree: SpoolTree, forget_s: float) -> None:
        self._tree = tree
        self._old_s = forget_s * OLD_FACTOR
        self._clock = MountClock(tree.paths.tmp)
        self._now_s: float | None = None
        self._known: dict[str, _Known] = {}

    def look(self, wanted: set[str]) -> None:
        """Reads what is new.

        Args:
            wanted: Leases that are read however old they are, since they hold claims.

        Raises:
            OSError: The folder cannot be read.
        """
        try:
            self._now_s = self._clock.now_s()
        except OSError:  # then nothing is old, and nothing fresh
            self._now_s = None
        names = self._tree.fs.listdir(self._tree.paths.workers)
        stems = [name[: -len(_LEASE_SUFFIX)] for name in names if name.endswith(_LEASE_SUFFIX)]
        self._known = {stem: self._known.get(stem) or _Known() for stem in stems}
        for stem, known in self._known.items():
            self._look_at(stem, known, is_wanted=stem in wanted)

    def _look_at(self, stem: str, known: _Known, *, is_wanted: bool) -> None:
        if known.lease is not None and known.lease.left_at is not None:
            return  # the last word of a launch
        here_s = time.monotonic()
        if known.is_history and not is_wanted and here_s - known.looked_s < _OLD_AGAIN_S:
            return
        known.looked_s = here_s
        try:
            facts = self._tree.fs.lstat(self._tree.paths.lease(stem))
        except OSError:
            known.lease = None
            return
        known.written_s = facts.st_mtime
        age_s = self._age_s(known)
        known.is_history = age_s is not None and age_s > self._old_s
        seen = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        if seen != known.seen and stat.S_ISREG(facts.st_mode):
            if known.is_history and not is_wanted:
                return
            known.seen = seen
            known.lease = leases.read(self._tree, stem) or known.lease

    def _age_s(self, known: _Known) -> float | None:
        return None if self._now_s is None else max(0.0, self._now_s - known.written_s)

    def find(self, stem: str) -> Lease | None:
        """A lease, if it was read."""
        known = self._known.get(stem)
        return known.lease if known else None

    def is_silent(self, stem: str) -> bool:
        """Whether the worker has missed its heartbeats or has left."""
        known = self._known.get(stem)
        if known is None or known.lease is None:
            return False
        worker = Worker(spool="", lease=known.lease, age_s=self._age_s(known))
        return worker.is_silent or known.lease.left_at is not None

    def workers(self, spool: str) -> list[Worker]:
        """Those that have not left, but for history."""
        return [
            Worker(spool=spool, lease=known.lease, age_s=self._age_s(known))
            for known in self._known.values()
            if _works(known) and known.lease is not None and not known.is_history
        ]

    def with_news(self) -> list[str]:
        """Launches whose journals may tell of the last minutes."""
        return [stem for stem, known in self._known.items() if self._has_news(known)]

    def _has_news(self, known: _Known) -> bool:
        if known.lease is None or known.lease.role != "worker":
            return False
        age_s = self._age_s(known)
        limit_s = RATE_WINDOW_S if known.lease.left_at is not None else self._old_s
        return age_s is None or age_s < limit_s


def _works(known: _Known) -> bool:
    lease = known.lease
    return lease is not None and lease.left_at is None and lease.role == "worker"
