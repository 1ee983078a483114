"""A rule that several protocols break on purpose, to show that the matrix sees it.

Not here: those of one protocol alone. No protocol is described in this module.
"""

from __future__ import annotations

import os

from fleetcraft.files import FileSystem


def put_in_place(fs: FileSystem, path: str, data: bytes) -> bool:
    """As `fleetcraft.locks.put_if_absent`, but written under the name that all others read."""
    if os.path.exists(path):
        return fs.read(path) == data
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.write(fd, data)
    os.close(fd)
    return True
