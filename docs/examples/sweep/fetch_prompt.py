"""Collects the sweep's list of prompts from a slow source. Its first attempt fails, on purpose.

Many exports work like this: the first call orders the file, a later call collects it. This script
plays both sides. Ordering leaves a marker file beside the output; while there is none, the list is
not ready and the script fails with exit code 1, which spends one retry of its task. The retry finds
the order and collects the list. Run by hand it behaves the same: fail once, then succeed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from documents import PROMPTS, exit_with, write_document, write_text

# What the source would send: the order in which the sweep goes through the model's scenes.
SHOT_LIST = ["aurora", "ember", "lagoon", "orchid"]


def main() -> None:
    """Orders the list, or collects it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the list, as in prompts.json")
    options = parser.parse_args()
    order = options.out.with_name(f"{options.out.name}.ordered")
    attempt = os.environ.get("FLEET_ATTEMPT", "by hand")
    if not order.exists():
        write_text(order, f"ordered by attempt {attempt}\n")
        print("error: the prompt list is not ready; it is ordered now", file=sys.stderr)
        print("hint: run this again, as a retry does", file=sys.stderr)
        sys.exit(1)
    write_document(options.out, PROMPTS, prompts=SHOT_LIST)
    print(f"attempt {attempt} collected {len(SHOT_LIST)} prompts")


if __name__ == "__main__":
    exit_with(main)
