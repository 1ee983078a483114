"""What batching and attention must not change: noise, decisions, outputs, and padding.

Each is a function of its own, and `run` calls those that a family declares. Invariant: a check
that could not be run has not passed.
"""
