"""Files of evidence: manifests, verification by level, archives, bags.

Invariant: a folder gets its final name when every byte of it was read back and compared.
"""
