"""Publishes the sweep, runs it with two local workers, and shows what came out.

Every step is a command that you could type; each is printed before it runs. The spool lies in a
scratch tree of its own and the results beside it. Started by bin/demo, which makes the environment.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fleetcraft import Spool

HERE = Path(__file__).resolve().parent
SEEDS = (1, 2, 3, 4)
STEPS = (4, 8, 16)
WORKERS = 2
LOOK_EVERY_S = 2
EXIT_USAGE = 2


def main() -> int:
    """Runs the demo; returns its exit code."""
    parser = argparse.ArgumentParser(prog="bin/demo", description=__doc__)
    parser.add_argument("--keep", metavar="DIR", type=Path, help="leave the whole tree in DIR")
    keep = parser.parse_args().keep
    folder = prepare_folder(keep)
    if folder is None:
        return EXIT_USAGE
    try:
        code = run_sweep(folder)
    except subprocess.CalledProcessError as error:
        print(f"error: that command ended with exit code {error.returncode}", file=sys.stderr)
        print(f"hint: the tree is left for a look in {folder}", file=sys.stderr)
        return 1
    scratch = folder / "scratch"
    if code == 0 and not keep:
        shutil.rmtree(scratch)
        print("  the spool, with records, logs and telemetry, was removed; --keep DIR leaves it")
    else:
        print(f"  {scratch} (the spool: records, logs and journals; telemetry)")
    return code


def prepare_folder(keep: Path | None) -> Path | None:
    """The folder for scratch tree and results; None, with a message, when it cannot be used."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="fleetcraft-demo-"))
    keep = keep.absolute()
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        print(f"error: {keep} is there already and not an empty folder", file=sys.stderr)
        print("hint: name a new folder, or remove that one", file=sys.stderr)
        return None
    keep.mkdir(parents=True, exist_ok=True)
    return keep


def run_sweep(folder: Path) -> int:
    """Publishes and drains the sweep; returns 0 when all of it came out."""
    results = folder / "results"
    for part in ("clips", "scores", "report"):
        (results / part).mkdir(parents=True)
    root = folder / "scratch"
    tell("1. A scratch tree with an empty spool")
    fleetcraft(root, results, "init")

    tell("2. A list of prompts from a source that fails once; its task has one retry")
    fleetcraft(
        root, results, "enqueue", "-n", "prompts", "--retries", "1", "--outputs", "prompts.json",
        script("fetch_prompt.py", "--out prompts.json"),
    )  # fmt: skip

    tell(
        f"3. {len(SEEDS) * len(STEPS)} clips from one table, and a score for each when it is there"
    )
    write_table(results / "sweep.csv")
    clip = "clips/s{seed}-k{steps}"
    fleetcraft(
        root, results, "enqueue", "--from", "sweep.csv", "-n", "gen-s{seed}-k{steps:02d}",
        "--after", "prompts", "--family", "tiny-flow", "--outputs", f"{clip}.mp4",
        script(
            "generate.py",
            "--seed {seed} --steps {steps} --prompts prompts.json --out clips/s{seed}-k{steps}.mp4",
        ),
    )  # fmt: skip
    fleetcraft(
        root, results, "enqueue", "--from", "sweep.csv", "-n", "score-s{seed}-k{steps:02d}",
        "--after", "gen-s{seed}-k{steps:02d}", "--outputs", "scores/s{seed}-k{steps}.json",
        script(
            "score.py",
            "--clip clips/s{seed}-k{steps}.mp4 --out scores/s{seed}-k{steps}.json",
        ),
    )  # fmt: skip

    tell("4. One timed pass, which has the machine to itself, and a summary when all is there")
    fleetcraft(
        root, results, "enqueue", "-n", "timed-pass", "--timed", "--lane", "first",
        "--timeout", "00:05:00", "--outputs", "scores/timing.json",
        script("time_pass.py", "--seed 1 --steps 16 --repeats 3 --out scores/timing.json"),
    )  # fmt: skip
    fleetcraft(
        root, results, "enqueue", "-n", "summary", "--after", "score-*", "--after", "timed-pass",
        "--outputs", "report/summary.png",
        script("summarize.py", "--scores scores --out report"),
    )  # fmt: skip

    tell(
        f"5. {WORKERS} workers on this machine until nothing is left; "
        f"a logger looks every {LOOK_EVERY_S} s at what it does"
    )
    code = fleetcraft(
        root, results, "run", "--workers", str(WORKERS),
        check=False, settings={"FLEET_TELEMETRY_INTERVAL_S": str(LOOK_EVERY_S)},
    )  # fmt: skip
    fleetcraft(root, results, "check")

    tell("6. What the logger saw, and what workers noted of the queue, on one time axis")
    seen = draw_telemetry(root, results)
    report(root, results, seen)
    return code


