"""How a run died: logs as streams of events, evidence in order of strength, one class.

Not here: how a run is watched, and what is done about its death. Invariant: a line that was written
before the launch never counts, and progress after a crash closes it.
"""
