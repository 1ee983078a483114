"""The doctor: looks at one machine and one project, by trial where it can, and says what to do.

One module for each subject, each a function from a machine to findings. Invariant: a check that
could not be made is unknown, with its reason; it is never passed.
"""
