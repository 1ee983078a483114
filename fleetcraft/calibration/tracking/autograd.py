"""Which storages autograd holds for a backward pass, told by hooks on saved tensors.

Counting them is `ledger`'s. Invariant: what is packed is detached, so that the graph holds no
tensor that holds the graph; with the tensor as it was given, an output would keep its own graph
alive past every collection.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

import torch
from torch.autograd.graph import saved_tensors_hooks

from fleetcraft.calibration.tracking.blocks import Block
from fleetcraft.calibration.tracking.ledger import Ledger

_REAL = frozenset({torch.Tensor, torch.nn.Parameter})


class SavedTensors(AbstractContextManager["SavedTensors"]):
    """Tells a ledger what autograd saves, and when it lets go of it.

    Enter it inside the ledger. Hooks of the work itself, as of activation checkpointing, take
    precedence, and what they pack is theirs to name. Limits: under any such hooks torch does not
    check that a saved tensor was left unchanged, which a cycle without tracking does; `torch.func`
    transforms refuse them; tensors that a custom function keeps on its ``ctx`` are not seen.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._hooks: list[saved_tensors_hooks] = []

    def __enter__(self) -> SavedTensors:
        hooks = saved_tensors_hooks(self._pack, _unpack)
        hooks.__enter__()
        self._hooks.append(hooks)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hooks.pop().__exit__(kind, error, trace)

    @property
    def held_bytes(self) -> int:
        """Of all storages that autograd holds now, each once, parameters included."""
        return self._ledger.saved_bytes

    def _pack(self, tensor: torch.Tensor) -> _Packed:
        return _Packed(_detached(tensor), self._ledger, self._ledger.saved(tensor))


class _Packed:
    """One saved tensor; it dies when its node of the graph lets go of it."""

    __slots__ = ("block", "ledger", "tensor")

    def __init__(self, tensor: torch.Tensor, ledger: Ledger, block: Block | None) -> None:
        self.tensor = tensor
        self.ledger = ledger
        self.block = block

    def __del__(self) -> None:
        if self.block is not None:
            self.ledger.released(self.block)


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) not in _REAL:
        return tensor.detach()
    with torch._C._DisableTorchDispatch():  # an alias is no news to any mode, and each costs
        return tensor.detach()


def _unpack(packed: _Packed) -> torch.Tensor:
    return packed.tensor
