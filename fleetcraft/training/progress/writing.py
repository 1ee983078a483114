"""How a training script says where it is: one line appended to one file a rank.

The folder is named by ``FLEET_PROGRESS``, which the supervisor sets; any language may append such
lines. Reading is `reading`'s. Invariant: a script never fails because of what it reports, and does
nothing but one append.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from fleetcraft.clock import timestamp
from fleetcraft.files import append_report
from fleetcraft.layout.runs import progress_file

VARIABLE = "FLEET_PROGRESS"
NONCE_VARIABLE = "FLEET_LAUNCH_NONCE"
QueueReport = int | tuple[int, int]
"""A queue's depth, or its depth and capacity."""


class _Told:
    """What this process has told so far, and to which file."""

    def __init__(self) -> None:
        self.pid = -1
        self.path = ""
        self.name = ""
        self.phase = ""


_told = _Told()


def report_progress(
    step: int,
    *,
    tokens: float | None = None,
    loss: float | None = None,
    queues: Mapping[str, QueueReport] | None = None,
    metrics: Mapping[str, float] | None = None,
    name: str = "",
    device_memory_bytes: int | None = None,
) -> bool:
    """Reports a completed optimizer step. Call it from the step loop, on every rank.

    Outside a supervised run it does nothing, so that the same script runs anywhere. Numbers may be
    elements of arrays or tensors; one that lies on a device is waited for, as ``item()`` does.

    Args:
        step: Optimizer steps completed so far, over all launches of the run.
        tokens: Tokens (or samples) that this rank has processed since its previous report.
        loss: Of this step; may be NaN.
        queues: Depth, or depth and capacity, of each queue by name.
        metrics: The user's own numbers by name.
        name: What this rank is called, such as ``drafter-1``; told once is enough.
        device_memory_bytes: What this rank uses on its device. If None, and torch has a CUDA
            context in this process, the peak that torch has allocated there.

    Returns:
        Whether a line was written.
    """
    path = _path()
    if not path:
        return False
    try:
        line: dict[str, object] = {"step": _plain(step)}
        if tokens is not None:
            line["tokens"] = _plain(tokens)
        if loss is not None:
            line["loss"] = _plain(loss)
        if queues:
            line["queues"] = {str(key): _depth(value) for key, value in queues.items()}
        if metrics:
            line["metrics"] = {str(key): _plain(value) for key, value in metrics.items()}
        memory = device_memory_bytes if device_memory_bytes is not None else _device_peak_bytes()
        if memory is not None:
            line["device_memory_bytes"] = _plain(memory)
        if name and name != _told.name:
            line["name"] = _told.name = name
    except Exception:  # a value whose conversion fails, such as a tensor of a device that is lost
        return False
    return _tell(path, line)


@contextlib.contextmanager
def progress_phase(name: str) -> Iterator[None]:
    """Says that this rank is outside the step loop, from here to the end of the block.

    The watch then waits as long as the run file allows that phase, not for the next step.

    Args:
        name: ``load``, ``save``, ``probe``, ``eval``, or another that the run file declares.
    """
    before = _told.phase
    _tell_phase(name)
    try:
        yield
    finally:
        _tell_phase(before)


def _tell_phase(name: str) -> None:
    _told.phase = name
    if path := _path():
        _tell(path, {"phase": name})


def _path() -> str:
    folder = os.environ.get(VARIABLE, "")
    return progress_file(folder, _rank()) if folder else ""


def _rank() -> int:
    for variable in ("RANK", "SLURM_PROCID"):
        if (told := os.environ.get(variable, "")).isdecimal():
            return int(told)
    return 0


def _tell(path: str, line: dict[str, object]) -> bool:
    try:
        data = json.dumps(line | {"at": timestamp()}, default=str, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    if (_told.pid, _told.path) == (os.getpid(), path):
        written = append_report(path, data + b"\n")
    else:
        # A new process, also one that was forked: who it is goes into the same write.
        written = append_report(path, _hello() + b"\n" + data + b"\n", begin_anew=True)
    # After a failure all is told again, since a short write has left half a line.
    _told.pid, _told.path = (os.getpid() if written else -1), path
    return written


def _hello() -> bytes:
    from fleetcraft.identity import process_id, this_host

    place = this_host()
    try:
        process = process_id(os.getpid())
    except OSError:
        process = None
    hello = {
        "hello": 1,
        "rank": _rank(),
        "name": _told.name,
        "pid": os.getpid(),
        "start_ticks": process.start_ticks if process else None,
        "host": place.host,
        "boot_id": place.boot_id,
        "pid_namespace": place.pid_namespace,
        "nonce": os.environ.get(NONCE_VARIABLE, ""),
        "world_size": _world_size(),
        "phase": _told.phase,
        "at": timestamp(),
    }
    return json.dumps(hello, separators=(",", ":")).encode()


def _world_size() -> int | None:
    for variable in ("WORLD_SIZE", "SLURM_NTASKS"):
        if (told := os.environ.get(variable, "")).isdecimal():
            return int(told)
    return None


def _plain(value: Any) -> object:
    """The number that an array's element or a tensor of one is; as a text whatever is none.

    JSON has no NaN, so it is the text ``nan``.
    """
    for number in (operator.index, float):
        with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
            plain = number(value)
            return plain if math.isfinite(plain) else str(plain)
    return str(value)


def _depth(value: Any) -> object:
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else _plain(value)


def _device_peak_bytes() -> int | None:
    """The most that torch has allocated on this process's current CUDA device, if it uses one.

    Never makes torch load, nor CUDA begin: both would change the process that reports.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return None
        return int(cuda.max_memory_allocated())
    except Exception:  # a lost device raises what the driver likes
        return None
