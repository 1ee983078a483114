"""How a task says that a model's forward calls were made: one line appended to one file.

The file is named by ``FLEET_FORWARDS``, which workers set; any language may append to it. Reading
is `forwards`'. Invariant: a task never fails or waits because of what it reports.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
from typing import Any

from fleetcraft.clock import timestamp
from fleetcraft.files import append_report

VARIABLE = "FLEET_FORWARDS"


def report_forward(
    forwards: int = 1,
    *,
    flop: float | None = None,
    active_params: float | None = None,
    tokens: float | None = None,
    layers: float = 0,
    seq: float = 0,
    hidden: float = 0,
    training: bool = False,
    family: str = "",
) -> bool:
    """Reports forward calls that have ended now, so that summaries can estimate MFU.

    Either ``flop`` or ``active_params`` and ``tokens`` are given. Outside a worker it does nothing,
    so that the same code runs anywhere.

    Args:
        forwards: How many calls; a batched call counts once for each sample.
        flop: Model FLOPs of all these calls together, as counted by the caller (for example with
            torch's FlopCounterMode).
        active_params: Parameters that each token passes through.
        tokens: Tokens of one call and sample.
        layers: Attention layers.
        seq: Length over which attention runs, in tokens.
        hidden: Width of the attention.
        training: Whether a backward pass belonged to each call.
        family: Workload; that of the task if empty.

    Returns:
        Whether a line was written.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        return False
    line: dict[str, object] = {"at": timestamp(), "forwards": forwards}
    if flop is not None:
        line["flop"] = flop
    else:
        line |= {
            "active_params": active_params,
            "tokens": tokens,
            "layers": layers,
            "seq": seq,
            "hidden": hidden,
            "training": training,
        }
    if family:
        line["family"] = family
    return append_report(path, json.dumps(line, default=_plain).encode() + b"\n")


def _plain(value: Any) -> object:
    """The number that an array's element or a tensor of one is; as a text whatever is none."""
    for number in (operator.index, float):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return number(value)
    return str(value)
