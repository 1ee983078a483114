"""Progress of a plain PyTorch loop: a hook of the optimizer reports each step that it completes.

Two lines in the training script:

    progress = ProgressOptimizer(optimizer, start=first_step)
    ...
    progress.note(loss=loss, tokens=batch.numel())      # before optimizer.step()

Invariant: it changes nothing of the optimizer, and nothing that it is told makes the step fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetcraft.training.progress.writing import QueueReport, report_progress


class ProgressOptimizer:
    """Reports a step whenever the optimizer has completed one.

    Micro steps of an accumulation are not steps: it counts calls of ``optimizer.step``. A step
    that a gradient scaler skips is not counted, since the optimizer is then not called.

    Attributes:
        step: Optimizer steps completed, over all launches of the run.
    """

    def __init__(self, optimizer: Any, *, start: int = 0, name: str = "", loss_every: int = 1):
        """Registers the hook; `close` removes it.

        Args:
            optimizer: A ``torch.optim.Optimizer``; one of several, the one that sets the pace.
            start: Steps that were completed before, as the checkpoint says.
            name: What this rank is called, such as ``drafter-1``.
            loss_every: Reports the loss at every so many steps. Reading a loss waits until the
                device has computed it.
        """
        self.step = start
        self._name = name
        self._loss_every = max(1, loss_every)
        self._loss: Any = None
        self._tokens: float | None = None
        self._queues: Mapping[str, QueueReport] | None = None
        self._metrics: Mapping[str, float] | None = None
        self._handle = optimizer.register_step_post_hook(self._stepped)

    def note(
        self,
        *,
        loss: Any = None,
        tokens: float | None = None,
        queues: Mapping[str, QueueReport] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Keeps what the next step reports.

        Args:
            loss: A number or a tensor of one; the last one before the step counts.
            tokens: Processed by this rank in this micro step; those until the step are added up.
            queues: As for `report_progress`.
            metrics: As for `report_progress`.
        """
        if loss is not None:
            self._loss = loss.detach() if hasattr(loss, "detach") else loss
        if tokens is not None:
            self._tokens = (self._tokens or 0.0) + tokens
        self._queues = self._queues if queues is None else queues
        self._metrics = self._metrics if metrics is None else metrics

    def close(self) -> None:
        """Removes the hook."""
        self._handle.remove()

    def _stepped(self, *_: object) -> None:
        self.step += 1
        report_progress(
            self.step,
            tokens=self._tokens,
            loss=self._loss if self.step % self._loss_every == 0 else None,
            queues=self._queues,
            metrics=self._metrics,
            name=self._name,
        )
        self._loss = self._tokens = self._queues = self._metrics = None
