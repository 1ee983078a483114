"""What batching and attention must not change, and FLOPs that are counted."""
