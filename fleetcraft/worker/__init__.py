"""The worker: claims tasks of a spool, runs each as a process tree of its own, files the outcome.

`loop` is the worker, `local_fleet` runs several on this machine without Slurm, `settings` says
what they are told. Nothing here decides what a record means; that is the spool's.
"""
