"""Telemetry: one logger per node, and readers that turn its files into windows and live views.

Rows are written by one process per node and job; everything else only reads. Invariant: what was
not measured is empty, with its cause; no reader drops a row without counting it.
"""
