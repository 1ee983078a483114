"""Epochs, keepers and stops: what is launched is known for good, and is stopped whole.

`epochs` publishes what was decided, `start` launches it under a `keeper` on each node, `looking`
says what became of it, `stop` ends it, `adoption` finds what an earlier supervisor has left.
Invariant: only processes that are identified (host, boot, pid, start, nonce) are signalled, and
only the one step of a launch is cancelled.
"""
