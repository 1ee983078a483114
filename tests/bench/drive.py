"""The measured side of the API benchmarks, in a process of its own, so that it holds nothing else.

``worker SPOOL MARKS``: one worker; prints time, CPU and memory at the ends of the tasks with
these numbers, and leaves after the last. ``fleet SPOOL WORKERS``: a local fleet. ``batch SPOOL
COUNT``: one durable batch. ``bare FOLDER COUNT BYTES``: the same file operations in a bare loop.
All print JSON. Invariant: imports no more than what it measures.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def worker(spool: str, marks_text: str) -> None:
    import resource
    import signal

    from fleetcraft.worker.loop import run_worker
    from fleetcraft.worker.settings import WorkerSettings

    marks = [int(text) for text in marks_text.split(",") if text]
    found: list[dict[str, float]] = []
    ends = 0

    def look() -> dict[str, float]:
        own = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "ends": ends,
            "wall_s": time.perf_counter(),
            "own_cpu_s": own.ru_utime + own.ru_stime,
            "children_cpu_s": children.ru_utime + children.ru_stime,
            **memory_kib(os.getpid()),
        }

    def on_event(event: Mapping[str, object]) -> None:
        nonlocal ends
        if event["event"] != "end":
            return
        ends += 1
        if ends in marks:
            found.append(look())
        if marks and ends == marks[-1]:
            os.kill(os.getpid(), signal.SIGUSR1)  # "the allocation ends soon": finish and leave

    found.append(look())
    root = os.path.dirname(spool)
    run_worker(WorkerSettings(spool_dir=spool, root=root, idle_s=600.0), on_event)
    print(json.dumps(found))


def memory_kib(pid: int) -> dict[str, float]:
    """Resident size now and at its highest, from /proc."""
    with open(f"/proc/{pid}/status") as file:
        facts = dict(line.split(":", 1) for line in file)
    return {
        "rss_kib": float(facts["VmRSS"].split()[0]),
        "peak_kib": float(facts["VmHWM"].split()[0]),
    }


def fleet(spool: str, workers: str) -> None:
    from fleetcraft.worker.local_fleet import run_local
    from fleetcraft.worker.settings import WorkerSettings

    settings = WorkerSettings(spool_dir=spool, root=os.path.dirname(spool))
    report = run_local(settings, int(workers), lambda event: None)
    print(json.dumps({"done": report.done, "failed": report.failed}))


def batch(spool_dir: str, count: str) -> None:
    from fleetcraft import Spool

    spool = Spool(spool_dir, project_dir=os.path.dirname(spool_dir))
    started = time.perf_counter()
    specs = [spool.spec(f"task-{number:06d}", "true") for number in range(int(count))]
    made = time.perf_counter()
    report: Any = spool.enqueue_many(specs)
    ended = time.perf_counter()
    print(json.dumps({"specs_s": made - started, "wall_s": ended - made, "made": report.enqueued}))


def bare(folder: str, count_text: str, size: str) -> None:
    count = int(count_text)
    data = b"#" * int(size)
    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("tmp", "names", "pending"):
        os.mkdir(f"{folder}/{name}", 0o700)
    started = time.perf_counter()
    for number in range(count):
        fd = os.open(f"{folder}/tmp/{number:012x}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        os.write(fd, data)
        os.close(fd)
    for number in range(count):
        os.link(f"{folder}/tmp/{number:012x}", f"{folder}/names/task-{number:06d}")
    fd = os.open(folder, os.O_RDONLY)
    if libc.syncfs(fd) != 0:
        raise OSError(ctypes.get_errno(), "syncfs")
    os.close(fd)
    for number in range(count):
        os.rename(f"{folder}/tmp/{number:012x}", f"{folder}/pending/task-{number:06d}.sh")
    print(json.dumps({"wall_s": time.perf_counter() - started}))


if __name__ == "__main__":
    {"worker": worker, "fleet": fleet, "batch": batch, "bare": bare}[sys.argv[1]](*sys.argv[2:])
