"""How the ranks of one save find one another: one nonce a save, and bounded waiting.

Rank 0 draws the nonce and publishes it under step, generation, launch and the how-manieth save of
that step this is; the others wait for it. Invariant: a nonce of another launch is never taken for
this one's, since a run may save a step that an earlier launch of it had begun to save.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fleetcraft.errors import TryAgainLaterError, UsageError
from fleetcraft.identity import new_record_id, sha256_hex
from fleetcraft.layout.checkpoints import parse_agreement, parse_step
from fleetcraft.locks import put_if_absent

if TYPE_CHECKING:
    from fleetcraft.training.checkpoint.store import CheckpointStore

_FIRST_WAIT_S = 0.01
_LONGEST_WAIT_S = 1.0
_LAUNCH_VARIABLES = ("FLEET_LAUNCH_NONCE", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_LAUNCH_DETAILS = (
    "TORCHELASTIC_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_JOB_START_TIME", "SLURM_RESTART_COUNT",
)  # fmt: skip
_NO_LAUNCH = frozenset({"", "none"})  # torchrun's run id with a static rendezvous is "none"
_NONCE_LINE = re.compile(rb"([A-Za-z0-9]{4,64})\n")


class SaveTimeoutError(TryAgainLaterError):
    """Another rank of a save did not come in time; nothing was published."""


class Agreement:
    """The nonces of one process's saves into one folder."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._saves: dict[tuple[int, int], int] = {}

    def nonce(self, step: int, rank: int, world_size: int, generation: int, wait_s: float) -> str:
        """The nonce that all ranks of this save have.

        Raises:
            UsageError: Nothing names this launch, or another rank 0 of it began this save.
            SaveTimeoutError: Rank 0 did not begin in time.
        """
        mine = new_record_id()
        if world_size == 1:
            return mine
        key = (step, generation)
        count = self._saves[key] = self._saves.get(key, 0) + 1
        path = self._store.paths.agreement(step, generation, launch_of(os.environ), count)
        if rank:
            return self._wait_for(path, step, wait_s)
        if not put_if_absent(self._store.fs, path, mine.encode() + b"\n"):
            raise UsageError(
                f"another rank 0 of this launch has begun to save step {step} before; "
                "nothing was written",
                hint="pass nonce= to save(), the same on all ranks and new for every save",
                path=path,
            )
        return mine

    def forget(self, step: int, world_size: int, generation: int) -> None:
        """Removes agreements that nobody waits for any more, once a step is committed.

        All ranks of a committed save had its nonce. An earlier step of this very launch may still
        be in the making, by a save in the background, so its agreement stays until it is committed.
        """
        if world_size == 1:
            return
        fs, paths = self._store.fs, self._store.paths
        with contextlib.suppress(OSError, UsageError):  # what is left here misleads nobody
            mine = launch_of(os.environ)
            committed = {parse_step(name) for name in fs.listdir(paths.folder)}
            for name in fs.listdir(paths.saving):
                found = parse_agreement(name)
                if found is None or found.step > step or found.generation > generation:
                    continue
                if found.launch != mine or found.step in committed:
                    fs.unlink(f"{paths.saving}/{name}")

    def _wait_for(self, path: str, step: int, wait_s: float) -> str:
        found: list[str] = []

        def look() -> bool:
            try:
                match = _NONCE_LINE.fullmatch(self._store.fs.read(path))
            except FileNotFoundError:
                return False
            found.extend([match[1].decode()] if match else [])
            return bool(found)

        wait_until(self._store, look, wait_s, lambda: f"rank 0 has not begun to save step {step}")
        return found[0]


def launch_of(environ: Mapping[str, str]) -> str:
    """What names this launch for all its ranks, and no other launch: 16 hex digits.

    Raises:
        UsageError: Nothing does.
    """
    if all(environ.get(name, "") in _NO_LAUNCH for name in _LAUNCH_VARIABLES):
        raise UsageError(
            "nothing names this launch, so ranks of two saves could not be told apart; "
            "nothing was written",
            hint="launch it by fleetcraft, torchrun or srun, or pass nonce= to save()",
        )
    names = (*_LAUNCH_VARIABLES, *_LAUNCH_DETAILS)
    text = "\n".join(f"{name}={environ.get(name, '')}" for name in names)
    return sha256_hex(text.encode())[:16]


def wait_until(
    store: CheckpointStore,
    ready: Callable[[], bool],
    wait_s: float,
    what: Callable[[], str],
    *,
    folder: str = "",
) -> None:
    """Looks again and again, ever less often, until something is so.

    Raises:
        SaveTimeoutError: It was not so in time.
    """
    ends = store.clock() + wait_s
    pause_s = _FIRST_WAIT_S
    while not ready():
        left_s = ends - store.clock()
        if left_s <= 0:
            raise SaveTimeoutError(
                f"{what()} after {wait_s:g} s; no checkpoint was committed",
                hint="look at the log of that rank; what was written is kept",
                folder=folder,
            )
        store.sleep(min(pause_s, left_s))
        pause_s = min(_LONGEST_WAIT_S, pause_s * 2)
