"""Submitting a fleet: the checks before it, and the exact sbatch line.

Not here: what happens inside the job (`allocation`).
"""
