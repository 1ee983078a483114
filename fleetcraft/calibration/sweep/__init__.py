"""Which batches are tried, and which one is chosen.

`plan` and `choose` are pure, `run` does what they say, `store` keeps what came of it.
Invariant: a batch that is not tried, or not chosen, has a reason with its numbers.
"""
