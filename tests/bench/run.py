"""Measures what fleetcraft costs and prints one Markdown page of tables.

    python tests/bench/run.py [--quick] [--only NAME ...] [--out FILE.md] [--json FILE] [--dir DIR]

NAME is a section, or `spool` or `telemetry` for all of a page. Not a test: nothing here fails for
being slow. Invariant: each cost stands beside a floor measured in the same run on the same mount.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import (
    calls,
    claims,
    drain,
    enqueue,
    figure_costs,
    live_view,
    logged_tasks,
    logger_costs,
    machine,
    memory,
    reading_costs,
    startup,
)
from tests.bench.measure import Bench, BenchError, Row, Section, keep_bytecode_in

SPOOL = {
    "drain": drain.measure,
    "enqueue": enqueue.measure,
    "claims": claims.measure,
    "calls": calls.measure,
    "startup": startup.measure,
    "memory": memory.measure,
}
TELEMETRY = {
    "logger": logger_costs.measure,
    "inspect": reading_costs.measure_inspect,
    "summary": reading_costs.measure_summary,
    "top": live_view.measure,
    "plot": figure_costs.measure,
    "tasks": logged_tasks.measure,
}
SECTIONS = SPOOL | TELEMETRY
PAGES = {
    "spool": ("What the spool and the worker cost", SPOOL),
    "telemetry": ("What telemetry costs", TELEMETRY),
}
COLUMNS = ("measured", "beside", "ratio", "goal", "met")


def main() -> int:
    """Runs the chosen sections."""
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    names = chosen(args.only)
    base = args.dir or tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="fleetcraft-bench-", dir=base)).resolve()
    bench = Bench(folder=folder, quick=args.quick, say=lambda text: print(text, file=sys.stderr))
    keep_bytecode_in(bench.new_folder("bytecode"))
    facts = machine.describe(folder, machine.command_line())
    sections = []
    try:
        for name in names:
            started = time.monotonic()
            bench.say(f"{name} ...")
            sections.append(measure(name, bench))
            bench.say(f"{name}: {time.monotonic() - started:.0f} s")
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    facts["load when it ended"] = machine.load()
    page = write_page(title_of(names), facts, sections, quick=args.quick)
    print(page)
    if args.out:
        Path(args.out).write_text(page + "\n")
    if args.json:
        data = {"machine": facts, "sections": [asdict(section) for section in sections]}
        Path(args.json).write_text(json.dumps(data, indent=1) + "\n")
    return 1 if any(section.title == "failed" for section in sections) else 0


def parse_args() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="Measure what fleetcraft costs.")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repetitions")
    parser.add_argument(
        "--only", nargs="+", choices=[*PAGES, *SECTIONS], metavar="NAME", help=list_names()
    )
    parser.add_argument("--out", type=os.path.abspath, metavar="FILE.md", help="write the page")
    parser.add_argument("--json", type=os.path.abspath, metavar="FILE", help="write the samples")
    parser.add_argument("--dir", type=os.path.abspath, help="where the spools are made")
    return parser.parse_args()


def list_names() -> str:
    """The names of pages and sections."""
    pages = (f"{page} ({', '.join(sections)})" for page, (_, sections) in PAGES.items())
    return f"only these pages or sections: {'; '.join(pages)}"


def chosen(only: list[str] | None) -> list[str]:
    """The names of the sections to be measured, each once, in the order asked for."""
    names: dict[str, None] = {}
    for name in only or PAGES:
        names |= dict.fromkeys(PAGES[name][1] if name in PAGES else [name])
    return list(names)


def title_of(names: list[str]) -> str:
    """The title of the page that these sections belong to."""
    for title, sections in PAGES.values():
        if sections.keys() >= set(names):
            return title
    return "What fleetcraft costs"


def measure(name: str, bench: Bench) -> Section:
    """One section; a failure becomes a section that says so."""
    try:
        return SECTIONS[name](bench)
    except BenchError as error:
        return Section(name=name, title="failed", how=f"{name} could not be measured: {error}")


def write_page(title: str, facts: dict[str, str], sections: list[Section], *, quick: bool) -> str:
    """The page."""
    lines = [f"# {title}" + (" (quick run)" if quick else ""), ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in facts.items()]
    lines += [
        "",
        "Medians, with the smallest and the largest of the repetitions in brackets. What is "
        "compared ran interleaved in this run; ratios are taken within a repetition. CPU is user "
        "and system time of the command and of every process that it waited for.",
    ]
    for section in sections:
        lines += ["", *write_section(section)]
    return "\n".join(lines)


def write_section(section: Section) -> list[str]:
    """One section: heading, table, what was skipped, how the cost grows."""
    lines = [f"## {section.name}: {section.title}", "", section.how]
    if section.rows:
        lines += ["", f"| | {' | '.join(COLUMNS)} |", "|---|---:|---:|---:|---:|---|"]
        lines += [write_row(row) for row in section.rows]
    if section.skipped:
        lines += ["", *(f"- skipped: {reason}" for reason in section.skipped)]
    if section.growth:
        lines += ["", f"Growth: {section.growth}"]
    return lines


def write_row(row: Row) -> str:
    """One line of a table."""
    met = {None: "", True: "yes", False: "no"}[row.met]
    cells = (row.what, row.measured, row.beside, row.ratio, row.goal, met)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
