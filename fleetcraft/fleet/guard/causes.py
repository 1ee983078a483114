"""What a user's processes are: programs, zombies, ssh connections; grouped, the worst first.

Nothing is read here. Invariant: each process is in exactly one group, and an ssh connection is
counted once, though scp, sftp and rsync each start an ssh that makes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from fleetcraft.fleet.guard.census import Process

_PIDS_SHOWN = 5
# sshd writes into its command line who is there: `sshd: alice@pts/0`, or `sshd: alice` for a mere
# tunnel. In brackets it says that it is none, or not yet: listener, accepted, priv, net, pam; and
# internal-sftp is the child of a session that is counted. Source: OpenSSH 9.2 as seen running, and
# its setproctitle calls; from version 9.8 on the program is called sshd-session.
_SESSION = re.compile(r"sshd(?:-session)?: (?!.*(?:\[[a-z]+\]|@internal-sftp$))\S")
_SSH = frozenset({"ssh", "slogin"})
_START_SSH = frozenset({"scp", "sftp"})
_SERVING = frozenset({"-t", "-f"})  # how scp is started at the other end of a connection


class Kind(StrEnum):
    """What a group of processes has in common."""

    PROGRAM = "program"
    ZOMBIES = "zombies"
    SSH_SESSIONS = "ssh sessions"
    SSH_CLIENTS = "ssh clients"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Processes of one program, or of one other kind.

    Attributes:
        name: The program; for another kind, the kind.
        kind: What they have in common.
        processes: How many.
        threads: How many threads in them.
        pids: The first few of them.
    """

    name: str
    kind: Kind
    processes: int
    threads: int
    pids: tuple[int, ...]


def group(processes: Sequence[Process]) -> tuple[Cause, ...]:
    """Groups processes; zombies are one group, whatever they were."""
    ssh_parents = {p.parent_pid for p in processes if _names(p) & _SSH and not p.is_zombie}
    members: dict[tuple[Kind, str], list[Process]] = {}
    for process in processes:
        kind = _kind(process, has_ssh=process.pid in ssh_parents)
        name = process.name if kind is Kind.PROGRAM else kind.value
        members.setdefault((kind, name), []).append(process)
    return tuple(
        Cause(
            name=name,
            kind=kind,
            processes=len(group),
            threads=sum(process.threads for process in group),
            pids=tuple(process.pid for process in group[:_PIDS_SHOWN]),
        )
        for (kind, name), group in members.items()
    )


def worst_first(causes: Iterable[Cause], *, by_threads: bool, ssh_first: bool) -> tuple[Cause, ...]:
    """The groups in the order of what they take.

    Args:
        causes: The groups.
        by_threads: Whether threads are what is short, else processes.
        ssh_first: Whether ssh connections are short.
    """

    def weight(cause: Cause) -> tuple[bool, int, int]:
        counts = (cause.processes, cause.threads)
        is_ssh = cause.kind in (Kind.SSH_SESSIONS, Kind.SSH_CLIENTS)
        return (ssh_first and is_ssh, *(counts[::-1] if by_threads else counts))

    return tuple(sorted(causes, key=weight, reverse=True))


def count_of(kind: Kind, causes: Iterable[Cause]) -> int:
    """How many processes are of a kind."""
    return sum(cause.processes for cause in causes if cause.kind is kind)


def _kind(process: Process, *, has_ssh: bool) -> Kind:
    if process.is_zombie:
        return Kind.ZOMBIES
    if _is_session(process):
        return Kind.SSH_SESSIONS
    names = _names(process)
    if names & _SSH:
        return Kind.SSH_CLIENTS
    if names & _START_SSH and not has_ssh:
        is_served = "scp" in names and _SERVING & set(process.words)
        return Kind.PROGRAM if is_served else Kind.SSH_CLIENTS
    return Kind.PROGRAM


def _is_session(process: Process) -> bool:
    if not process.words:  # it could not be asked
        return process.name in ("sshd", "sshd-session")
    return _SESSION.match(process.words[0]) is not None


def _names(process: Process) -> set[str]:
    """What the kernel and the process itself call its program."""
    program = process.words[0].rpartition("/")[2] if process.words else ""
    return {process.name, program}
