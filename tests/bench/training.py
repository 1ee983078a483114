"""Runs the trials of training and rollouts at full counts, and writes one page of what came out.

    python tests/bench/training.py [--share FRACTION] [--full NAME ...] [--only NAME ...] [--out F]

Full counts take hours; ``--share 0.05`` runs a twentieth of each part that ``--full`` does not
name, and the page says so. Each part is a program of its own beside this one. Invariant: what a
part prints goes on the page as it is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import machine

REPO = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One program: what it shows, and its words for a share of the full count."""

    title: str
    words: Callable[[float], list[str]]


def times(full: int, share: float) -> str:
    """A share of a full count, at least one."""
    return str(max(1, round(full * share)))


PARTS = {
    "lock": Part(
        title="Two owners of one lock: schedules with stalls, crashes, lies and wrong judges",
        words=lambda share: ["tests.bench.lock_schedules", "--walks", times(100_000, share)],
    ),
    "stop": Part(
        title="Stopping a launch: what is left of children that do not want to end",
        words=lambda share: ["tests.bench.train_stop", "--trials", times(1000, share)],
    ),
    "kills": Part(
        title="Killing a supervisor at its file operations: whether the next one finishes the run",
        words=lambda share: ["tests.bench.train_kills", "--every", times(1, 1 / share)],
    ),
    "watch": Part(
        title="Watching 64 ranks at 1 Hz",
        words=lambda share: ["tests.bench.train_watch", *(["--quick"] if share < 1 else [])],
    ),
    "logs": Part(
        title="Scanning logs for signatures",
        words=lambda share: ["tests.bench.log_scan", "--mb", times(256, share)],
    ),
    "claims": Part(
        title="Eight controllers and one invalid done; what saving and verifying costs",
        words=lambda share: ["tests.bench.checkpoint_claims", "8", times(1000, share)],
    ),
    "rollouts": Part(
        title="The trajectory queue under kills",
        words=lambda share: ["tests.bench.rollouts", "--records", times(1_000_000, share)],
    ),
}


def main() -> int:
    """Runs the chosen parts; 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the full counts (1)")
    parser.add_argument("--full", nargs="+", choices=list(PARTS), default=[], help="whole anyway")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, metavar="FILE.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleetcraft-bench-") as folder:
        facts = machine.describe(Path(folder), machine.command_line())
    pages, failed = [], 0
    for name in asked.only:
        page, code = run(PARTS[name], 1.0 if name in asked.full else asked.share)
        pages.append(page)
        failed += code != 0
    facts["load when it ended"] = machine.load()
    text = "\n\n".join([head(facts, asked.share, asked.full), *pages]) + "\n"
    print(text)
    if asked.out:
        asked.out.write_text(text)
    return 1 if failed else 0


def head(facts: dict[str, str], share: float, full: list[str]) -> str:
    """Title, machine, and how much of the full counts was run."""
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    how = "at full counts" if share == 1 else f"at {share:.3g} of the full counts"
    if share < 1 and full:
        how += f" (whole: {', '.join(full)})"
    return f"# Training and rollouts, {how}\n\n| | |\n|---|---|\n{rows}"


def run(part: Part, share: float) -> tuple[str, int]:
    """One part: its section of the page, and its exit code."""
    words = part.words(share)
    print(f"{' '.join(words)} ...", file=sys.stderr)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=REPO, capture_output=True, text=True, check=False
    )
    took_s = time.monotonic() - began
    said = done.stdout.strip() or done.stderr.strip()[-2000:]
    if "\n|" not in f"\n{said}":
        said = f"```\n{said}\n```"
    end = "" if done.returncode == 0 else f" It ended with exit code {done.returncode}."
    how = f"`python -m {' '.join(words)}`, {took_s:.0f} s.{end}"
    return f"## {part.title}\n\n{how}\n\n{said}", done.returncode


if __name__ == "__main__":
    sys.exit(main())
