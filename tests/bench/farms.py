"""Runs other task farms and fleetcraft on the same work in the same run, and prints one page.

    python tests/bench/farms.py [--quick] [--only NAME ...] [--tools DIR] [--out FILE.md]

NAME is floor xargs fleetcraft hyperqueue parallel dask parsl disbatch. Peers are installed below
the cache folder, or DIR. Not a test: nothing here fails for being slow. Invariant: what was
started is ended, by its id, and a peer that cannot be had is named with the reason.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import machine
from tests.bench.farms import libraries, ours, plain
from tests.bench.farms.measuring import (
    FarmError,
    Recovery,
    Run,
    cores,
    enqueue_s,
    lateness,
    once,
    recovery,
    start,
)
from tests.bench.farms.peer import Missing, Peer, Tools, Work
from tests.bench.measure import keep_bytecode_in

FARMS: dict[str, Callable[[Tools], list[Peer]]] = {
    "floor": plain.floor,
    "xargs": plain.xargs,
    "fleetcraft": ours.fleetcraft,
    "hyperqueue": libraries.hyperqueue,
    "parallel": plain.parallel,
    "dask": libraries.dask,
    "parsl": libraries.parsl,
    "disbatch": libraries.disbatch,
}
OURS = "fleetcraft"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work."""

    rounds: int = 3
    tiny: int = 2000
    short: int = 400
    long: int = 32
    long_s: float = 1.0
    long_slots: int = 8
    late: int = 5
    late_pause_s: float = 3.0
    kill: int = 200
    kill_s: float = 0.05


QUICK = Sizes(
    rounds=1, tiny=40, short=10, long=2, long_s=0.2, long_slots=2, late=1, late_pause_s=0.3, kill=20
)


@dataclass(kw_only=True)
class Measured:
    """What was measured of one peer; lists hold one value a round."""

    peer: Peer
    tiny: list[Run] = field(default_factory=list)
    short: list[Run] = field(default_factory=list)
    long: list[Run] = field(default_factory=list)
    enqueue_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    one_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    worker: Recovery | None = None
    head: Recovery | None = None
    troubles: list[str] = field(default_factory=list)


def main() -> int:
    """Measures and prints."""
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sizes = QUICK if args.quick else Sizes()
    base = Path(tempfile.mkdtemp(prefix="fleetcraft-farms-", dir=args.dir)).resolve()
    try:
        (base / "bytecode").mkdir()
        if args.quick:
            os.environ["PYTHONPYCACHEPREFIX"] = str(base / "bytecode")  # filled by the first start
        else:
            keep_bytecode_in(base / "bytecode")
        facts = machine.describe(base, machine.command_line())
        peers, missing = find(args.only or list(FARMS), args.tools, base)
        found = [Measured(peer=peer) for peer in peers]
        measure(found, sizes, base)
    finally:
        os.chdir("/")
        shutil.rmtree(base, ignore_errors=True)
    facts["load when it ended"] = machine.load()
    page = write_page(facts, found, missing, sizes, quick=args.quick)
    print(page)
    if args.out:
        Path(args.out).write_text(page + "\n")
    return 1 if any(one.troubles for one in found if one.peer.name == OURS) else 0


def parse_args() -> argparse.Namespace:
    """The options."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parser = argparse.ArgumentParser(description="Compare task farms on the same work.")
    parser.add_argument("--quick", action="store_true", help="little work, once")
    parser.add_argument(
        "--only", nargs="+", choices=list(FARMS), metavar="NAME",
        help=f"only these of {' '.join(FARMS)}",
    )  # fmt: skip
    parser.add_argument(
        "--tools", type=os.path.abspath, default=f"{cache}/fleetcraft-farms", metavar="DIR",
        help="where peers are installed and kept",
    )  # fmt: skip
    parser.add_argument("--out", type=os.path.abspath, metavar="FILE.md", help="write the page")
    parser.add_argument("--dir", type=os.path.abspath, help="where the work is done")
    return parser.parse_args()


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------- the peers


def find(names: list[str], tools_dir: str, base: Path) -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be had, and why the others cannot."""
    packages = [libraries.PACKAGES[name] for name in names if name in libraries.PACKAGES]
    fetched = packages or "parallel" in names
    folder = Path(tools_dir) if fetched else base / "tools"
    folder.mkdir(parents=True, exist_ok=True)
    tools = Tools(folder=folder, python=install(folder, packages) if packages else None)
    peers: list[Peer] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            peers += FARMS[name](tools)
        except Missing as error:
            missing[name] = str(error)
    return peers, missing


