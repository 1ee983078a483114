"""Memory and idleness of one worker: its size after many tasks, and its CPU with nothing to do.

Invariant: the worker is measured alone; its tasks are other processes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from tests.bench.claims import worker_marks
from tests.bench.drive import memory_kib
from tests.bench.measure import (
    DRIVE,
    REPO,
    Bench,
    BenchError,
    Row,
    Section,
    clean_environment,
    process_cpu_s,
)
from tests.bench.spools import empty_spool, filled_spool

FIRST = 1000
PEAK_GOAL_MIB = 40
GROWTH_LIMIT_MIB = 0.5  # allocator noise; a leak of 30 bytes a task would show at 20,000
IDLE_GOAL_PCT = 0.1


def measure(bench: Bench) -> Section:
    """One busy worker, one idle one."""
    section = Section(
        name="memory",
        title="one worker's memory, and its CPU when idle",
        how="Resident size of a worker (`run_worker` in a process of its own) from /proc, while it "
        "drains tasks of `true`; CPU of an idle one from the scheduler's nanoseconds.",
    )
    count = bench.pick(20_000, 3_000)
    marks = worker_marks(bench, filled_spool(bench, count + 1), [FIRST, count])
    first, last = marks[1], marks[2]
    peak = last["peak_kib"] / 1024
    growth = (last["rss_kib"] - first["rss_kib"]) / 1024
    section.rows += [
        Row(
            what=f"peak resident size, {count:,} tasks",
            measured=f"{peak:.1f} MiB",
            goal=f"< {PEAK_GOAL_MIB} MiB",
            met=peak < PEAK_GOAL_MIB,
            samples={"marks": marks},
        ),
        Row(
            what=f"resident size after {count:,} tasks",
            measured=f"{last['rss_kib'] / 1024:.1f} MiB",
            beside=f"{first['rss_kib'] / 1024:.1f} MiB after {FIRST:,}",
            ratio=f"{growth:+.2f} MiB",
            goal=f"<= +{GROWTH_LIMIT_MIB} MiB",
            met=growth <= GROWTH_LIMIT_MIB,
        ),
        _idle(bench),
    ]
    section.growth = (
        f"{growth * 1024 * 1024 / (count - FIRST):+.1f} bytes a task run; the listing that a "
        "worker keeps grows with the number pending (see claims)."
    )
    return section


def _idle(bench: Bench) -> Row:
    bench.say("  idle worker")
    settle_s, seconds = bench.pick(20, 8), 20
    spool = empty_spool(bench, "idle")
    argv = [sys.executable, DRIVE, "worker", str(spool), ""]
    process = subprocess.Popen(argv, cwd=REPO, env=clean_environment(), stdout=subprocess.DEVNULL)
    try:
        time.sleep(settle_s)
        before = process_cpu_s(process.pid)
        time.sleep(seconds)
        share_pct = (process_cpu_s(process.pid) - before) / seconds * 100
        size = memory_kib(process.pid)["rss_kib"] / 1024
    except OSError as error:
        raise BenchError(f"the idle worker ended by itself: {error}") from error
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    return Row(
        what=f"CPU of an idle worker over {seconds} s, after {settle_s} s",
        measured=f"{share_pct:.3f} % of a core",
        beside=f"{size:.1f} MiB resident",
        goal=f"< {IDLE_GOAL_PCT} %",
        met=share_pct < IDLE_GOAL_PCT,
        samples={"share_pct": share_pct},
    )
