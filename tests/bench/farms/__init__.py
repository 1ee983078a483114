"""Other task farms on the same work: one module a peer, each saying how it is started and resumed.

Not here: the page and its tables (`tests/bench/farms.py`). Invariant: a peer is set up as its own
documentation says for many short commands on one machine, and what it cannot do is named.
"""
