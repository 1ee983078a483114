"""``python -m tests.crash.mounts``: real work on mounts that misbehave, as tables and a page.

Not here: the work (`trial`, `others`, `greeting`, `full_disk`) and the words of the page (`page`).
Invariant: the exit code is 0 only if everything held and every rule was seen to fire.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench import machine
from tests.crash.mounts import full_disk, greeting, others, page, trial
from tests.crash.mounts.mounting import CannotMountError, mounted, why_no_fuse
from tests.crash.mounts.page import Results
from tests.crash.mounts.troubles import BY_NAME, TROUBLES, Trouble

_EXAMPLES = """examples:
  python -m tests.crash.mounts
  python -m tests.crash.mounts --kind tmpfs
  python -m tests.crash.mounts --kind fuse --only lie quota --tasks 20
  python -m tests.crash.mounts --out docs/benchmarks/mounts.md

--only names words of troubles. FUSE needs /dev/fuse, fusermount3 and mfusepy; a tmpfs needs root.
Exit code 0: everything held; 1: something did not, and it is told; 2: usage.
"""
_OTHERS = (
    "changes that lie, EIO", "changes that fail, EIO", "server reboots, ESTALE",
    "stale listings and facts", "neither, and two clients",
)  # fmt: skip
_MATRIX = ("spool", "locks", "table", "rollouts")
"""Modules whose trials rest on the file system alone, and on no clock of a few tenths of a second,
which a slow mount would overstep."""


def main(arguments: list[str]) -> int:
    """Does it all; returns the exit code."""
    given = _parse(arguments)
    began_s = time.monotonic()
    results = Results()
    troubles = [t for t in TROUBLES if not given.only or any(w in t.name for w in given.only)]
    if not troubles:
        print(f"no trouble has such a name; there are: {', '.join(BY_NAME)}", file=sys.stderr)
        return 2
    if "fuse" in given.kind:
        if why := why_no_fuse():
            results.skipped.append(f"FUSE: {why}")
        else:
            _on_fuse(results, troubles, given)
    if "tmpfs" in given.kind:
        try:
            _on_tmpfs(results)
        except CannotMountError as error:
            results.skipped.append(f"tmpfs: {error}")
    results.wall_s = time.monotonic() - began_s
    print(page.tables(results))
    for fault in results.faults():
        print(f"DOES NOT HOLD: {fault}", file=sys.stderr)
    if given.out:
        command = shlex.join(["python", "-m", "tests.crash.mounts", *arguments])
        with _empty() as base:
            Path(given.out).write_text(page.whole(results, machine.describe(base, command)))
    return 1 if results.faults() else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash.mounts",
        description="Runs fleets, locks, rollouts, archives and the logger on real second mounts: "
        "a FUSE passthrough that is late, fails and lies, and a tmpfs that is full. Counts what "
        "was lost, run twice or stuck, from the backing folder.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--kind", nargs="+", choices=("fuse", "tmpfs"), default=["fuse", "tmpfs"])
    add("--only", nargs="+", default=[], metavar="WORD", help="only troubles with such a word")
    add("--seconds", type=float, default=20.0, help="how long a trouble lasts at most (20)")
    add("--tasks", type=int, default=40, help="tasks that each of two processes enqueues (40)")
    add("--seed", type=int, default=0, help="of the rules and of what is killed")
    add(
        "--share", type=float, default=0.005, help="which part of the crash matrix (0.005); 0: none"
    )
    add("--out", metavar="FILE", help="write a page of Markdown")
    return parser.parse_args(arguments)


def _on_fuse(results: Results, troubles: list[Trouble], given: argparse.Namespace) -> None:
    for trouble in troubles:
        _say(f"fleet: {trouble.name}")
        with _empty() as base:
            results.fleets.append(
                trial.put_through(trouble, base, tasks=given.tasks, weather_s=given.seconds,
                                  seed=given.seed)
            )  # fmt: skip
    for trouble in troubles:
        if trouble.name in _OTHERS:
            _say(f"locks, rollouts, archive, logger: {trouble.name}")
            with _empty() as base:
                works, fired = others.put_others_through(trouble, base, seed=given.seed)
            results.others.append((trouble.name, fired, works))
    if not given.only:
        for kind in greeting.KINDS:
            _say(f"init and doctor: {kind.name}")
            with _empty() as base:
                results.greetings.append(greeting.greet(kind, base))
        if given.share:
            _matrix(results, given.share)


def _matrix(results: Results, share: float) -> None:
    """A sample of the crash matrix with its trees on the mount."""
    from tests.crash import engine
    from tests.crash.build import NoCompiler

    for module in _MATRIX:
        _say(f"crash matrix on the mount: {module}")
        try:
            with _empty() as base, mounted(base) as mount:
                results.matrix += engine.run(module, share=share, place_base=mount.folder)
        except (NoCompiler, engine.EngineError) as error:
            results.skipped.append(f"crash matrix of {module}: {error}")


def _on_tmpfs(results: Results) -> None:
    for kind in ("bytes", "files"):
        _say(f"tmpfs, no {kind} left: every command")
        with _empty() as base:
            answers, faults = full_disk.ask_everything(base, kind)
        results.answers.append((kind, answers, faults))
        _say(f"tmpfs, no {kind} left in the middle of a fleet")
        with _empty() as base:
            results.full.append((kind, full_disk.full_in_the_middle(base, kind)))


@contextmanager
def _empty() -> Iterator[Path]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="fleet-mounts-") as made:
        yield Path(made)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
