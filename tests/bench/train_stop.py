"""Stopping launches: how long it takes, and that nothing with the launch's nonce is left.

    python tests/bench/train_stop.py [--trials N] [--at-once N]

Each trial is a real launch with a keeper of its own. As root it becomes an ordinary user first
(uid 65534). Invariant: a trial counts as clean only when a look at every process of the machine,
after the stop has returned, met none of the launch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fleetcraft.training.launching.nonce_scan import find_by_nonce
from fleetcraft.training.launching.stop import stop
from fleetcraft.training.records import StopResult
from tests.bench.measure import REPO
from tests.training.launching.harness import DEAF, ESCAPED, PLAIN, REFORKING, Run

NOBODY = 65534
GRACE_S = 0.2
BOUND_S = GRACE_S + 10.0 + 3.0
KINDS = {
    "plain": PLAIN,
    "ignores TERM": DEAF,
    "double fork and setsid, ignores TERM": ESCAPED,
    "forks and exits every 10 ms, ignores TERM": REFORKING.format(pause=0.01),
    "forks and exits without pause, ignores TERM": REFORKING.format(pause=0),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One launch and its stop."""

    seconds: float
    reaped: bool
    left: int


def try_once(folder: Path, code: str) -> Trial:
    """Launches, waits until the command is up, stops, and looks for what is left."""
    folder.mkdir()
    run = Run(folder)
    started = run.python(code)
    began_s = time.monotonic()
    stopped = stop(started, grace_s=GRACE_S, why="a trial")
    seconds = time.monotonic() - began_s
    left = len(find_by_nonce(started.nonce))
    run.clear()
    return Trial(seconds, stopped.result is StopResult.REAPED, left)


def as_nobody(words: list[str]) -> int:
    """Runs this program as an ordinary user, with an interpreter that such a one may start."""
    paths = [str(REPO), *(path for path in sys.path if path.endswith("site-packages"))]
    with tempfile.TemporaryDirectory(prefix="fleetcraft-stop-") as home:
        os.chmod(home, 0o777)
        environ = {
            "PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(paths), "HOME": home,
            "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        for python in (sys.executable, "/usr/bin/python3"):
            try:
                done = subprocess.run(
                    [python, __file__, *words], user=NOBODY, group=NOBODY, extra_groups=[],
                    env=environ, cwd=home, check=False,
                )  # fmt: skip
            except PermissionError:
                continue
            return done.returncode
    print("no interpreter that uid 65534 may start", file=sys.stderr)
    return 1


def main() -> int:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20, help="of each kind; 1000 at full")
    parser.add_argument("--at-once", type=int, default=4, help="trials that run side by side")
    options = parser.parse_args()
    if os.geteuid() == 0:
        return as_nobody(sys.argv[1:])
    print(f"uid {os.geteuid()}, {options.trials} trials of each kind, {options.at_once} at once, ")
    print(f"grace {GRACE_S} s, at most {BOUND_S} s allowed\n")
    print("| child | trials | left behind | unreaped | median s | longest s | within its bound |")
    print("|---|---|---|---|---|---|---|")
    failed = False
    with tempfile.TemporaryDirectory(prefix="fleetcraft-stop-") as base:
        for number, (kind, code) in enumerate(KINDS.items()):
            trials = many(Path(base) / str(number), code, options.trials, options.at_once)
            failed |= not tell(kind, trials)
    return 1 if failed else 0


def many(base: Path, code: str, count: int, at_once: int) -> list[Trial]:
    """So many trials of one kind."""
    base.mkdir()
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda n: try_once(base / str(n), code), range(count)))


def tell(kind: str, trials: list[Trial]) -> bool:
    """Prints one row; says whether every trial was clean and within its bound."""
    left = sum(trial.left > 0 for trial in trials)
    unreaped = sum(not trial.reaped for trial in trials)
    times = [trial.seconds for trial in trials]
    bounded = max(times) <= BOUND_S
    print(
        f"| {kind} | {len(trials)} | {left} | {unreaped} | {statistics.median(times):.2f} "
        f"| {max(times):.2f} | {'yes' if bounded else 'no'} |",
        flush=True,
    )
    return not left and not unreaped and bounded


if __name__ == "__main__":
    sys.exit(main())
