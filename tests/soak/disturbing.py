"""The disturbances of a soak: each is begun at once, and what undoes it is due later.

Not here: when they come. Invariant: whatever is begun here is undone, at the latest by
`Disturber.undo_all`; what found nothing to disturb says so, and is not counted.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.soak.ground import Call, Ground, Proc
from tests.soak.plan import INNER, OUTER

FROZEN_S = 12.0  # twice the silence after which a lease of the soak's heartbeat is silent
CUT_OFF_S = 32.0  # slurmctld has called the node down by then, and the fleet recovered its claims
NODE_OFF_S = 28.0
SHORT_SILENCE_S = 3.0
LONG_SILENCE_S = 30.0
MARKER_S = 12.0
LOG_FOLDER_SHUT_S = 1.5
JOB_RESTS_S = 4  # a slurmd refuses credentials of the second in which it revoked the job's last one


@dataclass(kw_only=True)
class Undo:
    """What is to be done later, and what it undoes."""

    what: str
    due: float
    act: Callable[[], None]


class Disturber:
    """Disturbs, and undoes.

    Attributes:
        done: How often each kind was begun.
        vain: How often each kind found nothing to disturb.
        silent: slurmctld is stopped.
        barred: A marker stands, or the log folder is shut: no fleet is to be launched.
    """

    def __init__(self, ground: Ground, rng: random.Random, say: Callable[[str], None]) -> None:
        self._ground = ground
        self._rng = rng
        self._say = say
        self._undo: list[Undo] = []
        self._nodes_off: set[str] = set()
        self._enqueue_again: list[tuple[str, str]] = []
        self.done: Counter[str] = Counter()
        self.vain: Counter[str] = Counter()
        self.notes: list[str] = []
        self.silent = False
        self.barred = False
        self.kinds: dict[str, Callable[[], str]] = {
            "kill a worker": lambda: self._kill("worker"),
            "kill a keeper": lambda: self._kill("keeper"),
            "kill a pack": lambda: self._kill("pack"),
            "kill a logger": lambda: self._kill("logger"),
            "kill a launcher": lambda: self._kill("launcher"),
            "kill a node": self._kill_node,
            "restart slurmctld": lambda: self._silence(SHORT_SILENCE_S),
            "silence slurmctld": lambda: self._silence(LONG_SILENCE_S),
            "scancel a fleet": self._scancel,
            "requeue a fleet": self._requeue,
            "DRAIN": lambda: self._mark("drain"),
            "STOP": lambda: self._mark("stop"),
            "freeze a worker": self._freeze,
            "cut a node off": self._cut_off,
            "recover": lambda: self._call("recover"),
            "check --repair": lambda: self._call("check", "--repair"),
            "promote": lambda: self._call("promote"),
            "cancel": self._cancel,
            "retry": self._retry,
            "shut the log folder": self._shut_logs,
        }

    # -- steering

    def begin(self, kind: str) -> None:
        """Disturbs once."""
        met = self.kinds[kind]()
        if met:
            self.done[kind] += 1
            self._say(f"{kind}: {met}")
        else:
            self.vain[kind] += 1

    def undo_due(self) -> None:
        """Undoes what is due."""
        now = time.monotonic()
        due = [undo for undo in self._undo if undo.due <= now]
        self._undo = [undo for undo in self._undo if undo.due > now]
        for undo in due:
            undo.act()

    def undo_all(self) -> None:
        """Undoes everything now."""
        undoing, self._undo = self._undo, []
        for undo in sorted(undoing, key=lambda undo: undo.due):
            undo.act()

    @property
    def quiet(self) -> bool:
        """Whether everything is undone."""
        return not self._undo

    def _later(self, what: str, after_s: float, act: Callable[[], None]) -> None:
        self._undo.append(Undo(what=what, due=time.monotonic() + after_s, act=act))

    # -- processes

    def _one(self, kind: str) -> Proc | None:
        found = [p for p in self._ground.census() if p.kind == kind]
        found = [p for p in found if p.node not in self._nodes_off]
        return self._rng.choice(found) if found else None

    def _kill(self, kind: str) -> str:
        proc = self._one(kind)
        if proc is None or not proc.signal(signal.SIGKILL):
            return ""
        return f"pid {proc.pid} of job {proc.job} on {proc.node}"

    def _freeze(self) -> str:
        proc = self._one("worker")
        if proc is None or not proc.signal(signal.SIGSTOP):
            return ""
        self._later("freeze", FROZEN_S, lambda: _thaw([proc]))
        return f"pid {proc.pid} of job {proc.job} on {proc.node}, for {FROZEN_S:g} s"

    def _cut_off(self) -> str:
        """A node that does not answer although its processes live: slurmd and worker stand still.

        Slurm calls it down, its claims are recovered, and the worker wakes up as a zombie.
        """
        proc = self._one("worker")
        if proc is None or self.silent:
            return ""
        node = proc.node
        here = [p for p in self._ground.census() if p.node == node and p.kind in ("worker", "pack")]
        stopped = [p for p in here if p.signal(signal.SIGSTOP)]
        slurmd = self._slurmd(node)
        if slurmd is None or not slurmd.signal(signal.SIGSTOP):
            _thaw(stopped)
            return ""
        self._nodes_off.add(node)

        def undo() -> None:
            slurmd.signal(signal.SIGCONT)
            _thaw(stopped)
            self._nodes_off.discard(node)

        self._later("cut off", CUT_OFF_S, undo)
        return f"{node}, for {CUT_OFF_S:g} s"

    def _slurmd(self, node: str) -> Proc | None:
        from tests.soak.ground import start_ticks

        path = self._ground.cluster.dir / "run" / f"{node}.process"
        try:
            keeper = int(path.read_text().split()[0])
            children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        except (OSError, ValueError, IndexError):
            return None
        for text in children:
            with open(f"/proc/{text}/comm") as file:
                if file.read().strip().startswith("slurmd"):
                    return Proc(int(text), start_ticks(int(text)), "slurmd", node, "", "slurmd")
        return None

    # -- Slurm

    def _kill_node(self) -> str:
        proc = self._one("worker")
        if proc is None or self.silent:
            return ""
        node = proc.node
        self._nodes_off.add(node)
        self._ground.await_call(self._ground.sandbox("kill-node", node))

        def undo() -> None:
            self._revive(node)

        self._later("revive", NODE_OFF_S, undo)
        return f"{node}, for {NODE_OFF_S:g} s"

    def _revive(self, node: str) -> None:
        if self.silent:  # without slurmctld no node comes back
            self._later("revive", 3.0, lambda: self._revive(node))
            return
        self._ground.sandbox("revive-node", node)
        self._nodes_off.discard(node)

    def _silence(self, seconds: float) -> str:
        if self.silent or self._nodes_off:
            return ""
        self.silent = True
        self._ground.await_call(self._ground.sandbox("stop-controller"))

        def undo() -> None:
            self._ground.await_call(self._ground.sandbox("start-controller"))
            self.silent = False

        self._later("silence", seconds, undo)
        return f"for {seconds:g} s"

    def _fleet(self) -> str:
        jobs = {} if self.silent else self._ground.jobs() or {}
        running = sorted(job for job, state in jobs.items() if state == "RUNNING")
        return self._rng.choice(running) if running else ""

    def _scancel(self) -> str:
        job = self._fleet()
        return f"job {job}" if job and self._ground.ask("scancel", job) is not None else ""

    def _requeue(self) -> str:
        job = self._fleet()
        if not job or self._ground.ask("scontrol", "requeue", job) is None:
            return ""

        def start() -> None:
            when = f"StartTime=now+{JOB_RESTS_S}"
            self._ground.ask("scontrol", "update", f"JobId={job}", when)

        self._later("requeue", 6.0, start)
        return f"job {job}"

    # -- from outside, by fleetcraft's own commands

    def _call(self, *words: str) -> str:
        spool = self._rng.choice((OUTER, OUTER, INNER))
        self._ground.fleetcraft(*words, spool=spool)
        return f"of the {spool} spool"

    def _mark(self, verb: str) -> str:
        if self.barred:
            return ""
        self.barred = True
        self._ground.await_call(self._ground.fleetcraft(verb, "--reason", "soak", spool=OUTER))

        def undo() -> None:
            self._ground.await_call(self._ground.fleetcraft("resume", spool=OUTER))
            self.barred = False

        self._later(verb, MARKER_S, undo)
        return f"for {MARKER_S:g} s"

    def _cancel(self) -> str:
        spool = self._rng.choice((OUTER, OUTER, INNER))
        names: set[str] = set()
        for state in ("waiting", "pending", "running"):
            there = [name.partition(".sh")[0] for name in self._ground.files(spool, state)]
            there = [name for name in there if not name.startswith("pack-")]
            names.update(self._rng.sample(there, min(len(there), 3)))
        if not names:
            return ""
        self._ground.fleetcraft("cancel", *sorted(names), spool=spool)
        return f"{len(names)} tasks of the {spool} spool"

    def _retry(self) -> str:
        spool = self._rng.choice((OUTER, OUTER, INNER))
        there = [name.removesuffix(".sh") for name in self._ground.files(spool, "failed")]
        names = self._rng.sample(sorted(there), min(len(there), 8))
        if not names:
            return ""
        self._ground.fleetcraft("retry", *names, spool=spool)
        return f"{len(names)} tasks of the {spool} spool"

    def _shut_logs(self) -> str:
        """No log can be made for a moment: what a full disk or quota does to that folder."""
        if self.barred or not self._chattr("+i"):
            return ""
        self._later("logs", LOG_FOLDER_SHUT_S, self._open_logs)
        return f"for {LOG_FOLDER_SHUT_S:g} s"

    def _open_logs(self) -> None:
        assert self._chattr("-i"), "the log folder stays shut"

    def _chattr(self, flag: str) -> bool:
        argv = ["chattr", flag, str(self._ground.root / "taskq" / "logs")]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            self.notes.append("the log folder was not shut: no chattr here")
            return False
        if done.returncode:
            self.notes.append(f"the log folder was not shut: {done.stderr.strip()}")
        return done.returncode == 0


def _thaw(procs: list[Proc]) -> None:
    for proc in procs:
        proc.signal(signal.SIGCONT)


__all__ = ["Call", "Disturber"]
