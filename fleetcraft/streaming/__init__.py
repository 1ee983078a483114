"""Streaming: follows runs and fleets, and sends their numbers to a service outside.

Only here is wandb imported. Invariant: what is followed never notices; a service that is slow, gone
or full costs its own process and nothing else.
"""
