"""The timed pass: batch one, warm-up, repeats. Enqueue it as a timed task: it must run alone."""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path

from documents import TIMING, exit_with, write_document

from fleetcraft.errors import UsageError


def main() -> None:
    """Warms up, measures, writes every time and their median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="seed of the clip's own noise")
    parser.add_argument("--out", type=Path, required=True, help="the result, as in timing.json")
    parser.add_argument("--steps", type=int, default=16, help="sampler steps (default 16)")
    parser.add_argument("--warmup", type=int, default=1, help="unmeasured runs (default 1)")
    parser.add_argument("--repeats", type=int, default=5, help="measured runs (default 5)")
    options = parser.parse_args()
    if options.repeats < 1 or options.steps < 1 or options.warmup < 0:
        raise UsageError("--repeats and --steps must be at least 1, --warmup at least 0")

    import torch
    from model import FlowModel, prompt_for

    model, prompt = FlowModel(), prompt_for(options.seed)
    times_s = []
    for _ in range(options.warmup + options.repeats):
        started = time.perf_counter()
        model.sample([options.seed], [prompt], options.steps)
        times_s.append(round(time.perf_counter() - started, 6))
    measured = times_s[options.warmup :]
    write_document(
        options.out,
        TIMING,
        what="sampling one clip, decoder included, no encoding",
        seed=options.seed,
        steps=options.steps,
        prompt=prompt,
        batch=1,
        median_s=statistics.median(measured),
        times_s=measured,
        warmup_s=times_s[: options.warmup],
        threads=torch.get_num_threads(),
        device="cpu",
        torch=torch.__version__,
        host=platform.node(),
    )
    print(f"median {statistics.median(measured):.4f} s over {len(measured)} runs, batch 1")


if __name__ == "__main__":
    exit_with(main)
