"""The protocols of the spool, disturbed at our own `FileSystem`: hundreds of crashes in seconds.

Run with a folder and one JSON object: which protocol, how it is disturbed, and perhaps which of its
rules is broken. For every k it prepares a spool, lets a child perform the act with the k-th file
operation disturbed, and proves, being another process, that nothing is lost. Prints one JSON
object. Coarser than the crash matrix, which disturbs libc (`serving`), and many times as fast.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fleetcraft.files
from fleetcraft.spool.tree import SpoolTree
from tests.crash.protocol import Place, Protocol
from tests.crash.protocols import spool, spool_proof
from tests.crash.serving import attempt, in_child, listing
from tests.quick_fs import QuickFS

MAX_STEPS = 400
LIED_ABOUT = frozenset({"rename_new", "replace", "link", "unlink"})
_SEAM = [
    name
    for name, method in vars(fleetcraft.files.FileSystem).items()
    if callable(method) and not name.startswith("_")
]


class DisturbedFS(QuickFS):
    """Does something to the k-th file operation.

    Args:
        at: Which one, counted from 1; of a lie, which rename, link or unlink.
        how: ``kill before``, ``kill after``, an errno to raise instead, ``lie`` with an errno to
            raise although it was done, or ``from`` with an errno for this and all later writes.
    """

    def __init__(self, at: int, how: list[str]) -> None:
        super().__init__()
        self.steps = 0
        self.disturbed = ""
        self._at = at
        self._how = how
        self._inside = False

    def step(self, name: str, perform: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        if self._inside:  # one method of the seam that calls another is one operation
            return perform(self, *arguments, **keywords)
        if self._how[0] != "lie" or name in LIED_ABOUT:
            self.steps += 1
        if not self._is_hit(name):
            return self._perform(perform, arguments, keywords)
        self.disturbed = name
        how = self._how[0]
        if how == "kill before":
            os.kill(os.getpid(), signal.SIGKILL)
        if how in ("raise", "from"):
            raise self._error(arguments)
        result = self._perform(perform, arguments, keywords)
        if how == "kill after":
            os.kill(os.getpid(), signal.SIGKILL)
        raise self._error(arguments) if how == "lie" else AssertionError(result)

    def _is_hit(self, name: str) -> bool:
        if self._how[0] == "from":
            return self.steps >= self._at and name != "close"
        if self._how[0] == "lie":
            return name in LIED_ABOUT and self.steps == self._at
        return self.steps == self._at and (name != "close" or self._how[0].startswith("kill"))

    def _perform(self, perform: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        self._inside = True
        try:
            return perform(self, *arguments, **keywords)
        finally:
            self._inside = False

    def _error(self, arguments: Any) -> OSError:
        code = getattr(errno, self._how[1])
        path = arguments[0] if arguments and isinstance(arguments[0], str) else None
        return OSError(code, os.strerror(code), path)


def _counted(name: str) -> Callable[..., Any]:
    perform = getattr(QuickFS, name)

    def method(self: DisturbedFS, *arguments: Any, **keywords: Any) -> Any:
        return self.step(name, perform, arguments, keywords)

    return method


for _name in _SEAM:
    setattr(DisturbedFS, _name, _counted(_name))


def go_through(fs: QuickFS) -> None:
    """Every spool of a trial is reached through this, in this process, from now on."""

    def tree_of(place: Place) -> SpoolTree:
        return SpoolTree(f"{place.root}/spool", fs)

    spool.tree_of = tree_of
    spool_proof.tree_of = tree_of


def disturb(folder: str, protocol: Protocol, how: list[str], at: int) -> dict[str, Any]:
    """One crash point: prepare, act, prove. The result has ``hit``: whether there was a k-th."""
    place = Place(Path(folder, "tree"), Path(folder, "notes"))
    os.mkdir(place.root, 0o700)

    def act() -> list[str]:
        fs = DisturbedFS(at, how)
        go_through(fs)
        try:
            protocol.act(place)
        except protocol.expected as error:
            return [fs.disturbed, type(error).__name__]
        return [fs.disturbed, ""]

    result: dict[str, Any] = {"at": at}
    try:
        # In a process that has ended before the act: what it claimed is held by nobody alive.
        prepared = in_child(lambda: protocol.prepare(place))
        if "trouble" in prepared:
            return {**result, "hit": True, "trouble": prepared["trouble"]}
        acted = in_child(act)
        result["hit"] = "signal" in acted or "trouble" in acted or bool(acted["returned"][0])
        result["acted"] = acted
        if "trouble" in acted:
            return {**result, "trouble": acted["trouble"]}
        proved = attempt(lambda: protocol.prove(place))
        if "trouble" in proved:
            result["trouble"] = proved["trouble"]
            result["listing"] = listing(place.root)
        return result
    finally:
        shutil.rmtree(place.root)
        place.notes.unlink(missing_ok=True)


def main(folder: str, request: str) -> None:
    asked = json.loads(request)
    (protocol,) = (one for one in spool.PROTOCOLS if one.name == asked["operation"])
    if asked.get("broken"):
        dict(protocol.mutations)[asked["broken"]]()
    go_through(QuickFS())
    gc.collect()
    gc.freeze()  # else every fork copies what its collector goes through
    points: list[dict[str, Any]] = []
    for how in asked["how"]:
        missed = 0
        for at in range(1, MAX_STEPS):
            point = disturb(folder, protocol, how, at)
            missed = 0 if point["hit"] else missed + 1
            if point["hit"]:
                points.append({**point, "how": how})
            if missed > 1:  # a close is not made to fail, and is followed by something that is
                break
    troubles = [point for point in points if "trouble" in point]
    json.dump({"points": len(points), "troubles": troubles[:3], "count": len(troubles)}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
