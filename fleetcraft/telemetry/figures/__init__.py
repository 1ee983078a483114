"""Data for figures: whole traces in bins on one time axis.

Drawing is for ``plots``. Invariant: a bin without a sample stays open.
"""
