"""A FUSE file system that passes everything on to a backing folder, late or wrongly where told.

A program of its own: ``python -m tests.crash.mounts.passthrough BACKING MOUNTPOINT --control
SOCKET``. One JSON object a line on the socket gives rules, releases what hangs, or asks for counts;
``--tell SOCKET JSON`` is such a client. It unmounts itself when its standard input ends, so that no
mount outlives the test that made it. Invariant: without rules it does exactly what the backing
folder does, flags of rename included.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import mfusepy
import msgspec

from tests.crash.mounts.belief import Entry, Quota, Seen
from tests.crash.mounts.mounting import unmount
from tests.crash.mounts.rules import Rule, Rules

T = TypeVar("T")
_UTIME_NOW = (1 << 30) - 1
_UTIME_OMIT = (1 << 30) - 2
_AT_FDCWD = -100
_FLOCK_PAUSE_S = 0.005
_FACTS = (
    "st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks",
    "st_blksize", "st_rdev",
)  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)


class Passthrough(mfusepy.Operations):  # type: ignore[misc]
    """The file system. Paths begin with a slash and are relative to the mount."""

    use_ns = True

    def __init__(self, backing: str, rules: Rules) -> None:
        self.backing = backing
        self.rules = rules
        self.seen = Seen()
        self.quota = Quota(backing)
        self.released = threading.Event()

    def _real(self, path: str) -> str:
        return self.backing + path

    def _do(self, operation: str, paths: tuple[str, ...], perform: Callable[[], T]) -> T:
        """Performs an operation as the rules say."""
        fired = self.rules.firing(operation, paths)
        for rule, seconds in fired:
            if rule.do == "delay":
                time.sleep(seconds)
            elif rule.do == "hang":
                self.released.wait()
        for rule, _ in fired:
            if rule.do == "fail":
                raise rule.error(paths[0])
        done = perform()
        for rule, seconds in fired:
            if rule.do == "late":
                time.sleep(seconds)
        for rule, _ in fired:
            if rule.do == "lie":
                if operation in ("open", "create"):
                    os.close(done)  # type: ignore[arg-type]
                raise rule.error(paths[0])
        return done

    def _change(self, operation: str, paths: tuple[str, ...], perform: Callable[[], T]) -> T:
        """Performs a change, after which this client knows nothing of these paths any more."""
        rule = self.rules.find("stale")
        try:
            return self._do(operation, paths, perform)
        finally:
            if rule is not None and not rule.own:
                self.seen.forget(*paths)

    def _stale(self, operation: str, path: str) -> Rule | None:
        rule = self.rules.find("stale")
        return rule if rule is not None and rule.matches(operation, (path,), 0.0) else None

    # -- looking

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            try:
                facts = os.lstat(self._real(path)) if fh is None else os.fstat(fh)
            except (FileNotFoundError, NotADirectoryError):
                return None
            found = {name: getattr(facts, name) for name in _FACTS}
            for name in ("st_atime", "st_mtime", "st_ctime"):
                found[name] = getattr(facts, f"{name}_ns")
            return found

        now = self._do("getattr", (path,), look)
        rule = self._stale("getattr", path) if fh is None else None
        if rule is not None:
            now, stale = self.seen.facts(path, now, rule.for_s)
            if stale:
                self.rules.count(rule, "getattr")
        if now is None:
            raise FileNotFoundError(errno.ENOENT, "", path)
        return now

    def readdir(self, path: str, fh: int) -> Iterator[tuple[str, dict[str, int], int]]:
        entries = self._do("readdir", (path,), lambda: _entries(self._real(path)))
        rule = self._stale("readdir", path)
        if rule is not None:
            entries, stale = self.seen.listing(path, entries, rule.for_s)
            if stale:
                self.rules.count(rule, "readdir")
        for name, inode, mode in [(".", 1, stat.S_IFDIR), ("..", 1, stat.S_IFDIR), *entries]:
            # Without an inode the C library takes an entry for a removed one.
            yield name, {"st_ino": inode, "st_mode": mode}, 0

    def readlink(self, path: str) -> str:
        return self._do("readlink", (path,), lambda: os.readlink(self._real(path)))

    def statfs(self, path: str) -> dict[str, int]:
        facts = self._do("statfs", (path,), lambda: os.statvfs(self._real(path)))
        return {name: getattr(facts, name) for name in dir(facts) if name.startswith("f_")}

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self._do("read", (path,), lambda: os.pread(fh, size, offset))

    # -- files

    def open(self, path: str, flags: int) -> int:
        # What is opened is looked at afresh: NFS promises that much, close-to-open.
        self.seen.forget_facts(path)
        clean = flags & ~(os.O_CREAT | os.O_EXCL | os.O_DIRECT)
        operation = "truncate" if flags & os.O_TRUNC else "open"
        return self._do(
            operation, (path,), lambda: os.open(self._real(path), clean | os.O_NOFOLLOW)
        )

    def create(self, path: str, mode: int, flags: int) -> int:
        clean = flags & ~os.O_DIRECT
        return self._change(
            "create",
            (path,),
            lambda: os.open(self._real(path), clean | os.O_CREAT | os.O_NOFOLLOW, mode),
        )

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        def put() -> int:
            rule = self.rules.find("quota")
            if rule is None:
                return os.pwrite(fh, data, offset)
            appends = fcntl.fcntl(fh, fcntl.F_GETFL) & os.O_APPEND
            size = os.fstat(fh).st_size
            start = size if appends else offset
            grows = max(0, start + len(data) - size)
            given = self.quota.grow(grows, rule.most_bytes)
            if given < grows:
                self.rules.count(rule, "write")
            if given < grows and len(data) - grows + given <= 0:
                raise OSError(errno.EDQUOT, "", path)
            return os.pwrite(fh, data[: len(data) - grows + given], offset)

        return self._change("write", (path,), put)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        target = self._real(path) if fh is None else fh
        rule = self.rules.find("quota")
        if rule is not None:
            self.quota.grow(length - os.stat(target).st_size, rule.most_bytes)
        self._change("truncate", (path,), lambda: os.truncate(target, length))

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        force = os.fdatasync if datasync else os.fsync
        self._do("fsync", (path,), lambda: force(fh))

    def fsyncdir(self, path: str, datasync: int, fh: int) -> None:
        def force() -> None:
            folder = os.open(self._real(path), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

        self._do("fsync", (path,), force)

    def flush(self, path: str, fh: int) -> None:
        pass

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def flock(self, path: str, fh: int, op: int) -> None:
        def lock() -> None:
            while True:
                try:
                    return fcntl.flock(fh, op | fcntl.LOCK_NB)
                except BlockingIOError:
                    if op & fcntl.LOCK_NB:
                        raise
                time.sleep(_FLOCK_PAUSE_S)

        self._do("flock", (path,), lock)

    # -- names

    def rename2(self, old: str, new: str, flags: int) -> None:
        """A rename with the kernel's flags, which the library's own `rename` is not told."""

        def move() -> None:
            source, target = (os.fsencode(self._real(path)) for path in (old, new))
            if _libc.renameat2(_AT_FDCWD, source, _AT_FDCWD, target, flags) != 0:
                raise OSError(ctypes.get_errno(), "", old)

        self._change("rename2" if flags else "rename", (old, new), move)

    def rename(self, old: str, new: str) -> None:
        self.rename2(old, new, 0)

    def link(self, target: str, source: str) -> None:
        self._change(
            "link",
            (source, target),
            lambda: os.link(self._real(source), self._real(target), follow_symlinks=False),
        )

    def unlink(self, path: str) -> None:
        def remove() -> None:
            facts = os.lstat(self._real(path))
            os.unlink(self._real(path))
            if facts.st_nlink == 1 and self.rules.find("quota") is not None:
                self.quota.grow(-facts.st_size, 0)

        self._change("unlink", (path,), remove)

    def symlink(self, target: str, source: str) -> None:
        self._change("symlink", (target,), lambda: os.symlink(source, self._real(target)))

    def mkdir(self, path: str, mode: int) -> None:
        self._change("mkdir", (path,), lambda: os.mkdir(self._real(path), mode))

    def rmdir(self, path: str) -> None:
        self._change("rmdir", (path,), lambda: os.rmdir(self._real(path)))

    # -- facts

    def chmod(self, path: str, mode: int) -> None:
        self._change("chmod", (path,), lambda: os.chmod(self._real(path), mode))

    def chown(self, path: str, uid: int, gid: int) -> None:
        self._change("chown", (path,), lambda: os.lchown(self._real(path), uid, gid))

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        real = self._real(path)

        def put() -> None:
            if times is None:
                return os.utime(real)
            facts, now = os.lstat(real), time.time_ns()
            asked = zip(times, (facts.st_atime_ns, facts.st_mtime_ns), strict=True)
            atime, mtime = (
                now if given == _UTIME_NOW else old if given == _UTIME_OMIT else given
                for given, old in asked
            )
            os.utime(real, ns=(atime, mtime), follow_symlinks=False)

        self._change("utimens", (path,), put)

    def init_with_config(self, conn_info: Any, config_3: Any) -> None:
        print("ready", flush=True)


def _entries(folder: str) -> list[Entry]:
    with os.scandir(folder) as found:
        return sorted((entry.name, entry.inode(), _kind(entry)) for entry in found)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG


class _Fuse(mfusepy.FUSE):  # type: ignore[misc]
    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        names = (path.decode(self.encoding, self.errors) for path in (old, new))
        self.operations.rename2(*names, flags)
        return 0


# -- control


def answer(files: Passthrough, asked: dict[str, Any]) -> dict[str, Any]:
    """What one line on the socket asks for.

    ``rules`` replaces all rules; ``release`` lets go of what hangs, now and later (False: later
    ones hang again). Every answer has the counts.
    """
    if "rules" in asked:
        files.rules.give(msgspec.convert(asked["rules"], tuple[Rule, ...]))
        files.quota = Quota(files.backing)  # bytes that came without a quota count too
        files.seen = Seen()
    if "release" in asked:
        (files.released.set if asked["release"] else files.released.clear)()
    return files.rules.counts()


def _serve(listening: socket.socket, files: Passthrough) -> None:
    while True:
        connection, _ = listening.accept()
        with connection, connection.makefile("rw") as stream:
            for line in stream:
                try:
                    said = answer(files, json.loads(line))
                except (ValueError, OSError, msgspec.ValidationError) as error:
                    said = {"error": str(error)}
                stream.write(json.dumps(said) + "\n")
                stream.flush()


def tell(control: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Asks a running file system.

    Raises:
        ValueError: It did not understand.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(control)
        with connection.makefile("rw") as stream:
            stream.write(json.dumps(asked) + "\n")
            stream.flush()
            said: dict[str, Any] = json.loads(stream.readline())
    if "error" in said:
        raise ValueError(said["error"])
    return said


def _leave_with_parent(folder: str) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    unmount(folder)
    os._exit(0)


def main(argv: list[str]) -> int:
    """Runs until it is unmounted."""
    parser = argparse.ArgumentParser(prog="passthrough", description=__doc__)
    parser.add_argument("backing", nargs="?", help="the folder that has the files")
    parser.add_argument("mountpoint", nargs="?", help="an empty folder")
    parser.add_argument("--control", help="a socket to be made")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stay", action="store_true", help="also when standard input ends")
    parser.add_argument("--tell", nargs=2, metavar=("SOCKET", "JSON"))
    asked = parser.parse_args(argv)
    if asked.tell:
        print(json.dumps(tell(asked.tell[0], json.loads(asked.tell[1])), indent=1))
        return 0
    if not asked.backing or not asked.mountpoint:
        parser.error("BACKING and MOUNTPOINT are needed")
    os.umask(0)  # the kernel has taken the caller's off already
    files = Passthrough(os.path.abspath(asked.backing), Rules(asked.seed))
    if asked.control:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(asked.control)
        listening.listen()
        threading.Thread(target=_serve, args=(listening, files), daemon=True).start()
    if not asked.stay:
        threading.Thread(target=_leave_with_parent, args=(asked.mountpoint,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: unmount(asked.mountpoint))
    threads = {} if mfusepy.fuse_version_minor < 12 else {"max_threads": 64}
    _Fuse(
        files, asked.mountpoint, foreground=True, use_ino=True, direct_io=True, hard_remove=True,
        attr_timeout=0.0, entry_timeout=0.0, negative_timeout=0.0, fsname="passthrough", **threads,
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
