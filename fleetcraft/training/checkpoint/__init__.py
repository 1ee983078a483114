"""Checkpoints: completed save boundaries, kinds that are computed, verification by name."""
