"""Draws the picture of `top`: a fleet on the Slurm sandbox, its GPUs played by the driver rig.

Everything that the picture shows was said by the program; what the driver answers is ours. Run as
``python -m tests.bench.pictures docs/pictures/top.svg``; needs Slurm and a C compiler.
"""

from __future__ import annotations

import os
import pty
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.rig.rig import Rig
from tests.slurm.cluster import Cluster
from tests.slurm.test_telemetry import OF_THIS_NODE, uuid_of

REPO = Path(__file__).resolve().parents[2]
NODES, GPUS, HELD, WIDTH = 4, 4, 13, 108
BUSY = {"power_mw": 655_000, "temp": 66, "mem_used_mib": 61_440}
QUIET = {"util": 0, "power_mw": 72_000, "temp": 34, "mem_used_mib": 10}
PART = {"name": "NVIDIA H100 80GB HBM3", "mem_total_mib": 81_559, "power_limit_mw": 700_000}
TASK = 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" > gpu-of-$FLEET_TASK; exec sleep 600'


def main(out: Path) -> None:
    """Plays the fleet and writes the picture."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as base:
        cluster = Cluster("--gpus-per-node", str(GPUS), nodes=NODES)
        try:
            out.write_text(as_svg(play(cluster, Path(base))))
        finally:
            cluster.close()


def play(cluster: Cluster, base: Path) -> str:
    """What ``top`` says of a fleet that has done some tasks and holds others."""
    rigs = {node: driver_of(node, base / "rigs" / node) for node in cluster.nodes}
    (base / "rigs" / "sitecustomize.py").write_text(OF_THIS_NODE)
    env = rigs["n1"].env(cluster.env)
    env |= {
        "PYTHONPATH": f"{base / 'rigs'}:{REPO}",
        "RIG_FOLDER": str(base / "rigs"),
        "FLEET_TELEMETRY_INTERVAL_S": "0.5",
        "PROJECT_SCRATCH": str(base / "video"),
        "COLUMNS": str(WIDTH),
    }

    def fleetcraft(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "fleetcraft", *words],
            env=env, cwd=base, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    fleetcraft("init")
    for n in range(1, 41):
        fleetcraft("enqueue", "--lane", "first", "-n", f"gen-{n:05d}", "sleep 0.5")
    for n in range(41, 41 + HELD):
        fleetcraft("enqueue", "-n", f"gen-{n:05d}", TASK)
    fleetcraft("launch", "-N", str(NODES), "--time", "20", "--slots", "gpu",
               "--gpus-per-node", str(GPUS), "--heartbeat", "1")  # fmt: skip
    until(lambda: len(list(base.glob("gpu-of-*"))) == HELD)
    show_work(rigs, base)
    time.sleep(4)  # some samples of what the GPUs now do
    said = on_a_terminal([sys.executable, "-m", "fleetcraft", "top", "--once"], env, base)
    return said.replace(str(base), "/scratch/me")


def driver_of(node: str, folder: Path) -> Rig:
    """The driver of one node, at rest."""
    folder.mkdir(parents=True)
    settings: dict[str, object] = {"gpus": GPUS}
    for n in range(GPUS):
        told = {**QUIET, **PART, "uuid": uuid_of(node, n)}
        settings |= {f"gpu.{n}.{key}": value for key, value in told.items()}
    return Rig(folder, settings=settings)


def show_work(rigs: dict[str, Rig], base: Path) -> None:
    """Lets the GPUs that have tasks look like it; two of them hold memory and compute nothing."""
    chance = random.Random(7)
    for number, file in enumerate(sorted(base.glob("gpu-of-*"))):
        node, uuid = file.read_text().split()
        n = next(n for n in range(GPUS) if uuid in (uuid_of(node, n), str(n)))
        util = 0 if number in (3, 8) else chance.randint(88, 99)
        told = {
            **BUSY,
            "util": util,
            "power_mw": chance.randint(610, 690) * 1000 if util else 118_000,
        }
        for key, value in told.items():
            rigs[node].set(f"gpu.{n}.{key}", value)


def until(true: object) -> None:
    """Waits up to two minutes."""
    deadline = time.monotonic() + 120
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def on_a_terminal(command: list[str], env: dict[str, str], cwd: Path) -> str:
    """What a program prints on a terminal, colours and all."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env={**env, "TERM": "xterm-256color"}, cwd=cwd, stdout=theirs):
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the program has ended
                break
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def as_svg(said: str) -> str:
    """A terminal's window as SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(said.rstrip()))
    svg = console.export_svg(title="fleetcraft top")
    return re.sub(r"@font-face\s*\{[^}]*\}", "", svg)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
