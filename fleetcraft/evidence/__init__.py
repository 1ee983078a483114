"""Evidence: what a reported number rests on, in a form that anybody can check again.

`records` has what the rooms share. Manifests and archives are in `manifest`, `archive` and `bag`;
results, grids and gates in `results`, `grid` and `gates`; the walk from a figure back to its logs
in `trace`. Invariant: every verdict names the level at which it was verified, and what could not
be read is unknown, never right and never wrong.
"""