def install(folder: Path, packages: list[str]) -> Path | None:
    """An environment with the packages, each on its own: one that fails keeps out no other."""
    python = libraries.python_of(folder)
    if not python.exists():
        say("making an environment for the peers ...")
        venv = [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")]
        if subprocess.run(venv, check=False).returncode != 0:
            return None
    for package in packages:
        code = f"from importlib.metadata import version; version({package!r})"
        there = subprocess.run([str(python), "-c", code], capture_output=True, check=False)
        if there.returncode == 0:
            continue
        say(f"installing {package} ...")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        into = [*pip, "--python", str(python), "install", "psutil", package]
        subprocess.run(into, stdout=sys.stderr, check=False)
    return python


# ------------------------------------------------------------------------------- the measuring


def measure(found: list[Measured], sizes: Sizes, base: Path) -> None:
    """Everything, peers interleaved, every other round in reverse order."""
    numbers = iter(range(1_000_000))

    def attempt(one: Measured, what: str, act: Callable[[Path], None]) -> None:
        began = time.monotonic()
        try:
            act(base / f"{next(numbers):04d}")
        except (FarmError, OSError) as error:
            one.troubles.append(f"{what}: {error}")
        say(f"  {one.peer.name}, {what}: {time.monotonic() - began:.1f} s")

    for turn in range(sizes.rounds):
        say(f"round {turn + 1} of {sizes.rounds}")
        order = found if turn % 2 == 0 else found[::-1]
        for one in order:
            attempt(one, "`true`", lambda folder, one=one: _tiny(one, sizes, folder))
        for one in order:
            attempt(one, "start", lambda folder, one=one: _start(one, folder))
        if turn == 0:
            for one in order:
                attempt(one, "10 ms", lambda folder, one=one: _short(one, sizes, folder))
            for one in order:
                attempt(one, "1 s", lambda folder, one=one: _long(one, sizes, folder))
    for one in found:
        if one.peer.waits is not None:
            attempt(one, "waiting", lambda folder, one=one: _late(one, sizes, folder))
        if one.peer.resume is not None:
            attempt(one, "kill of its head", lambda f, one=one: _kill(one, "head", sizes, f))
        if one.peer.worker is not None:
            attempt(one, "kill of a worker", lambda f, one=one: _kill(one, "worker", sizes, f))


def _tiny(one: Measured, sizes: Sizes, folder: Path) -> None:
    count = min(sizes.tiny, one.peer.most)
    work = Work(commands=("true",) * count, slots=cores(), folder=folder)
    run = once(one.peer, work)
    one.tiny.append(run)
    spent = enqueue_s(one.peer, Work(commands=work.commands, slots=1, folder=folder / "queue"))
    if spent is None and one.peer.own_times:
        spent = run.times.get("enqueue_s")
    if spent is not None:
        one.enqueue_s.append(spent)


def _short(one: Measured, sizes: Sizes, folder: Path) -> None:
    count = min(sizes.short, one.peer.most)
    one.short.append(
        once(one.peer, Work(commands=("sleep 0.01",) * count, slots=cores(), folder=folder))
    )


def _long(one: Measured, sizes: Sizes, folder: Path) -> None:
    commands = (f"sleep {sizes.long_s}",) * sizes.long
    one.long.append(once(one.peer, Work(commands=commands, slots=sizes.long_slots, folder=folder)))


def _start(one: Measured, folder: Path) -> None:
    first_s, all_s = start(one.peer, folder)
    one.first_s.append(first_s)
    one.one_s.append(all_s)


def _late(one: Measured, sizes: Sizes, folder: Path) -> None:
    one.late_s += lateness(one.peer, folder, tasks=sizes.late, pause_s=sizes.late_pause_s)


def _kill(one: Measured, who: str, sizes: Sizes, folder: Path) -> None:
    tasks = min(sizes.kill, one.peer.most)
    seen = recovery(
        one.peer, folder, who=who, tasks=tasks, slots=max(2, cores()), sleep_s=sizes.kill_s
    )
    setattr(one, who, seen)


# ------------------------------------------------------------------------------- the page


def write_page(
    facts: dict[str, str],
    found: list[Measured],
    missing: dict[str, str],
    sizes: Sizes,
    *,
    quick: bool,
) -> str:
    """The page."""
    lines = ["# Task farms on the same work" + (" (quick run)" if quick else ""), ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in facts.items()]
    versions = dict.fromkeys(one.peer.version for one in found if one.peer.version)
    lines += [f"| farms | {'; '.join(versions)} |"]
    lines += [
        "",
        "Medians of interleaved rounds. CPU is that of the whole process tree, servers included. "
        "Everything ran on this machine, over loopback where there is a server.",
        "",
        *speed_table(found, sizes),
        "",
        *start_table(found, sizes),
        "",
        *kill_table(found, sizes),
        "",
        *verdict(found, sizes),
    ]
    notes = [f"- {one.peer.name}: {one.peer.note}." for one in found if one.peer.note]
    troubles = [f"- {one.peer.name}: {text}" for one in found for text in one.troubles]
    absent = [f"- {name}: {why}" for name, why in missing.items()]
    for title, texts in (("Notes", notes), ("Not measured", [*absent, *troubles])):
        if texts:
            lines += ["", f"## {title}", "", *texts]
    return "\n".join(lines)


def speed_table(found: list[Measured], sizes: Sizes) -> list[str]:
    """Rates, CPU and efficiencies."""
    slots = cores()
    lines = [
        f"## Speed: `true` at {slots} at a time, 10 ms at {slots}, {sizes.long_s:g} s at "
        f"{sizes.long_slots}",
        "",
        f"{sizes.tiny:,} tasks of `true`, {sizes.short} of `sleep 0.01`, {sizes.long} of "
        f"`sleep {sizes.long_s:g}`; start and end of the farm are inside. Efficiency is the time "
        "that the sleeps alone would take, divided by the time taken.",
        "",
        "| farm | keeps | tasks/s | CPU ms a task | x floor | 10 ms: efficiency | CPU ms a task | "
        "1 s: efficiency |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    floor = next((cpu_ms(one, sizes) for one in found if one.peer.name.startswith("floor")), None)
    for one in found:
        cpu = cpu_ms(one, sizes)
        lines.append(
            _row(
                one.peer.name,
                one.peer.keeps,
                _text(rate(one, sizes), "{:.0f}"),
                _text(cpu, "{:.2f}"),
                _text(cpu / floor if cpu and floor else None, "{:.2f}"),
                _text(efficiency(one, one.short, sizes.short, 0.01, slots), "{:.2f}"),
                _text(_short_cpu_ms(one, sizes), "{:.2f}"),
                _text(
                    efficiency(one, one.long, sizes.long, sizes.long_s, sizes.long_slots), "{:.3f}"
                ),
            )
        )
    return lines


def start_table(found: list[Measured], sizes: Sizes) -> list[str]:
    """Start, end, enqueue and lateness."""
    lines = [
        "## Start, end, and a task that comes late",
        "",
        "From nothing: the farm is started, gets one task, and ends; for fleetcraft these are two "
        f"commands, `enqueue` and `run`. Queue: the farm gets {sizes.tiny:,} tasks. Late: from "
        f"asking a farm that has waited {sizes.late_pause_s:g} s with an empty queue to the start "
        "of the task, asking included.",
        "",
        "| farm | first task starts | all over | queue filled | late task starts |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in found:
        lines.append(
            _row(
                one.peer.name,
                _text(_median(one.first_s), "{:.2f} s"),
                _text(_median(one.one_s), "{:.2f} s"),
                _text(_median(one.enqueue_s), "{:.3f} s"),
                _text(_median(one.late_s), "{:.3f} s") if one.peer.waits else "cannot wait",
            )
        )
    return lines


def kill_table(found: list[Measured], sizes: Sizes) -> list[str]:
    """Recoveries."""
    lines = [
        "## kill -9 in the middle",
        "",
        f"{sizes.kill} tasks of {sizes.kill_s:g} s, each noting its start and end; killed when a "
        "third had ended. Undone is what the run itself left; lost is what was not even done "
        "after a person did what is said, at once. All done is counted from the kill.",
        "",
        "| farm | killed | undone | lost | run twice | all done | a person must |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for one in found:
        for who, seen in (("worker", one.worker), ("server or driver", one.head)):
            if seen is None:
                continue
            lines.append(
                _row(
                    one.peer.name,
                    who,
                    str(seen.undone),
                    str(seen.lost),
                    str(seen.twice),
                    f"{seen.done_s:.1f} s",
                    one.peer.by_hand if seen.resumed else "do nothing",
                )
            )
        if one.peer.worker is None and one.head is not None:
            lines.append(_row(one.peer.name, "worker", "", "", "", "", f"({one.peer.no_worker})"))
    return lines


def verdict(found: list[Measured], sizes: Sizes) -> list[str]:
    """In sentences, where another farm does better than fleetcraft."""
    lines = ["## Where another one wins", ""]
    mine = next((one for one in found if one.peer.name == OURS), None)
    others = [one for one in found if one is not mine and not one.peer.name.startswith("floor")]
    if mine is None or not others:
        return [*lines, "Nothing was compared."]
    slots = cores()
    measures: list[tuple[str, str, bool, Callable[[Measured], float | None]]] = [
        ("tasks of `true` a second", "{:.0f}", True, lambda one: rate(one, sizes)),
        ("CPU for a task of `true`, ms", "{:.2f}", False, lambda one: cpu_ms(one, sizes)),
        ("efficiency with tasks of 10 ms", "{:.2f}", True,
         lambda one: efficiency(one, one.short, sizes.short, 0.01, slots)),
        (f"efficiency with tasks of {sizes.long_s:g} s", "{:.3f}", True,
         lambda one: efficiency(one, one.long, sizes.long, sizes.long_s, sizes.long_slots)),
        ("seconds from nothing to the first task", "{:.2f}", False, lambda o: _median(o.first_s)),
        ("seconds from nothing to the end of one task", "{:.2f}", False,
         lambda one: _median(one.one_s)),
        (f"seconds to be given {sizes.tiny:,} tasks", "{:.3f}", False,
         lambda one: _median(one.enqueue_s)),
        ("seconds until a late task starts", "{:.3f}", False, lambda one: _median(one.late_s)),
    ]  # fmt: skip
    for what, shape, more, value in measures:
        own = value(mine)
        if own is None:
            continue
        better = [
            f"{one.peer.name} {shape.format(other)} (keeps {one.peer.keeps})"
            for one in others
            if (other := value(one)) is not None and (other > own if more else other < own)
        ]
        if better:
            lines.append(f"- {what}: fleetcraft {shape.format(own)}; {', '.join(better)}.")
    return lines if len(lines) > 2 else [*lines, "Nowhere in what was measured here."]


def rate(one: Measured, sizes: Sizes) -> float | None:
    """Tasks of ``true`` a second."""
    walls = [run.wall_s for run in one.tiny]
    return min(sizes.tiny, one.peer.most) / statistics.median(walls) if walls else None


def cpu_ms(one: Measured, sizes: Sizes) -> float | None:
    """CPU of the whole tree for a task of ``true``."""
    used = [run.cpu_s for run in one.tiny]
    return statistics.median(used) / min(sizes.tiny, one.peer.most) * 1000 if used else None


def efficiency(
    one: Measured, runs: list[Run], tasks: int, sleep_s: float, slots: int
) -> float | None:
    """What the sleeps alone take, over what it took."""
    if not runs:
        return None
    many = min(tasks, one.peer.most)
    return -(-many // slots) * sleep_s / statistics.median(run.wall_s for run in runs)


def _short_cpu_ms(one: Measured, sizes: Sizes) -> float | None:
    used = [run.cpu_s for run in one.short]
    return statistics.median(used) / min(sizes.short, one.peer.most) * 1000 if used else None


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _text(value: float | None, shape: str) -> str:
    return "" if value is None else shape.format(value)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
