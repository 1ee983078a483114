"""One trial: a process of its own that runs whole cycles at one batch, and who watches it."""
