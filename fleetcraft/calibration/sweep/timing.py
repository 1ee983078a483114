"""Whether a trial may be timed: this machine's turn, and who else is on it.

One lock for each machine and user in node-local memory, the GPU's list of processes, and the gate
of a fleet's node. Invariant: a GPU whose processes are not known counts as shared, and a time that
was shared is no time.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from itertools import dropwhile, pairwise
from typing import TypeVar

import msgspec

from fleetcraft.calibration.records import MIB, Trial
from fleetcraft.calibration.trial.journal import Event
from fleetcraft.calibration.trial.reading import read_journal
from fleetcraft.errors import DeviceError, TryAgainLaterError, UsageError
from fleetcraft.gpu import causes
from fleetcraft.gpu.nvml import Library, read_gpus, visible_gpus
from fleetcraft.gpu.processes import gpu_of
from fleetcraft.gpu.states import RESIDENT_MIB
from fleetcraft.process import GATE_FD
from fleetcraft.trust import node_local_folder

TURN_PATIENCE_S = 3600.0
"""How long another calibration on this machine is waited for."""
_TURN_PAUSE_S = 0.2
_DRIVER_PATIENCE_S = 10.0
_LOOKS = 3
_LOOK_PAUSE_S = 0.5
_Answer = TypeVar("_Answer")


@contextlib.contextmanager
def machine_turn(
    on_wait: Callable[[], None], *, patience_s: float = TURN_PATIENCE_S
) -> Iterator[None]:
    """Holds this machine's turn: one calibration of this user at a time is timed here.

    The kernel gives it back when this process ends, however it ends.

    Args:
        on_wait: Called once when another calibration has it.
        patience_s: How long that one is waited for.

    Raises:
        TryAgainLaterError: It did not end in that time.
        UnsafeSpoolError: Somebody else owns the folder of such locks, or can write it.
    """
    path = f"{node_local_folder()}/calibration.turn"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(fd, on_wait, patience_s)
        yield
    finally:
        os.close(fd)


def _wait_for(fd: int, on_wait: Callable[[], None], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    told = False
    while not _try_lock(fd, fcntl.LOCK_EX):
        if not told:
            on_wait()
            told = True
        if time.monotonic() >= deadline:
            raise TryAgainLaterError(
                f"another calibration on this machine did not end within {patience_s:g} s, and two "
                "at once would spoil each other's times; nothing was tried",
                hint="try again when it has ended",
            )
        time.sleep(_TURN_PAUSE_S)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ---------------------------------------------------------------------------- who else is here


def why_shared(device: str) -> str:
    """Why times taken now would not be this process's alone; empty when nothing speaks against it.

    To be asked right before a trial begins and right after it ended, when nothing of it is on the
    device.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
    """
    return "" if device == "cpu" else _why_gpu_is_shared(device)


def who_came(trial: Trial) -> str:
    """Who was on the GPU while a trial ran, by what was sampled from outside; empty for nobody."""
    held = trial.evidence.get("neighbour_peak_bytes")
    if not isinstance(held, int) or held < RESIDENT_MIB * MIB:
        return ""
    return f"others held {held / MIB:.0f} MiB of the GPU while it ran"


def fleet_note() -> str:
    """What speaks against times in a fleet's task that may share its node; empty when nothing does.

    Tasks inherit the gate of their node as a descriptor: locked for a timed task alone, shared by
    all others.
    """
    if not os.environ.get("FLEET_TASK") or not _is_gate_shared():
        return ""
    return (
        "this task of the fleet has not its node to itself, so others may have run beside what was "
        "timed; enqueue it with --timed"
    )


def _is_gate_shared() -> bool:
    try:
        if not os.readlink(f"/proc/self/fd/{GATE_FD}").startswith(f"{node_local_folder()}/"):
            return False
        # Another open file: a lock of the same one would be converted, and given up in between.
        probe = os.open(f"/proc/self/fd/{GATE_FD}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # a launcher in between has closed it: nothing here knows of a gate
    try:
        return _try_lock(probe, fcntl.LOCK_SH)
    finally:
        os.close(probe)


def _why_gpu_is_shared(device: str) -> str:
    """Whether the driver names any process on the GPU, or does not say."""
    found: str | None = ""
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_PAUSE_S)  # a process that has just ended may be listed for a moment
        found = _within_patience(lambda: _look(device))
        if found is None:
            return f"the driver did not say within {_DRIVER_PATIENCE_S:g} s who is on the GPU"
        if not found:
            return ""
    return found or ""


def _within_patience(ask: Callable[[], _Answer]) -> _Answer | None:
    """The answer of a driver that may never give one; None when it did not in time."""
    found: list[_Answer] = []
    thread = threading.Thread(target=lambda: found.append(ask()), daemon=True)
    thread.start()
    thread.join(_DRIVER_PATIENCE_S)
    return found[0] if found else None


def _look(device: str) -> str:
    try:
        uuid = gpu_of(device)
        library = Library()
    except DeviceError as error:
        return f"who is on the GPU is not known: {error.message}"
    try:
        code, handle = library.ask("nvmlDeviceGetHandleByUUID", uuid)
        if code == causes.SUCCESS:
            code, processes = library.ask("nvmlDeviceGetComputeRunningProcesses", handle)
        held_mib = _held_mib(library, handle) if code == causes.SUCCESS else None
    finally:
        library.close()
    if code != causes.SUCCESS:
        word = causes.status_of(code).value
        return f"who is on the GPU is not known: the driver answers {word} (code {code})"
    # This process has no context there; one that looks for itself in a list has its own pid in it.
    others = [process for process in processes if process.pid != os.getpid()]
    if others:
        return f"{len(others)} other processes are on the GPU"
    if not processes and held_mib is not None and held_mib >= RESIDENT_MIB:
        return f"the driver names no process, and {held_mib:.0f} MiB of the GPU are held"
    return ""


def _held_mib(library: Library, handle: object) -> float | None:
    """What is in use: in a container a driver often names none of those who hold it.

    Version 2 alone leaves out what the driver reserves for itself, and without it nothing is known.
    """
    version = getattr(library.binding, "nvmlMemory_v2", None)
    code, memory = library.ask("nvmlDeviceGetMemoryInfo", handle, version)
    return None if code or version is None else memory.used / MIB


def pick_device(asked: str) -> str:
    """The device of a run: as asked, and for ``auto`` a GPU where there is one to use.

    That is where the driver shows one to this process and the installed torch is built for one.
    torch itself is not loaded.

    Raises:
        UsageError: It is neither ``auto``, ``cpu``, ``cuda`` nor ``cuda:N``.
    """
    if asked == "auto":
        return "cuda" if _is_torch_for_cuda() and _within_patience(_shows_gpu) else "cpu"
    kind, colon, number = asked.partition(":")
    if asked == "cpu" or (kind == "cuda" and (not colon or number.isdecimal())):
        return asked
    raise UsageError(
        f"no device {asked!r}; nothing was tried", hint="auto, cpu, cuda or cuda:N", device=asked
    )


def _shows_gpu() -> bool:
    try:
        return bool(visible_gpus() and read_gpus())
    except DeviceError:
        return False


def _is_torch_for_cuda() -> bool:
    """Whether the installed torch is a CUDA build: ``cuda`` in its ``torch/version.py``."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return False
    try:
        with open(f"{os.path.dirname(found.origin)}/version.py", encoding="utf-8") as file:
            built_for = re.search(r"^cuda\b[^=]*=\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:
        return False
    return built_for is not None and built_for[1].strip() != "None"


def without_times(trial: Trial, why: str) -> Trial:
    """The same trial, not timed; the reason is kept with its evidence as ``not_timed``."""
    phases = tuple(msgspec.structs.replace(phase, walls_s=()) for phase in trial.phases)
    return msgspec.structs.replace(
        trial,
        phases=phases,
        cycle_walls_s=(),
        samples_per_s=None,
        evidence={**trial.evidence, "not_timed": why},
    )


def longest_silence_s(trial: Trial) -> float | None:
    """The longest time between two lines of a trial's journal, its start-up left out.

    That is the longest phase, or a check that took longer. Where there is no journal, the longest
    timed phase; None when nothing is known.
    """
    walls = [phase.wall_s for phase in trial.phases if phase.wall_s is not None]
    events = read_journal(trial.journal).events if trial.journal else ()
    begun = dropwhile(lambda event: event["event"] != Event.PASS_BEGIN, events)
    moments = [event["mono_s"] for event in begun if isinstance(event.get("mono_s"), float)]
    return max([*walls, *(after - before for before, after in pairwise(moments))], default=None)
