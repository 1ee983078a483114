"""The control groups of a trial: made below this process's own, limited, read, and removed.

Versions 1 and 2, each controller by itself. What a count means is `classify`'s. Invariant: a group
is only ever made below the one that this process is in, so that no limit of a job is escaped, and
its name says whose it is, so that one left by a killed process is known and removed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping

import msgspec

from fleetcraft.identity import ProcessId, is_alive, process_id

MEMORY = "memory"
PIDS = "pids"
CONTROLLERS = (MEMORY, PIDS)
_NAME = re.compile(r"fleetcraft-trial-(\d+)-(\d+)-\d+")
_REMOVE_WAIT_S = 5.0
_POLL_S = 0.01
_UNLIMITED_BYTES = 1 << 60
"""Version 1 says "no limit" by a number just below 2^63; no machine has this much."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_numbers = itertools.count(1)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where one controller accounts for a process: the version of its tree, and the folder."""

    version: int
    folder: str

    def file(self, v1: str, v2: str) -> str:
        """A file of the folder, by its name in each version."""
        return f"{self.folder}/{v1 if self.version == 1 else v2}"


Places = Mapping[str, Place]
"""Controller to place; a controller that nobody accounts for is not in it."""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel counted so far; None where it does not say.

    Attributes:
        oom_kills: Processes killed for memory.
        pids_refused: Processes and threads that were refused.
        memory_peak_bytes: Highest use.
        memory_limit_bytes: The limit of this group itself.
        reclaims: How often its use met the limit, so that the kernel had to make room.
    """

    oom_kills: int | None = None
    pids_refused: int | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    reclaims: int | None = None


# ------------------------------------------------------------------------------ where we are


def own_places(proc: str = "/proc/self", root: str = "") -> dict[str, Place]:
    """Where this process's memory and processes are accounted for, as far as it can be seen.

    Args:
        proc: The process's folder below ``/proc``.
        root: Stands before every path of a mount; for tests.

    Source: cgroups(7), ``/proc/PID/cgroup``; proc_pid_mountinfo(5), whose fourth field is the part
    of the tree that is mounted, which in a container is not its root.
    """
    try:
        with open(f"{proc}/cgroup", encoding="utf-8", errors="replace") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
        with open(f"{proc}/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return {}
    found: dict[str, Place] = {}
    for _, names, path in (group for group in groups if len(group) == 3):
        for controller in CONTROLLERS:
            v1 = controller in names.split(",")
            if not v1 and (names or controller in found):
                continue
            folder = _folder(mounts, controller if v1 else "", path)
            if folder and (v1 or _has_controller(root + folder, controller)):
                found[controller] = Place(version=1 if v1 else 2, folder=root + folder)
    return found


def _folder(mounts: list[list[str]], controller: str, path: str) -> str:
    for fields in mounts:
        if "-" not in fields[6:]:
            continue
        kind, _, options = fields[fields.index("-", 6) + 1 :][:3]
        fits = kind == "cgroup2" if not controller else controller in options.split(",")
        if not fits or (controller and kind != "cgroup"):
            continue
        mounted = fields[3].rstrip("/")
        if path == mounted or path.startswith(f"{mounted}/"):
            return (fields[4] + path[len(mounted) :]).rstrip("/")
    return ""


def _has_controller(folder: str, controller: str) -> bool:
    return controller in _read(f"{folder}/cgroup.controllers").split()


def host_limit_bytes(places: Places | None = None) -> int | None:
    """The smallest memory limit of this process's group and of all above it; None without one."""
    place = (own_places() if places is None else places).get(MEMORY)
    if place is None:
        return None
    limits, folder = [], place.folder
    while folder.count("/") > 1:
        limits.append(_limit(Place(version=place.version, folder=folder)))
        folder = os.path.dirname(folder)
    return min((limit for limit in limits if limit is not None), default=None)


# ------------------------------------------------------------------------------ reading


def read_counters(places: Places) -> Counters:
    """What the kernel counted in these places; never raises."""
    memory, pids = places.get(MEMORY), places.get(PIDS)
    return Counters(
        oom_kills=_word(memory, "memory.oom_control", "memory.events", "oom_kill"),
        pids_refused=_word(pids, "pids.events", "pids.events", "max"),
        memory_peak_bytes=memory_peak_bytes(places),
        memory_limit_bytes=_limit(memory) if memory else None,
        reclaims=_reclaims(memory),
    )


def moved(before: int | None, after: int | None) -> int | None:
    """How far a count rose; None when one of the two is not known."""
    return None if before is None or after is None else after - before


def memory_peak_bytes(places: Places) -> int | None:
    """Highest use of a memory group since it was made or `reset_memory_peak` was called."""
    memory = places.get(MEMORY)
    if memory is None:
        return None
    return _number(_read(memory.file("memory.max_usage_in_bytes", "memory.peak")))


def reset_memory_peak(places: Places) -> bool:
    """Begins the peak anew; False where the kernel cannot (version 2 keeps it for life)."""
    memory = places.get(MEMORY)
    if memory is None or memory.version != 1:
        return False
    try:
        _write(f"{memory.folder}/memory.max_usage_in_bytes", "0")
    except OSError:
        return False
    return True


def is_trials_own(places: Places) -> bool:
    """Whether the memory group is one of a trial, so that its numbers are the trial's alone."""
    memory = places.get(MEMORY)
    return memory is not None and _NAME.fullmatch(os.path.basename(memory.folder)) is not None


def _reclaims(memory: Place | None) -> int | None:
    if memory is not None and memory.version == 1:
        return _number(_read(f"{memory.folder}/memory.failcnt"))
    return _word(memory, "", "memory.events", "max")


