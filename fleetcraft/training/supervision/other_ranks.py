"""The other ranks of a step: one supervises the run, and these wait until it has left.

A step runs the same command in each of its ranks; the run's lock decides which of them supervises.
Invariant: these decide nothing and leave with 0. A step that falls with its first failed rank
falls with the one that supervises and not before, and no rank leaves so early that srun takes the
others for late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from fleetcraft.files import FileSystem
from fleetcraft.identity import this_job_run
from fleetcraft.locks import GenerationLock, Holder, LockHeldError, read_holder
from fleetcraft.locks.generation import highest
from fleetcraft.training.launching.steps import is_one_of_several

_SILENT_S = 300.0
"""Ranks outlive one that was killed by so much, where the step does not fall with it."""


def supervising_rank(
    lock: GenerationLock, refused: LockHeldError, environ: Mapping[str, str]
) -> Holder | None:
    """The rank of this process's own step that supervises the run.

    Args:
        lock: The run's lock.
        refused: What it answered.
        environ: This process's environment.

    Returns:
        It; None when somebody else holds the lock, or nobody can be made out.
    """
    generation = refused.facts.get("generation")
    if not is_one_of_several(environ) or not isinstance(generation, int):
        return None
    try:
        holder = read_holder(lock.fs.read(lock.path("gen", generation)))
    except OSError:
        return None
    return holder if holder is not None and holder.run == this_job_run(environ) else None


def wait_until_left(
    lock: GenerationLock,
    rank: Holder,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Waits until a supervisor has left, another has followed it, or it was silent for long.

    Args:
        lock: The run's lock.
        rank: The supervisor.
        clock: Monotonic seconds.
        sleep: Waits by that clock. Signals are for the supervisor, which hears them too.

    Returns:
        Which of the three.
    """
    beat, since_s = b"", clock()
    while clock() - since_s < _SILENT_S:
        sleep(rank.interval_s)
        try:
            names = lock.fs.listdir(lock.folder)
            now = _beat(lock.fs, lock.path("beat", rank.generation))
        except OSError:
            since_s = clock()  # what cannot be seen is not silent
            continue
        if f"released.{rank.generation}" in names:
            return "it has left"
        if highest(names) > rank.generation:
            return "another has followed it"
        if now != beat:
            beat, since_s = now, clock()
    return f"it was silent for {_SILENT_S:.0f} s"


def _beat(fs: FileSystem, path: str) -> bytes:
    try:
        return fs.read(path)
    except FileNotFoundError:
        return b""
