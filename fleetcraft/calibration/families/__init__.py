"""Families that come with the package: the demo, and an adapter for pipelines of diffusers.

A family is found by its name, see `fleetcraft.calibration.family`. Invariant: none of them needs a
network, and none is loaded unless it is asked for.
"""
