"""The real file system without forced writes, for tests that make thousands of small files.

Not here: what a cut of the power leaves; tests/explore has a model of that.
"""

from __future__ import annotations

from fleetcraft.files import FileSystem


class QuickFS(FileSystem):
    """Nothing is forced to a disk."""

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        super().create(path, data, mode=mode)

    def datasync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        pass

    def sync_mount(self, path: str) -> None:
        pass
