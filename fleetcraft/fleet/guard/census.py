"""The processes of this user, as ``/proc`` tells them, and whether that is all of them.

Nothing is judged here. Files of ``/proc`` are read directly: psutil leaves out a process that it
may not read, and a census must say so. Invariant: whatever could have hidden a process of this
user is an entry in `Census.unknowns`; one that ended meanwhile is none.
"""

from __future__ import annotations

import os
import re

import msgspec

from fleetcraft.fleet.guard.procfs import Mount, read_mounts, read_text, why

_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""Source: PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h."""
_SELECTIVE = frozenset({"hidepid=4", "hidepid=ptraceable"})
_HIDDEN = _SELECTIVE | {"hidepid=1", "hidepid=noaccess", "hidepid=2", "hidepid=invisible"}
_CAP_SYS_PTRACE = 1 << 19  # Source: capabilities(7), the kernel's include/uapi/linux/capability.h
_COMM_BYTES = 15  # where the kernel cuts a name (TASK_COMM_LEN less one)
_CMDLINE_BYTES = 4096  # enough for names; a command line may have megabytes
_NEEDED = frozenset({"Name", "State", "PPid", "Uid", "Threads"})
# A zombie has no command line, and reading that of a process in D can hang as that one does.
_MUTE = "ZD"
_FIELD = re.compile(r"^(\w+):[ \t]*(.*)$", re.MULTILINE)


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process of this user.

    Attributes:
        pid: As ``/proc`` numbers it.
        parent_pid: The same of its parent.
        name: Its program's name.
        words: Its command line; what it wrote there itself, if it did (sshd does).
        threads: Its threads, the first one included.
        is_zombie: Whether it has ended and its parent has not asked about it yet.
    """

    pid: int
    parent_pid: int
    name: str
    words: tuple[str, ...] = ()
    threads: int
    is_zombie: bool = False


