"""What a run declares and what follows from it: ladder, budgets, verification, preflight.

Rooms: `run_file` (reading it), `ladder` (what the next attempt changes), `budgets` (whether there
is one), `verification` (when it is healthy), `stack` (what it runs with), `inspection` (called by
the training script), `built`, `preflight`, `rehearsal`. Invariant: nothing here watches a run, and
what is decided is decided from records alone.
"""
