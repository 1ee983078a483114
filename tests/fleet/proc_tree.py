"""A ``/proc`` of plain files, for what a healthy kernel does not say on request.

Not here: real processes, which the tests prefer wherever they can have them.
"""

from __future__ import annotations

import os
from pathlib import Path

SOMEBODY_ELSE = os.getuid() + 1
FIRST_NAMESPACE = "pid:[4026531836]"


class ProcTree:
    """Has process 1 of another user, and the asking process, which is this one."""

    def __init__(self, root: Path) -> None:
        self.root = root / "a proc"
        self.groups = root / "groups"
        self.own = self.root / str(os.getpid())
        self.groups.mkdir()
        self.add(1, "init", user=SOMEBODY_ELSE)
        self.add(os.getpid(), "fleetcraft")
        (self.root / "self").symlink_to(str(os.getpid()))
        (self.own / "ns").mkdir()
        (self.own / "ns/pid").symlink_to(FIRST_NAMESPACE)
        (self.own / "cgroup").write_text("0::/\n")
        self.mount()

    def __str__(self) -> str:
        return str(self.root)

    def mount(self, *more: str, kind: str = "proc", options: str = "rw") -> None:
        """Writes the mount table: this tree, and a hierarchy of cgroups unless others are given."""
        lines = more or (f"3 1 0:3 / {self.groups} rw - cgroup2 cgroup2 rw",)
        point = str(self.root).replace(" ", "\\040")
        table = ["1 0 8:1 / / rw shared:1 - ext4 /dev/vda rw", *lines]
        table.append(f"2 1 0:2 / {point} rw,relatime - {kind} proc {options}")
        (self.own / "mountinfo").write_text("\n".join(table) + "\n")

    def add(
        self,
        pid: int,
        name: str = "sleep",
        *words: str,
        user: int = os.getuid(),
        parent: int = 1,
        threads: int = 1,
        state: str = "S (sleeping)",
        more: str = "VmSize:\t100 kB\n",
    ) -> Path:
        """One process; returns its folder."""
        folder = self.root / str(pid)
        folder.mkdir(parents=True)
        (folder / "status").write_text(
            f"Name:\t{name}\nState:\t{state}\nPid:\t{pid}\nPPid:\t{parent}\n"
            f"Uid:\t{user}\t{user}\t{user}\t{user}\nNSpid:\t{pid}\nThreads:\t{threads}\n"
            f"{more}CapEff:\t0000000000000000\n"
        )
        (folder / "cmdline").write_text("\0".join(words or (name,)) + "\0")
        return folder

    def add_many(self, count: int) -> None:
        """Processes of this user, beside the asking one."""
        for pid in range(5_000_000, 5_000_000 + count):
            self.add(pid)

    def group(self, path: str, maximum: str | None = None, current: int | None = None) -> Path:
        """One cgroup's folder; its limit is absent where the kernel has none."""
        folder = self.groups / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        if maximum is not None:
            (folder / "pids.max").write_text(f"{maximum}\n")
        if current is not None:
            (folder / "pids.current").write_text(f"{current}\n")
        return folder
