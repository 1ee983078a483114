"""What a trial's process itself finds wrong, short of an exception of the family's code.

Where such things are looked for is elsewhere. Invariant: a finding has the class under which the
trial fails, the phase, and the numbers in one sentence.
"""

from __future__ import annotations

import os

import msgspec

from fleetcraft.calibration.records import MIB, Failure
from fleetcraft.errors import FleetError


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One reason to fail a trial.

    Attributes:
        failure: Its class; in JSON ``class``.
        phase: Where; for an owner that should be gone, the phase that it outlived.
        message: One sentence with the numbers.
        owner: Who is to blame: an owner of memory, a participant, a file.
        bytes: How much, where that is what is wrong.
    """

    failure: Failure = msgspec.field(name="class")
    phase: str
    message: str
    owner: str = ""
    bytes: int | None = None


class TrialFailedError(FleetError):
    """A finding that ends a cycle at once."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def autograd_retained(phase: str, held_bytes: int) -> Finding:
    """An inference phase that ended with tensors saved for a backward pass."""
    return Finding(
        failure=Failure.AUTOGRAD_RETAINED,
        phase=phase,
        owner="autograd",
        bytes=held_bytes,
        message=f"phase {phase!r} ended with {_mib(held_bytes)} retained for a backward pass, "
        "expected 0: its forward ran without torch.no_grad() or inference_mode()",
    )


def owner_outlived(phase: str, owner: str, held_bytes: int) -> Finding:
    """An owner that a phase had to release and did not."""
    return Finding(
        failure=Failure.OWNER_OUTLIVED,
        phase=phase,
        owner=owner,
        bytes=held_bytes,
        message=f"{owner!r} holds {_mib(held_bytes)} after phase {phase!r}, which releases it: "
        "something still refers to it",
    )


def output_empty(phase: str, path: str, why: str) -> Finding:
    """A file that the cycle said it wrote, and that holds nothing to be used."""
    return Finding(
        failure=Failure.OUTPUT_EMPTY,
        phase=phase,
        owner=os.path.basename(path),
        message=f"{path} {why}; phase {phase!r} ended as if it had been written",
    )


def _mib(amount: int) -> str:
    return f"{amount / MIB:.1f} MiB" if amount >= MIB / 10 else f"{amount} bytes"
