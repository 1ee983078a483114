"""Random schedules of the generation lock: how many were walked, and that none had two owners.

    python -m tests.bench.lock_schedules [--walks N] [--seed N]

Three contenders, a dead holder, judges that err, crashes, faults, and answers that lie about what
was done, on a model of a file system; the same as tests/test_locks.py walks a few of. Invariant: a
schedule with two owners ends the run with its trace.
"""

from __future__ import annotations

import argparse
import time

from tests.test_locks import modelled, walk_random_schedules

A_TURN = 500


def main() -> None:
    """Walks, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--walks", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    began, walked, seed = time.process_time(), 0, asked.seed
    with modelled():
        while walked < asked.walks:
            walked += walk_random_schedules(seed, min(A_TURN, asked.walks - walked))
            seed += 1
    spent_s = time.process_time() - began
    print("| schedules | with two owners | ms CPU each |\n|---:|---:|---:|")
    print(f"| {walked:,} | 0 | {spent_s / walked * 1000:.2f} |")


if __name__ == "__main__":
    main()
