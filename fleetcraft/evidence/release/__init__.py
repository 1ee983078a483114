"""Release: grids from frozen to released, and the gates that decide about it.

Invariant: what is missing, unknown or has not ended passes nothing.
"""
