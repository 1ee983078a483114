"""Training: a supervisor that heals a run, the progress it watches, and completed checkpoints.

Rooms: `progress` (what ranks report), `watching` (what that means), `diagnosing` (how a run died),
`launching` (epochs, keepers, stops), `plan` (the run file, the ladder, budgets, preflight),
`supervision` (the state machine), `checkpoint`. `records` is what they hand to one another.
Invariant: unknown never proves that something is dead, absent, complete or idle.
"""
