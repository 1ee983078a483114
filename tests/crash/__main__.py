"""``python -m tests.crash``: the crash matrix, printed and written as a page.

Not here: trials (`engine`), and what the page says around the numbers (`page`). Invariant: the exit
code is 0 only if every trial held and every broken rule was seen.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from tests.crash import engine, page
from tests.crash.build import NoCompiler
from tests.crash.engine import EngineError, Row
from tests.crash.faults import FAULTS, Fault, named
from tests.crash.protocols import MODULES

T = TypeVar("T")
_EXAMPLES = """examples:
  python -m tests.crash --share 0.02                     a sample of everything
  python -m tests.crash --only spool --jobs 2            every step of the spool's protocols
  python -m tests.crash --only retry --faults ENOSPC torn
  python -m tests.crash --mount /mnt/nfs --only locks    on another file system
  python -m tests.crash --jobs 2 --out docs/benchmarks/crash-matrix.md

--only names modules, or words of protocols' names. Exit code 0: everything held; 1: something did
not, and it is told in full on standard error; 2: usage.
"""
_SAY_EVERY_S = 20.0
_WHOLE_MODULES_BELOW = 0.3


@dataclass(frozen=True)
class Unit:
    """Protocols that one warm process tries."""

    module: str
    protocols: tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    """A protocol with one rule broken, and the first trouble that the matrix saw, if it did."""

    protocol: str
    mutation: str
    trouble: engine.Trouble | None
    points: int


class Progress:
    """How far the trials are, on standard error: one line, rewritten, or one now and then."""

    def __init__(self) -> None:
        self._points = 0
        self._started_s = self._said_s = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, protocol: str) -> None:
        self._points += 1
        now_s = time.monotonic()
        if now_s - self._said_s < (0.2 if self._is_terminal else _SAY_EVERY_S):
            return
        self._said_s = now_s
        text = f"{self._points} trials in {now_s - self._started_s:.0f} s; now {protocol}"
        if self._is_terminal:
            print(f"\r{text:<100}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Frees the line."""
        if self._is_terminal:
            print(file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Makes the trials; returns the exit code."""
    given = _parse(arguments)
    started_s = time.monotonic()
    try:
        faults = named(given.faults)
        known = _known(given.only)
        progress = Progress()
        rows = _rows(known, faults, given, progress)
        print(page.matrix(rows), flush=True)
        mutants = [] if given.no_mutations else _mutants(known, given, progress)
        progress.end()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except (NoCompiler, EngineError) as error:
        print(error, file=sys.stderr)
        return 1
    seconds = time.monotonic() - started_s
    print(page.totals(rows, mutants, seconds))
    for mutant in mutants:
        if mutant.trouble is None:
            print(f"\n{mutant.protocol}: nobody saw {mutant.mutation}", file=sys.stderr)
    if given.json:
        _write_json(Path(given.json), rows, mutants, seconds)
    if given.out:
        words = shlex.join(["python", "-m", "tests.crash", *arguments])
        Path(given.out).write_text(page.whole(rows, mutants, seconds, words, given.mount))
    good = all(row.holds for row in rows) and all(mutant.trouble for mutant in mutants)
    return 0 if good else 1


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash",
        description="Kills every protocol of the toolkit at each of its file operations in turn, "
        "lets each fail, tear and lie, recovers once, and proves from another process that nothing "
        "is lost, doubled or stuck.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", nargs="+", default=[], metavar="WORD", help="only these modules or protocols")
    names = ", ".join(fault.name for fault in FAULTS)
    add("--faults", nargs="+", default=[], metavar="FAULT", help=f"only these, of {names}")
    add("--share", type=_share, default=1.0, help="which part of the steps: the same each time")
    add("--mount", type=Path, help="make the trees in this folder instead of in memory")
    add("--jobs", type=int, default=1, help="processes at one time (default 1)")
    add("--no-mutations", action="store_true", help="do not break rules to see whether it shows")
    add("--show", type=int, default=3, help="troubles told in full for each protocol (default 3)")
    add("--json", metavar="FILE", help="write everything as JSON")
    add("--out", metavar="FILE", help="write a page of Markdown")
    return parser.parse_args(arguments)


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError("a share is above 0 and at most 1")
    return share


def _known(words: list[str]) -> dict[str, dict[str, list[str]]]:
    """Protocols with their mutations, by module, of those that are asked for.

    Raises:
        ValueError: A word means none.
    """
    modules = [word for word in words if word in MODULES]
    others = [word for word in words if word not in MODULES]
    known: dict[str, dict[str, list[str]]] = {}
    for module in MODULES:
        if words and not others and module not in modules:
            continue
        found = {
            name: mutations
            for name, mutations in engine.mutations(module).items()
            if not words or module in modules or any(word in name for word in others)
        }
        if found:
            known[module] = found
    names = [name for found in known.values() for name in found]
    for word in others:
        if not any(word in name for name in names):
            raise ValueError(f"no module or protocol is called {word!r}; there are {MODULES}")
    return known


def _rows(
    known: dict[str, dict[str, list[str]]],
    faults: tuple[Fault, ...],
    given: argparse.Namespace,
    progress: Progress,
) -> list[Row]:
    """The matrix, row by row; a sample of a module is made by one process, which starts once."""
    units = [
        Unit(module, names)
        for module, found in known.items()
        for names in (
            [tuple(found)] if given.share < _WHOLE_MODULES_BELOW else [(name,) for name in found]
        )
    ]

    def tried(unit: Unit) -> list[Row]:
        try:
            rows = _on_the_mount(given.mount, lambda base: engine.run(
                unit.module, protocols=unit.protocols, faults=faults, share=given.share,
                place_base=base, progress=progress,
            ))  # fmt: skip
        except EngineError as error:
            rows = [Row(protocol=name, broken=str(error)) for name in unit.protocols]
        _tell(rows, given.show)
        return rows

    with ThreadPoolExecutor(given.jobs) as pool:
        return [row for rows in pool.map(tried, units) for row in rows]


def _tell(rows: list[Row], show: int) -> None:
    """How protocols ended, and what did not hold in full, as soon as it is known."""
    for row in rows:
        if row.points and show:
            said = f"{row.protocol}: {row.points} trials, {len(row.troubles)} did not hold"
            print(f"\n{said}" if sys.stderr.isatty() else said, file=sys.stderr, flush=True)
        if row.broken:
            print(f"\n{row.protocol}: {row.broken}", file=sys.stderr, flush=True)
        for trouble in row.troubles[:show]:
            print(f"\n{row.protocol}: {trouble}", file=sys.stderr, flush=True)


def _mutants(
    known: dict[str, dict[str, list[str]]], given: argparse.Namespace, progress: Progress
) -> list[Mutant]:
    """Whether the matrix shows each broken rule: it is tried until the first trouble."""
    broken = [
        (module, protocol, mutation)
        for module, found in known.items()
        for protocol, mutations in found.items()
        for mutation in mutations
    ]

    def tried(one: tuple[str, str, str]) -> Mutant:
        module, protocol, mutation = one
        try:
            [row] = _on_the_mount(given.mount, lambda base: engine.run(
                module, protocols=[protocol], mutation=mutation, stop_at_first=True,
                place_base=base, progress=progress,
            ))  # fmt: skip
        except EngineError as error:
            row = Row(protocol=protocol, broken=str(error))
        _tell([replace(row, cells={})], 0)
        trouble = row.troubles[0] if row.troubles else None
        return Mutant(protocol, mutation, trouble, row.points)

    with ThreadPoolExecutor(given.jobs) as pool:
        return list(pool.map(tried, broken))


def _on_the_mount(mount: Path | None, work: Callable[[Path | None], T]) -> T:
    """Works in a folder of its own on a mount, or in memory."""
    if mount is None:
        return work(None)
    with tempfile.TemporaryDirectory(dir=mount, prefix="fleet-crash-") as made:
        return work(Path(made))


def _write_json(path: Path, rows: list[Row], mutants: list[Mutant], seconds: float) -> None:
    said = {
        "schema": "fleetcraft.crash_matrix/1",
        "seconds": round(seconds, 1),
        "protocols": [asdict(row) for row in rows],
        "mutations": [asdict(mutant) for mutant in mutants],
    }
    path.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
