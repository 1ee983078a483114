"""What a keeper of CPU trials loads once, so that none of its trials has to.

Importing it is all there is to it. Invariant: only imports, no thread pool and no tensor, since the
processes of trials are forks of the one that loads it.
"""

from __future__ import annotations

import contextlib

import fleetcraft.calibration.checks.run
import fleetcraft.calibration.stack
import fleetcraft.calibration.trial.passes  # noqa: F401  # torch with it

# The first optimizer of a process loads it, 900 modules, more than all the rest of a trial's start.
with contextlib.suppress(ImportError):
    import torch._dynamo  # noqa: F401
