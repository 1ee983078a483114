"""The logger: one process per node that writes what its GPUs and its host did.

Started as ``python -m fleetcraft.telemetry.logger``. Invariant: whatever the driver does, rows are
written and TERM is heard.
"""
