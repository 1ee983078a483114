"""What an op does to storages, judged once from its schema.

What is then counted is `ledger`'s. Invariant: an op of which nothing is known counts as one that
makes storages, which costs time and no bytes.
"""

from __future__ import annotations

from typing import Any, Final

import torch

ALIASES: Final = 1
"""It returns what it was given, or views of it: nothing new to count."""
MAKES: Final = 2
"""It returns storages of its own, or changes the size of one."""
CONSISTS: Final = 3
"""It consists of other ops. Under `torch.inference_mode` nobody has taken it apart yet."""

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def judge(op: Any) -> int:
    """One of the three."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        return MAKES
    try:
        if op.has_kernel_for_dispatch_key(_COMPOSITE):
            return CONSISTS
    except RuntimeError:
        return MAKES  # no dispatcher knows it; an error here, below `Tensor.device`, would abort
    resizes = "resize" in schema.name or "set_" in schema.name
    if resizes or any(argument.is_out for argument in schema.arguments):
        return MAKES
    aliases = all(returned.alias_info is not None for returned in schema.returns)
    return ALIASES if aliases else MAKES
