"""The paths of caches: of models below one root, of generated sources on the node itself.

Pure text, as all of the layout. Invariant: two attempts that may run at a time never share a folder
of generated sources.
"""

from __future__ import annotations

import os


class CachePaths:
    """Caches that may be shared: models and data sets, and what sets them aside."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.huggingface = f"{self.root}/huggingface"
        self.hub = f"{self.huggingface}/hub"
        self.datasets = f"{self.huggingface}/datasets"
        self.torch = f"{self.root}/torch"
        self.quarantine = f"{self.root}/quarantine"
        self.filled = f"{self.root}/filled"
        self.locks = f"{self.root}/locks"


class LocalCachePaths:
    """Caches of one node.

    Args:
        root: A folder of this node alone, private to the user.
        purpose: ``task`` or ``train``: training and evaluation share nothing.
    """

    def __init__(self, root: str, purpose: str) -> None:
        self.root = f"{os.path.abspath(root)}/{purpose}"

    def triton(self, node: str, run: str, attempt: str) -> str:
        """Generated sources of one attempt, never of two."""
        return f"{self.root}/triton/{node}/{run}/{attempt}"

    def inductor(self, place: str) -> str:
        """Compiled graphs of one place (a slot), whose users follow one another."""
        return f"{self.root}/inductor/{place}"
