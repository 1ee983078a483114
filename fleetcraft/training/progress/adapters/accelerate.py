"""Progress of a loop under Hugging Face accelerate.

One line after ``accelerator.prepare``, and one in the loop:

    progress = report_accelerated(optimizer, start=first_step)
    ...
    progress.note(loss=loss, tokens=batch.numel())

accelerate itself is not imported. Invariant: what is counted are steps of the optimizer below
accelerate's wrapper, which it calls only when gradients are in step and the scaler did not skip.
"""

from __future__ import annotations

from typing import Any

from fleetcraft.training.progress.adapters.pytorch import ProgressOptimizer


def report_accelerated(
    optimizer: Any, *, start: int = 0, name: str = "", loss_every: int = 1
) -> ProgressOptimizer:
    """Reports the steps of an optimizer that ``accelerator.prepare`` has wrapped.

    Args:
        optimizer: What ``prepare`` gave back.
        start: Steps that were completed before, as the checkpoint says.
        name: What this rank is called.
        loss_every: See `ProgressOptimizer`.

    Returns:
        The reporter: hand loss and tokens to its ``note``.
    """
    inner = optimizer
    # AcceleratedOptimizer is an Optimizer by its class, but its hooks are never called.
    while hasattr(inner, "accelerator_state") and hasattr(inner, "optimizer"):
        inner = inner.optimizer
    return ProgressOptimizer(inner, start=start, name=name, loss_every=loss_every)
