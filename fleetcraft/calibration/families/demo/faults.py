"""Faults that the demo can be asked to have, each one that took somebody days to find.

What each does, and the limits that make it show; where they strike is in `steps` and in the cycle.
No torch here. Invariant: without a fault's name in the order nothing of it runs, and none strikes
in a preflight, which allocates nothing and must not wait.
"""

from __future__ import annotations

import os
import signal
import threading
from enum import StrEnum
from typing import TYPE_CHECKING

from fleetcraft.calibration.family import Fault

if TYPE_CHECKING:
    from fleetcraft.calibration.trial.context import Context


class DemoFault(StrEnum):
    """The names, as on the command line."""

    LEAK_PROBE_KV = "leak_probe_kv"
    NO_NO_GRAD = "no_no_grad"
    FP32_HOST_STAGING = "fp32_host_staging"
    STEP2_ONLY = "step2_only"
    DROP_TEXT_MASK = "drop_text_mask"
    SHARED_GENERATOR = "shared_generator"
    SHARED_SKIP = "shared_skip"
    PIDS_LIMIT = "pids_limit"
    KILL_IN_DECODE = "kill_in_decode"
    STALL = "stall"
    ZERO_BYTE_ENCODER = "zero_byte_encoder"
    PARTIAL_RANK = "partial_rank"


FAULTS = {
    DemoFault.LEAK_PROBE_KV: Fault(doc="the probe's KV cache stays in a module attribute"),
    DemoFault.NO_NO_GRAD: Fault(doc="denoise runs without no_grad, so autograd keeps every step"),
    DemoFault.FP32_HOST_STAGING: Fault(
        doc="a long clip is staged on the host as fp32 pixels, and once more to join it",
        host_mib=768,
    ),
    DemoFault.STEP2_ONLY: Fault(
        doc="the device holds the first update, but not the second beside optimizer state",
        device_between=("backward1", "backward2"),
    ),
    DemoFault.DROP_TEXT_MASK: Fault(doc="attention to the text ignores which tokens are padding"),
    DemoFault.SHARED_GENERATOR: Fault(doc="one generator draws the noise of the whole batch"),
    DemoFault.SHARED_SKIP: Fault(doc="the mean over the batch decides which steps are skipped"),
    DemoFault.PIDS_LIMIT: Fault(doc="prompts are read by more threads than may exist", pids=256),
    DemoFault.KILL_IN_DECODE: Fault(doc="the process is killed in decode, not for its memory"),
    DemoFault.STALL: Fault(doc="score waits for ever", patience_s=5),
    DemoFault.ZERO_BYTE_ENCODER: Fault(doc="the encoder ends silently and leaves an empty file"),
    DemoFault.PARTIAL_RANK: Fault(doc="two of three drafters die, the third works on"),
}
READERS = 512
DRAFTER_STEPS = 100_000
LONG_CLIP_FRAMES = 11_520
"""Eight minutes at 24 frames a second: 540 MiB in fp32, and as much again while it is joined."""

_kept_by_the_module: list[object] = []


def strikes(ctx: Context, fault: DemoFault) -> bool:
    """Whether the fault was asked for, and something real runs."""
    return ctx.fault == fault and not ctx.is_preflight


def keep_for_ever(cache: object) -> None:
    """Keeps the newest cache beyond its phase, as a forgotten module attribute does."""
    _kept_by_the_module[:] = [cache]


def kill_this_process() -> None:
    """Dies as from the outside: no exception, no exit code, no last words."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ever() -> None:
    """Waits for what nobody will ever set."""
    threading.Event().wait()


def read_with_threads() -> None:
    """Starts more readers than the process limit of the fault allows.

    Raises:
        RuntimeError: From the thread that could not be started.
    """
    done = threading.Event()
    readers = [threading.Thread(target=done.wait, daemon=True) for _ in range(READERS)]
    try:
        for reader in readers:
            reader.start()
    finally:
        done.set()


def write_nothing(ctx: Context) -> None:
    """Does what an encoder program does that cannot start: a file, no bytes, no exception."""
    for sample in ctx.samples:
        path = ctx.path(f"sample-{sample:03d}.mp4")
        with open(path, "wb"):
            ctx.wrote(path)
