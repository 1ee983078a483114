"""Families for runs whose processes are played by the test: nothing here is ever executed."""

from __future__ import annotations

from fleetcraft.calibration import Fault, Independent, SharedDecision, family

FAULTS = {
    "step2_only": Fault(doc="between two peaks", device_between=("backward1", "backward2")),
    "tight": Fault(doc="limits", host_mib=64, pids=12, patience_s=3.0),
}


@family("sim/plain", semantics=Independent(parity=lambda ctx, samples: None), faults=FAULTS,
        requires=("decode",))  # fmt: skip
def plain(ctx, batch):
    raise AssertionError("the test plays the processes")


@family("sim/shared", semantics=SharedDecision(what="one skip schedule"), requires=("decode",))
def shared(ctx, batch):
    raise AssertionError("the test plays the processes")


@family("sim/real", semantics=Independent(parity=lambda ctx, samples: None), preflight=False,
        requires=("decode",))  # fmt: skip
def unfakeable(ctx, batch):
    raise AssertionError("the test plays the processes")
