"""Where a soak happens: a real Slurm, a scratch tree, and what every process of it is found by.

Not here: what is done there, and when. Invariant: nothing is signalled but processes whose
environment names this soak's own folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.cluster import SYSTEM_PATH, Cluster

REPO = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
COUNTED = ("squeue", "sinfo", "scontrol", "sacct", "scancel", "srun", "sbatch", "sacctmgr")
FLEETCRAFT = [PYTHON, "-P", "-m", "fleetcraft"]
TOO_LATE_S = 240.0

PRELUDE = """\
note() {
  printf '%s %s %s %s %s %s\\n' "$FLEET_TASK" "$FLEET_ATTEMPT" "$FLEET_OWNER" "$$" \\
    "$EPOCHREALTIME" "$1" >>NOTES/"${SLURMD_NODENAME:-none}"
}
end() { note "$1"; exit "$1"; }
note start
echo "$FLEET_OWNER"
"""
"""What each task does first. Builtins only, and one write a line: it costs a task next to nothing,
and what it notes has nothing to do with the spool."""

SHIM = """\
#!/bin/bash
where="${{SLURMD_NODENAME:-outside}} ${{SLURM_JOB_ID:-0}}"
echo "{name} $EPOCHREALTIME $where ${{1-}} ${{2-}}" >>{log}
exec {program} "$@"
"""


@dataclass(frozen=True)
class Proc:
    """One living process of the soak.

    ``kind`` is ``worker``, ``pack``, ``keeper``, ``launcher``, ``logger``, ``logger keeper`` or
    ``other``; ``node`` and ``job`` are empty where its environment names none.
    """

    pid: int
    start_ticks: int
    kind: str
    node: str
    job: str
    words: str

    def signal(self, number: int) -> bool:
        """Signals it, if it is still the same process; whether it was there."""
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(self.pid)
            try:
                if start_ticks(self.pid) == self.start_ticks:
                    signal.pidfd_send_signal(handle, number)
                    return True
            finally:
                os.close(handle)
        return False


def start_ticks(pid: int) -> int:
    """When a process began; -1 when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in ("Z", "X") else int(fields[19])


@dataclass(kw_only=True)
class Call:
    """A call of fleetcraft, or of the sandbox, that runs beside everything else."""

    what: str
    process: subprocess.Popen[bytes]
    out: Path
    began: float
    words: list[str]

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    @property
    def code(self) -> int:
        return self.process.wait()

    def said(self) -> str:
        return self.out.read_text(errors="replace")


