"""A warm process that forks one short-lived process after another: hundreds of crashes in seconds.

Run with a folder and one JSON object: which operation, how it is disturbed, and perhaps which rule
of the protocol is broken (one of `tests.explore.mutations`). For every k it prepares a spool, lets
a child perform the operation with the k-th file operation disturbed, and proves, being another
process, that nothing is lost. Prints one JSON object.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import fleetcraft.files
from fleetcraft.spool import claims
from tests.crash import operations
from tests.crash.operations import EXPECTED_REFUSALS, OPERATIONS, Process, QuickFS

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


def in_child(act: Callable[[], Any]) -> dict[str, Any]:
    """Forks, acts, and returns what the child said, or the signal that ended it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        said = attempt(act)
        with os.fdopen(writer, "w") as pipe:
            json.dump(said, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return json.loads(text)


def attempt(act: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"returned": act()}
    except BaseException:
        return {"trouble": traceback.format_exc()}


def disturb(folder: str, name: str, how: list[str], at: int) -> dict[str, Any]:
    """One crash point: prepare, act, prove. The result has ``hit``: whether there was a k-th."""
    operation = OPERATIONS[name]
    root = f"{folder}/spool"
    said = f"{folder}/said"
    operations.set_up(root)

    def prepare() -> None:
        operation.prepare(Process(root, QuickFS(), said))

    def act() -> list[str]:
        fs = DisturbedFS(at, how)
        process = Process(root, fs, said)
        if name.startswith(("claim", "finish", "put_back")):
            fs.steps = -1_000_000  # the lease is not what is tested here
            process.publish_lease()
            fs.steps = 0
        try:
            operation.act(process)
        except EXPECTED_REFUSALS as error:
            return [fs.disturbed, type(error).__name__]
        return [fs.disturbed, ""]

    def prove() -> dict[str, Any]:
        return operations.prove(operation, Process(root, QuickFS(), said), read_said(said))

    result: dict[str, Any] = {"at": at}
    try:
        # A claim whose owner is to be gone needs a process that ends; the rest can be made here.
        prepared = in_child(prepare) if operation.owner_is_gone else attempt(prepare)
        if "trouble" in prepared:
            return {**result, "hit": True, "trouble": prepared["trouble"]}
        acted = in_child(act)
        result["hit"] = "signal" in acted or "trouble" in acted or bool(acted["returned"][0])
        result["acted"] = acted
        if "trouble" in acted:
            return {**result, "trouble": acted["trouble"]}
        proved = attempt(prove)
        if "trouble" in proved:
            result["trouble"] = proved["trouble"]
            result["listing"] = listing(root)
        return result
    finally:
        shutil.rmtree(root)
        if os.path.exists(said):
            os.unlink(said)


def read_said(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line.split() for line in file]
    except FileNotFoundError:
        return []


def listing(root: str) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(folder, file), root)
        for folder, _, files in os.walk(root)
        for file in files
    )


def main(folder: str, request: str) -> None:
    asked = json.loads(request)
    claims._APPEND_PAUSE_S = 0
    if asked.get("broken"):
        from tests.explore import mutations  # loads much, and every fork would pay for it

        getattr(mutations, asked["broken"])().__enter__()
    points: list[dict[str, Any]] = []
    for how in asked["how"]:
        missed = 0
        for at in range(1, MAX_STEPS):
            point = disturb(folder, asked["operation"], how, at)
            missed = 0 if point["hit"] else missed + 1
            if point["hit"]:
                points.append({**point, "how": how})
            if missed > 1:  # a close is not made to fail, and is followed by something that is
                break
    troubles = [point for point in points if "trouble" in point]
    json.dump({"points": len(points), "troubles": troubles[:3], "count": len(troubles)}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
