"""Windows of time: summed up, frozen with their evidence, and verified.

Invariant: a summary is computed from its evidence alone, so that anybody can compute it again.
"""