class Census(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen.

    Attributes:
        processes: This user's, this very process among them; None when there was no list.
        unknowns: Sentences about what could not be read; empty only when the list is whole.
        notes: Sentences about what the list by its nature does not show.
    """

    processes: tuple[Process, ...] | None
    unknowns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def take_census(proc: str = "/proc") -> Census:
    """Looks at every process once.

    A process counts for the user who is its real user, as the kernel counts for ``ulimit -u``;
    so do zombies. Kernel threads do not.

    Args:
        proc: Where the process file system is.
    """
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
        if not pids:
            return _nothing(f"'{proc}' lists none: is the process file system mounted there?")
        own_pid = int(os.readlink(f"{proc}/self"))
        own = _fields(f"{proc}/self/status")
        sees_all = bool(int(own.get("CapEff", "0"), 16) & _CAP_SYS_PTRACE)
        mounts = read_mounts(proc)
    except (OSError, MemoryError) as error:
        return _nothing(why(error))
    except ValueError:
        return _nothing(f"'{proc}/self' is not as the kernel writes it")
    mount = _mount_at(proc, mounts)
    if mount is None or mount.kind != "proc":
        return _nothing(f"'{proc}' is not a process file system")

    processes: list[Process] = []
    failures: list[str] = []
    for pid in pids:
        try:
            process = _read_process(f"{proc}/{pid}", pid)
        except (OSError, MemoryError) as error:
            failures.append(f"process {pid}: {why(error)}")
        except (ValueError, IndexError):
            failures.append(f"process {pid}: '{proc}/{pid}/status' is not as the kernel writes it")
        else:
            if process is not None:
                processes.append(process)

    unknowns = _what_hides(
        mount, pids, sees_all=sees_all
    )  # which is also why some could not be read
    if not unknowns and failures:
        unknowns = [_told_once(failures)]
    if not unknowns and not _is_me(own, own_pid, processes):
        unknowns = [f"'{proc}' does not list this very process, so it may lack others"]
    return Census(processes=tuple(processes), unknowns=tuple(unknowns), notes=tuple(_beyond(proc)))


def _nothing(reason: str) -> Census:
    return Census(processes=None, unknowns=(f"cannot list the processes: {reason}",))


def _read_process(folder: str, pid: int) -> Process | None:
    """One process; None when it is another user's, the kernel's, or has ended.

    Raises:
        OSError: It is there and cannot be read.
        ValueError: What was read is not what the kernel writes.
    """
    try:
        fields = _fields(f"{folder}/status")
        process = _from_status(pid, fields)
        if process is None or fields["State"][:1] in _MUTE:
            return process
        cmdline = read_text(f"{folder}/cmdline", limit_bytes=_CMDLINE_BYTES)
    except (FileNotFoundError, ProcessLookupError):
        if os.path.lexists(f"{folder}/status"):
            raise
        return None
    words = tuple(cmdline.rstrip("\0").split("\0"))
    if not words[0]:
        return process
    return msgspec.structs.replace(process, name=_full_name(process.name, words), words=words)


def _fields(path: str) -> dict[str, str]:
    return dict(_FIELD.findall(read_text(path)))


def _from_status(pid: int, fields: dict[str, str]) -> Process | None:
    """Source: proc_pid_status(5); ``Uid`` is the real, effective, saved and file system user."""
    if not fields.keys() >= _NEEDED:
        raise ValueError
    state = fields["State"][:1]
    user = int(fields["Uid"].split()[0])
    if user != os.getuid() or state == "X" or _is_the_kernels(fields, user):
        return None
    return Process(
        pid=pid,
        parent_pid=int(fields["PPid"]),
        name=fields["Name"],
        threads=int(fields["Threads"]),
        is_zombie=state == "Z",
    )


def _is_the_kernels(fields: dict[str, str], user: int) -> bool:
    if "Kthread" in fields:  # from Linux 6.8
        return fields["Kthread"] == "1"
    return user == 0 and "VmSize" not in fields and fields["State"][:1] != "Z"


def _full_name(name: str, words: tuple[str, ...]) -> str:
    """The name without the kernel's cut, where the command line has it whole."""
    program = words[0].rpartition("/")[2]
    return program if len(name) == _COMM_BYTES and program.startswith(name) else name


def _mount_at(proc: str, mounts: tuple[Mount, ...]) -> Mount | None:
    point = os.path.realpath(proc)
    return next((mount for mount in reversed(mounts) if mount.point == point), None)


def _what_hides(mount: Mount, pids: list[int], *, sees_all: bool) -> list[str]:
    hidden = mount.options & _HIDDEN
    if hidden and not sees_all and not _is_let_in(mount, hidden):
        return [
            f"'{mount.point}' is mounted with {min(hidden)}: it hides processes, "
            "of this user's too, sshd's among them"
        ]
    if 1 not in pids:
        return [f"'{mount.point}' hides processes: it does not list process 1, which always is"]
    return []


def _is_let_in(mount: Mount, hidden: frozenset[str]) -> bool:
    """Whether this process is in the group that sees all; ``ptraceable`` knows no such group."""
    if hidden & _SELECTIVE:
        return False
    group = mount.option("gid")
    return group.isdecimal() and int(group) in {os.getegid(), *os.getgroups()}


def _is_me(own: dict[str, str], own_pid: int, processes: list[Process]) -> bool:
    """Whether the list has this process, also where it numbers processes as an outer namespace."""
    own_numbers = own.get("NSpid", str(own_pid)).split()  # as each namespace counts, ours last
    is_listed = any(process.pid == own_pid for process in processes)
    return is_listed and own_numbers[-1:] == [str(os.getpid())]


def _beyond(proc: str) -> list[str]:
    try:
        if os.readlink(f"{proc}/self/ns/pid") == _FIRST_PID_NAMESPACE:
            return []
    except (OSError, MemoryError) as error:
        return [f"whether this is a container is not known: {why(error)}"]
    return [
        "this is a process namespace of its own (a container): "
        "what this user runs outside it may not be seen"
    ]


def _told_once(failures: list[str]) -> str:
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"cannot read {failures[0]}{more}"
