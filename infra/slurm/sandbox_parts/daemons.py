"""The processes of one cluster: starts daemons, knows which live, finds all that belongs to it.

Not here: the order in which a cluster is started, and what its nodes then say.
Invariant: what is found is ours: written down when it was started, descended from that, or, when
the ancestor is gone, bound to this folder by its open log or its own environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from . import processes, programs
from .fault import SLURM, Fault
from .processes import Process
from .site import Folder, Settings

KEEPER = Path(__file__).with_name("keeper.py")
DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "slurmstepd")
START_PATIENCE_S = 60.0


class Daemons:
    """The processes of the cluster in one folder."""

    def __init__(self, folder: Folder, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.conf = f"{settings.base}/conf/slurm.conf"

    @property
    def names(self) -> list[str]:
        """All that a whole cluster runs: daemons, then nodes."""
        accounting = ["mariadbd", "slurmdbd"] if self.settings.accounting else []
        return ["munged", *accounting, "slurmctld", *self.settings.nodes]

    def environment(self) -> dict[str, str]:
        """What the cluster's programs are started with."""
        return programs.environment(self.conf)

    def keeper(self, name: str) -> Process | None:
        """The live parent of all that a daemon or node is, or None."""
        return processes.read_back(self.folder.process_file(name))

    def process(self, name: str) -> Process | None:
        """The live daemon of this name, or None."""
        keeper = self.keeper(name)
        kept = processes.with_descendants([keeper])[1:2] if keeper else []
        return kept[0] if kept else None

    def start(
        self, name: str, argv: list[str], extra: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a daemon that stays in the foreground, and writes down who keeps it."""
        command = [sys.executable, "-I", "-S", str(KEEPER), programs.find(argv[0]), *argv[1:]]
        with (self.folder.log / f"{name}.out").open("ab") as output:
            started = subprocess.Popen(
                command,
                env=self.environment() | dict(extra or {}),
                cwd=self.folder.path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C in the shell that started it is not for it
            )
        if process := processes.at(started.pid):
            processes.write_down(self.folder.process_file(name), process)
        return started

    def start_node(self, node: str, *options: str) -> subprocess.Popen[bytes]:
        """Switches one machine on."""
        return self.start(node, ["slurmd", "-D", "-N", node, *options])

    def wait(
        self, what: str, ready: Callable[[], bool], started: Mapping[str, subprocess.Popen[bytes]]
    ) -> None:
        """Waits until something is ready, or a daemon that it needs has ended.

        Raises:
            Fault: A daemon ended, or a minute has passed. The hint is the end of its log.
        """
        give_up_at = time.monotonic() + START_PATIENCE_S
        while not ready():
            for name, daemon in started.items():
                if daemon.poll() is not None:
                    message = f"{name} ended at once, exit code {daemon.returncode}"
                    raise Fault(SLURM, message, self.last_words(name))
            if time.monotonic() > give_up_at:
                message = f"{what} after {START_PATIENCE_S:g} s"
                raise Fault(SLURM, message, self.last_words(*started))
            time.sleep(0.1)

    def last_words(self, *names: str) -> str:
        """Where to look, and the last lines that sound like a reason."""
        files = [self.folder.log / f"{name}.out" for name in names]
        lines: list[str] = []
        for file in files:
            text = file.read_text(errors="replace") if file.exists() else ""
            lines += [line for line in text.splitlines() if "error" in line or "fatal" in line][-3:]
        where = ", ".join(str(file) for file in files)
        return f"look at {where}" + "".join(f"\n  {line}" for line in lines[-8:])

    def of_node(self, node: str) -> list[Process]:
        """All processes of one node but its keeper; slurmd and steps before what they started."""
        keeper = self.keeper(node)
        if keeper is None:
            return processes.with_descendants(self.strays({node}))
        return processes.with_descendants([keeper])[1:]

    def keepers(self) -> list[Process]:
        """The keepers that live."""
        return [keeper for name in self.names if (keeper := self.keeper(name))]

    def all(self) -> list[Process]:
        """All processes of the cluster but their keepers."""
        keepers = self.keepers()
        known = processes.with_descendants({*keepers, *self.strays(None)})
        return [process for process in known if process not in keepers]

    def strays(self, nodes: set[str] | None) -> Iterable[Process]:
        """What belongs to some nodes (None: to the cluster) though its ancestor is gone."""
        found = []
        for pid in processes.all_pids():
            if pid == os.getpid() or (process := processes.at(pid)) is None:
                continue
            if self._is_daemon(pid, nodes) or self._is_of_a_job(pid, nodes):
                found.append(process)
        return found

    def _is_daemon(self, pid: int, nodes: set[str] | None) -> bool:
        """Whether one of the daemons' programs writes to a log of ours, a node's if nodes are."""
        folder = processes.PROC / str(pid)
        try:
            program = os.path.basename(os.readlink(folder / "exe")).removesuffix("-wlm")
            if program not in DAEMONS:
                return False
            open_files = {Path(os.readlink(link)) for link in (folder / "fd").iterdir()}
        except OSError:  # ended, or another user's
            return False
        return any(
            file.parent == self.folder.log and (nodes is None or file.stem in nodes)
            for file in open_files
        )

    def _is_of_a_job(self, pid: int, nodes: set[str] | None) -> bool:
        """Whether a process was given this cluster and a node of it when it was started."""
        try:
            entries = (processes.PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False
        if f"SLURM_CONF={self.conf}".encode() not in entries:
            return False
        return any(f"SLURMD_NODENAME={node}".encode() in entries for node in nodes or self.names)
