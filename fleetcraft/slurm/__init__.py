"""Slurm: its programs, what they print, and nothing else.

Not here: what to do about an answer; a spool, a lease or a task is unknown to this package.
Invariant: an answer that failed, came late, or lacks its header is an error, never an empty list.
"""
