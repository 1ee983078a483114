"""The paths of caches: of models below one root, of generated sources on the node itself.

Those of a hub cache are as huggingface_hub has them, and what fleetcraft keeps there of its own
lies below ``.locks/fleetcraft``. Pure text, as all of the layout. Invariant: two attempts that may
run at a time never share a folder of generated sources.
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


class RepoPaths:
    """The paths of one repository in one folder of repositories."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.blobs = f"{folder}/blobs"
        self.refs = f"{folder}/refs"
        self.snapshots = f"{folder}/snapshots"
        self.trees = f"{folder}/trees"

    def blob(self, name: str) -> str:
        """Content, named by its digest."""
        return f"{self.blobs}/{name}"

    def ref(self, revision: str) -> str:
        """Says which commit a branch or tag stands for."""
        return f"{self.refs}/{revision}"

    def snapshot(self, commit: str) -> str:
        """The files of a commit, as links to blobs."""
        return f"{self.snapshots}/{commit}"

    def tree(self, commit: str) -> str:
        """The listing of a commit as the library remembers it."""
        return f"{self.trees}/{commit}.json"


class HubPaths:
    """The paths of one hub cache; a repository goes by its folder (``models--org--name``)."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._locks = f"{self.root}/.locks"
        self.own = f"{self._locks}/fleetcraft"

    def repo(self, folder: str) -> RepoPaths:
        """One repository."""
        return RepoPaths(f"{self.root}/{folder}")

    def room(self, folder: str) -> str:
        """What fleetcraft keeps of one repository here."""
        return f"{self.own}/{folder}"

    def lock(self, folder: str) -> str:
        """The lock of whoever writes this repository."""
        return f"{self.room(folder)}/lock"

    def staging(self, folder: str) -> RepoPaths:
        """Where a repository is put together before it is published."""
        return RepoPaths(f"{self.room(folder)}/staging/{folder}")

    def private_hub(self, folder: str) -> HubPaths:
        """The hub that a download command is given."""
        return HubPaths(f"{self.room(folder)}/filling")

    def aside(self, name: str) -> str:
        """Where a file is set aside that cannot be moved to another mount."""
        return f"{self.own}/quarantine/{name}"

    def room_folders(self, folder: str) -> tuple[str, ...]:
        """The folders of `room`, parents before children."""
        return self.root, self._locks, self.own, self.room(folder), self.lock(folder)
