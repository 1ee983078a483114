"""Progress from frameworks, a few lines each: plain PyTorch, accelerate, Lightning.

Invariant: an adapter imports its framework only when it is used, if at all.
"""
