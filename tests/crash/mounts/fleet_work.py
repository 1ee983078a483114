"""Real work on a mount that misbehaves: enqueues, killed workers, cancels, retries, repairs.

Everything is done by the command line, from outside. Each task notes that it runs in a file that
does not lie on the mount. Not here: what must hold afterwards (`judging`). Invariant: a command
that said no is given again, as a person would, and no command ever shows a traceback.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.record import compose
from tests.crash.mounts.mounting import REPO

_COMMAND_S = 120.0
_PAUSE_S = 0.2
_LOOK_S = 0.05
_KILL_EVERY_S = 1.5
_TRIES = 60
_BATCH = 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
WELL = frozenset({0, 1, 3, 4, 5, 7, 9, 75})
"""Exit codes that a command may have on a mount in trouble."""

NOTES_ITS_RUN = 'printf "%s\\n" "$FLEET_TASK $FLEET_ATTEMPT $FLEET_OWNER" >>"$NOTES/ran"'


@dataclass
class Said:
    """What commands said, gathered over a whole trouble.

    Attributes:
        refusals: How often a command said no and was given again, by its exit code.
        faults: What no command may do: a traceback, a strange exit code, an endless wait.
        sentences: One refusal of each command and code, for the page and for people.
    """

    refusals: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    sentences: dict[str, str] = field(default_factory=dict)


class Fleet:
    """One tree on one or two mounts, and the commands that are given to it.

    Args:
        roots: The tree as each client sees it.
        notes: A folder off the mounts.
        seed: Of what is killed, and when.
    """

    def __init__(self, roots: Sequence[Path], notes: Path, seed: int) -> None:
        self.roots = roots
        self.notes = notes
        self.said = Said()
        self.promised: set[str] = set()
        self.kills = 0
        self.cancelled: set[str] = set()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._env = {
            **os.environ, "NOTES": str(notes), "FLEET_TELEMETRY_INTERVAL_S": "0",
            "PYTHONPATH": str(REPO), "FLEET_CACHES_LOCAL": str(notes / "caches"),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    # -- commands

    def start(self, client: int, *words: str) -> subprocess.Popen[str]:
        """Starts a command on one client's mount."""
        root = self.roots[client % len(self.roots)]
        return subprocess.Popen(
            [sys.executable, "-m", "fleetcraft", "--root", str(root), "--project-dir",
             str(self.notes), *words],
            env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip

    def give(self, client: int, *words: str, text: str = "") -> int:
        """Gives a command and waits for it; what it must not do is noted as a fault."""
        return self.say(client, *words, text=text)[0]

    def say(self, client: int, *words: str, text: str = "") -> tuple[int, str, str]:
        """Like `give`, with what it printed."""
        return self._judged(self.start(client, *words), words[0], text)

    def await_end(self, process: subprocess.Popen[str], verb: str) -> int:
        """Waits for a command that was started, and judges how it ended."""
        return self._judged(process, verb, "")[0]

    def _judged(self, process: subprocess.Popen[str], verb: str, text: str) -> tuple[int, str, str]:
        try:
            out, err = process.communicate(text, timeout=_COMMAND_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            self._fault(f"{verb} did not end within {_COMMAND_S:.0f} s")
        code = process.returncode
        if "Traceback" in out + err:
            self._fault(f"{verb} showed a traceback: {last_sentence(err)}")
            (self.notes / f"traceback-{verb}").write_text(err)
        elif code not in WELL:
            self._fault(f"{verb} left with {code}: {last_sentence(err)}")
        if code:
            with self._lock:
                self.said.refusals[code] += 1
                self.said.sentences.setdefault(f"{verb} {code}", last_sentence(err))
        return code, out, err

    def insist(self, client: int, *words: str, text: str = "", tries: int = _TRIES) -> bool:
        """Gives a command until it says 0."""
        for _ in range(tries):
            if self.give(client, *words, text=text) == 0:
                return True
            time.sleep(_PAUSE_S)
        self._fault(f"{words[0]} never succeeded")
        return False

    def _fault(self, text: str) -> None:
        with self._lock:
            self.said.faults.append(text)

    # -- what people do

    def enqueue(
        self,
        client: int,
        prefix: str,
        count: int,
        *,
        room_bytes: int = -1,
        command_of: Callable[[int], str] | None = None,
    ) -> None:
        """Enqueues small batches, each again and again until it is there, as the errors advise.

        Args:
            client: Through which mount.
            prefix: Of the tasks' names.
            count: How many.
            room_bytes: Makes each record so much shorter than a page; -1 leaves it short.
            command_of: The command of a task by its number, from 1; `usual_command` if None.
        """
        command = command_of or usual_command
        for first in range(1, count + 1, _BATCH):
            numbers = range(first, min(first + _BATCH, count + 1))
            rows = [{"name": f"{prefix}-{n:04d}", "command": command(n)} for n in numbers]
            if room_bytes >= 0:
                rows = [self._padded(row, room_bytes) for row in rows]
            text = "".join(f"{json.dumps(row)}\n" for row in rows)
            words = ("--from", "-", "--format", "jsonl", "--retries", "3", "--if-absent")
            if self.insist(client, "enqueue", *words, text=text):
                with self._lock:
                    self.promised |= {row["name"] for row in rows}

    def _padded(self, row: dict[str, str], room_bytes: int) -> dict[str, str]:
        spec = TaskSpec(**row, project_dir=str(self.notes), retries=3)
        missing = _PAGE - room_bytes - len(compose(spec, "0" * 12))
        return {**row, "command": f"{row['command']}\n#{'p' * (missing - 2)}"}

    def enqueue_one(self, client: int, name: str, *words: str) -> None:
        """Enqueues one task until it is there."""
        if self.insist(client, "enqueue", "-n", name, "--if-absent", *words, NOTES_ITS_RUN):
            with self._lock:
                self.promised.add(name)

    def cancel_and_retry(self, client: int, name: str) -> None:
        """Cancels a task; one that ends cancelled is put back, so that in the end all are done."""
        self.give(client, "cancel", name)
        time.sleep(_PAUSE_S)
        self.give(client, "retry", name)

    def run(self, client: int, workers: int, until: Callable[[], bool]) -> None:
        """Runs workers, and starts them again when they have left, until all is done."""
        while not until():
            process = self.start(client, "run", "--workers", str(workers), "--heartbeat", "0.5")
            self.await_end(process, "run")
            time.sleep(_PAUSE_S)

    def kill_workers(self, until: Callable[[], bool], most: int) -> None:
        """Kills a worker of this fleet now and then, without warning, from the first run on."""
        while self.kills < most and not until():
            time.sleep(_LOOK_S)
            workers = workers_of(str(self.roots[0].parent.parent))
            if not workers or not (self.notes / "ran").exists():
                continue
            try:
                os.kill(self._random.choice(workers), signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.kills += 1
            time.sleep(_KILL_EVERY_S * self._random.uniform(0.5, 1.5))


def usual_command(number: int) -> str:
    """The command of a task: most are short, some fail once, some take a moment."""
    if number % 10 == 3:
        return f"{NOTES_ITS_RUN}; test $FLEET_ATTEMPT -gt 1"
    if number % 10 == 7:
        return f"{NOTES_ITS_RUN}; sleep 0.3"
    return NOTES_ITS_RUN


def processes_of(base: str) -> dict[int, int]:
    """Processes of fleetcraft whose command line names a folder, with their parents.

    They are those of one test, and nobody else's.
    """
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        ours = any(word.startswith(b"fleetcraft") for word in words)
        if ours and f"{base}/".encode() in b" ".join(words):
            found[int(entry)] = parent
    return found


def workers_of(base: str) -> list[int]:
    """Those whose parent is one too: ``run`` forks its workers, or starts them afresh."""
    known = processes_of(base)
    return [pid for pid, parent in known.items() if parent in known]


def last_sentence(text: str) -> str:
    """The last line of an error that is no hint."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    plain = [line for line in lines if not line.startswith(("hint:", "expected:"))]
    # Neither this machine's folders nor its identity belong on a page.
    sentence = re.sub(r"/\S*/(?=(?:tree|taskq)\b)", ".../", (plain or [""])[-1])
    return re.sub(r"\bL[0-9a-f]{12}\b", "L...", sentence)
