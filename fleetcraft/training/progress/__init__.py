"""What ranks report of their progress: one line a step, from any language."""
