"""Runs nvitop, gpustat and our logger on the same driver rig and prints what each makes of it.

    python tests/bench/peers.py [--out FILE.md] [--only NAME ...] [--venv DIR] [--no-costs]

The two are installed, pinned, into a private environment in a temporary folder. Not a test: nothing
here fails for what a program shows. Invariant: every program runs against a limit of time, and what
was started here is ended here, by its id.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import machine, peer_costs
from tests.bench.measure import REPO, clean_environment
from tests.bench.peer_situations import BAD, HEALTHY, RESERVED_MIB, SITUATIONS, Situation
from tests.bench.peer_views import Shown, read_gpustat, read_log, read_nvitop
from tests.rig import Rig

PINS = {"nvitop": "1.7.2", "gpustat": "1.1.1", "nvidia-ml-py": "13.615.71"}
ONE_LOOK_S = 10.0  # each takes about a second on a healthy driver
LOGGER_S = 20.0


@dataclass(kw_only=True)
class Run:
    """One program in one situation."""

    gpus: dict[int, Shown]
    code: int | None
    """None when it had to be killed."""
    said: str = ""
    notes: list[str] = field(default_factory=list)


# ------------------------------------------------------------------------------- the programs


def look(argv: list[str], env: dict[str, str]) -> tuple[int | None, str, str]:
    """One run of a program that looks once; killed by its id when it takes too long."""
    with subprocess.Popen(
        argv, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=ONE_LOOK_S)
            return process.returncode, out, err
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            return None, out, err


def run_nvitop(venv: Path, env: dict[str, str]) -> Run:
    """What ``nvitop -1`` shows."""
    code, out, err = look([str(venv / "bin/nvitop"), "-1", "--ascii"], env)
    return _one_look(read_nvitop(out), code, out, err)


def run_gpustat(venv: Path, env: dict[str, str]) -> Run:
    """What ``gpustat --json`` shows."""
    code, out, err = look([str(venv / "bin/gpustat"), "--json"], env)
    return _one_look(read_gpustat(out), code, out, err)


def _one_look(gpus: dict[int, Shown], code: int | None, out: str, err: str) -> Run:
    notes = [] if code is not None else [f"killed after {ONE_LOOK_S:.0f} s"]
    if "Traceback (most recent call last)" in err + out:
        notes.append("traceback")
    lines = [line for line in (err or out).splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("FATAL ERROR")]
    said = "" if gpus else (fatal or lines[-1:] or [""])[0].strip()
    return Run(gpus=gpus, code=code, said=said, notes=notes)


class Logger:
    """Our logger on the rig, at one sample a second."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.errors = folder.with_suffix(".stderr")
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fleetcraft", "telemetry", "log", str(folder), "1"],
                cwd=REPO, env=env, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip

    def wait_for(self, samples: int) -> bool:
        """Waits until so many samples are written; false when that takes too long."""
        until_s = time.monotonic() + LOGGER_S
        while time.monotonic() < until_s and self.process.poll() is None:
            if len(read_log(self.folder).times) >= samples:
                return True
            time.sleep(0.05)
        return False

    def end(self, *, enough: bool) -> Run:
        """Sends TERM and says what it left."""
        began_s = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            code: int | None = self.process.wait(ONE_LOOK_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        took_s = time.monotonic() - began_s
        log = read_log(self.folder)
        notes = [*log.others(), *filter(None, [log.energy_fell(BAD)])]
        if not enough:
            notes.append(f"too few samples in {LOGGER_S:.0f} s")
        if code is None or took_s > 1:
            notes.append("TERM ignored" if code is None else f"TERM took {took_s:.1f} s")
        text = self.errors.read_text(errors="replace")
        if "Traceback (most recent call last)" in text:
            notes.append("traceback")
        said = "" if log.rows else (text.strip().splitlines() or [""])[-1]
        return Run(gpus=log.gpus(), code=code, said=said, notes=notes)


# ------------------------------------------------------------------------------- one situation


def try_out(situation: Situation, venv: Path, folder: Path) -> dict[str, Run]:
    """The three programs in one situation."""
    folder.mkdir()
    with Rig(folder, absent=situation.absent, settings={**HEALTHY, **situation.lines}) as rig:
        env = rig.env(clean_environment() | {"HOME": str(folder)})
        env.pop("CUDA_VISIBLE_DEVICES", None)
        if not situation.library:
            (folder / "none").mkdir()
            (folder / "none" / rig.library.name).touch()  # it cannot be loaded, nor can another
            env["LD_LIBRARY_PATH"] = str(folder / "none")
        logger = Logger(folder / "telemetry", env)
        enough = logger.wait_for(2)
        samples = len(read_log(logger.folder).times)
        if situation.then:
            rig.update(situation.then)
        try:
            runs = {"nvitop": run_nvitop(venv, env), "gpustat": run_gpustat(venv, env)}
            enough = enough and logger.wait_for(samples + situation.after)
        finally:
            ours = logger.end(enough=enough)
    return {**runs, "fleetcraft": ours}


def good_ones(situation: Situation, run: Run) -> str:
    """How many of the GPUs that nothing is wrong with are shown with their true numbers."""
    good = [index for index in range(4) if index != situation.bad]
    moved = bool(situation.then.get(f"gpu.{BAD}.absent"))
    right = 0
    for index in good:
        # Where a GPU is not listed any more, those behind it have other numbers in a new program.
        places = (index, index - 1) if moved and index > BAD else (index,)
        right += any(_is_right(run.gpus.get(place), index) for place in places)
    return f"{right}/{len(good)}"


def _is_right(shown: Shown | None, index: int) -> bool:
    if shown is None or shown.util_pct is None or shown.used_mib is None:
        return False
    util_pct, used_mib = HEALTHY[f"gpu.{index}.util"], HEALTHY[f"gpu.{index}.mem_used_mib"]
    # Version 1 of the memory call counts what the driver reserves, and says no less.
    over_mib = shown.used_mib - float(used_mib)  # type: ignore[arg-type]
    return shown.util_pct == util_pct and any(abs(over_mib - own) < 16 for own in (0, RESERVED_MIB))


def cell(situation: Situation, run: Run) -> str:
    """One cell of the table."""
    parts = []
    index = BAD if situation.bad is None else situation.bad
    if run.gpus:
        shown = run.gpus.get(index)
        other = next((n for n in range(4) if n != index and _is_right(shown, n)), None)
        parts += [f"what is GPU {other}"] if other is not None else []
        parts.append(str(shown) if shown else "not shown")
    elif run.said:
        parts.append(f"`{run.said[:90]}`")
    elif not run.notes:
        parts.append("nothing")
    parts += run.notes
    end = "killed" if run.code is None else f"exit {run.code}"
    text = "; ".join(parts).replace("|", "\\|").replace("\n", " ")
    return f"{text}. Others {good_ones(situation, run)}, {end}"


# ------------------------------------------------------------------------------- the page


def main() -> int:
    """Runs the chosen situations and the costs, and writes the page."""
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    base = Path(tempfile.mkdtemp(prefix="fleetcraft-peers-")).resolve()
    try:
        venv = Path(args.venv).resolve() if args.venv else install(base / "venv")
        facts = machine.describe(base, machine.command_line())
        table = {}
        for name in args.only or SITUATIONS:
            print(name, "...", file=sys.stderr)
            table[name] = try_out(SITUATIONS[name], venv, base / name)
        costs = "" if args.no_costs else peer_costs.measure(venv, base)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    page = write_page(facts, table, costs)
    print(page)
    if args.out:
        Path(args.out).write_text(page + "\n")
    return 0


def parse_args() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="Compare with nvitop and gpustat on the rig.")
    parser.add_argument("--out", type=os.path.abspath, metavar="FILE.md", help="write the page")
    parser.add_argument("--only", nargs="+", choices=SITUATIONS, metavar="NAME", help="only these")
    parser.add_argument("--venv", metavar="DIR", help="an environment that has both programs")
    parser.add_argument("--no-costs", action="store_true", help="leave the costs out")
    return parser.parse_args()


