"""The live view's data: what was appended to files and journals since the last look.

Invariant: a GPU that is allocated and was not seen is unknown.
"""