def _limit(memory: Place) -> int | None:
    number = _number(_read(memory.file("memory.limit_in_bytes", "memory.max")))
    return None if number is None or number >= _UNLIMITED_BYTES else number


def _word(place: Place | None, v1: str, v2: str, name: str) -> int | None:
    if place is None:
        return None
    for line in _read(place.file(v1, v2)).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _number(value)
    return None


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(8192)
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


# ------------------------------------------------------------------------------ a trial's own


class TrialGroup:
    """The groups of one trial. Use `make_group`; `remove` when the trial is over.

    Attributes:
        places: Of each controller that could be had.
        refused: Why of each that could not.
    """

    def __init__(self, places: dict[str, Place], refused: dict[str, str]) -> None:
        self.places = places
        self.refused = refused

    @property
    def folders(self) -> tuple[str, ...]:
        """Its folders, each once."""
        return tuple(dict.fromkeys(place.folder for place in self.places.values()))

    @property
    def entrances(self) -> tuple[str, ...]:
        """Files into which the trial's process writes 0 to move itself in."""
        return tuple(f"{folder}/cgroup.procs" for folder in self.folders)

    def remove(self) -> bool:
        """Ends what is still inside and removes the groups; whether they are gone."""
        return remove_folders(self.folders)


def make_group(
    *, memory_bytes: int | None = None, pids: int | None = None, places: Places | None = None
) -> TrialGroup:
    """Makes the groups of one trial below this process's own, as far as that is permitted.

    Groups that killed processes have left behind are removed first.

    Args:
        memory_bytes: Limit of memory and swap together; None sets none.
        pids: Limit of processes and threads.
        places: Where this process is; found out when None.

    Returns:
        The groups; what could not be had is in ``refused``, and a group whose limit could not be
        set is not in ``places``.
    """
    limits = {MEMORY: memory_bytes, PIDS: pids}
    made: dict[str, Place] = {}
    refused: dict[str, str] = {}
    here = own_places() if places is None else places
    name = _new_name()
    for controller in CONTROLLERS:
        place = here.get(controller)
        if place is None:
            refused[controller] = f"this process is in no {controller} cgroup that can be seen"
            continue
        remove_leftovers(place.folder)
        inside = Place(version=place.version, folder=f"{place.folder}/{name}")
        try:
            _make_folder(inside, controller)
            made[controller] = inside
            _set_limit(inside, controller, limits[controller])
        except OSError as error:
            refused[controller] = f"{error.strerror} ({error.filename or inside.folder})"
            made.pop(controller, None)
            if inside.folder not in {other.folder for other in made.values()}:
                remove_folders([inside.folder])
    return TrialGroup(made, refused)


def _new_name() -> str:
    me = process_id(os.getpid())
    ticks = me.start_ticks if me else 0
    return f"fleetcraft-trial-{os.getpid()}-{ticks}-{next(_numbers)}"


def _make_folder(inside: Place, controller: str) -> None:
    with contextlib.suppress(FileExistsError):  # version 2 has one folder for all controllers
        os.mkdir(inside.folder)
    if inside.version == 1 or _has_controller(inside.folder, controller):
        return
    # Permitted only where no process is in the parent itself, or the parent is the true root.
    _write(f"{os.path.dirname(inside.folder)}/cgroup.subtree_control", f"+{controller}")


def _set_limit(inside: Place, controller: str, limit: int | None) -> None:
    if limit is None:
        return
    if controller == PIDS:
        _write(f"{inside.folder}/pids.max", str(limit))
        return
    _write(inside.file("memory.limit_in_bytes", "memory.max"), str(limit))
    # A kernel without swap accounting lacks the second file. Version 1 limits memory and swap
    # together: one page more, so that the first limit is met first, whose meetings are counted.
    swap = inside.file("memory.memsw.limit_in_bytes", "memory.swap.max")
    with contextlib.suppress(FileNotFoundError):
        _write(swap, str(limit + _PAGE_BYTES) if inside.version == 1 else "0")


# ------------------------------------------------------------------------------ removing


def remove_leftovers(folder: str) -> int:
    """Removes trials' groups below a group whose makers are dead; returns how many.

    One with a living process inside cannot be removed and stays.
    """
    removed = 0
    for name in _listdir(folder):
        found = _NAME.fullmatch(name)
        if found is None or _maker_lives(ProcessId(int(found[1]), int(found[2]))):
            continue
        with contextlib.suppress(OSError):
            os.rmdir(f"{folder}/{name}")
            removed += 1
    return removed


def _maker_lives(maker: ProcessId) -> bool:
    try:
        return is_alive(maker)
    except OSError:  # not known is not dead
        return True


def remove_folders(folders: Iterator[str] | tuple[str, ...] | list[str]) -> bool:
    """Ends every process in these groups and removes them, bounded; whether they are gone."""
    deadline = time.monotonic() + _REMOVE_WAIT_S
    left = list(folders)
    while True:
        left = [folder for folder in left if not _removed(folder)]
        if not left or time.monotonic() >= deadline:
            return not left
        for folder in left:
            _kill_inside(folder)
        time.sleep(_POLL_S)


def _removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:  # busy: processes are inside, or the kernel is not done with the last one
        return False
    return True


def _kill_inside(folder: str) -> None:
    """KILL to each process of a group of our own, by a handle that cannot mean another one."""
    entrance = f"{folder}/cgroup.procs"
    for pid in _read(entrance).split():
        with contextlib.suppress(OSError, ValueError):
            handle = os.pidfd_open(int(pid))
            try:
                if pid in _read(entrance).split() and int(pid) != os.getpid():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def _listdir(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
