"""One act on one spool in a process that loads no more than the product does for it.

Tells seconds and peak memory as JSON. Invariant: it is timed from the first call to its return,
what it needs being loaded.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from fleetcraft.spool.tree import SpoolTree

ACTS = ("status", "counts", "listing", "show", "recover", "promote", "enqueue", "check")
BATCH = 1_000


def prepared(tree: SpoolTree, act: str, turn: int, done: str) -> Callable[[], Any]:
    """The act, with what it needs loaded and made.

    Args:
        tree: The spool.
        act: Which.
        turn: Differs with each repetition: its tasks have names of their own.
        done: A task that is done.
    """
    if act in ("status", "counts", "show"):
        from fleetcraft.spool import views

        return {
            "status": lambda: views.status(tree),
            "counts": lambda: views.counts(tree),
            "show": lambda: views.show(tree, done),
        }[act]
    if act == "listing":
        from fleetcraft.spool.queue import Queue

        return lambda: Queue(tree, 3, 8).next()
    if act == "recover":
        from fleetcraft.spool.recovery import ask_this_machine, recover

        ask = ask_this_machine()
        return lambda: recover(tree, ask, dry_run=True)
    if act == "promote":
        from fleetcraft.spool.promotion import Promoter

        return Promoter(tree).refresh
    if act == "enqueue":
        from fleetcraft.spool.directives import TaskSpec
        from fleetcraft.spool.enqueue import enqueue_batch

        specs = [
            TaskSpec(name=f"turn-{turn}-{number:05d}", command="true", project_dir="/project")
            for number in range(BATCH)
        ]
        return lambda: enqueue_batch(tree, specs)
    from fleetcraft.spool.check import check

    return lambda: check(tree)


def peak_mib() -> float:
    """The largest resident size since this program began; `getrusage` has its parent's too."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


def main() -> None:
    """Does what the command line says."""
    root, act, turn, done = sys.argv[1:]
    do = prepared(SpoolTree(root), act, int(turn), done)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    do()
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "peak_mib": peak_mib()}))


if __name__ == "__main__":
    main()
