"""The control pass: observe, decide, record, act, reconcile, under a generation lock.

Invariant: what is submitted was recorded before, and what is not known submits nothing.
"""
