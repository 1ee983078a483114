"""Controllers that all find one invalid done, and what saving and verifying costs.

Run alone: `python -m tests.bench.checkpoint_claims [CONTROLLERS] [PASSES]`; 8 and 1000 by default.
Every controller is a process; a pass reads the task's record, its checkpoints and its claims as
`fleetcraft train claims --resume` does. Invariant: what is counted is read from the tree, not from
what controllers said alone.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fleetcraft.training.checkpoint.claims import read_claims
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import Level, Part
from fleetcraft.training.checkpoint.store import CheckpointStore
from tests.training.checkpoint.incident import TASK, Incident
from tests.training.checkpoint.stores import save

REPO = Path(__file__).resolve().parents[2]
SHARD_BYTES = 64 << 20
SHARDS = 4
_CONTROLLER = """
import sys
from fleetcraft.layout.runs import RunPaths
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.training.checkpoint.resuming import look_at_run
paths, tree, passes = RunPaths(sys.argv[1]), SpoolTree(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(passes):
    print(look_at_run(paths, tree, resume=True).standing.value)
"""


def contend(root: Path, controllers: int, passes: int) -> tuple[Counter[str], int, int, float]:
    """What controllers said, claims, spool tasks beside the done one, and seconds."""
    incident = Incident(root)
    incident.declare()
    incident.end_task(TASK)
    save(incident.store, 30)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _CONTROLLER, incident.paths.folder, incident.spool_dir,
             str(passes)],
            env={**os.environ, "PYTHONPATH": str(REPO)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(controllers)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said: Counter[str] = Counter()
    for process in processes:
        out, _ = process.communicate()
        assert process.returncode == 0
        said.update(out.split())
    seconds = time.monotonic() - began
    claims = len(read_claims(incident.paths, TASK))
    tasks = len(os.listdir(incident.spool.tree.paths.names)) - 1
    return said, claims, tasks, seconds


def rates(root: Path) -> tuple[float, float, float]:
    """Seconds to save (forced to disk and hashed), to verify sizes, and to verify hashes."""
    store = CheckpointStore(root / "checkpoints")
    block = os.urandom(1 << 20)
    saving = store.save(1, protocol=PLAIN_RUN)
    for number in range(SHARDS):
        with open(saving.path(f"weights-{number}.bin"), "wb") as file:
            for _ in range(SHARD_BYTES >> 20):
                file.write(block)
        saving.part(Part.WEIGHTS, f"weights-{number}.bin")
    times = []
    began = time.monotonic()
    saving.done()
    manifest = saving.commit()
    times.append(time.monotonic() - began)
    for level in (Level.SIZES, Level.HASHES):
        began = time.monotonic()
        assert store.verify(manifest, level).answer
        times.append(time.monotonic() - began)
    return times[0], times[1], times[2]


def small_saves(root: Path, count: int) -> float:
    """Median milliseconds of a save of five tiny files of one rank, durable."""
    store = CheckpointStore(root / "small")
    taken = []
    for step in range(count):
        began = time.monotonic()
        save(store, step)
        taken.append(time.monotonic() - began)
    return statistics.median(taken) * 1e3


def main() -> None:
    """Prints one line for each figure."""
    controllers = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    passes = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    with tempfile.TemporaryDirectory(prefix="fleet-claims-") as made:
        root = Path(made)
        said, claims, tasks, seconds = contend(root / "claims", controllers, passes)
        words = ", ".join(f"{count} {word}" for word, count in said.most_common())
        print(f"{controllers} controllers x {passes} passes over one invalid done: {words}")
        print(f"  resume claims: {claims} (goal 1); resume tasks in the spool: {tasks} (goal 1)")
        print(f"  {seconds:.1f} s, {seconds / passes * 1e3:.2f} ms a pass with all at once")
        size_mb = SHARDS * SHARD_BYTES / 1e6
        saved_s, sizes_s, hashes_s = rates(root)
        print(
            f"{size_mb:.0f} MB in {SHARDS} files: forced to disk, hashed, committed in "
            f"{saved_s:.2f} s ({size_mb / saved_s:.0f} MB/s); sizes in {sizes_s * 1e3:.2f} ms; "
            f"hashes in {hashes_s:.2f} s ({size_mb / hashes_s:.0f} MB/s, cached)"
        )
        print(f"save of five tiny files, durable: {small_saves(root, 20):.1f} ms (median of 20)")


if __name__ == "__main__":
    main()
