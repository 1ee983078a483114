"""The seam's count beside the kernel's: the same acts under strace, compared call by call.

Run as a script it performs the acts, with a mark before each; `compare` runs that under strace and
reads both. Invariant: a call that the seam does not count makes the two differ.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.scale.counting import METADATA, Counts

REPO = Path(__file__).resolve().parents[2]
_MARK = "/scale-mark/"
_TRACED = "trace=%file,fsync,fdatasync,syncfs"
_LINE = re.compile(r"\d+\s+(\w+)\((.*)")
_KIND = {
    "access": "stat", "stat": "stat", "lstat": "stat", "newfstatat": "stat", "statx": "stat",
    "link": "link", "linkat": "link", "rename": "rename", "renameat": "rename",
    "renameat2": "rename", "unlink": "unlink", "unlinkat": "unlink", "rmdir": "unlink",
    "mkdir": "create", "mkdirat": "create", "fsync": "sync", "fdatasync": "sync",
    "syncfs": "sync",
}  # fmt: skip


def compare(folder: Path, tasks: int) -> dict[str, tuple[Counts, Counts]] | str:
    """What seam and kernel have counted of each act; a sentence where strace cannot be had.

    Args:
        folder: Where the spool is made.
        tasks: How many it has.
    """
    if shutil.which("strace") is None:
        return "strace is not installed"
    log = folder / "strace.log"
    argv = [sys.executable, "-m", "tests.scale.kernel", str(folder / "spool"), str(tasks)]
    done = subprocess.run(
        ["strace", "-f", "-y", "-s", "4096", "-e", _TRACED, "-o", str(log), *argv],
        cwd=REPO, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        return f"strace ended with {done.returncode}: {done.stderr.strip()[-300:]}"
    seam = {act: Counter(counts) for act, counts in json.loads(done.stdout).items()}
    kernel = read_trace(log.read_text("utf-8", "replace").splitlines(), str(folder / "spool"))
    return {act: (seam[act], kernel.get(act, Counter())) for act in seam}


def read_trace(lines: list[str], spool: str) -> dict[str, Counts]:
    """Counts the calls that name the spool, by the mark that came before them."""
    found: dict[str, Counts] = {}
    act: Counts = Counter()
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        call, rest = match.groups()
        if _MARK in rest:
            act = found.setdefault(rest.partition(_MARK)[2].partition('"')[0], Counter())
        elif f"{spool}/" in rest or f"{spool}>" in rest or _is_above(rest, spool):
            kind = _kind(call, rest)
            if kind:
                act[kind] += 1
    return found


def _is_above(rest: str, spool: str) -> bool:
    """Whether a call names a folder on the way to the spool: whose it is decides on its safety."""
    path = rest.partition('"')[2].partition('"')[0]
    return path.startswith("/") and f"{spool}/".startswith(f"{path.rstrip('/')}/")


def _kind(call: str, rest: str) -> str:
    if "AT_EMPTY_PATH" in rest:
        return ""  # of a descriptor that is open already
    if call == "openat":
        if "O_CREAT" in rest:
            return "create"
        # A folder is opened to be listed, or to be forced to disk.
        return "folder" if "O_DIRECTORY" in rest else "open"
    return _KIND.get(call, "")


def of_seam(counts: Counts) -> Counts:
    """The seam's count in the words of the kernel's: both kinds of opened folders are one."""
    found = Counter({kind: counts[kind] for kind in (*METADATA, "sync")})
    found["folder"] = found.pop("list") + counts["folder_sync"]
    found["open"] -= counts["folder_sync"]
    return +found


def _acts(folder: Path, tasks: int) -> dict[str, Counts]:
    from tests.scale.acts import Subject
    from tests.scale.counting import CountingFS

    class Marking(CountingFS):
        """Durable, so that forced writes are seen; says apart which opens are of folders."""

        def sync_folder(self, path: str) -> None:
            self._note(folder_sync=1)
            super().sync_folder(path)

        def sync_mount(self, path: str) -> None:
            self._note(folder_sync=1)
            super().sync_mount(path)

    subject = Subject(folder, tasks)
    fs = Marking(durable=True)
    subject.fs = subject.tree.fs = fs
    found: dict[str, Counts] = {}

    def marked(act: str, do: Callable[[], object], tasks: float = 1.0) -> object:
        os.access(f"{_MARK}{act}", os.F_OK)
        with fs.counted() as counts:
            do()
        os.access(f"{_MARK}-", os.F_OK)
        found[act] = counts
        return original(act, lambda: None, tasks)

    original = subject._whole
    subject._whole = marked  # type: ignore[method-assign, assignment]
    for _ in subject.all():
        pass
    return found


if __name__ == "__main__":
    print(json.dumps(_acts(Path(sys.argv[1]), int(sys.argv[2]))))
