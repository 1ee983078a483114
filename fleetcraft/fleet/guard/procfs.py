"""Reading ``/proc``: small files whole, and the mount table.

Nothing is counted or judged here. Invariant: a file that cannot be read raises; it is never taken
for an empty one.
"""

from __future__ import annotations

import os
import re

import msgspec

_CHUNK_BYTES = 65536
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``mountinfo``.

    Attributes:
        root: The folder inside its file system that is mounted.
        point: Where.
        kind: The file system's type.
        options: The mount's own options and its file system's.
    """

    root: str
    point: str
    kind: str
    options: frozenset[str]

    def option(self, name: str) -> str:
        """The value of an option ``name=value``; empty when it is not there."""
        start = f"{name}="
        return next((o.removeprefix(start) for o in self.options if o.startswith(start)), "")


def read_text(path: str, *, limit_bytes: int = 1 << 30) -> str:
    """The text of a file; bytes that are no text survive.

    Args:
        path: The file.
        limit_bytes: Where to stop.

    Raises:
        OSError: It cannot be read; its `filename` is the path.
    """
    parts = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, min(_CHUNK_BYTES, limit_bytes)):
            parts.append(part)
            limit_bytes -= len(part)
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "surrogateescape")


def read_mounts(proc: str) -> tuple[Mount, ...]:
    """What is mounted where, as this process sees it; of two at one place the later one counts.

    Source: proc_pid_mountinfo(5).

    Raises:
        OSError: It cannot be read.
    """
    mounts = []
    for line in read_text(f"{proc}/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        place, file_system = before.split(" "), after.split(" ")
        if len(place) < 6 or len(file_system) < 3:
            continue
        mounts.append(
            Mount(
                root=_unescaped(place[3]),
                point=_unescaped(place[4]),
                kind=file_system[0],
                options=frozenset((*place[5].split(","), *file_system[2].split(","))),
            )
        )
    return tuple(mounts)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def why(error: OSError | MemoryError) -> str:
    """The path and the system's words, for an error that names a path."""
    words = getattr(error, "strerror", None) or "out of memory"
    place = getattr(error, "filename", None)
    return f"'{place}': {words}" if place else words
