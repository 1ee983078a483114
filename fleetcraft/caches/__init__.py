"""Caches: where models, data sets and compilers keep their files, as the libraries resolve it.

`resolve` computes effective paths from an environment, `ask` lets the installed libraries say them,
`check` and `sharing` find conflicts, `scope` gives each node, run and attempt its own place, which
`local` makes and `clearing` removes; `snapshots`, `mirror`, `filling`, `quarantine` and `purge`
look after model files. Invariant: a variable's value is never taken for the path that is used; the
rule of the library that reads it decides.
"""
