"""The caches of a worker's tasks: shared roots once, generated sources for each attempt.

A worker that has no say in them (``caches.export: false``) has none of these. Not here: the rules
(`fleetcraft.caches.scope`). Invariants: nothing is made or looked at per task but the folder that
an attempt may have left; a place of compiled graphs has one user at a time on this node.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fleetcraft.caches.clearing import clear_folder, drop_if_empty
from fleetcraft.caches.local import require_local_root
from fleetcraft.caches.records import Role, digest
from fleetcraft.caches.resolve import resolve
from fleetcraft.caches.roles import INDUCTOR_VARIABLE, VARIABLES
from fleetcraft.caches.scope import (
    TRITON_VARIABLE,
    CacheSettings,
    Purpose,
    Scope,
    environment_for,
    is_ours,
    shared_exports,
)
from fleetcraft.errors import SpoolError
from fleetcraft.layout.caches import LocalCachePaths
from fleetcraft.spool.tree import describe_problem
from fleetcraft.trust import make_folders

if TYPE_CHECKING:
    from fleetcraft.spool.claims import Claim
    from fleetcraft.spool.leases import Lease

_PLACES = 1024
_VARIABLE_OF = {Role.TRITON: TRITON_VARIABLE, Role.INDUCTOR: INDUCTOR_VARIABLE}


class TaskCaches:
    """What the tasks of one worker are told about caches.

    Args:
        settings: What the project says; None exports nothing.
        lease: The worker's.
        slots: How many places of compiled graphs it needs.
        note: Told when generated sources get no place of this node.
        environ: The worker's own environment; that of this process if None.
    """

    def __init__(
        self,
        settings: CacheSettings | None,
        lease: Lease,
        slots: int,
        note: Callable[[str], None],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._settings = settings
        self._host = lease.host
        self._environ = dict(environ)
        self._locks: list[int] = []
        self._places: list[str] = []
        self.shared = shared_exports(environ, settings) if settings else {}
        if settings is not None:
            try:
                root = require_local_root(environ, settings)
                self._paths = LocalCachePaths(root, Purpose.TASK)
                self._places = [self._take_place() for _ in range(slots)]
            except (OSError, SpoolError) as error:
                note(f"compilers keep their own cache folders: {describe_problem(error)}")
        self._own = self._exports(environ)

    def told(self) -> dict[str, object]:
        """What the worker reports of them when it arrives: one digest, and the paths behind it.

        Of generated sources only those that the user has set, which do not change with attempts.
        """
        found = resolve({**self._environ, **self.shared})
        roles = {one.role.value: one.path for one in found}
        for role, variable in _VARIABLE_OF.items():
            if self._places and variable not in self._own:
                del roles[role]
        return {"digest": digest(found), "roles": roles}

    def variables(self, held: Claim, number: int, slot: int) -> dict[bytes, bytes]:
        """What one attempt gets of generated sources; less than what its env-file says."""
        if not self._places:
            return {}
        found = {
            TRITON_VARIABLE: self._folder(held, number),
            INDUCTOR_VARIABLE: self._paths.inductor(self._places[slot]),
            **self._own,
        }
        return {os.fsencode(name): os.fsencode(text) for name, text in found.items()}

    def after_env_file(
        self, given: Mapping[str, str], held: Claim, number: int, slot: int
    ) -> dict[str, str]:
        """What is exported anew where a task's own file says something about caches.

        The names that it does not set would else still say what the worker's variables meant.
        """
        if self._settings is None or not VARIABLES & given.keys():
            return {}
        place = self._places[slot] if self._places else ""
        scope = Scope(node=self._host, run=held.name, attempt=_attempt(held, number), slot=place)
        found = environment_for(scope, {**self._environ, **given}, self._settings)
        if not self._places:
            for name in _VARIABLE_OF.values():
                del found[name]
        return found

    def clear(self, held: Claim, number: int) -> str:
        """Removes what an attempt has generated, if anything; returns why some of it stays."""
        if not self._places or TRITON_VARIABLE in self._own:
            return ""
        folder = self._folder(held, number)
        if not os.access(folder, os.F_OK):  # so for most tasks; the cheapest way to see it
            return ""
        gone = clear_folder(folder)
        drop_if_empty(os.path.dirname(folder))
        return "" if gone else f"what {held.name!r} has compiled is left in {folder}"

    def close(self) -> None:
        """Gives up the places."""
        for fd in self._locks:
            os.close(fd)
        self._locks = []
        self._places = []

    def _exports(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Generated sources that the user has placed: the same for every attempt."""
        if self._settings is None:
            return {}
        scope = Scope(node=self._host, run="-", attempt="-", slot="-")
        found = environment_for(scope, environ, self._settings)
        return {name: found[name] for name in _VARIABLE_OF.values() if not is_ours(found[name])}

    def _folder(self, held: Claim, number: int) -> str:
        return self._paths.triton(self._host, held.name, _attempt(held, number))

    def _take_place(self) -> str:
        """The first place that no living worker of this node uses.

        Raises:
            OSError: No lock can be had there.
        """
        folder = os.path.dirname(self._paths.inductor(""))
        make_folders(folder)
        for number in range(_PLACES):
            place = f"{self._host}-{number}"
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(f"{self._paths.inductor(place)}.lock", flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(fd)
                if not isinstance(error, BlockingIOError):
                    raise
                continue
            self._locks.append(fd)
            return place
        raise OSError(f"{_PLACES} places of compiled graphs are in use at {folder}")


def _attempt(held: Claim, number: int) -> str:
    # The number alone could be that of another spool's task of this name.
    return f"{number}.{held.owner.token}"
