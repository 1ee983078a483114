"""Recovery: claims whose owner is gone are closed for it and put back, or rolled forward.

Whether an owner is alive, gone or unknown is asked of a function that the caller hands in; the
spool never calls a scheduler. Invariant: unknown is left alone, and a claim that was closed is
only ever carried out, never judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum

from fleetcraft.clock import timestamp
from fleetcraft.errors import FleetError
from fleetcraft.identity import HostId, Owner, this_host
from fleetcraft.spool import leases
from fleetcraft.spool.claims import Closed, close_for
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.record import HistoryLine, Outcome, Record, destination
from fleetcraft.spool.tree import SpoolTree, describe_problem


class Liveness(StrEnum):
    """What is known of an owner."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is known of an owner, and why.

    ``on_this_host`` says whether survivors of its attempt could be looked for here;
    ``unanswered`` that a scheduler had to be asked and gave no answer.
    """

    liveness: Liveness
    reason: str
    on_this_host: bool = False
    unanswered: bool = False


AskOwner = Callable[[Owner, Lease | None], Verdict]
StopSurvivors = Callable[[str, Owner, Lease], str]
"""Stops what an attempt left running on this host; returns what could not be stopped, or ''."""


@dataclass(kw_only=True)
class RecoveryItem:
    """One claim that a recovery pass touched or had to leave."""

    task: str
    owner: str
    action: str
    reason: str
    to: str = ""
    claim: str = ""


@dataclass(kw_only=True)
class RecoveryReport:
    """What one recovery pass did.

    Attributes:
        recovered: Claims closed as lost and put back (or failed, at the fifth loss).
        rolled_forward: Claims that were closed already and have now been moved.
        unknown: Claims left alone because nothing certain is known of their owner.
        alive: Claims of living owners.
        unanswered: Owners about whom a scheduler would have had to be asked and did not answer.
    """

    recovered: int = 0
    rolled_forward: int = 0
    unknown: int = 0
    alive: int = 0
    unanswered: int = 0
    items: list[RecoveryItem] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """Why claims were left alone, in one line; empty when none were."""
        reasons = dict.fromkeys(item.reason for item in self.items if item.action == "unknown")
        return "; ".join(reasons)


def ask_this_machine(here: HostId | None = None) -> AskOwner:
    """A judge that knows only this machine: boot id, pid and start time.

    Owners elsewhere, and jobs of a scheduler that were not on this machine, stay unknown.
    """
    known = here or this_host()

    def ask(owner: Owner, lease: Lease | None) -> Verdict:
        if lease is None:
            why = "its lease is missing, so nothing says where it ran"
            return Verdict(liveness=Liveness.UNKNOWN, reason=why, unanswered=_is_scheduled(owner))
        lives = leases.lives_here(lease, known)
        if lives is None:
            return _elsewhere(owner, lease)
        if lives:
            return Verdict(liveness=Liveness.ALIVE, reason="its process lives", on_this_host=True)
        why = "its process is gone" if lease.boot_id == known.boot_id else "its host was rebooted"
        return Verdict(liveness=Liveness.GONE, reason=why, on_this_host=True)

    return ask


def _elsewhere(owner: Owner, lease: Lease) -> Verdict:
    if _is_scheduled(owner):
        why = f"job {owner.job} ran on {lease.host}, and no scheduler was asked"
        return Verdict(liveness=Liveness.UNKNOWN, reason=why, unanswered=True)
    why = f"it ran on {lease.host}, which cannot be looked at from here"
    return Verdict(liveness=Liveness.UNKNOWN, reason=why)


def _is_scheduled(owner: Owner) -> bool:
    return not owner.job.startswith("L")


def recover(
    tree: SpoolTree,
    ask: AskOwner,
    *,
    stop_survivors: StopSurvivors | None = None,
    but_launches: Collection[str] = (),
    read_lease: Callable[[SpoolTree, Owner], Lease | None] | None = None,
    dry_run: bool = False,
) -> RecoveryReport:
    """One pass over ``running/``.

    Costs one listing, a lease for each owner, and an append and a rename for each claim of a gone
    one.

    Args:
        tree: The spool.
        ask: Says whether an owner is alive, gone or unknown.
        stop_survivors: Stops what a gone owner's attempt left running on this host.
        but_launches: Launches whose claims are passed over: the caller's own.
        read_lease: How an owner's lease is read, by default from its file; see
            `RememberedLeases`.
        dry_run: Only say what would be done.
    """
    work = _Pass(tree, stop_survivors, dry_run=dry_run)
    seen: dict[str, Lease | None] = {}
    for name, owner in sorted(tree.claims(), key=lambda claim: claim[0]):
        if owner.launch in but_launches:
            continue
        if owner.lease_name not in seen:
            seen[owner.lease_name] = (read_lease or _read_lease)(tree, owner)
        lease = seen[owner.lease_name]
        try:
            work.judge(name, owner, lease, ask(owner, lease))
        except (OSError, FleetError) as error:
            work.leave(name, owner, describe_problem(error))
    return work.report


def _read_lease(tree: SpoolTree, owner: Owner) -> Lease | None:
    return leases.read(tree, owner.lease_name)


class RememberedLeases:
    """Leases for a watcher that judges by this machine alone, and passes again and again.

    Where and as which process a launch runs never changes, so a lease is read once. And not all at
    once: when a fleet of ten thousand starts, each would read all the others'. Those of this host's
    own workers and of earlier starts in this place of the job are read at any rate, of the others a
    few each pass; the rest count as unknown until then.

    Args:
        place: Job and rank of the watcher.
        here: This machine.
        a_pass: At most so many leases of others are read in one pass.
    """

    def __init__(
        self, place: tuple[str, str], here: HostId | None = None, a_pass: int = 64
    ) -> None:
        self._place = place
        self._local_job = (here or this_host()).local_job
        self._a_pass = a_pass
        self._left = a_pass
        self._known: dict[str, Lease] = {}
        self._met: set[str] = set()

    def begin_pass(self) -> None:
        """A pass begins: further leases may be read; launches that were not met are forgotten."""
        self._left = self._a_pass
        self._known = {name: lease for name, lease in self._known.items() if name in self._met}
        self._met = set()

    def read(self, tree: SpoolTree, owner: Owner) -> Lease | None:
        """The lease of an owner; None when there is none, or when its turn has not come."""
        name = owner.lease_name
        self._met.add(name)
        if name in self._known:
            return self._known[name]
        if owner.job != self._local_job and (owner.job, owner.rank) != self._place:
            if self._left <= 0:
                return None
            self._left -= 1
        lease = leases.read(tree, name)
        if lease is not None:
            self._known[name] = lease
        return lease


class _Pass:
    """One pass and its report."""

    def __init__(
        self, tree: SpoolTree, stop_survivors: StopSurvivors | None, *, dry_run: bool
    ) -> None:
        self.report = RecoveryReport()
        self._tree = tree
        self._stop_survivors = stop_survivors
        self._dry_run = dry_run

    def judge(self, name: str, owner: Owner, lease: Lease | None, verdict: Verdict) -> None:
        if verdict.liveness is Liveness.ALIVE:
            self.report.alive += 1
        elif verdict.liveness is Liveness.UNKNOWN:
            self.report.unanswered += verdict.unanswered
            self.leave(name, owner, verdict.reason)
        elif self._dry_run:
            self._add(name, owner, "would recover", verdict.reason)
        else:
            self._recover(name, owner, lease, verdict)

    def _recover(self, name: str, owner: Owner, lease: Lease | None, verdict: Verdict) -> None:
        looked = "its host could not be looked at"
        if verdict.on_this_host and self._stop_survivors is not None and lease is not None:
            left = self._stop_survivors(name, owner, lease)
            if left:
                self.leave(name, owner, f"its process is gone, but {left}")
                return
            looked = "no process of the attempt is left on its host"
        reason = f"{verdict.reason}; {looked}"
        closed = close_for(
            self._tree,
            name,
            owner,
            lambda record: _lost(self._tree, record, owner, reason, lease),
        )
        if closed is None:
            return
        if closed.mine and closed.moved:
            self.report.recovered += 1
            self._add(name, owner, "recovered", reason, closed)
        elif closed.moved:
            self.report.rolled_forward += 1
            reason = f"already closed as {closed.line.outcome}"
            self._add(name, owner, "rolled forward", reason, closed)

    def leave(self, name: str, owner: Owner, reason: str) -> None:
        self.report.unknown += 1
        self._add(name, owner, "unknown", reason)

    def _add(
        self, name: str, owner: Owner, action: str, reason: str, closed: Closed | None = None
    ) -> None:
        item = RecoveryItem(task=name, owner=str(owner), action=action, reason=reason)
        if closed is not None:
            item.to = closed.line.to
            item.claim = closed.line.claim
        self.report.items.append(item)


def _lost(
    tree: SpoolTree, record: Record, owner: Owner, reason: str, lease: Lease | None
) -> HistoryLine:
    # The log comes first: without it no attempt began, and a number would be one too many. That
    # claim may even have been put back meanwhile, and its next one has taken the number.
    log = tree.paths.log(record.spec.name, record.next_attempt)
    began = tree.fs.exists(log)
    return HistoryLine(
        claim=owner.token,
        owner=str(owner),
        attempt=record.next_attempt if began else 0,
        outcome=Outcome.LOST,
        to=destination(record, Outcome.LOST),
        host=lease.host if lease else "",
        job=owner.job,
        log=log.removeprefix(tree.paths.root + "/") if began else "",
        ended_at=timestamp(),
        reason=reason,
        closed_by=f"recovery on {this_host().host}",
    )
