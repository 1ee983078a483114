"""Watching a training run of 64 ranks at one look a second: CPU of a look, and of its parts.

    python tests/bench/train_watch.py [--quick]

The ranks are real processes that sleep; one writer plays what they report. Invariant: only the
watching process's own CPU time is in a figure, and it sleeps between looks as a supervisor does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fleetcraft.clock import timestamp
from fleetcraft.identity import process_id, this_host
from fleetcraft.layout.runs import progress_file
from fleetcraft.training.plan.records import ProgressPlan, RunPlan
from fleetcraft.training.progress.reading import ProgressReader
from fleetcraft.training.records import Standing
from fleetcraft.training.watching.census import take_census
from fleetcraft.training.watching.watch import Watch
from tests.bench.measure import Bench, BenchError, Row, Section, spread

RANKS = 64
GOAL_FRACTION = 0.005
"""Of one core. Source: TRAINING.md, How it is proved."""
_PLAN = RunPlan(
    run="bench",
    command=("true",),
    warmup_s=3.0,
    progress=ProgressPlan(tokens_per_step=1 << 20, queues=("q_pre", "q_hs")),
)


def measure(bench: Bench) -> Section:
    """CPU of a look at 64 ranks, all of them here, which is more than any one node has."""
    section = Section(
        name="train watch",
        title=f"watching {RANKS} ranks at one look a second",
        how=f"{RANKS} sleeping processes on this machine are the ranks; before every look each has"
        " appended one line (step, tokens, loss, two queues, two metrics). CPU time of the watching"
        " process; a second at one look is 100 percent of a core. Median (min-max) over looks.",
    )
    looks = bench.pick(60, 8)
    with ranks(bench.new_folder("progress")) as folder:
        costs = watch(folder, looks, interval_s=1.0)
    whole = [sum(parts) for parts in costs]
    mean = sum(whole) / len(whole)
    section.rows.append(
        Row(
            what=f"one look at {RANKS} ranks, at 1 Hz",
            measured=spread(whole, "ms", 2, 1e3),
            ratio=f"{100 * mean:.2f} % of a core on average",
            goal=f"below {100 * GOAL_FRACTION} % of a core",
            met=mean < GOAL_FRACTION,
            samples={"cpu_s": whole},
        )
    )
    for index, part in enumerate(("reading", "census", "judging")):
        values = [parts[index] for parts in costs]
        section.rows.append(Row(what=f"  of that, {part}", measured=spread(values, "ms", 2, 1e3)))
    return section


@contextmanager
def ranks(folder: Path) -> Iterator[Path]:
    """So many living processes, each with its hello in its file."""
    sleeping = [subprocess.Popen(["sleep", "3600"]) for _ in range(RANKS)]
    try:
        place = this_host()
        for rank, process in enumerate(sleeping):
            known = process_id(process.pid)
            if known is None:
                raise BenchError(f"process {process.pid} ended at once")
            hello = {
                "hello": 1, "rank": rank, "name": f"drafter-{rank}", "pid": known.pid,
                "start_ticks": known.start_ticks, "host": place.host, "boot_id": place.boot_id,
                "pid_namespace": place.pid_namespace, "nonce": "n", "world_size": RANKS,
            }  # fmt: skip
            append(folder, rank, hello)
        yield folder
    finally:
        for process in sleeping:
            process.kill()
            process.wait()


def append(folder: Path, rank: int, line: dict[str, object]) -> None:
    """One line of one rank."""
    with open(progress_file(str(folder), rank), "a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def watch(folder: Path, looks: int, *, interval_s: float) -> list[tuple[float, float, float]]:
    """CPU seconds of reading, census and judging, of each look but the first."""
    reader, here = ProgressReader(str(folder)), this_host()
    observer = Watch(_PLAN, began_s=time.monotonic())
    closer: tuple[int, ...] = ()
    costs = []
    for step in range(looks + 1):
        for rank in range(RANKS):
            append(folder, rank, report(step))
        time.sleep(interval_s)
        began_s = time.process_time()
        seen = reader.look()
        read_s = time.process_time()
        now_s = time.monotonic()
        states = take_census(seen, here=here, now_s=now_s, closer=closer)
        counted_s = time.process_time()
        sight = observer.observe(seen, states, now_s, trouble=reader.trouble)
        judged_s = time.process_time()
        closer = sight.look_closer
        if sight.step != step or sight.standing not in (Standing.WARMING, Standing.PROGRESSING):
            raise BenchError(f"step {sight.step} of {step}: {sight.standing}, {sight.why}")
        costs.append((read_s - began_s, counted_s - read_s, judged_s - counted_s))
    return costs[1:]


def report(step: int) -> dict[str, object]:
    """What a rank reports of one step."""
    return {
        "step": step, "tokens": 32_768, "loss": 2.125, "queues": {"q_pre": [50, 50],
        "q_hs": [26, 50]}, "metrics": {"acceptance": 0.71, "grad_norm": 1.25},
        "device_memory_bytes": 90 << 30, "at": timestamp(),
    }  # fmt: skip


def main() -> int:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8 looks in place of 60")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="fleetcraft-bench-") as folder:
        bench = Bench(folder=Path(folder), quick=quick, say=lambda text: None)
        section = measure(bench)
    print(f"{section.how}\n\n| what | measured | share | goal | met |\n|---|---|---|---|---|")
    for row in section.rows:
        met = "" if row.met is None else "yes" if row.met else "no"
        print(f"| {row.what} | {row.measured} | {row.ratio} | {row.goal} | {met} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
