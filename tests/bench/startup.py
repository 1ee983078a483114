"""Starting: the help, and one enqueue, beside a bare start of Python and one with click.

Invariant: every command has run once before, so its bytecode is in the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.bench.enqueue import CLICK, single_call
from tests.bench.measure import (
    Bench,
    Cost,
    Row,
    Section,
    cli_has,
    cli_prefix,
    interleaved,
    ratios,
    spread,
    timed,
)


def measure(bench: Bench) -> Section:
    """All of them interleaved."""
    prefix = cli_prefix()
    section = Section(
        name="startup",
        title="start of the command line",
        how="Wall and CPU of whole commands, started as "
        f"`{' '.join(word.rpartition('/')[2] for word in prefix)}`. Beside: "
        "`python -c 'import click'` in the same repetition.",
    )
    commands: dict[str, Callable[[], Cost]] = {
        "`python -c 'import click'`": lambda: timed(CLICK),
        "`python -c pass`": lambda: timed([sys.executable, "-c", "pass"]),
        "`fleetcraft --help`": lambda: timed([*prefix, "--help"]),
    }
    if cli_has("enqueue"):
        commands["`fleetcraft enqueue --help`"] = lambda: timed([*prefix, "enqueue", "--help"])
        commands["`fleetcraft enqueue` of one task"] = _enqueuer(bench)
    else:
        section.skipped.append("enqueue: `fleetcraft enqueue` does not work here")
    for run in commands.values():
        run()
    results = interleaved(bench.pick(40, 12), *commands.values())
    click = results[0]
    for name, costs in zip(commands, results, strict=True):
        for kind in ("wall", "cpu"):
            mine = [getattr(cost, f"{kind}_s") for cost in costs]
            other = [getattr(cost, f"{kind}_s") for cost in click]
            section.rows.append(
                Row(
                    what=f"{name}, {'CPU' if kind == 'cpu' else kind}",
                    measured=spread(mine, "ms", 1, 1000),
                    beside="" if costs is click else spread(other, "ms", 1, 1000),
                    ratio="" if costs is click else spread(ratios(mine, other)),
                    samples={"seconds": mine},
                )
            )
    section.growth = "none: a start does not depend on what the spool holds."
    return section


def _enqueuer(bench: Bench) -> Callable[[], Cost]:
    argv = single_call(bench)
    number = 0

    def call() -> Cost:
        nonlocal number
        number += 1
        return timed([*argv, f"start-{number}"])

    return call
