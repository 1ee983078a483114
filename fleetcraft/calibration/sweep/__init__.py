"""Which batches are tried, and which one is chosen."""
