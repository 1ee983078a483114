"""One GPU's row of readings over the binding, field by field.

Invariant: an empty field has its cause, and no GPU's trouble reaches another.
"""
