"""What tracking costs: CPU time of training steps with a ledger over the same without.

Run alone: `python -m tests.bench.calibration_costs`. Invariant: both sides take turns and run the
same ops on the same tensors; the ratio is of medians.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch
import torch._dynamo  # the first dispatch mode would load it

from fleetcraft.calibration.tracking.autograd import SavedTensors
from fleetcraft.calibration.tracking.ledger import Ledger
from tests.calibration.tracking.toys import train_step, transformer

GOAL_FRACTION = 0.15
TURNS = 9
STEPS = 2
TINY_OPS = 20_000


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


def main() -> None:
    """Prints one line for each workload."""
    gc.collect()
    gc.freeze()
    torch.set_num_threads(1)
    for layers, width, tokens, batch in ((4, 128, 256, 1), (4, 128, 256, 4), (6, 256, 864, 2)):
        model = transformer(layers, width)
        optimizer = torch.optim.AdamW(model.parameters())
        given = torch.randn(batch, tokens, width)

        def steps() -> None:
            for _ in range(STEPS):
                train_step(model, optimizer, given)  # noqa: B023

        plain, with_ledger = compare(steps, TURNS)
        print(
            f"{layers} layers, width {width}, {tokens} tokens, batch {batch}: "
            f"{plain / STEPS * 1e3:.0f} ms a step, tracking {with_ledger / plain - 1:+.1%} "
            f"(goal below {GOAL_FRACTION:.0%})"
        )
    tiny = torch.ones(4)

    def ops() -> None:
        for _ in range(TINY_OPS):
            tiny * tiny

    plain, with_ledger = compare(ops, 5)
    print(
        f"tiny op: {plain / TINY_OPS * 1e6:.1f} us, tracked {with_ledger / TINY_OPS * 1e6:.1f} us"
    )


if __name__ == "__main__":
    main()
