"""What is there now: jobs, nodes, GPUs, limits, balance and queue, each with its age.

Invariant: what was not told is unknown, never empty or zero.
"""
