"""Whose turn it is to write one repository of a hub cache: one writer, and others wait for it.

Not here: what is written. Invariant: whoever writes holds the repository's lock, which lies in the
hub itself, so that writers with different settings meet at it too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from fleetcraft.caches.hub import HubFiles, Repo, cannot_write
from fleetcraft.identity import this_job_run
from fleetcraft.layout.caches import HubPaths
from fleetcraft.locks import GenerationLock, Held, LockHeldError
from fleetcraft.trust import require_private_folder

_BEAT_S = 5.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# Each is three beats without a sign; a mount can stall for one of them.
_SILENCES = 4


def take_turn(
    hub: str,
    repo: Repo,
    *,
    purpose: str,
    wait_s: float = 0.0,
    take_over: bool = False,
    ready: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda text: None,
    fs: HubFiles | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Held | None:
    """Becomes the one writer of a repository, and waits for another if told to.

    Args:
        hub: The cache that is written.
        repo: The repository.
        purpose: What is to be done, for the message that others get.
        wait_s: How long a living writer is waited for, in seconds.
        take_over: Consent to follow a writer that is silent and of which nothing else is known,
            because it ran on another node.
        ready: Whether what is wanted is there meanwhile, so that there is nothing left to write.
        tell: Is told once whom is waited for.
        fs: The seam.
        sleep: Waits so many seconds.

    Returns:
        The lock, to be used as a context; None when it is ready.

    Raises:
        LockHeldError: Another still writes, or may; also before the wait is over if it was silent
            for a minute, since such a one is rather gone.
        LockUnknownError: The file system does not tell.
        StorageError: The hub's own folders cannot be made.
    """
    fs = fs or HubFiles()
    lock = _lock(HubPaths(hub), repo, purpose, fs)
    until, pause, told, silences = time.monotonic() + wait_s, _FIRST_PAUSE_S, False, 0
    while not ready():
        try:
            return lock.acquire(by_age=take_over)
        except LockHeldError as held:
            left_s = until - time.monotonic()
            silences = silences + 1 if held.may_be_gone else 0
            if silences:
                held.hint = "if that process is gone, call again with --take-over"
            if left_s <= 0 or silences == _SILENCES:
                raise
            if not told:
                who = held.facts["holder"] or "a process whose record is unreadable"
                tell(f"waiting: {purpose} is the turn of {who}")
                told = True
            sleep(min(pause, left_s))
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)
    return None


def _lock(paths: HubPaths, repo: Repo, purpose: str, fs: HubFiles) -> GenerationLock:
    try:
        *shared, private = paths.room_folders(repo.folder)
        for folder in shared:
            fs.make_shared_folder(folder)
        require_private_folder(private)
    except OSError as error:
        done = "nothing was changed"
        raise cannot_write(error, f"the hub cache {paths.root}", done=done) from error
    return GenerationLock(
        private, purpose=purpose, interval_s=_BEAT_S, run=this_job_run(os.environ), fs=fs
    )
