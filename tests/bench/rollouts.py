"""The trajectory queue under kills: producers, trainers and an auditor, each a process of its own.

Run alone: `python -m tests.bench.rollouts [--records N] [--kills RECORDS]`. Producers publish
through streams and admission; one of two trainers owns the lock, and both are restarted whenever
they end; random ones are killed. A watcher that nobody kills lists the queue all the while. At the
end one recovery pass and one audit decide. Prints a table.

Invariant: nothing is counted by the processes under test; the end is judged by the files alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fleetcraft.errors import FleetError, TryAgainLaterError
from fleetcraft.layout.rollouts import Place, transaction_of_folder
from fleetcraft.rollouts.admission import reservations
from fleetcraft.rollouts.audit import Audit, audit
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Settings
from fleetcraft.rollouts.requeue import requeue_dead
from tests.rollouts.filling import QuickFS

REPO = Path(__file__).resolve().parents[2]
PRODUCERS = 8
TRAINERS = 2
SETTINGS = Settings(
    run="bench", batch=64, group=4, high_water=160, low_water=128, max_lag=8,
    beat_s=5.0, fresh_s=30.0, lock_interval_s=0.1,
)  # fmt: skip


def produce(folder: str, stream: str, units: int) -> int:
    """A producer: so many units of one group each, then it leaves."""
    from fleetcraft.rollouts.producer import Producer

    queue = RolloutQueue.open(folder, fs=QuickFS())
    with Producer(queue, stream, shape="x", poll_s=0.02) as producer:
        for unit in producer:
            if unit.sequence >= units:
                return 0
            for sample in unit.samples:
                unit.publish(sample, values={"log_probs": [-1.0] * 8}, gpu_s=1.0)
    return 0


def train(folder: str) -> int:
    """A trainer: whole batches until there are none for a while."""
    from fleetcraft.rollouts.trainer import RolloutTrainer

    queue = RolloutQueue.open(folder, fs=QuickFS())
    with RolloutTrainer(queue, gpus=1.0) as trainer:
        for batch in trainer.batches(patience_s=3.0, poll_s=0.02):
            batch.commit(f"step-{batch.version}", f"{batch.version:064x}")
    return 0


class Filled(NamedTuple):
    """What a watcher saw of the room: how often it looked, and the most that it saw at once."""

    looks: int = 0
    pending: int = 0
    granted: int = 0
    both: int = 0
    with_claimed: int = 0


def fill_of(queue: RolloutQueue) -> tuple[set[Place], set[Place], set[Place]]:
    """What is granted, pending, and may come back, listed in the order in which records move.

    What is only asked for is no room: it is made first and counted after, and may be withdrawn.
    What may come back is claimed by a transaction of which no commit stands afterwards.
    """
    granted = {name.place for name in reservations(queue) if not name.asked}
    pending = {name.place for name in queue.names(queue.paths.pending)}
    claimed = [
        ({name.place for name in names}, transaction_of_folder(folder))
        for folder, names in queue.claims()
    ]
    coming_back = [
        places
        for places, transaction in claimed
        if transaction and not queue.fs.exists(queue.paths.commit(transaction.version))
    ]
    return granted, pending, set().union(*coming_back)


def watch_room(queue: RolloutQueue, stop: threading.Event, *, pause_s: float = 0.01) -> Filled:
    """Looks at the room again and again until it is told to stop.

    Two passes over the folders bound an instant between them: what both saw was there then, for an
    identity that has left does not come back other than from a claim. So this never counts too
    many, and misses only what came or went within a few hundredths of a second.
    """
    most = Filled()
    while not stop.is_set():
        first, second = fill_of(queue), fill_of(queue)
        both = (first[0] | first[1]) & (second[0] | second[1])
        with_claimed = set[Place]().union(*first) & set[Place]().union(*second)
        most = Filled(
            looks=most.looks + 1,
            pending=max(most.pending, len(first[1] & second[1])),
            granted=max(most.granted, len(first[0] & second[0])),
            both=max(most.both, len(both)),
            with_claimed=max(most.with_claimed, len(with_claimed)),
        )
        stop.wait(pause_s)
    return most


def watch(folder: str) -> int:
    """A watcher: looks until it is terminated, then says what it saw."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print(json.dumps(watch_room(RolloutQueue.open(folder, fs=QuickFS()), stop)), flush=True)
    return 0


class Watcher:
    """A watcher as a process beside the fleet."""

    def __init__(self, folder: str) -> None:
        self._process = start("w0", folder, stdout=subprocess.PIPE)

    def stop(self) -> Filled:
        """Ends it, and returns what it saw."""
        self._process.terminate()
        said, _ = self._process.communicate(timeout=60)
        return Filled(*json.loads(said))


