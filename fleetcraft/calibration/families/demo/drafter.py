"""One of the drafters that `partial_rank` starts: counts micro-steps until it is done or dies.

Run as a file, ``python drafter.py STEPS [DIES_AT]``, and imports nothing of the package, so that
three of them start at once. Invariant: each step is a line, so that silence means standing still.
"""

from __future__ import annotations

import sys
import time

STEP_S = 0.02


def main() -> None:
    """Counts; dies with the last words of a device that is full, if it was told to."""
    steps = int(sys.argv[1])
    dies_at = int(sys.argv[2]) if len(sys.argv) > 2 else None
    for step in range(1, steps + 1):
        print(f"micro-step {step}", flush=True)
        if step == dies_at:
            sys.exit("torch.OutOfMemoryError: CUDA out of memory.")
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
