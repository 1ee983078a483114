"""Progress of a Lightning trainer: a callback.

One line in the training script:

    trainer = Trainer(callbacks=[progress_callback(tokens_per_batch=batch_size * length)])

Lightning is looked for only when the callback is made, under both of its names. Invariant: a step
is reported when ``trainer.global_step`` has grown, which counts optimizer steps, not batches.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from fleetcraft.training.progress.writing import QueueReport, progress_phase, report_progress

_HOMES = ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks")


def progress_callback(
    *,
    tokens_per_batch: float | None = None,
    queues: Callable[[], Mapping[str, QueueReport]] | None = None,
    metrics: tuple[str, ...] = (),
    name: str = "",
    loss_every: int = 1,
) -> Any:
    """A callback for ``Trainer(callbacks=[...])``.

    It reports every optimizer step, and declares the phases ``eval`` (validation, also the sanity
    check) and ``load`` (setup until training starts).

    Args:
        tokens_per_batch: What this rank processes in one batch.
        queues: Asked for the depths at each step.
        metrics: Names in ``trainer.callback_metrics`` to report.
        name: What this rank is called.
        loss_every: Reports the loss at every so many steps: reading it waits for the device.

    Returns:
        An instance of Lightning's ``Callback`` where Lightning is installed, else of a class with
        the same methods.
    """
    kind = type("ProgressCallback", (_Progress, _callback_base()), {})
    return kind(tokens_per_batch, queues, metrics, name, loss_every)


def _callback_base() -> type:
    for home in _HOMES:
        try:
            base = importlib.import_module(home).Callback
        except ImportError:
            continue
        if isinstance(base, type):
            return base
    return object


class _Progress:
    """What the callback does, apart from being one."""

    def __init__(
        self,
        tokens_per_batch: float | None,
        queues: Callable[[], Mapping[str, QueueReport]] | None,
        metrics: tuple[str, ...],
        name: str,
        loss_every: int,
    ) -> None:
        self._tokens_per_batch = tokens_per_batch
        self._queues = queues
        self._metrics = metrics
        self._name = name
        self._loss_every = max(1, loss_every)
        self._step: int | None = None
        self._tokens: float | None = None
        self._phases: dict[str, ExitStack] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Loading begins."""
        self._enter("load")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The step loop begins."""
        self._leave("load")
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reports, if this batch has completed an optimizer step."""
        if self._tokens_per_batch is not None:
            self._tokens = (self._tokens or 0.0) + self._tokens_per_batch
        step = trainer.global_step
        if self._step is not None and step <= self._step:
            return
        report_progress(
            step,
            tokens=self._tokens,
            loss=_loss(outputs) if step % self._loss_every == 0 else None,
            queues=self._queues() if self._queues else None,
            metrics=self._picked(trainer),
            name=self._name,
        )
        self._step, self._tokens = step, None

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """The phase ``eval`` begins."""
        self._enter("eval")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The phase ``eval`` ends."""
        self._leave("eval")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Every phase ends."""
        for phase in list(self._phases):
            self._leave(phase)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Every phase ends."""
        self.teardown(trainer, pl_module, "")

    def _picked(self, trainer: Any) -> dict[str, float]:
        known = getattr(trainer, "callback_metrics", {})
        return {name: known[name] for name in self._metrics if name in known}

    def _enter(self, phase: str) -> None:
        if phase not in self._phases:
            self._phases[phase] = ExitStack()
            self._phases[phase].enter_context(progress_phase(phase))

    def _leave(self, phase: str) -> None:
        if stack := self._phases.pop(phase, None):
            stack.close()


def _loss(outputs: Any) -> Any:
    """The loss that a training step gave back: itself, or under the name that Lightning uses."""
    if isinstance(outputs, Mapping):
        return outputs.get("loss")
    return outputs
