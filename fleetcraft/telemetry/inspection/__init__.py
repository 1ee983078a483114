"""What is in telemetry files: counts, gaps, double rows, energy.

Invariant: it counts and never repairs.
"""
