"""The parts of `infra/slurm/sandbox`: a real Slurm of several nodes on one machine, in one folder.

From the bottom up: fault (what goes wrong), programs, processes, ports, site (the folder and its
configuration), daemons, accounting, cluster (start, stop, kill, revive); keeper runs by itself.
Invariant: nothing here needs more than Python's standard library, nor imports the package.
"""
