"""How fast a log is scanned for crash signatures: MB of log a second of one core.

Writes logs of several kinds, reads each with `LogScan` as `train diagnose` does, prints a table.
Beside, over the same bytes in the same run: one plain alternation of eight signatures, and a count
of the lines. Run it alone: ``python -m tests.bench.log_scan [--mb 64]``.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fleetcraft.training.diagnosing.scan import CHUNK_BYTES, LogScan
from tests.training.diagnosing.corpus import elastic, traceback
from tests.training.diagnosing.crashes import GLOO_CLOSED, OOM_SEED

GOAL_MB_PER_S = 90.0
_RUNS = 5
_PLAIN = re.compile(
    rb"CUDA out of memory|ChildFailedError|RendezvousConnectionError|DistNetworkError"
    rb"|Watchdog caught|Killed|No space left on device|oom-kill"
)


def _steps(first: int) -> Iterator[str]:
    step = first
    while True:
        yield (
            f"2026-03-01 12:00:{step % 60:02d},{step % 1000:03d} INFO trainer: step {step} loss "
            f"{2 + 1 / (step + 1):.4f} lr 1.2e-04 grad_norm 0.{step % 997:03d} tokens/s "
            f"{6900 + step % 90} mem 71.2 GiB\n"
        )
        step += 1


def _bars(first: int) -> Iterator[str]:
    step = first
    while True:
        yield f"\r {step % 100}%|####      | {step}/900000 [00:10<03:32,  4.50it/s, loss=2.1]"
        step += 1


def _without_steps(first: int) -> Iterator[str]:
    number = first
    while True:
        yield f"2026-03-01 12:00:00,123 INFO data: writer of the iterable set, {number} items\n"
        number += 1


def _with_crashes(first: int) -> Iterator[str]:
    for number, line in enumerate(_steps(first)):
        yield line
        if number % 2000 == 1999:
            yield traceback(OOM_SEED, "[rank1]: ") + traceback(GLOO_CLOSED, "[rank0]: ")
            yield elastic(1)


def _all_candidates(first: int) -> Iterator[str]:
    """The worst case: every line holds a word that makes it a candidate."""
    for line in _steps(first):
        yield line.replace("mem", "Error 0.1 mem")


KINDS: tuple[tuple[str, Callable[[int], Iterator[str]]], ...] = (
    ("one line a step", _steps),
    ("a progress bar, without line ends", _bars),
    ("no step in any line", _without_steps),
    ("a crash every 2,000 lines", _with_crashes),
    ("every line a candidate", _all_candidates),
)


def write_log(path: Path, lines: Iterator[str], size: int) -> int:
    """Writes a log of about a size; returns its bytes."""
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            written += file.write(next(lines))
    return path.stat().st_size


def scan(path: Path) -> int:
    """Hits of one whole scan."""
    with LogScan(path) as log:
        return len(log.look(final=True)) + log.left_out


def search_plainly(path: Path) -> int:
    """What the simplest scanner does: one expression over the bytes."""
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found += sum(1 for _ in _PLAIN.finditer(chunk))
    return found


def count_lines(path: Path) -> int:
    """The floor: the same bytes read and their lines counted."""
    lines = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            lines += chunk.count(b"\n")
    return lines


def cpu_s(work: Callable[[Path], int], path: Path) -> list[float]:
    """CPU seconds of each run, after one that fills the page cache."""
    work(path)
    found = []
    for _ in range(_RUNS):
        began = time.process_time()
        work(path)
        found.append(time.process_time() - began)
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=64, help="size of each log (64)")
    size = parser.parse_args().mb * 1_000_000
    print("| log | hits | MB/s, median (best) | plain expression | lines only | goal |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in KINDS:
            path = Path(folder) / "train.log"
            mb = write_log(path, lines(0), size // (1 if lines is not _all_candidates else 8)) / 1e6
            ours = cpu_s(scan, path)
            plain, floor = (
                statistics.median(cpu_s(one, path)) for one in (search_plainly, count_lines)
            )
            rate = f"{mb / statistics.median(ours):.0f} ({mb / min(ours):.0f})"
            goal = f"{GOAL_MB_PER_S:.0f}" if name == KINDS[0][0] else ""
            beside = f"{mb / plain:.0f} | {mb / floor:.0f}"
            print(f"| {name} | {scan(path)} | {rate} | {beside} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
