"""Killing a supervisor at each of its file operations: that the next one finishes the run.

    python tests/bench/train_kills.py [--first K] [--last K] [--every N]

Each trial is a real run, a supervisor that is killed just before its k-th operation, and another
that finishes. Invariant: a trial holds only if the run is done, no two launches ran at once, and no
process of either is left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.training.supervision.kills import trial


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=400)
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    tried = killed = adopted = 0
    bad: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(given.first, given.last + 1, given.every):
            found = trial(Path(folder) / str(k), k)
            tried += 1
            killed += found.killed
            adopted += "ADOPTING" in found.course
            if not found.holds:
                bad.append(f"{k}: {found}")
            print(f"\r{tried} tried, {len(bad)} do not hold", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print("| killed at operations | trials | killed | run adopted by the next | do not hold |")
    print("|---|---|---|---|---|")
    print(f"| {given.first} to {given.last} | {tried} | {killed} | {adopted} | {len(bad)} |")
    for line in bad:
        print(line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
