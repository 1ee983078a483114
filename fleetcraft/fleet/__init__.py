"""The fleet: allocations are asked for, looked at and renewed, and the login node is spared.

`guard` says whether a login node has room for a launch. Nothing here runs a task; that is the
worker's.
"""
