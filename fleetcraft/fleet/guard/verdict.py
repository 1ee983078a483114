"""The login guard: whether this user has room left on a login node, shared by all sessions.

`census` counts, `causes` groups, `ceilings` says what the kernel allows; here that is judged. It
ends nothing, and it starts no process or thread, so that it answers when none can be started any
more. Invariant: what could not be read is never taken for room: the answer is unknown or no-go.
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.fleet.guard.causes import Cause, Kind, count_of, group, worst_first
from fleetcraft.fleet.guard.ceilings import cgroup_ceilings, thread_ceiling
from fleetcraft.fleet.guard.census import take_census
from fleetcraft.fleet.guard.procfs import why

if TYPE_CHECKING:
    from fleetcraft.config import Config

_COUNTED = {
    "processes": ("process", "processes"),
    "threads": ("thread", "threads"),
    "ssh": ("ssh connection", "ssh connections"),
    "cgroup": ("thread in the cgroup", "threads in the cgroup"),
}


class Verdict(StrEnum):
    """The answer."""

    GO = "go"
    CAUTION = "caution"
    NO_GO = "no-go"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """What the command exits with."""
        return list(Verdict).index(self)


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """From which number on there is caution, and from which it is no-go; None says nothing."""

    caution: int | None = None
    stop: int | None = None
    source: str = ""


class GuardLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings allow; without a limit for threads, that follows from ``ulimit -u``."""

    processes: Threshold
    ssh: Threshold
    threads: Threshold = Threshold()


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One measure, and what it may be.

    Attributes:
        name: ``processes``, ``threads``, ``ssh`` or ``cgroup``.
        found: Counted now; None when it could not be.
        caution: From here on it is caution; None when nothing says so.
        stop: From here on it is no-go; None when nothing says so.
        ceiling: Where the kernel refuses; None when it does not.
        source: Where these come from.
    """

    name: str
    found: int | None
    caution: int | None
    stop: int | None
    ceiling: int | None = None
    source: str

    @property
    def verdict(self) -> Verdict:
        """What this measure alone says."""
        if self.found is None:
            return Verdict.UNKNOWN
        if self.stop is not None and self.found >= self.stop:
            return Verdict.NO_GO
        if self.caution is not None and self.found >= self.caution:
            return Verdict.CAUTION
        return Verdict.GO


class GuardReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer and what it rests on.

    Attributes:
        verdict: The answer.
        reasons: Sentences that say why it is not go.
        is_complete: Whether the counts are of all processes; else there may be more.
        processes: This user's, the asking one and zombies included; None when there was no list.
        threads: Threads in them.
        ssh_sessions: Sessions of sshd that run as this user.
        ssh_clients: Connections from here to elsewhere: ssh, scp, sftp, rsync over ssh.
        limits: Every measure.
        causes: Groups of processes, the worst for what is short first.
        unknowns: Sentences about what could not be read.
        notes: Sentences about what is by nature not seen; they change nothing.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    is_complete: bool
    processes: int | None
    threads: int | None
    ssh_sessions: int | None
    ssh_clients: int | None
    limits: tuple[Limit, ...]
    causes: tuple[Cause, ...]
    unknowns: tuple[str, ...]
    notes: tuple[str, ...]


def is_login_host(config: Config, host: str) -> bool:
    """Whether a host is one that the guard protects.

    Args:
        config: The settings; ``login.hosts`` has globs, commas or spaces between.
        host: Its name, with its domain or without. A glob with a domain also fits a host that
            gives its first name only.
    """
    name = host.lower().rstrip(".")
    first = name.partition(".")[0]
    for glob in config.text("login.hosts").lower().replace(",", " ").split():
        if fnmatchcase(name, glob) or fnmatchcase(first, glob):
            return True
        label = glob.partition(".")[0]
        if name == first and label.strip("*?") and fnmatchcase(name, label):
            return True
    return False


def limits_from(config: Config) -> GuardLimits:
    """What the settings allow, with where each comes from."""
    return GuardLimits(
        processes=_threshold(config, "processes"),
        ssh=_threshold(config, "ssh"),
        threads=_threshold(config, "threads"),
    )


def _threshold(config: Config, name: str) -> Threshold:
    caution = config.values[f"guard.{name}_caution"]
    stop = config.values[f"guard.{name}_stop"]
    sources = dict.fromkeys(end.source for end in (stop, caution) if end.value is not None)
    return Threshold(
        caution=None if caution.value is None else int(caution.value),
        stop=None if stop.value is None else int(stop.value),
        source=", ".join(sources),
    )


def check_login(limits: GuardLimits, proc: str = "/proc") -> GuardReport:
    """Counts and judges. What it cannot read is in the report, and never raises.

    Args:
        limits: What the settings allow.
        proc: Where the process file system is.
    """
    census = take_census(proc)
    causes: tuple[Cause, ...] = ()
    processes = threads = sessions = clients = ssh = None
    if census.processes is not None:
        causes = group(census.processes)
        processes = len(census.processes)
        threads = sum(cause.threads for cause in causes)
        sessions = count_of(Kind.SSH_SESSIONS, causes)
        clients = count_of(Kind.SSH_CLIENTS, causes)
        ssh = sessions + clients
    cgroup, cgroup_unknowns = _cgroup_limit(proc)
    measures = (
        _limit("processes", processes, limits.processes),
        _thread_limit(threads, limits.threads),
        _limit("ssh", ssh, limits.ssh),
        *cgroup,
    )
    unknowns = census.unknowns
    if processes is not None:  # else that the cgroup cannot be read either is no news
        unknowns += cgroup_unknowns
    verdict = _judge(measures, unknowns)
    short = {limit.name for limit in measures if limit.verdict in (Verdict.CAUTION, Verdict.NO_GO)}
    return GuardReport(
        verdict=verdict,
        reasons=_reasons(verdict, measures, unknowns),
        is_complete=not census.unknowns,
        processes=processes,
        threads=threads,
        ssh_sessions=sessions,
        ssh_clients=clients,
        limits=measures,
        causes=worst_first(
            causes,
            by_threads="processes" not in short and bool(short & {"threads", "cgroup"}),
            ssh_first="ssh" in short,
        ),
        unknowns=unknowns,
        notes=census.notes,
    )


def _limit(name: str, found: int | None, threshold: Threshold) -> Limit:
    return Limit(
        name=name,
        found=found,
        caution=threshold.caution,
        stop=threshold.stop,
        source=threshold.source or "not limited",
    )


def _thread_limit(found: int | None, threshold: Threshold) -> Limit:
    """The setting, where it is below what the kernel allows; else it follows from that."""
    ceiling = thread_ceiling()
    if ceiling is None:
        return _limit("threads", found, threshold)
    caution, stop = _margins(ceiling)
    source = f"ulimit -u {ceiling}"
    if threshold.stop is not None and threshold.stop < ceiling:
        stop, source = threshold.stop, f"{threshold.source}, {source}"
    if threshold.caution is not None and threshold.caution < ceiling:
        caution = threshold.caution
    return Limit(
        name="threads", found=found, caution=caution, stop=stop, ceiling=ceiling, source=source
    )


def _cgroup_limit(proc: str) -> tuple[tuple[Limit, ...], tuple[str, ...]]:
    """The tightest limit on the cgroup, if any, and what could not be read of it."""
    try:
        ceilings = cgroup_ceilings(proc)
    except DataError as error:
        return (), (error.message,)
    except (OSError, MemoryError) as error:
        return (), (f"cannot read what the cgroup allows: {why(error)}",)
    if not ceilings:
        return (), ()
    tightest = min(ceilings, key=lambda each: each.ceiling - each.found)
    caution, stop = _margins(tightest.ceiling)
    limit = Limit(
        name="cgroup",
        found=tightest.found,
        caution=caution,
        stop=stop,
        ceiling=tightest.ceiling,
        source=tightest.path,
    )
    return (limit,), ()


def _margins(ceiling: int) -> tuple[int, int]:
    """Where caution and no-go begin below a number at which the kernel refuses.

    At a ceiling of 100 these are the 25 and 40 of the settings' defaults, which were made for one
    site's measured ceiling of 100; a lower one is divided alike. Under a higher one it is what
    stays free that counts: 60, as at 100, and a little more for caution.
    """
    return max(ceiling * 25 // 100, ceiling - 150), max(ceiling * 40 // 100, ceiling - 60)


def _judge(measures: tuple[Limit, ...], unknowns: tuple[str, ...]) -> Verdict:
    verdicts = {limit.verdict for limit in measures}
    if Verdict.NO_GO in verdicts:
        return Verdict.NO_GO  # what is not known could only make it worse
    if unknowns or Verdict.UNKNOWN in verdicts:
        return Verdict.UNKNOWN
    return Verdict.CAUTION if Verdict.CAUTION in verdicts else Verdict.GO


def _reasons(
    verdict: Verdict, measures: tuple[Limit, ...], unknowns: tuple[str, ...]
) -> tuple[str, ...]:
    if verdict is Verdict.UNKNOWN:
        return unknowns
    if verdict is Verdict.GO:
        return ()
    return tuple(_reason(limit) for limit in measures if limit.verdict is verdict)


def _reason(limit: Limit) -> str:
    one, many = _COUNTED[limit.name]
    what = f"{limit.found} {one if limit.found == 1 else many}"
    if limit.verdict is Verdict.NO_GO:
        return f"{what}, stop at {limit.stop} ({limit.source})"
    return f"{what}, caution from {limit.caution} ({limit.source})"