def draw_telemetry(root: Path, results: Path) -> str:
    """Shows and draws what was logged while the workers ran; says in words what was seen."""
    fleetcraft(root, results, "telemetry", "inspect")
    gpus = ask_fleetcraft(root, results, "telemetry", "inspect")["gpus"]
    fleetcraft(root, results, "telemetry", "summary", "--window", "1h")
    fleetcraft(root, results, "telemetry", "plot", "--out", "report")
    fleetcraft(
        root, results, "report", "-o", "report/report.html", "--title", "A sweep of video clips"
    )  # fmt: skip
    if gpus:
        return f"{gpus} GPUs beside the queue: utilization, memory, power, and what was to do"
    return "the queue, and memory and load of this host: no GPU was seen, and none is made up"


def write_table(path: Path) -> None:
    """The sweep: one row a clip."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["seed", "steps"])
        table.writerows((seed, steps) for steps in STEPS for seed in SEEDS)


def script(name: str, arguments: str) -> str:
    """The command that runs a script of this folder with this Python."""
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / name))} {arguments}"


def fleetcraft(
    root: Path,
    project: Path,
    *arguments: str,
    check: bool = True,
    settings: Mapping[str, str] | None = None,
) -> int:
    """Prints and runs one command; its output goes to the terminal."""
    settings = settings or {}
    before = "".join(f"{name}={value} " for name, value in settings.items())
    shown = [word if len(word) < 60 else f"{word[:24]}…{word[-32:]}" for word in arguments]
    print(f"$ {before}fleetcraft --root {root} {shlex.join(shown)}", flush=True)
    done = subprocess.run(
        command(root, project, *arguments),
        check=check,
        cwd=project,
        env={**environment(), **settings},
    )
    return done.returncode


def ask_fleetcraft(root: Path, project: Path, *arguments: str) -> dict[str, Any]:
    """The answer of one command as JSON, for this program to go by."""
    done = subprocess.run(
        command(root, project, "--json", *arguments),
        check=True,
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def command(root: Path, project: Path, *arguments: str) -> list[str]:
    """The command line that `fleetcraft` stands for."""
    words = ["--root", str(root), "--project-dir", str(project)]
    return [sys.executable, "-m", "fleetcraft", *words, *arguments]


def environment() -> dict[str, str]:
    """This process's environment, without what would send the demo to another spool."""
    other = ("FLEET_", "PROJECT", "SPOOL_DIR", "GPU_SPOOL_DIR", "TELEMETRY_DIR", "MAX_IDLE_MIN")
    return {key: value for key, value in os.environ.items() if not key.startswith(other)}


def report(root: Path, results: Path, seen: str) -> None:
    """What a person wants to know of the run, read back from the spool and the results."""
    spool = Spool(str(root / "taskq"))
    tell("What happened")
    retried = spool.show("prompts").attempts
    print(f"prompts     {len(retried)} attempts: {', '.join(str(a.outcome) for a in retried)}")
    print(f"timed-pass  {describe_timing(spool, results)}")
    print_means(results / "report" / "summary.csv")
    tell("What it made")
    for path in ("clips", "report/summary.csv", "report/summary.md", "report/summary.png"):
        print(f"  {results / path}")
    print(f"  {results / 'report' / 'fleet.png'} ({seen})")
    print(f"  {results / 'report' / 'report.html'} (all of it on one page, for a browser)")


def print_means(path: Path) -> None:
    """The summary's table in short: the mean of each metric over the seeds, by steps."""
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except OSError:
        print("summary     is missing: see the failed tasks above")
        return
    metrics = [name for name in rows[0] if name not in ("name", "prompt", "seed", "steps")]
    print(f"summary     {len(rows)} clips were scored; means over {len(SEEDS)} seeds:")
    print(f"  {'steps':>5}  {'  '.join(f'{name:>12}' for name in metrics)}")
    for steps in STEPS:
        group = [row for row in rows if row["steps"] == str(steps)]
        means = [sum(float(row[name]) for row in group) / len(group) for name in metrics]
        print(f"  {steps:>5}  {'  '.join(f'{mean:>12.2f}' for mean in means)}")


def describe_timing(spool: Spool, results: Path) -> str:
    """The timed pass's median, and whether anything ran beside it, by the attempts' own times."""
    try:
        timing = json.loads((results / "scores" / "timing.json").read_text(encoding="utf-8"))
    except OSError:
        return "did not finish"
    start, end = span(spool, "timed-pass")[-1]
    beside = [
        name
        for name in sorted(os.listdir(spool.tree.paths.names))
        if name != "timed-pass"
        for other_start, other_end in span(spool, name)
        if other_start < end and start < other_end
    ]
    alone = f"beside {', '.join(beside)}" if beside else "alone on this machine"
    return f"{timing['median_s']:.3f} s a clip (median of {len(timing['times_s'])}), {alone}"


def span(spool: Spool, name: str) -> list[tuple[datetime, datetime]]:
    """Start and end of each attempt of a task."""
    return [
        (datetime.fromisoformat(attempt.started_at), datetime.fromisoformat(attempt.ended_at))
        for attempt in spool.show(name).attempts
        if attempt.started_at and attempt.ended_at
    ]


def tell(text: str) -> None:
    """Prints a heading."""
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
