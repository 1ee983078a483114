"""A soak of fleets on a real Slurm: thousands of tasks, many disturbances, and a judge at the end.

    python -m tests.soak [--nodes 8] [--tasks 20000] [--minutes 18] [--seed N] [--out FILE.md]

It starts a sandbox of Slurm, keeps two fleets there, disturbs them by a schedule drawn from the
seed, drains, and has a second process compare what tasks noted of their runs with what the spool
says. It stops by itself and takes everything down. Exit code 1 if something did not hold; the
folder with the evidence then stays.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bench import machine
from tests.slurm.cluster import missing
from tests.soak.ground import REPO, Ground
from tests.soak.page import page
from tests.soak.plan import DISTURBANCES, draw
from tests.soak.running import Pace, Soak

SKIPPED = 77


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=8, help="of the sandbox (8)")
    parser.add_argument("--tasks", type=int, default=20_000, help="packs not counted (20000)")
    parser.add_argument("--minutes", type=float, default=18.0, help="for all of it (18)")
    parser.add_argument("--seed", type=int, help="of tasks and disturbances (drawn, and told)")
    parser.add_argument("--gap", type=float, default=4.0, help="seconds between disturbances (4)")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="KIND",
        choices=list(DISTURBANCES),
        help="only these, twice each",
    )
    parser.add_argument("--dir", type=Path, help="where the folder is made (the temporary folder)")
    parser.add_argument("--keep", action="store_true", help="keep the folder though all holds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="facts and verdicts")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the page")
    return parser.parse_args()


def soak(
    base: Path,
    *,
    nodes: int,
    tasks: int,
    pace: Pace,
    seed: int,
    disturbances: Sequence[str] | None = None,
    telemetry_s: float = 5.0,
) -> dict[str, Any]:
    """Runs one soak in an empty folder, takes it down, and has it judged.

    Returns:
        ``facts`` of the run and the ``judgement``.
    """
    base.mkdir(exist_ok=True)
    plan = draw(seed, tasks=tasks, prelude=str(base / "prelude.sh"), disturbances=disturbances)
    ground = Ground(base, nodes, FLEET_TELEMETRY_INTERVAL_S=f"{telemetry_s:g}")
    running = Soak(ground, plan, pace)
    try:
        facts = running.run()
    finally:
        running.close()
        open_log_folders(base)
        ground.close()
    argv = [sys.executable, "-m", "tests.soak.judge", str(base)]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False)
    if not (base / "judgement.json").exists():
        raise AssertionError(f"the judge gave no judgement: {done.stderr}")
    judgement = json.loads((base / "judgement.json").read_text())
    return {"facts": facts, "judgement": judgement, "said": done.stdout}


def open_log_folders(base: Path) -> None:
    """Makes the log folders writable again, whatever a soak that was broken off has left."""
    if shutil.which("chattr"):
        for folder in ("taskq", "taskq_gpu"):
            argv = ["chattr", "-i", str(base / "root" / folder / "logs")]
            subprocess.run(argv, capture_output=True, check=False)


def fleets_of(nodes: int) -> tuple[int, ...]:
    """Two fleets that share the nodes."""
    return (nodes - nodes // 2, nodes // 2) if nodes > 1 else (1,)


@contextlib.contextmanager
def folder(where: Path | None) -> Iterator[Path]:
    """A folder with a short name, since sockets and owners want those."""
    yield Path(tempfile.mkdtemp(prefix="fc-soak-", dir=where)).resolve()


def main() -> int:
    given = parse()
    if lacking := missing():
        print(f"no soak: {lacking}", file=sys.stderr)
        return SKIPPED
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    seed = given.seed if given.seed is not None else random.randrange(1_000_000)
    pace = Pace(minutes=given.minutes, gap_s=given.gap, fleet_nodes=fleets_of(given.nodes))
    only = [kind for kind in given.only for _ in range(2)] if given.only else None
    began = time.monotonic()
    with folder(given.dir) as base:
        print(f"soak with seed {seed} in {base}", file=sys.stderr)
        head = machine.describe(base, machine_command(seed))
        for probe in base.glob("probe-*"):
            probe.unlink()
        told = soak(
            base, nodes=given.nodes, tasks=given.tasks, pace=pace, seed=seed, disturbances=only
        )
        head["load when it ended"] = machine.load()
        text = page(head, told["facts"], told["judgement"], nodes=given.nodes)
        print(f"\n{text}")
        print(told["said"], f"{time.monotonic() - began:.0f} s in all", file=sys.stderr)
        if given.out:
            given.out.write_text(text)
        if given.json:
            given.json.write_text(json.dumps(told, indent=1) + "\n")
        holds = bool(told["judgement"]["holds"])
        if holds and not given.keep:
            shutil.rmtree(base)
        else:
            print(f"the evidence is in {base}", file=sys.stderr)
    return 0 if holds else 1


def machine_command(seed: int) -> str:
    """This run's command line, with the seed that was drawn."""
    words = sys.argv[1:]
    if "--seed" not in words:
        words = [*words, "--seed", str(seed)]
    return " ".join(["python -m tests.soak", *words])


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
