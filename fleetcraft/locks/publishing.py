"""Put-if-absent: a durable file under a new name, whatever the system reports of the attempt.

Not here: what is published. Invariant: True and False are certain; what is not is an OSError.
"""

from __future__ import annotations

import os

from fleetcraft.files import NO_HARD_LINKS, FileSystem


def put_if_absent(fs: FileSystem, path: str, data: bytes) -> bool:
    """Publishes a durable file under a new name, whatever the system reports of the attempt.

    The content must carry a nonce, by which it is told from that of another, or be the same whoever
    writes it.

    Returns:
        True when the name now holds this content; False when it holds another.

    Raises:
        OSError: Which of the two is not known.
    """
    try:
        return publish_new(fs, path, data)
    except OSError as error:
        if error.errno in NO_HARD_LINKS:
            return _create_new(fs, path, data)
        return _look_again(fs, path, data, error)


def _create_new(fs: FileSystem, path: str, data: bytes) -> bool:
    # Without hard links. Cut short, it leaves a torn file, which readers take for unreadable.
    try:
        fs.create(path, data, durable=True)
        fs.sync_folder(os.path.dirname(path))
    except OSError as error:
        return _look_again(fs, path, data, error)
    return True


def _look_again(fs: FileSystem, path: str, data: bytes, error: OSError) -> bool:
    # The server may have done what it reported as failed.
    try:
        if fs.read(path) != data:
            return False
    except OSError:
        raise error from None
    fs.sync_folder(os.path.dirname(path))
    return True


def publish_new(fs: FileSystem, path: str, data: bytes) -> bool:
    """Publishes a whole file under a name that nobody has taken, durably: put-if-absent.

    A file that is already there with exactly this content counts as published: a link that was
    reported as failed may have happened. Content that carries a nonce so tells its own from that
    of another.

    Args:
        fs: The seam.
        path: The new name; its folder must be there.
        data: The whole content.

    Returns:
        True when this call published it or found it published with this very content; False when
        another content has the name.

    Raises:
        OSError: It is not known to be published; a temporary file may be left beside it.
    """
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    fs.create(temporary, data, durable=True)
    try:
        try:
            fs.link(temporary, path)
        except FileExistsError:
            if fs.read(path) != data:
                return False
        fs.sync_folder(os.path.dirname(path))
    finally:
        fs.unlink(temporary)
    return True
