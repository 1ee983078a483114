"""Locks, rollouts, archives and the logger on a mount that misbehaves, by processes of their own.

``python -m tests.crash.mounts.others ROLE TREE NOTES NUMBER`` is one such process. Not here: the
spool (`fleet_work`). Invariant: what a process was told has happened it notes off the mount, and
the proof is made on the backing folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetcraft.errors import FleetError
from tests.crash.mounts.fleet_work import Fleet
from tests.crash.mounts.mounting import REPO, Mount, mounted
from tests.crash.mounts.troubles import Trouble

TURNS = 6
BATCHES = 3
_TRIES = 300
_PAUSE_S = 0.05
_CHILD_S = 90.0
_LOG_S = 20.0
_ROWS = 5


@dataclass(frozen=True, kw_only=True)
class Work:
    """One kind of work under one trouble.

    Attributes:
        what: ``lock``, ``rollouts``, ``archive`` or ``logger``.
        done: What was achieved, in a few words.
        refused: How often it said no and was tried again.
        fault: What did not hold; empty if all did.
    """

    what: str
    done: str
    refused: int
    fault: str = ""


def put_others_through(trouble: Trouble, base: Path, *, seed: int = 0) -> tuple[list[Work], int]:
    """Does all four under one trouble; returns what came of them, and how often rules fired."""
    notes = base / "notes"
    notes.mkdir()
    with ExitStack() as stack:
        mounts = [
            stack.enter_context(mounted(base, seed=seed + client, name=f"client{client}"))
            for client in range(trouble.clients)
        ]
        fleet = Fleet([mount.folder / "tree" for mount in mounts], notes, seed)
        if trouble.always:
            _give(mounts, trouble)
        fleet.insist(0, "init")
        _child("prepare", mounts[0].folder / "tree", notes, 0)
        _give(mounts, trouble)
        results: dict[str, Work] = {}
        jobs = [
            threading.Thread(target=lambda name=name, do=do: results.update({name: do()}))
            for name, do in _jobs(fleet, mounts, notes).items()
        ]
        for thread in jobs:
            thread.start()
        for thread in jobs:
            thread.join()
        fired = sum(sum(sum(by.values()) for by in mount.fired().values()) for mount in mounts)
    return [results[name] for name in sorted(results)], fired


def _give(mounts: list[Mount], trouble: Trouble) -> None:
    for mount in mounts:
        mount.give(*trouble.rules)


def _jobs(fleet: Fleet, mounts: list[Mount], notes: Path) -> dict[str, Callable[[], Work]]:
    trees = [mount.folder / "tree" for mount in mounts]
    backing = mounts[0].backing / "tree"
    return {
        "lock": lambda: _locks(trees, notes),
        "rollouts": lambda: _rollouts(trees, backing, notes),
        "archive": lambda: _archive(fleet, trees[0], backing, notes),
        "logger": lambda: _logger(fleet, trees[0], backing),
    }


# ---------------------------------------------------------------- the four, from outside


def _locks(trees: list[Path], notes: Path) -> Work:
    said = _children([("lock", trees[n % len(trees)], notes, n) for n in range(3)])
    turns = sum(told.get("turns", 0) for told in said)
    faults = [told["fault"] for told in said if told.get("fault")]
    if turns != 3 * TURNS:
        faults.append(f"{turns} of {3 * TURNS} turns were had")
    return Work(
        what="lock", done=f"{turns} turns of 3 processes, one at a time",
        refused=sum(told.get("refused", 0) for told in said), fault="; ".join(faults),
    )  # fmt: skip


def _rollouts(trees: list[Path], backing: Path, notes: Path) -> Work:
    said = _children(
        [("produce", trees[0], notes, 0), ("produce", trees[-1], notes, 1),
         ("train", trees[0], notes, 0)]
    )  # fmt: skip
    faults = [told["fault"] for told in said if told.get("fault")]
    audit = _fleetcraft("rollouts", "audit", str(backing / "rollouts"), "--json")
    if audit.returncode != 0:
        faults.append(f"audit says {audit.returncode}: {audit.stdout[:300]} {audit.stderr[:300]}")
    return Work(
        what="rollouts", done=f"{said[2].get('commits', 0)} commits, audited",
        refused=sum(told.get("refused", 0) for told in said), fault="; ".join(faults),
    )  # fmt: skip


def _archive(fleet: Fleet, tree: Path, backing: Path, notes: Path) -> Work:
    source = notes / "results"
    source.mkdir()
    for number in range(12):
        (source / f"{number}.txt").write_bytes(os.urandom(3000))
    before = sum(fleet.said.refusals.values())
    frozen = fleet.insist(0, "evidence", "freeze", str(source), "--name", "results")
    archived = frozen and fleet.insist(
        0, "evidence", "archive", "results", str(tree / "archives/results")
    )
    fault = "" if archived else "it was never archived"
    if archived:
        verified = _fleetcraft("evidence", "verify", str(backing / "archives/results"))
        if verified.returncode != 0:
            fault = f"verify says {verified.returncode}: {verified.stderr[:300]}"
    refused = sum(fleet.said.refusals.values()) - before
    faults = [fault, *fleet.said.faults]
    return Work(what="archive", done="12 files, verified from the backing folder",
                refused=refused, fault="; ".join(filter(None, faults)))  # fmt: skip


def _logger(fleet: Fleet, tree: Path, backing: Path) -> Work:
    words = ("telemetry", "log", str(tree / "telemetry"), "0.2")
    process = fleet.start(0, *words)
    end_s = time.monotonic() + _LOG_S
    refused = 0
    while _rows(backing) < _ROWS and time.monotonic() < end_s:
        time.sleep(_PAUSE_S)
        if process.poll() is not None:  # as the keeper of a worker's logger does
            refused += 1
            process.communicate()
            process = fleet.start(0, *words)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=_CHILD_S)
    fault = "" if "Traceback" not in err else f"a traceback: {err[-300:]}"
    fault = fault or ("" if _rows(backing) >= _ROWS else f"only {_rows(backing)} rows")
    inspected = _fleetcraft("telemetry", "inspect", str(backing / "telemetry"), "--json")
    if inspected.returncode not in {0, 1, 7} or "Traceback" in inspected.stderr:
        fault = fault or f"inspect says {inspected.returncode}: {inspected.stderr[:300]}"
    done = f"{_rows(backing)} rows, exit code {process.returncode}"
    return Work(what="logger", done=done, refused=refused, fault=fault)


def _rows(backing: Path) -> int:
    files = (backing / "telemetry").glob("*.csv")
    return sum(max(0, len(file.read_bytes().splitlines()) - 1) for file in files)


def _fleetcraft(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fleetcraft", *words], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPO)}, timeout=_CHILD_S,
    )  # fmt: skip


def _children(asked: list[tuple[str, Path, Path, int]]) -> list[dict[str, Any]]:
    processes = [_start(*words) for words in asked]
    return [_end(process, words[0]) for process, words in zip(processes, asked, strict=True)]


def _child(role: str, tree: Path, notes: Path, number: int) -> dict[str, Any]:
    return _end(_start(role, tree, notes, number), role)


def _start(role: str, tree: Path, notes: Path, number: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.mounts.others", role, str(tree), str(notes),
         str(number)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip


def _end(process: subprocess.Popen[str], role: str) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=_CHILD_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"fault": f"{role} did not end within {_CHILD_S:.0f} s"}
    if process.returncode != 0:
        return {"fault": f"{role}: {(err.strip().splitlines() or ['no word'])[-1]}"}
    told: dict[str, Any] = json.loads(out)
    return told


# ---------------------------------------------------------------- the roles


def _prepare(tree: Path, notes: Path, number: int) -> dict[str, Any]:
    from fleetcraft.rollouts.queue import RolloutQueue
    from fleetcraft.rollouts.records import Settings

    _patiently(lambda: os.makedirs(tree / "lock", mode=0o700, exist_ok=True))
    settings = Settings(run="r", batch=4, group=2, lock_interval_s=0.3)
    _patiently(lambda: RolloutQueue.create(str(tree / "rollouts"), settings))
    return {}


def _lock(tree: Path, notes: Path, number: int) -> dict[str, Any]:
    """Owns the lock so often, and notes off the mount that nobody else did meanwhile."""
    from fleetcraft.locks import GenerationLock

    lock = GenerationLock(str(tree / "lock"), purpose="the test", interval_s=0.3)
    turns = refused = 0
    for _ in range(_TRIES):
        if turns == TURNS:
            break
        try:
            held = lock.acquire()
        except (FleetError, OSError):
            refused += 1
            time.sleep(_PAUSE_S)
            continue
        try:
            held.check()
            os.close(os.open(notes / "inside", os.O_CREAT | os.O_EXCL))
            time.sleep(0.01)
            os.unlink(notes / "inside")
            turns += 1
        except FileExistsError:
            return {"turns": turns, "fault": "two processes owned the lock at one time"}
        except (FleetError, OSError):
            refused += 1
        finally:
            _quietly(held.release)
        time.sleep(_PAUSE_S)
    return {"turns": turns, "refused": refused}


def _produce(tree: Path, notes: Path, number: int) -> dict[str, Any]:
    from fleetcraft.rollouts.producer import Producer

    refused = published = 0
    for _ in range(_TRIES):
        if published >= 4 * BATCHES:
            break
        try:
            with Producer(str(tree / "rollouts"), f"s{number}", shape="1x1x1") as producer:
                for unit in producer:
                    for sample in unit.samples:
                        unit.publish(sample, values={"log_probs": [0.5]}, scalars={"reward": 1.0})
                        published += 1
                    if published >= 4 * BATCHES:
                        break
        except (FleetError, OSError):
            refused += 1
            time.sleep(_PAUSE_S)
    return {"published": published, "refused": refused}


def _train(tree: Path, notes: Path, number: int) -> dict[str, Any]:
    from fleetcraft.rollouts.queue import RolloutQueue
    from fleetcraft.rollouts.trainer import RolloutTrainer

    commits = refused = 0
    for _ in range(_TRIES):
        if commits >= BATCHES:
            break
        try:
            with RolloutTrainer(RolloutQueue.open(str(tree / "rollouts")), gpus=1) as trainer:
                for batch in trainer.batches(limit=BATCHES - commits, patience_s=5.0, poll_s=0.1):
                    batch.computed()
                    folder = notes / f"step-{batch.version}"
                    folder.mkdir(exist_ok=True)
                    batch.commit(str(folder), hashlib.sha256(folder.name.encode()).hexdigest())
                    commits += 1
        except (FleetError, OSError):
            refused += 1
            time.sleep(_PAUSE_S)
    fault = "" if commits >= BATCHES else f"only {commits} of {BATCHES} were committed"
    return {"commits": commits, "refused": refused, "fault": fault}


def _patiently(act: Callable[[], object]) -> None:
    for left in reversed(range(_TRIES)):
        try:
            act()
        except (FleetError, OSError):
            if not left:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _quietly(act: Callable[[], object]) -> None:
    with suppress(FleetError, OSError):
        act()


_ROLES = {"prepare": _prepare, "lock": _lock, "produce": _produce, "train": _train}

if __name__ == "__main__":
    role, tree, notes, number = sys.argv[1:]
    print(json.dumps(_ROLES[role](Path(tree), Path(notes), int(number))))