def start(name: str, folder: str, units: int = 0, *, stdout: int = subprocess.DEVNULL) -> Any:
    """Starts one process of this script."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.rollouts", "--as", name, folder,
         "--units", str(units)],
        cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)},
        stdout=stdout, stderr=subprocess.DEVNULL,
    )  # fmt: skip


class Fleet:
    """The processes; whoever ended is started again until it is no longer wanted."""

    def __init__(self, folder: str, units: int) -> None:
        self._folder = folder
        self.units = units
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def keep(self, name: str) -> None:
        """Starts a process, or again if it ended."""
        process = self.running.get(name)
        if process is not None and process.poll() is None:
            return
        if process is not None:
            self.ended[f"{name[0]} {process.returncode}"] += 1
        self.running[name] = start(name, self._folder, self.units)

    def kill_one(self, rng: random.Random) -> None:
        """Ends one of them without warning."""
        name = rng.choice(sorted(self.running))
        process = self.running[name]
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.kills["trainer" if name.startswith("t") else "producer"] += 1

    def stop(self) -> None:
        """Ends all of them."""
        for process in self.running.values():
            process.kill()
            process.wait()


def published(queue: RolloutQueue, streams: list[str]) -> dict[str, int]:
    """Units that each stream has begun to publish, by the names of its identities."""
    found = {}
    for stream in streams:
        names = queue.listing(queue.paths.ident_folder(stream))
        found[stream] = 1 + max((int(name.partition(".")[0]) for name in names), default=-1)
    return found


def storm(
    folder: str, records: int, kill_every: float, seed: int, *, producers: int = PRODUCERS
) -> dict[str, Any]:
    """Runs the fleet until every stream has published its units, and trains on what is left.

    Kills come with progress, one for so many records: by the clock, a machine that is busy would
    get nothing done between two of them.
    """
    rng = random.Random(seed)
    queue = RolloutQueue.create(folder, SETTINGS, fs=QuickFS())
    streams = [f"p{number}" for number in range(producers)]
    fleet = Fleet(folder, max(1, records // SETTINGS.group // producers))
    looks = false_alarms = 0
    watcher = Watcher(folder)
    began, next_kill = time.monotonic(), 0.0
    try:
        while True:
            done = published(queue, streams)
            for name in streams:
                if done[name] < fleet.units:
                    fleet.keep(name)
            for number in range(TRAINERS):
                fleet.keep(f"t{number}")
            if looks % 40 == 0 and not audit(queue, records=False).ok:
                false_alarms += 1
            looks += 1
            if all(count >= fleet.units for count in done.values()):
                break
            made = sum(done.values()) * SETTINGS.group
            if kill_every and made >= next_kill:
                fleet.kill_one(rng)
                next_kill = made + rng.uniform(0, 2 * kill_every)
            time.sleep(0.05)
    finally:
        fleet.stop()
        room = watcher.stop()
    wall_s = time.monotonic() - began
    end(queue, streams)
    return {
        "wall_s": wall_s, "kills": fleet.kills, "room": room,
        "false_alarms": false_alarms, "ended": fleet.ended, "queue": queue,
    }  # fmt: skip


def end(queue: RolloutQueue, streams: list[str]) -> None:
    """What the next holder of each stream and of the lock does, undisturbed."""
    for stream in streams:
        produce(queue.paths.folder, stream, 0)
    for _ in range(50):
        try:
            requeue_dead(queue)
            break
        except TryAgainLaterError:
            time.sleep(0.2)
    train(queue.paths.folder)


def rows(report: dict[str, Any], found: Audit) -> Iterator[tuple[str, str]]:
    """The table."""
    ledger = Ledger.load(report["queue"])
    accounted = found.committed + found.pending + found.claimed + sum(found.quarantined.values())
    yield "records published", str(accounted)
    yield "wall, s", f"{report['wall_s']:.0f}"
    yield "records committed a second", f"{found.committed / max(report['wall_s'], 1e-9):.0f}"
    yield "killed", ", ".join(f"{n} {who}s" for who, n in sorted(report["kills"].items())) or "0"
    yield "versions", str(found.version)
    yield "committed", str(found.committed)
    yield "committed more than once", str(found.trained_twice)
    yield "pending", str(found.pending)
    yield "quarantined", str({key.value: n for key, n in found.quarantined.items()} or 0)
    yield "missing", str(found.missing)
    yield "half published", str(found.half_published)
    yield "rolled back", str(found.rolled_back)
    room: Filled = report["room"]
    yield "looks at the room", str(room.looks)
    yield "most pending", str(room.pending)
    yield "most reserved (granted)", str(room.granted)
    yield "most pending and reserved", f"{room.both} of {SETTINGS.high_water}"
    yield "most of these and of what may come back", f"{room.with_claimed} of {SETTINGS.high_water}"
    yield "audits beside it that were not ok", str(report["false_alarms"])
    yield "audit", f"{found.ok} {list(found.problems[:3])}"
    yield "identities in memory", str(len(ledger.consumed))
    yield "memory of this process, MiB", f"{_peak_mib():.0f}"


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Prints one table; the exit code is 0 when everything held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--kills", type=float, default=50, help="mean records between kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default="")
    parser.add_argument("--as", dest="role", nargs=2, metavar=("NAME", "DIR"))
    parser.add_argument("--units", type=int, default=0)
    given = parser.parse_args()
    if given.role:
        name, folder = given.role
        try:
            if name[0] == "p":
                return produce(folder, name, given.units)
            return train(folder) if name[0] == "t" else watch(folder)
        except FleetError as error:
            return error.exit_code
    base = given.folder or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    folder = tempfile.mkdtemp(dir=base, prefix="fleet-rollouts-")
    try:
        report = storm(f"{folder}/queue", given.records, given.kills, given.seed)
        found = audit(report["queue"])
        for label, value in rows(report, found):
            print(f"{label:<44}{value}")
        room: Filled = report["room"]
        within = room.looks > 0 and max(room.both, room.with_claimed) <= SETTINGS.high_water
        return 0 if found.ok and within and not report["false_alarms"] else 1
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
