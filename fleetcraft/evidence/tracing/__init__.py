"""Tracing: what a file was made from, the walk back to tasks and logs, and running one again.

Invariant: each step of the walk compares digests; a name alone verifies nothing.
"""
