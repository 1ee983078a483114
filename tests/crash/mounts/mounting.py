"""Mounts for tests: a misbehaving passthrough and a small tmpfs, always taken away again.

Not here: the rules (`rules`) and what obeys them (`passthrough`). Invariant: when the context is
left, also by an error, nothing is mounted any more and the process has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.crash.mounts.rules import Rule

REPO = Path(__file__).resolve().parents[3]
_START_S = 30.0
_END_S = 20.0


class CannotMountError(Exception):
    """This machine or user cannot have such a mount; the text says why."""


@dataclass(frozen=True)
class Mount:
    """A passthrough at work.

    Attributes:
        folder: Where it is mounted.
        backing: The folder that has the files: the truth, to be looked at past the mount.
        control: Its socket.
        pid: Its process.
    """

    folder: Path
    backing: Path
    control: str
    pid: int

    def give(self, *rules: Rule) -> None:
        """Replaces its rules, by none to make it well again."""
        self._ask({"rules": msgspec.to_builtins(rules)})

    def release(self, *, stay_open: bool = True) -> None:
        """Lets go of what hangs."""
        self._ask({"release": True})
        if not stay_open:
            self._ask({"release": False})

    def operations(self) -> dict[str, int]:
        """Operations so far, by kind."""
        counts: dict[str, int] = self._ask({})["operations"]
        return counts

    def fired(self) -> dict[str, dict[str, int]]:
        """What fired so far, by rule and operation."""
        counts: dict[str, dict[str, int]] = self._ask({})["fired"]
        return counts

    def times(self, rule: str) -> int:
        """How often one rule fired."""
        return sum(self.fired().get(rule, {}).values())

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        from tests.crash.mounts.passthrough import tell

        return tell(self.control, asked)


def why_no_fuse() -> str:
    """Why no FUSE file system can be mounted here, in a few words; empty when one can."""
    try:
        import mfusepy  # noqa: F401
    except ImportError as error:
        return f"mfusepy is not installed: {error}"
    except (OSError, AttributeError) as error:
        return f"libfuse cannot be loaded: {error}"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse cannot be opened: {error.strerror}"
    if shutil.which("fusermount3") is None and os.geteuid() != 0:
        return "there is no fusermount3"
    return ""


@contextlib.contextmanager
def mounted(base: Path, *rules: Rule, seed: int = 0, name: str = "mount") -> Iterator[Mount]:
    """A passthrough over ``base/backing`` at ``base/NAME``; several names are several clients.

    Raises:
        CannotMountError: Not on this machine, or not by this user.
    """
    why = why_no_fuse()
    if why:
        raise CannotMountError(why)
    backing, folder = base / "backing", base / name
    backing.mkdir(exist_ok=True, mode=0o700)
    folder.mkdir(mode=0o700)
    # A socket's path may have 107 bytes, which folders of tests exceed.
    control = f"{tempfile.mkdtemp(prefix='fleet-mount-')}/control"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.crash.mounts.passthrough", str(backing),
         str(folder), "--control", control, "--seed", str(seed)],
        cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    try:
        _await_ready(process)
        mount = Mount(folder, backing, control, process.pid)
        if rules:
            mount.give(*rules)
        yield mount
    finally:
        _take_away(process, folder)
        shutil.rmtree(os.path.dirname(control), ignore_errors=True)


def _await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    if ready and process.stdout.readline().strip() == "ready":
        return
    process.kill()
    said = process.stderr.read().strip().splitlines()
    raise CannotMountError(f"FUSE could not be mounted: {said[-1] if said else 'it said nothing'}")


def _take_away(process: subprocess.Popen[str], folder: Path) -> None:
    unmount(str(folder))
    assert process.stdin is not None
    process.stdin.close()  # it unmounts and leaves, whatever hangs in it
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    unmount(str(folder))
    with contextlib.suppress(OSError):
        folder.rmdir()


def unmount(folder: str) -> None:
    """Takes a mount away, also when something is still open on it."""
    for argv in (["fusermount3", "-uz", folder], ["umount", "-l", folder]):
        if shutil.which(argv[0]) and is_mounted(folder):
            subprocess.run(argv, capture_output=True, check=False)


def is_mounted(folder: str) -> bool:
    """Whether something is mounted there, without touching it: a broken mount would hang."""
    real = os.path.join(os.path.realpath(os.path.dirname(folder)), os.path.basename(folder))
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:
        points = [line.split(" ")[1] for line in table]
    return real.replace(" ", "\\040") in points


@contextlib.contextmanager
def small_tmpfs(folder: Path, *, size: str = "1m", inodes: int = 0) -> Iterator[Path]:
    """A tmpfs of so many bytes and, if told, so many files.

    Raises:
        CannotMountError: Not on this machine, or not by this user.
    """
    folder.mkdir(mode=0o700)
    options = f"size={size},mode=0700" + (f",nr_inodes={inodes}" if inodes else "")
    argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CannotMountError("there is no mount program here") from None
    if done.returncode != 0:
        raise CannotMountError(f"no tmpfs may be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