class Ground:
    """One sandbox and one scratch tree, with everything that a soak starts there.

    Args:
        base: An empty folder; all evidence lies in it.
        nodes: How many nodes.
        spare: Environment variables that calls of fleetcraft get too.
    """

    def __init__(self, base: Path, nodes: int, **spare: str) -> None:
        self.base = base
        self.root = base / "root"
        self.project = base / "project"
        self.notes = base / "notes"
        self.prelude = base / "prelude.sh"
        self.scheduler_calls = base / "scheduler-calls"
        for folder in (self.project / "out", self.project / "ready", self.notes, base / "calls"):
            folder.mkdir(parents=True)
        (base / "bin").mkdir()
        self.prelude.write_text(PRELUDE.replace("NOTES", shlex.quote(str(self.notes))))
        self._make_shims()
        self.cluster = Cluster("--gpus-per-node", "2", nodes=nodes)
        self.env = {
            **self.cluster.env,
            **spare,
            "PATH": f"{base / 'bin'}:{SYSTEM_PATH}",
            "PYTHONPATH": str(REPO),
            "FLEETCRAFT_PYTHON": PYTHON,
            "FLEET_CACHES_LOCAL": str(base / "caches"),
            "FLEET_POLLS_DIR": str(base / "polls"),
        }
        self.calls: list[Call] = []
        self._numbers = 0
        done = self.fleetcraft("init").process.wait()
        assert done == 0, self.calls[-1].said()

    def _make_shims(self) -> None:
        """Puts a counter before each Slurm program, for all that looks for it on PATH."""
        for name in COUNTED:
            program = shutil.which(name, path=SYSTEM_PATH)
            if program is None:
                continue
            shim = self.base / "bin" / name
            log = shlex.quote(str(self.scheduler_calls))
            shim.write_text(SHIM.format(name=name, log=log, program=program))
            shim.chmod(0o755)

    # -- calls

    def fleetcraft(self, *words: str, spool: str = "", **env: str) -> Call:
        """Starts ``fleetcraft --json ...``; its words and output are kept."""
        argv = [*FLEETCRAFT, "--root", str(self.root), "--project-dir", str(self.project)]
        argv += ["--spool", spool] if spool else []
        whole = [*argv, "--json", *words]
        return self._start(" ".join(words[:2]), whole, {**self.env, **env}, self.project)

    def sandbox(self, *words: str) -> Call:
        """Starts a verb of the sandbox."""
        tool = REPO / "infra" / "slurm" / "sandbox"
        argv = [PYTHON, str(tool), *words, "--dir", str(self.cluster.dir)]
        # Not with this soak's environment: what it starts stays, and would count as left behind.
        return self._start(" ".join(words), argv, self.cluster.env, REPO)

    def _start(self, what: str, argv: list[str], env: dict[str, str], cwd: Path) -> Call:
        self._numbers += 1
        out = self.base / "calls" / f"{self._numbers:04d}"
        with out.open("wb") as output:
            process = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        call = Call(what=what, process=process, out=out, began=time.monotonic(), words=argv[4:])
        self.calls.append(call)
        return call

    def await_call(self, call: Call, patience_s: float = TOO_LATE_S) -> Call:
        """Waits until a call is over.

        Raises:
            AssertionError: It is not in time; it was killed.
        """
        try:
            call.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            call.process.kill()
            call.process.wait()
            raise AssertionError(f"{call.what} took over {patience_s:g} s: {call.said()}") from None
        return call

    # -- looking

    def jobs(self) -> dict[str, str] | None:
        """State of each job that is not over; None when Slurm does not say."""
        told = self.ask("squeue", "-h", "-o", "%i %T")
        return None if told is None else dict(line.split() for line in told.splitlines())

    def ask(self, *argv: str) -> str | None:
        """What a program of Slurm says, not counted; None where it failed or did not answer."""
        try:
            done = self.cluster.run(*argv, check=False)
        except subprocess.TimeoutExpired:
            return None
        return None if done.returncode else done.stdout

    def files(self, spool: str, state: str) -> list[str]:
        """Names of the files of one state, lanes included."""
        folder = self.root / ("taskq" if spool == "outer" else "taskq_gpu") / state
        names = []
        for where in (folder, folder / "first", folder / "last"):
            with contextlib.suppress(FileNotFoundError):
                names += [name for name in os.listdir(where) if ".sh" in name]
        return names

    def counts(self, spool: str) -> dict[str, int]:
        states = ("waiting", "pending", "running", "done", "failed")
        return {state: len(self.files(spool, state)) for state in states}

    def census(self) -> list[Proc]:
        """The living processes whose environment, folder or command line names this soak."""
        return list(self._living())

    def _living(self) -> Iterator[Proc]:
        mark = os.fsencode(self.base)
        for name in os.listdir("/proc"):
            if not name.isdecimal() or int(name) == os.getpid():
                continue
            folder = Path("/proc", name)
            try:
                words = (folder / "cmdline").read_bytes()
                environ = (folder / "environ").read_bytes()
                cwd = os.fsencode(os.readlink(folder / "cwd"))
            except OSError:
                continue
            ticks = start_ticks(int(name))
            if ticks < 0 or not (mark in environ or mark in words or cwd.startswith(mark)):
                continue
            given = dict(entry.partition(b"=")[::2] for entry in environ.split(b"\0"))
            yield Proc(
                pid=int(name),
                start_ticks=ticks,
                kind=kind_of(words),
                node=given.get(b"SLURMD_NODENAME", b"").decode(),
                job=given.get(b"SLURM_JOB_ID", b"").decode(),
                words=words.replace(b"\0", b" ").decode("utf-8", "replace").strip()[:300],
            )

    # -- the end

    def close(self) -> None:
        """Stops the cluster and ends whatever is left, by pid."""
        for call in self.calls:
            if not call.over:
                call.process.kill()
                call.process.wait()
        with contextlib.suppress(OSError):
            shutil.copy(self.cluster.dir / "log" / "slurmctld.log", self.base / "slurmctld.log")
        self.cluster.close()
        for proc in self.census():
            proc.signal(signal.SIGKILL)


def kind_of(command_line: bytes) -> str:
    """What a process is by its command line."""
    words = command_line.split(b"\0")
    if b"fleetcraft.worker.keeper" in words:
        return "keeper"
    if b"fleetcraft.telemetry.logger" in words:
        return "logger keeper" if b"fleetcraft.worker.logger_keeper" in words else "logger"
    if not os.path.basename(words[0]).startswith(b"python") or b"fleetcraft" not in words:
        return "other"
    if b"worker" in words:
        return "worker" if b"--orders" in words else "pack"
    return "launcher" if b"--here" in words else "other"


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
