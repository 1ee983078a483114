"""The demo without its preflight, which most faults do not need, so that a trial starts at once."""

import msgspec

from fleetcraft.calibration.families.demo import cycle as _demo

cycle = msgspec.structs.replace(_demo, preflight=False)