def install(place: Path) -> Path:
    """A private environment with both programs, pinned."""
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pins = [f"{name}=={version}" for name, version in PINS.items()]
    pip = [str(place / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *pins], check=True)
    return place


_LEFT_OUT = ("making an empty file", "file system", "programs")


def write_page(facts: Mapping[str, str], table: Mapping[str, Mapping[str, Run]], costs: str) -> str:
    """The page as Markdown."""
    programs = ", ".join(f"{name} {version}" for name, version in PINS.items())
    head = [f"| {key} | {value} |" for key, value in facts.items() if key not in _LEFT_OUT]
    head.append(f"| beside it | {programs} |")
    rows = [
        f"| {SITUATIONS[name].what} | "
        + " | ".join(cell(SITUATIONS[name], runs[program]) for program in runs)
        + " |"
        for name, runs in table.items()
    ]
    return "\n".join(
        [
            "# Telemetry beside nvitop and gpustat",
            "",
            "| | |",
            "|---|---|",
            *head,
            "",
            _INTRODUCTION,
            "",
            "| situation | `nvitop -1` | `gpustat --json` | `fleetcraft telemetry log` |",
            "|---|---|---|---|",
            *rows,
            "",
            *_counts(table),
            costs,
        ]
    ).rstrip()


_INTRODUCTION = f"""\
All three use the unmodified binding on the driver rig (`tests/rig`): four GPUs, of which GPU {BAD}
is the bad one, or all where the situation is the whole driver's. Each cell shows GPU {BAD} as the
program shows it (utilization, memory used of total, power; - is what it leaves empty or fills with
a word), what else it says, how many of the other GPUs it shows with their true utilization and
memory, and how it ended. nvitop and gpustat look once, after the change where it comes while
running, and are killed after {ONE_LOOK_S:.0f} s; the logger runs through at one sample a second and
is ended by TERM. The logger's words are those of its CSV: `status`, `missing`, `detail`."""


_FAIRNESS = """\
The two are made to be looked at, and are better at that: one look takes a second, shows processes
with their users, fans, clocks and limits, and says by exit code 1 that there is no driver, which
the logger, going on, writes into its rows. What came before their look, such as an XID, a counter
that began anew or a GPU that was there, neither can know."""


def _counts(table: Mapping[str, Mapping[str, Run]]) -> list[str]:
    programs = list(next(iter(table.values()), {}))
    lines = [
        "## Counted",
        "",
        "| | " + " | ".join(programs) + " |",
        "|---|" + "---:|" * len(programs),
    ]
    per_gpu = {name: runs for name, runs in table.items() if SITUATIONS[name].bad is not None}
    counts = {
        f"of {len(per_gpu)} troubles of one GPU, the other three right": [
            sum(
                good_ones(SITUATIONS[name], runs[program]) == "3/3"
                for name, runs in per_gpu.items()
            )
            for program in programs
        ],
        f"of {len(table)} situations, ended by itself or at TERM": [
            sum(runs[program].code is not None for runs in table.values()) for program in programs
        ],
        f"of {len(table)} situations, a traceback on the screen": [
            sum("traceback" in runs[program].notes for runs in table.values())
            for program in programs
        ],
    }
    lines += [f"| {what} | " + " | ".join(map(str, row)) + " |" for what, row in counts.items()]
    return [*lines, "", _FAIRNESS, ""]


if __name__ == "__main__":
    sys.exit(main())
