"""What tracking costs: CPU time of training steps with a ledger over the same without.

Run alone: `python -m tests.bench.calibration_costs [--out FILE.md]`. Invariant: both sides take
turns and run the same ops on the same tensors; the ratio is of medians.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import torch
import torch._dynamo  # the first dispatch mode would load it

from fleetcraft.calibration.tracking.autograd import SavedTensors
from fleetcraft.calibration.tracking.ledger import Ledger
from tests.bench import machine
from tests.calibration.tracking.toys import train_step, transformer

GOAL_FRACTION = 0.15
TURNS = 9
STEPS = 2
TINY_OPS = 20_000
SHAPES = ((4, 128, 256, 1), (4, 128, 256, 4), (6, 256, 864, 2))
PAGE = ("# What it costs to know the owner of every byte", "", "| | |", "|---|---|")
HOW = (
    "CPU time of one training step (forward, backward, AdamW) of a small transformer on one",
    f"thread, plain and with the ledger of `calibrate`, in {TURNS} turns; medians. The cost is a",
    "fixed time an operation, so it weighs less the larger a model's operations are: the last row",
    "is that time by itself. Timed passes of a calibration run without the ledger.",
)
COLUMNS = (
    f"| | plain | tracked | cost | goal, below {GOAL_FRACTION:.0%} |",
    "|---|---:|---:|---:|---|",
)


def cpu_s(work: Callable[[], object], around: AbstractContextManager[object]) -> float:
    """CPU time of all threads for some work inside a context."""
    gc.collect()
    with around:
        began = time.process_time()
        work()
        return time.process_time() - began


def tracked() -> ExitStack:
    """A ledger and its hooks."""
    ledger = Ledger("cpu")
    stack = ExitStack()
    stack.enter_context(ledger)
    stack.enter_context(SavedTensors(ledger))
    return stack


def compare(work: Callable[[], object], turns: int) -> tuple[float, float]:
    """Medians of CPU seconds, plain and tracked, taken in turns."""
    work()
    pairs = [(cpu_s(work, nullcontext()), cpu_s(work, tracked())) for _ in range(turns)]
    plain, with_ledger = zip(*pairs, strict=True)
    return statistics.median(plain), statistics.median(with_ledger)


def steps_of(layers: int, width: int, tokens: int, batch: int) -> tuple[float, float]:
    """CPU seconds of one training step of such a transformer, plain and tracked."""
    model = transformer(layers, width)
    optimizer = torch.optim.AdamW(model.parameters())
    given = torch.randn(batch, tokens, width)

    def steps() -> None:
        for _ in range(STEPS):
            train_step(model, optimizer, given)

    plain, with_ledger = compare(steps, TURNS)
    return plain / STEPS, with_ledger / STEPS


def tiny_ops() -> tuple[float, float]:
    """CPU seconds of one operation on four numbers, plain and tracked."""
    tiny = torch.ones(4)

    def ops() -> None:
        for _ in range(TINY_OPS):
            tiny * tiny

    plain, with_ledger = compare(ops, 5)
    return plain / TINY_OPS, with_ledger / TINY_OPS


def measure() -> list[str]:
    """The rows of the table."""
    rows = []
    for shape in SHAPES:
        plain, with_ledger = steps_of(*shape)
        cost = with_ledger / plain - 1
        layers, width, tokens, batch = shape
        rows.append(
            f"| {layers} layers, width {width}, {tokens} tokens, batch {batch} "
            f"| {plain * 1e3:.0f} ms | {with_ledger * 1e3:.0f} ms | {cost:+.1%} "
            f"| {'yes' if cost < GOAL_FRACTION else 'no'} |"
        )
        print(rows[-1], flush=True)
    plain, with_ledger = tiny_ops()
    tiny = f"{plain * 1e6:.1f} us | {with_ledger * 1e6:.1f} us"
    rows.append(f"| one product of 4 numbers | {tiny} | | |")
    print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Prints one line for each workload, and writes a page where one is asked for."""
    parser = argparse.ArgumentParser(description="Measure what tracking owners costs.")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the page")
    out = parser.parse_args().out
    facts = machine.describe(Path(tempfile.gettempdir()), machine.command_line())
    gc.collect()
    gc.freeze()
    torch.set_num_threads(1)
    rows = measure()
    if out is not None:
        head = [f"| {key} | {value} |" for key, value in facts.items()]
        out.write_text("\n".join([*PAGE, *head, "", *HOW, "", *COLUMNS, *rows, ""]))


if __name__ == "__main__":
    main()
