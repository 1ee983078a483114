"""The trajectory queue under kills: producers, trainers and an auditor, each a process of its own.

Run alone: `python -m tests.bench.rollouts [--records N] [--kills SECONDS]`. Producers publish
through streams and admission; one of two trainers owns the lock, and both are restarted whenever
they end; random ones are killed. At the end one recovery pass and one audit decide. Prints a table.

Invariant: nothing is counted by the processes under test; the end is judged by the files alone.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleetcraft.errors import FleetError, TryAgainLaterError
from fleetcraft.rollouts.admission import look
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
        self.running[name] = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.rollouts", "--as", name, self._folder,
             "--units", str(self.units)],
            cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

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
    folder: str, records: int, kill_every_s: float, seed: int, *, producers: int = PRODUCERS
) -> dict[str, Any]:
    """Runs the fleet until every stream has published its units, and trains on what is left."""
    rng = random.Random(seed)
    queue = RolloutQueue.create(folder, SETTINGS, fs=QuickFS())
    streams = [f"p{number}" for number in range(producers)]
    fleet = Fleet(folder, max(1, records // SETTINGS.group // producers))
    highest = reserved = looks = false_alarms = 0
    began = next_kill = time.monotonic()
    try:
        while True:
            done = published(queue, streams)
            for name in streams:
                if done[name] < fleet.units:
                    fleet.keep(name)
            for number in range(TRAINERS):
                fleet.keep(f"t{number}")
            highest = max(highest, len(queue.names(queue.paths.pending)))
            room = look(queue)
            reserved = max(reserved, len(room.waiting) if room else 0)
            if looks % 40 == 0 and not audit(queue, records=False).ok:
                false_alarms += 1
            looks += 1
            if all(count >= fleet.units for count in done.values()):
                break
            if kill_every_s and time.monotonic() >= next_kill:
                fleet.kill_one(rng)
                next_kill = time.monotonic() + rng.uniform(0, 2 * kill_every_s)
            time.sleep(0.05)
    finally:
        fleet.stop()
    wall_s = time.monotonic() - began
    end(queue, streams)
    return {
        "wall_s": wall_s, "kills": fleet.kills, "highest": highest, "reserved": reserved,
        "looks": looks, "false_alarms": false_alarms, "ended": fleet.ended, "queue": queue,
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
    most = f"{report['highest']} of {SETTINGS.high_water}"
    yield "most pending", f"{most}, {report['looks']} looks"
    # A reservation is made first and counted after, so one that is withdrawn is seen here too.
    yield "most pending, reserved or trying", str(report["reserved"])
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
    parser.add_argument("--kills", type=float, default=0.5, help="mean seconds between kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default="")
    parser.add_argument("--as", dest="role", nargs=2, metavar=("NAME", "DIR"))
    parser.add_argument("--units", type=int, default=0)
    given = parser.parse_args()
    if given.role:
        name, folder = given.role
        try:
            return train(folder) if name[0] == "t" else produce(folder, name, given.units)
        except FleetError as error:
            return error.exit_code
    base = given.folder or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    folder = tempfile.mkdtemp(dir=base, prefix="fleet-rollouts-")
    try:
        report = storm(f"{folder}/queue", given.records, given.kills, given.seed)
        found = audit(report["queue"])
        for label, value in rows(report, found):
            print(f"{label:<36}{value}")
        held = found.ok and report["highest"] <= SETTINGS.high_water
        return 0 if held and not report["false_alarms"] else 1
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
