"""Size and sha256 of a file, streamed.

Nothing is judged here. Invariant: what is no regular file is not read.
"""

from __future__ import annotations

import hashlib

from fleetcraft.files import FileSystem

_CHUNK_BYTES = 1 << 20


def hash_file(path: str, *, fs: FileSystem | None = None) -> tuple[int, str]:
    """Size and sha256 of a regular file; a symbolic link is followed.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    fs = fs or FileSystem()
    fd = fs.open_read(path)
    try:
        digest, offset = hashlib.sha256(), 0
        while chunk := fs.read_at(fd, _CHUNK_BYTES, offset):
            digest.update(chunk)
            offset += len(chunk)
    finally:
        fs.close(fd)
    return offset, digest.hexdigest()
