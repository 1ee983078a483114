"""``python -m fleetcraft.telemetry.logger SETTINGS``: how workers start a logger.

Invariant: nothing is decided here.
"""

from __future__ import annotations

import sys

from fleetcraft.telemetry.logger.loop import main

if __name__ == "__main__":
    sys.exit(main())
