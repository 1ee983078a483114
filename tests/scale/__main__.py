"""Counts, times and models what the spool costs as it grows, and writes the page of it.

    python -m tests.scale [--only counts times model] [--most N] [--json FILE] [--out FILE.md]

Invariant: what did not hold is said on the page, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import machine
from tests.scale import counts, forecast, times
from tests.scale.tables import Table

PARTS = ("counts", "times", "model")
_BYTES_A_TASK = 5_600


def main() -> int:
    """Runs the chosen parts."""
    args = parse_args()
    line = " ".join(["python -m tests.scale", *sys.argv[1:]])
    folder = Path(tempfile.mkdtemp(prefix="fleetcraft-scale-", dir=args.dir or place(args.most)))
    figure = Path(args.out).with_suffix(".svg") if args.out and "model" in args.only else None
    try:
        facts = machine.describe(folder, line)
        tables = run(args, folder, figure)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    facts["load when it ended"] = machine.load()
    page = write_page(facts, tables, figure)
    print(page)
    if args.out:
        Path(args.out).write_text(page + "\n")
    if args.json:
        data = {"machine": facts, "tables": {table.title: table.data for table in tables}}
        Path(args.json).write_text(json.dumps(data, indent=1, default=str) + "\n")
    failed = [text for table in tables for text in table.failed]
    for text in failed:
        print(f"did not hold: {text}", file=sys.stderr)
    return 1 if failed else 0


def parse_args() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.scale",
        description="Counts what the spool asks of a file system at every size, times it, and "
        "models what a metadata server sees of a large fleet.",
        epilog="example: python -m tests.scale --only counts --most 100000",
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument(
        "--most", type=int, default=1_000_000, metavar="N",
        help="tasks of the largest spool (1000000; that one needs 6 GB of memory or disk)",
    )  # fmt: skip
    parser.add_argument("--json", type=os.path.abspath, metavar="FILE", help="write the numbers")
    parser.add_argument("--out", type=os.path.abspath, metavar="FILE.md", help="write the page")
    parser.add_argument("--dir", type=os.path.abspath, help="where the spools are made")
    args = parser.parse_args()
    if args.most < counts.SIZES[0]:
        parser.error(f"--most must be at least {counts.SIZES[0]}")
    return args


def place(most: int) -> str:
    """In memory where that has room for twice the largest spool; else where temporary files go."""
    try:
        free = os.statvfs("/dev/shm")
    except OSError:
        return tempfile.gettempdir()
    room = free.f_bavail * free.f_frsize
    enough = room > 2 * most * _BYTES_A_TASK and free.f_favail > 2 * most
    return "/dev/shm" if enough else tempfile.gettempdir()


def run(args: argparse.Namespace, folder: Path, figure: Path | None) -> list[Table]:
    """The tables of the parts that are wanted."""
    tables: list[Table] = []
    for part in PARTS:
        if part not in args.only:
            continue
        began_s = time.monotonic()
        say(f"{part} ...")
        if part == "counts":
            tables += counts.measure(folder, args.most, say).tables
        elif part == "times":
            tables.append(times.measure(folder, args.most, say))
        else:
            tables += forecast.measure(folder, figure, say)
        say(f"{part}: {time.monotonic() - began_s:.0f} s")
    return tables


def say(text: str) -> None:
    """Tells what goes on."""
    print(text, file=sys.stderr, flush=True)


def write_page(facts: dict[str, str], tables: list[Table], figure: Path | None) -> str:
    """The page."""
    lines = ["# How the spool grows", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in facts.items()]
    for table in tables:
        lines += ["", *table.lines()]
        if figure is not None and table.title == "model: a busy fleet":
            lines += ["", f"![What one metadata server sees, by nodes]({figure.name})"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
