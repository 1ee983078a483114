"""Files that lie beside a record, such as videos: what they must be, and whether they still are.

Not here: what follows from it (`transaction.judging`, `audit`). Invariant: a file that cannot be
looked at says nothing; only what is positively not there is missing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat

from fleetcraft.files import FileSystem
from fleetcraft.rollouts.records import FileRef, Refusal

# No file can have such a path, whatever the file system answers later.
_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def describe_file(path: str) -> FileRef:
    """A file that goes with a record: its size and SHA-256, for `Record.files`.

    Links in its path are followed now, so that it is the file itself that is looked at later.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    path = os.path.realpath(path)
    size_bytes, digest = _digest(path)
    return FileRef(path=path, size_bytes=size_bytes, sha256=digest)


def check_file(
    fs: FileSystem, folder: str, file: FileRef, *, content: bool = False
) -> tuple[Refusal, str] | None:
    """What is wrong with a file of a record; None when nothing is.

    Args:
        fs: The seam.
        folder: Of the queue; relative paths begin there.
        file: What the record says of it.
        content: Whether its SHA-256 is computed: every byte is read.

    Raises:
        OSError: It cannot be looked at, which says nothing about it.
    """
    path = os.path.join(folder, file.path)
    try:
        facts = fs.lstat(path)
        if facts.st_size != file.size_bytes:
            found = f"has {facts.st_size} bytes, expected {file.size_bytes}"
            return Refusal.FILE_CHANGED, f"its file {file.path} {found}"
        if not content:
            return None
        if not stat.S_ISREG(facts.st_mode):
            return Refusal.FILE_CHANGED, f"its file {file.path} is no regular file"
        actual = _digest(path)[1]
    except ValueError:  # a NUL, or what no file name can hold
        return Refusal.FILE_MISSING, f"its file {file.path!r} can be nowhere: that is no path"
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        return Refusal.FILE_MISSING, f"its file {file.path} is not there"
    if actual == file.sha256:
        return None
    told = f"has SHA-256 {actual[:12]}, expected {file.sha256[:12]}"
    return Refusal.FILE_CHANGED, f"its file {file.path} {told}"


def _digest(path: str) -> tuple[int, str]:
    # O_NONBLOCK so that a FIFO cannot hold the caller for ever.
    with open(os.open(path, _FLAGS), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return facts.st_size, hashlib.file_digest(file, "sha256").hexdigest()
