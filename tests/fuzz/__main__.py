"""Fuzzes all that reads what others wrote, within a time: ``python -m tests.fuzz --help``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.machine import command_line, describe
from tests.fuzz.engine import Outcome
from tests.fuzz.machines import MACHINES
from tests.fuzz.pool import Job, run_all
from tests.fuzz.targets import PARTS, of_part

_MACHINE_SHARE = 0.35
"""Of the whole time: one run of a machine is worth many of a parser, and takes as long."""


def main() -> int:
    """Runs what was asked for; exit code 1 when there was a finding."""
    asked = _arguments()
    jobs = _jobs(asked.only, asked.seconds * asked.jobs, asked.seed)
    if not jobs:
        print(f"nothing is called like {' '.join(asked.only)}; --list names all", file=sys.stderr)
        return 2
    if asked.list:
        print("\n".join(job.name for job in jobs))
        return 0
    began = time.monotonic()
    outcomes = run_all(jobs, asked.jobs, _Progress(len(jobs)))
    took_s = time.monotonic() - began
    table = _table(outcomes)
    print(table)
    print(_sum(outcomes, took_s))
    for outcome in outcomes:
        for key, shown in outcome.findings.items():
            print(f"\nFINDING in {outcome.name}\n  {key}\n  {shown}".replace("\n", "\n  "))
    if asked.out:
        _page(Path(asked.out), outcomes, table, took_s, asked.seed)
    return int(any(outcome.findings for outcome in outcomes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Fuzzes every parser and runs the state machines of spool, rollouts and locks. "
        "Each target gets an equal share of the time, in rounds that grow.",
        epilog="A value that should not have failed is printed. Keep it: as a sample of its target "
        "or as a test in tests/fuzz/test_findings.py.",
    )
    parser.add_argument("--seconds", type=float, default=200.0, help="for all of it (200)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD",
                        help="targets whose name holds one of these")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="the same seed tries the same values")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--out", metavar="FILE.md", help="write a page")
    parser.add_argument("--list", action="store_true", help="only name the targets")
    return parser.parse_args()


def _jobs(only: list[str], seconds: float, seed: int) -> list[Job]:
    names = [*MACHINES, *(target.name for part in PARTS for target in of_part(part))]
    chosen = [name for name in names if not only or any(word in name for word in only)]
    machines = [name for name in chosen if name in MACHINES]
    parsers = len(chosen) - len(machines)
    share = _MACHINE_SHARE if machines and parsers else float(bool(machines))
    of_machine = seconds * share / max(1, len(machines))
    of_parser = seconds * (1 - share) / max(1, parsers)
    return [
        Job(name=name, seed=seed, budget_s=of_machine if name in MACHINES else of_parser)
        for name in chosen
    ]


class _Progress:
    """On a terminal one line that changes; elsewhere a line for every twentieth target."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def __call__(self, outcome: Outcome) -> None:
        self._done += 1
        said = f"{self._done}/{self._total} {outcome.name}"
        if outcome.findings:
            print(f"{said}: {len(outcome.findings)} findings", file=sys.stderr)
        elif sys.stderr.isatty():
            print(f"\r{said[:78]:78}", end="", file=sys.stderr, flush=True)
        elif self._done % 20 == 0:
            print(said, file=sys.stderr, flush=True)
        if sys.stderr.isatty() and self._done == self._total:
            print(file=sys.stderr)


def _table(outcomes: list[Outcome]) -> str:
    lines = [
        "| target | tried | different errors | findings | a second |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in outcomes:
        rate = one.examples / one.seconds if one.seconds else 0.0
        lines.append(
            f"| {one.name} | {one.examples:,} | {len(one.errors)} | {len(one.findings)} "
            f"| {rate:,.0f} |"
        )
    return "\n".join(lines)


def _sum(outcomes: list[Outcome], took_s: float) -> str:
    steps = sum(one.examples for one in outcomes if one.name in MACHINES)
    values = sum(one.examples for one in outcomes if one.name not in MACHINES)
    errors = sum(len(one.errors) for one in outcomes)
    findings = sum(len(one.findings) for one in outcomes)
    return (
        f"{len(outcomes)} targets, {values:,} values, {steps:,} steps of machines, {errors} "
        f"different errors, {findings} findings, in {took_s:.0f} s"
    )


def _page(path: Path, outcomes: list[Outcome], table: str, took_s: float, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        facts = describe(Path(folder), command_line())
    head = "\n".join(f"| {name} | {text} |" for name, text in facts.items())
    found = "\n".join(
        f"- {one.name}: `{key}`" for one in outcomes for key in one.findings
    )  # fmt: skip
    path.write_text(
        f"""# Fuzzing

What reads things that others wrote was given true documents, damaged ones and noise; and three
state machines ran real code beside a model. `python -m tests.fuzz` makes this page.

A target passes a value when it returns something or raises an error that it documents, within
{_hang()} s of CPU time and 1 GiB of memory; where there is a writer, what was written must be read
back the same. A *different error* is a class raised at one line of the package, so the column says
how many ways of refusing were reached. Of machines the steps are counted, after each of which every
invariant was checked.

| | |
|---|---|
{head}

Seed {seed}. {_sum(outcomes, took_s)}.

{table}

## Findings of this run

{found or "None. What earlier runs have found is kept in `tests/fuzz/test_findings.py`."}
""",
        encoding="utf-8",
    )


def _hang() -> int:
    from tests.fuzz.target import HANG_S

    return HANG_S


if __name__ == "__main__":
    sys.exit(main())
