"""What lives on the device when: every byte of a peak, and who owns it.

`ledger` notes storages, `owners` finds who reaches them, `attribution` adds up. Nothing here knows
what a trial is. Invariant: the owners of a peak add up to the peak, to the byte.
"""
