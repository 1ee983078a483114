"""Epochs, keepers and stops: what is launched is known for good, and is stopped whole."""
