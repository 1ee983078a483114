"""Whether a login node has room for a launch: counts from /proc, ceilings, and the verdict.

Invariant: nothing here starts or ends a process.
"""
