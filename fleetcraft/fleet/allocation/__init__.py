"""Inside a fleet's job: its launcher, which starts, watches and restarts a worker on each node.

Not here: the submission (`launch`).
"""
