"""The report: what a fleet did, gathered from the scratch tree into one record.

It joins what stands on the floor below: spool, telemetry, calibration, runs. Rendering is `view`'s.
Invariant: what could not be read is named in the record; nothing in it is estimated unless it says
so.
"""
