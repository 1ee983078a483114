"""A file system in memory whose every operation is a step that the explorer takes or spoils.

`World` is the content: names, inodes, open descriptors, and what was run. `ModelFS` is the seam
that the real code works through. Not here: who steps when, which is `explorer`. Invariant: a step
is a pure function of world, operation and actor, so a state can be met again and recognised.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from fleetcraft.files import FileSystem
from fleetcraft.layout import SpoolPaths

ROOT = "/s"
FOLDERS = frozenset(SpoolPaths(ROOT).folders())
INVISIBLE = frozenset({"close", "datasync", "sync_folder", "sync_mount", "note"})
"""Steps that nobody else can notice, or that only inform us: taken with the one before."""

Result = tuple[str, Any]
Request = tuple[str, tuple[Any, ...]]


def failed(code: int) -> Result:
    return ("err", code)


class World:
    """Everything there is. Treated as frozen: `apply` makes a new one."""

    __slots__ = ("data", "fds", "names", "running", "trace")

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.data: dict[int, bytes | None] = {}  # None is a folder
        self.fds: dict[tuple[int, int], int] = {}
        self.running: frozenset[tuple[int, str, int]] = frozenset()
        self.trace: tuple[tuple[Any, ...], ...] = ()

    def copy(self) -> World:
        twin = World.__new__(World)
        twin.names = self.names.copy()
        twin.data = self.data.copy()
        twin.fds = self.fds.copy()
        twin.running = self.running
        twin.trace = self.trace
        return twin

    def key(self) -> int:
        live = {*self.names.values(), *self.fds.values()}
        data = frozenset((ino, text) for ino, text in self.data.items() if ino in live)
        return hash(
            (
                frozenset(self.names.items()),
                data,
                frozenset(self.fds.items()),
                self.running,
                self.trace,
            )
        )

    def forget_process(self, actor: int) -> World:
        """What is left when an actor is gone: its descriptors close, its attempt dies."""
        twin = self.copy()
        twin.fds = {key: ino for key, ino in self.fds.items() if key[0] != actor}
        twin.running = frozenset(entry for entry in self.running if entry[0] != actor)
        return twin

    def content(self, path: str) -> bytes | None:
        ino = self.names.get(path)
        return None if ino is None else self.data[ino]

    def children(self, folder: str) -> list[str]:
        start = folder + "/"
        size = len(start)
        found = [
            path[size:]
            for path in (*self.names, *FOLDERS)
            if path.startswith(start) and "/" not in path[size:]
        ]
        return sorted(found)


def apply(world: World, actor: int, fresh: int, request: Request) -> tuple[World, Result]:
    """Takes one step.

    Args:
        world: Left as it is.
        actor: Whose step.
        fresh: A number never used before by this actor: for inodes and descriptors.
        request: Operation and arguments.
    """
    operation, arguments = request
    return _STEPS[operation](world, actor, fresh, *arguments)


def _exists(world: World, path: str) -> bool:
    return path in world.names or path in FOLDERS


def _has_folder(world: World, path: str) -> bool:
    """Whether the folder that a name would lie in is there."""
    parent = os.path.dirname(path)
    return parent in FOLDERS or world.data.get(world.names.get(parent, -1), b"") is None


def _step_listdir(world: World, actor: int, fresh: int, path: str) -> tuple[World, Result]:
    if path in FOLDERS or world.data.get(world.names.get(path, -1), b"") is None:
        return world, ("ok", tuple(world.children(path)))
    return world, failed(errno.ENOTDIR if path in world.names else errno.ENOENT)


def _step_exists(world: World, actor: int, fresh: int, path: str) -> tuple[World, Result]:
    return world, ("ok", _exists(world, path))


def _step_lstat(world: World, actor: int, fresh: int, path: str) -> tuple[World, Result]:
    if path in FOLDERS:
        return world, ("ok", (0, True))
    ino = world.names.get(path)
    if ino is None:
        return world, failed(errno.ENOENT)
    return world, ("ok", (ino, world.data[ino] is None))


def _step_read(world: World, actor: int, fresh: int, path: str) -> tuple[World, Result]:
    ino = world.names.get(path)
    if ino is None:
        return world, failed(errno.EINVAL if path in FOLDERS else errno.ENOENT)
    data = world.data[ino]
    return world, failed(errno.EINVAL) if data is None else ("ok", (data, ino))


def _step_make_folder(world: World, actor: int, fresh: int, path: str) -> tuple[World, Result]:
    return _make(world, actor, fresh, path, None)


def _step_create(
    world: World, actor: int, fresh: int, path: str, data: bytes
) -> tuple[World, Result]:
    return _make(world, actor, fresh, path, data)


def _make(
    world: World, actor: int, fresh: int, path: str, data: bytes | None
) -> tuple[World, Result]:
    if _exists(world, path):
        return world, failed(errno.EEXIST)
    if not _has_folder(world, path):
        return world, failed(errno.ENOENT)
    world = world.copy()
    ino = (actor + 1) * 10_000 + fresh
    world.names[path] = ino
    world.data[ino] = data
    return world, ("ok", None)


def _step_create_log(world: World, actor: int, fresh: int, path: str) -> tuple[World, Result]:
    world, result = _make(world, actor, fresh, path, b"")
    if result[0] == "err":
        return world, result
    world.fds[actor, fresh] = world.names[path]
    return world, ("ok", fresh)


def _step_link(
    world: World, actor: int, fresh: int, source: str, destination: str
) -> tuple[World, Result]:
    if source not in world.names or not _has_folder(world, destination):
        return world, failed(errno.ENOENT)
    if _exists(world, destination):
        return world, failed(errno.EEXIST)
    world = world.copy()
    world.names[destination] = world.names[source]
    return world, ("ok", None)


def _step_rename_new(
    world: World, actor: int, fresh: int, source: str, destination: str
) -> tuple[World, Result]:
    if source not in world.names or not _has_folder(world, destination):
        return world, failed(errno.ENOENT)
    if _exists(world, destination):
        return world, failed(errno.EEXIST)
    return _renamed(world, source, destination)


def _step_replace(
    world: World, actor: int, fresh: int, source: str, destination: str
) -> tuple[World, Result]:
    if source not in world.names or not _has_folder(world, destination):
        return world, failed(errno.ENOENT)
    if world.names.get(destination) == world.names[source]:
        return world, ("ok", None)  # POSIX: two links of one file, and nothing happens
    if destination in world.names and world.data[world.names[destination]] is None:
        return world, failed(errno.ENOTEMPTY)
    return _renamed(world, source, destination)


def _renamed(world: World, source: str, destination: str) -> tuple[World, Result]:
    world = world.copy()
    world.names[destination] = world.names.pop(source)
    for path in [path for path in world.names if path.startswith(source + "/")]:
        world.names[destination + path[len(source) :]] = world.names.pop(path)
    return world, ("ok", None)


def _step_unlink(world: World, actor: int, fresh: int, path: str) -> tuple[World, Result]:
    if path not in world.names:
        return world, failed(errno.ENOENT)
    world = world.copy()
    del world.names[path]
    return world, ("ok", None)


def _step_remove_folder(world: World, actor: int, fresh: int, path: str) -> tuple[World, Result]:
    if world.children(path):
        return world, failed(errno.ENOTEMPTY)
    return _step_unlink(world, actor, fresh, path)


def _step_open_append(world: World, actor: int, fresh: int, path: str) -> tuple[World, Result]:
    ino = world.names.get(path)
    if ino is None:
        return world, failed(errno.ENOENT)
    if world.data[ino] is None:
        return world, failed(errno.EISDIR)
    world = world.copy()
    world.fds[actor, fresh] = ino
    return world, ("ok", fresh)


def _step_ends_with_newline(world: World, actor: int, fresh: int, fd: int) -> tuple[World, Result]:
    data = world.data[world.fds[actor, fd]] or b""
    return world, ("ok", not data or data.endswith(b"\n"))


def _step_append(
    world: World, actor: int, fresh: int, fd: int, data: bytes
) -> tuple[World, Result]:
    world = world.copy()
    ino = world.fds[actor, fd]
    world.data[ino] = (world.data[ino] or b"") + data
    return world, ("ok", None)


def _step_read_from(
    world: World, actor: int, fresh: int, fd: int, offset: int
) -> tuple[World, Result]:
    return world, ("ok", (world.data[world.fds[actor, fd]] or b"")[offset:])


def _step_close(world: World, actor: int, fresh: int, fd: int) -> tuple[World, Result]:
    world = world.copy()
    del world.fds[actor, fd]
    return world, ("ok", None)


def _step_nothing(world: World, actor: int, fresh: int, *_: Any) -> tuple[World, Result]:
    return world, ("ok", None)


def _step_note(world: World, actor: int, fresh: int, *event: Any) -> tuple[World, Result]:
    world = world.copy()
    world.trace = (*world.trace, event)
    return world, ("ok", None)


def _step_run_begin(
    world: World, actor: int, fresh: int, name: str, attempt: int
) -> tuple[World, Result]:
    world = world.copy()
    world.trace = (*world.trace, ("run", name, attempt))
    world.running = world.running | {(actor, name, attempt)}
    return world, ("ok", None)


def _step_run_end(world: World, actor: int, fresh: int, *_: Any) -> tuple[World, Result]:
    world = world.copy()
    world.running = frozenset(entry for entry in world.running if entry[0] != actor)
    return world, ("ok", None)


_STEPS: dict[str, Callable[..., tuple[World, Result]]] = {
    name.removeprefix("_step_"): step
    for name, step in list(globals().items())
    if name.startswith("_step_")
}
_STEPS |= {name: _step_nothing for name in ("datasync", "sync_folder", "sync_mount")}


class ModelFS(FileSystem):
    """The seam over a `World`: every method asks `step` and raises or returns what it answers.

    Args:
        step: Takes the request and gives the result.
        rename_flags: Whether the mount has RENAME_NOREPLACE; without it, `rename_new` is a look
            and a rename, two steps, as `FileSystem` does it on NFS.
        hard_links: Whether it has those.
    """

    def __init__(
        self,
        step: Callable[[Request], Result],
        *,
        rename_flags: bool = True,
        hard_links: bool = True,
    ) -> None:
        super().__init__()
        self._step = step
        self._flags = rename_flags
        self._hard_links = hard_links
        self.newest_log = ""

    def ask(self, operation: str, *arguments: Any) -> Any:
        kind, value = self._step((operation, arguments))
        if kind == "err":
            path = arguments[0] if arguments and isinstance(arguments[0], str) else None
            raise OSError(value, os.strerror(value), path)
        return value

    def listdir(self, path: str) -> list[str]:
        return list(self.ask("listdir", path))

    def scan(self, path: str) -> Iterator[list[str]]:
        return iter([self.listdir(path)])

    def exists(self, path: str) -> bool:
        return bool(self.ask("exists", path))

    def lstat(self, path: str) -> os.stat_result:
        ino, folder = self.ask("lstat", path)
        return _facts(ino, 0, folder=folder)

    def read_with_facts(self, path: str) -> tuple[bytes, os.stat_result]:
        data, ino = self.ask("read", path)
        return data, _facts(ino, len(data), folder=False)

    def peek(self, path: str) -> bytes:
        return bytes(self.ask("read", path)[0])

    def open_read(self, path: str) -> int:
        return int(self.ask("open_append", path))

    def size(self, fd: int) -> int:
        return len(self.ask("read_from", fd, 0))

    def read_at(self, fd: int, count: int, offset: int) -> bytes:
        return bytes(self.ask("read_from", fd, offset)[:count])

    def make_folder(self, path: str) -> None:
        self.ask("make_folder", path)

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        self.ask("create", path, data)

    def create_log(self, path: str) -> int:
        fd = int(self.ask("create_log", path))
        self.newest_log = path
        return fd

    def link(self, source: str, destination: str) -> None:
        if not self._hard_links:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), source)
        self.ask("link", source, destination)

    def rename_new(self, source: str, destination: str) -> None:
        if self._flags:
            self.ask("rename_new", source, destination)
        elif self.ask("exists", destination):
            raise FileExistsError(errno.EEXIST, "destination exists", source, None, destination)
        else:
            self.ask("replace", source, destination)  # plain rename(2)

    def replace(self, source: str, destination: str) -> None:
        self.ask("replace", source, destination)

    def unlink(self, path: str) -> None:
        self.ask("unlink", path)

    def remove_folder(self, path: str) -> None:
        self.ask("remove_folder", path)

    def open_append(self, path: str) -> int:
        return int(self.ask("open_append", path))

    def ends_with_newline(self, fd: int) -> bool:
        return bool(self.ask("ends_with_newline", fd))

    def append(self, fd: int, data: bytes) -> None:
        self.ask("append", fd, data)

    def read_from(self, fd: int, offset: int) -> bytes:
        return bytes(self.ask("read_from", fd, offset))

    def datasync(self, fd: int) -> None:
        self.ask("datasync", fd)

    def close(self, fd: int) -> None:
        self.ask("close", fd)

    def sync_folder(self, path: str) -> None:
        self.ask("sync_folder", path)

    def sync_mount(self, path: str) -> None:
        self.ask("sync_mount", path)

    # -- what is no file operation, yet a step that others can come between

    def run_begin(self, name: str, attempt: int) -> None:
        self.ask("run_begin", name, attempt)

    def run_end(self, *outcomes: str) -> str:
        """Ends the attempt; the explorer tries every outcome."""
        return str(self.ask("run_end", *outcomes))

    def verdict(self, launch: str) -> str:
        """What is known of a launch; the explorer may be wrong once."""
        return str(self.ask("verdict", launch))

    def choose(self, *options: str) -> str:
        return str(self.ask("choose", *options))

    def note(self, *event: Any) -> None:
        """Tells the invariants what this actor was promised."""
        self.ask("note", *event)


def _must_be_whole() -> None:
    """A method that the model lacks would touch the real disk."""
    seam = {name for name in vars(FileSystem) if not name.startswith("_")}
    missing = seam - set(vars(ModelFS)) - {"read"}
    assert not missing, f"ModelFS lacks {missing}"


_must_be_whole()


class DirectFS(ModelFS):
    """A `ModelFS` that nobody schedules: for what comes before and after an exploration."""

    def __init__(self, world: World, actor: int, *, rename_flags: bool = True) -> None:
        super().__init__(self._now, rename_flags=rename_flags)
        self.world = world
        self._actor = actor
        self._fresh = 0

    def _now(self, request: Request) -> Result:
        operation, arguments = request
        if operation == "verdict":
            return ("ok", "gone")
        self._fresh += 1
        if operation == "choose":
            return ("ok", arguments[0])
        self.world, result = apply(self.world, self._actor, self._fresh, request)
        return ("ok", arguments[0]) if operation == "run_end" else result


def _facts(ino: int, size: int, *, folder: bool) -> os.stat_result:
    mode = (stat.S_IFDIR if folder else stat.S_IFREG) | 0o700
    return os.stat_result((mode, ino, 1, 1, os.geteuid(), os.getegid(), size, 0, 0, 0))
