"""A cycle on fake tensors: shapes, types and lifetimes as they would be, without memory.

What is counted is `meters`'s. Invariant: the answer is the peak of a whole cycle or none with a
reason; and a fake cycle starts no process and writes no file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fleetcraft.calibration.family import Family
from fleetcraft.calibration.records import Prediction
from fleetcraft.calibration.trial.context import Context
from fleetcraft.calibration.trial.meters import ByteMeter
from fleetcraft.calibration.trial.orders import Order, Pass

_REASON_MAX = 240


def predict(family: Family, order: Order, batch: int) -> tuple[Prediction, dict[str, int]]:
    """Runs a cycle on fake tensors of a CPU.

    Of a CPU also where the trial is for CUDA: attention takes its quadratic path for fake CUDA
    tensors where no CUDA is built in.

    Args:
        family: What to run.
        order: Of the trial; its device and budget are not used.
        batch: The batch.

    Returns:
        What its peak would be, and that of each phase as far as it came. When it cannot run
        without values, the peak is None and ``detail`` says why.
    """
    if not family.preflight:
        said = "the family says that its cycle cannot run on fake tensors"
        return Prediction(batch=batch, detail=said), {}
    meter = ByteMeter("cpu", host_side=False)
    ctx = Context(
        batch=batch,
        fault=order.fault,
        folder=order.outputs,
        seed=order.seed,
        pass_name=Pass.PREFLIGHT,
        meter=meter,
    )
    began = time.perf_counter()
    reason = _run(family, ctx, meter)
    wall_s = time.perf_counter() - began
    if reason:
        return Prediction(batch=batch, wall_s=wall_s, detail=reason), meter.peaks
    phase = max(meter.peaks, key=lambda name: meter.peaks[name])
    predicted = Prediction(batch=batch, peak_bytes=meter.peaks[phase], phase=phase, wall_s=wall_s)
    return predicted, meter.peaks


def _run(family: Family, ctx: Context, meter: ByteMeter) -> str:
    """Runs the cycle; returns why it could not, or nothing."""
    try:
        torch.manual_seed(ctx.seed)
        # A constant of the family's own module is real, and is taken as what it stands for.
        with FakeTensorMode(allow_non_fake_inputs=True), _modules_convert(), meter.cycle():
            family.cycle(ctx, ctx.batch)
            ctx.finish()
    except Exception as error:  # what cannot run without values raises something of its own
        return _reason(error, ctx)
    return "" if meter.peaks else "the cycle has no phases"


def _reason(error: Exception, ctx: Context) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    where = f"phase {ctx.last_phase!r}" if ctx.last_phase else "what is before the first phase"
    said = f"{where} cannot run on fake tensors: {type(error).__name__}: {first}"
    return said if len(said) <= _REASON_MAX else f"{said[: _REASON_MAX - 3]}..."


@contextmanager
def _modules_convert() -> Iterator[None]:
    """Lets ``module.to(...)`` work on fake parameters.

    Torch swaps them in place, which it refuses for tensors with weak references, and all fake
    ones have some. Source: seen with torch 2.13, `nn.Module._apply`: "Couldn't swap".
    """
    original = nn.Module._apply
    nn.Module._apply = _apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]


def _apply(
    self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> nn.Module:
    if recurse:
        for child in self.children():
            child._apply(fn)  # type: ignore[no-untyped-call]
    for name, parameter in self._parameters.items():
        if parameter is not None:
            self._parameters[name] = _converted(parameter, fn)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def _converted(parameter: nn.Parameter, fn: Callable[[torch.Tensor], torch.Tensor]) -> nn.Parameter:
    with torch.no_grad():
        made = fn(parameter)
        gradient = None if parameter.grad is None else fn(parameter.grad)
    if made is parameter:
        return parameter
    new = nn.Parameter(made, requires_grad=parameter.requires_grad)
    new.grad = gradient
    return new
