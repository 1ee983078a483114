"""Explores further than the test run does: ``python -m tests.explore --budget 600 --seed 1``.

Half of the time goes to depth-first search of every scenario with growing preemption bounds, half
to random walks. Ends with 1 and the schedule when something does not hold.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.explore import determinism, scenarios
from tests.explore.explorer import Explorer, Scenario, Violation, explore, shortest

MISHAPS = [
    {"crashes": 1, "lies": 1, "verdicts": 1, "faults": 0},
    {"crashes": 2, "lies": 0, "verdicts": 1, "faults": 0},
    {"crashes": 1, "lies": 0, "verdicts": 0, "faults": 1},
    {"crashes": 2, "lies": 2, "verdicts": 1, "faults": 1},
]

SHORTEN_S = 60


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("--budget", type=float, default=60, help="seconds in all")
    parser.add_argument("--seed", type=int, default=1, help="of the random walks")
    parser.add_argument("--only", action="append", choices=sorted(scenarios.ALL), default=None)
    parser.add_argument("--preemptions", type=int, default=-1, help="bound; -1 is none")
    chosen = parser.parse_args(arguments)
    names = chosen.only or list(scenarios.ALL)
    share = chosen.budget / (len(names) * len(MISHAPS) * 2 * 2)
    rng = random.Random(chosen.seed)
    states = 0
    started = time.monotonic()
    with determinism.deterministic():
        for name in names:
            for mishaps in MISHAPS:
                for flags in (True, False):
                    built = scenarios.ALL[name](**mishaps, preemptions=chosen.preemptions)
                    scenario = built if flags else scenarios.where_rename_has_no_flags(built)
                    try:
                        states += _one(scenario, share, rng, mishaps)
                    except Violation as violation:
                        print(f"{mishaps} seed {chosen.seed}")
                        print(shortest(scenario, seconds=SHORTEN_S) or violation)
                        return 1
    print(f"{states} states in {time.monotonic() - started:.0f} s, seed {chosen.seed}: all held")
    return 0


def _one(scenario: Scenario, seconds: float, rng: random.Random, mishaps: dict[str, int]) -> int:
    report = explore(scenario, seconds=seconds)
    walked = Explorer(scenario).walk(rng, walks=sys.maxsize, seconds=seconds)
    print(f"{mishaps}\n  {report}\n  {walked}", flush=True)
    return report.states + walked.states


if __name__ == "__main__":
    sys.exit(main())
