"""Supervision: one run from its launch or adoption to its end, one state after the other.

`machine` says which state follows which, from facts alone; `supervisor` does what a state asks,
through `rooms`; `observing` looks, `deciding` and `history` count, `journal` and `status_file`
tell. Invariant: nothing durable is done without a look at the run's lock, and what is not known is
nobody's death, absence or end.
"""
