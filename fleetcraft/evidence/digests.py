"""Size and sha256 of a file or of its beginning, streamed.

Nothing is judged here. Invariant: what is no regular file is not read.
"""

from __future__ import annotations

import hashlib

from fleetcraft.files import FileSystem

_CHUNK_BYTES = 1 << 20


def hash_file(
    path: str, size_bytes: int | None = None, *, fs: FileSystem | None = None
) -> tuple[int, str]:
    """Size and sha256 of a regular file, or of its beginning; a symbolic link is followed.

    Args:
        path: The file.
        size_bytes: How much to hash at most; None for all that is there when it is opened.
        fs: The seam.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    fs = fs or FileSystem()
    fd = fs.open_read(path)
    try:
        end = fs.size(fd) if size_bytes is None else size_bytes
        digest, at = hashlib.sha256(), 0
        while at < end and (data := fs.read_at(fd, min(_CHUNK_BYTES, end - at), at)):
            digest.update(data)
            at += len(data)
    finally:
        fs.close(fd)
    return at, digest.hexdigest()
