"""Whether a committed checkpoint is what its manifest says, level by level, by name.

Reads only. Invariant: an error of the file system is UNKNOWN; only what was read and contradicts
the manifest, or is positively not there, makes a checkpoint broken.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from fleetcraft.files import FileSystem
from fleetcraft.identity import sha256_hex
from fleetcraft.layout.checkpoints import CONTINUED, LOADED, MANIFEST
from fleetcraft.training.checkpoint.listing import read_record
from fleetcraft.training.checkpoint.records import (
    LEVELS,
    FileEntry,
    How,
    Level,
    Manifest,
    Note,
    Verdict,
    read_note,
)

_CHUNK_BYTES = 1 << 20
_SHOWN = 5

Digest = Callable[[str], tuple[int, str]]
"""Size and SHA-256 of one file; raises OSError. A seam, at which a caller may show progress."""
Loads = Callable[[Manifest], str]
"""Loads every file of a checkpoint; an empty text, or why it could not. Raises OSError."""


def digest_file(path: str) -> tuple[int, str]:
    """Size and SHA-256 of a regular file, streamed.

    Raises:
        OSError: It cannot be read, is a symbolic link or no regular file.
    """
    # O_NONBLOCK so that a FIFO cannot hold the caller for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        digest = hashlib.sha256()
        size_bytes = 0
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return size_bytes, digest.hexdigest()


@dataclass
class _Findings:
    """What speaks against a checkpoint at one level."""

    broken: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The first few, and how many more."""
        found = [*self.broken, *self.unknown, *self.unproved]
        more = len(found) - _SHOWN
        return (*found[:_SHOWN], *([f"and {more} more"] if more > 0 else []))


def verify(
    fs: FileSystem,
    manifest: Manifest,
    level: Level,
    *,
    digest: Digest = digest_file,
    loads: Loads | None = None,
) -> Verdict:
    """Verifies a checkpoint up to a level; the levels below come first, the first failure ends it.

    MARKER and SIZES cost one look a file, HASHES reads every byte, LOADED and CONTINUED need a note
    that says so. A note of CONTINUED that came after loading stands for LOADED too, and one of
    training that went on does not need it.

    Args:
        fs: The seam.
        manifest: As the store gave it.
        level: The level to be proved.
        digest: How a file is hashed.
        loads: Loads it now, instead of the note for LOADED.
    """
    proved: list[Level] = []
    for step in LEVELS[: LEVELS.index(level) + 1]:
        findings = _Findings()
        _LOOKS[step](fs, manifest, findings, digest, loads)
        if step is Level.LOADED and level is Level.CONTINUED and findings.unproved:
            continue
        if findings.broken or findings.unknown or findings.unproved:
            return Verdict(
                level=level,
                answer=False if findings.broken or not findings.unknown else None,
                broken=bool(findings.broken),
                proved=tuple(proved),
                reasons=findings.reasons,
            )
        proved.append(step)
    return Verdict(level=level, answer=True, proved=tuple(proved))


def _marker(
    fs: FileSystem, manifest: Manifest, into: _Findings, digest: Digest, loads: Loads | None
) -> None:
    try:
        found = sha256_hex(fs.read(f"{manifest.folder}/{MANIFEST}"))
    except FileNotFoundError:
        into.broken.append("its marker is missing")
    except OSError as error:
        into.unknown.append(f"its marker cannot be read: {error.strerror or error}")
    else:
        if found != manifest.sha256:
            into.broken.append("its marker has changed since it was read")


def _sizes(
    fs: FileSystem, manifest: Manifest, into: _Findings, digest: Digest, loads: Loads | None
) -> None:
    for folder in sorted({os.path.dirname(file.path) for file in manifest.files}):
        _refuse_linked(fs, manifest.folder, folder, into)
    for file in manifest.files:
        check_size(fs, manifest.folder, file, into.broken, into.unknown)


def _refuse_linked(fs: FileSystem, top: str, folder: str, into: _Findings) -> None:
    """What lies behind a link is not in the checkpoint: it goes its own way when that is kept."""
    parts = folder.split("/") if folder else []
    for count in range(1, len(parts) + 1):
        name = "/".join(parts[:count])
        try:
            linked = stat.S_ISLNK(fs.lstat(f"{top}/{name}").st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return  # its files are looked at next, and are missing
        except OSError as error:
            into.unknown.append(f"{name} cannot be looked at: {error.strerror or error}")
            return
        if linked:
            into.broken.append(f"{name} is a link")
            return


def check_size(
    fs: FileSystem, folder: str, file: FileEntry, broken: list[str], unknown: list[str]
) -> None:
    """Notes what one look at a file says against its entry."""
    try:
        facts = fs.lstat(f"{folder}/{file.path}")
    except (FileNotFoundError, NotADirectoryError):
        broken.append(f"{file.path} is missing")
    except OSError as error:
        unknown.append(f"{file.path} cannot be looked at: {error.strerror or error}")
    else:
        if not stat.S_ISREG(facts.st_mode):
            broken.append(f"{file.path} is no regular file")
        elif facts.st_size != file.size_bytes:
            broken.append(f"{file.path} has {facts.st_size} bytes, expected {file.size_bytes}")


def _hashes(
    fs: FileSystem, manifest: Manifest, into: _Findings, digest: Digest, loads: Loads | None
) -> None:
    for file in manifest.files:
        try:
            found = digest(f"{manifest.folder}/{file.path}")
        except FileNotFoundError:
            into.broken.append(f"{file.path} is missing")
        except OSError as error:
            into.unknown.append(f"{file.path} cannot be read: {error.strerror or error}")
        else:
            if found != (file.size_bytes, file.sha256):
                into.broken.append(f"{file.path} has other content than its manifest says")


def _loaded(
    fs: FileSystem, manifest: Manifest, into: _Findings, digest: Digest, loads: Loads | None
) -> None:
    if loads is not None:
        try:
            why = loads(manifest)
        except OSError as error:
            into.unknown.append(f"it cannot be loaded: {error.strerror or error}")
        else:
            into.unproved += [why] if why else []
        return
    after = _note(fs, manifest, CONTINUED, into)
    if after is not None and after.how is How.LOADED:
        return
    if not into.unknown and _note(fs, manifest, LOADED, into) is None and not into.unknown:
        into.unproved.append("nothing says that it was loaded")


def _continued(
    fs: FileSystem, manifest: Manifest, into: _Findings, digest: Digest, loads: Loads | None
) -> None:
    note = _note(fs, manifest, CONTINUED, into)
    if not into.unknown and (note is None or note.step is None or note.step <= manifest.step):
        into.unproved.append("no later step says that it went on from it")


_LOOKS: dict[Level, Callable[[FileSystem, Manifest, _Findings, Digest, Loads | None], None]] = {
    Level.MARKER: _marker,
    Level.SIZES: _sizes,
    Level.HASHES: _hashes,
    Level.LOADED: _loaded,
    Level.CONTINUED: _continued,
}


def went_on(fs: FileSystem, manifest: Manifest) -> bool:
    """Whether a later step says that it went on from this checkpoint; unknown counts as no."""
    findings = _Findings()
    _continued(fs, manifest, findings, digest_file, None)
    return findings == _Findings()


def _note(fs: FileSystem, manifest: Manifest, name: str, into: _Findings) -> Note | None:
    """A note about this very checkpoint; None where there is none or it speaks of another."""
    try:
        note = read_note(read_record(fs, f"{manifest.folder}/{name}"))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        into.unknown.append(f"{name} cannot be read: {error.strerror or error}")
        return None
    return note if note.manifest_sha256 == manifest.sha256 else None
