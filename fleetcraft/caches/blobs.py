"""Proof of a file by its name: a hub cache names content by its digest.

A name of 64 hex digits is the SHA-256 of the content, one of 40 hex digits is git's hash of it as
a blob. Not here: which file belongs to which snapshot. Invariant: "proved" is said only of bytes
that were read and hashed in this call.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Protocol

import msgspec

from fleetcraft.caches.hub import HubFiles

_CHUNK = 1 << 22
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")

Advance = Callable[[int], None]
"""Is told of so many more bytes."""


class Verdict(StrEnum):
    """What is known of one file's content."""

    PROVED = "proved"
    CORRUPT = "corrupt"
    UNPROVABLE = "unprovable"
    """It was read whole, but its name is no digest."""
    UNREADABLE = "unreadable"


class Scheme(StrEnum):
    """How a name is made from content."""

    SHA256 = "sha256"
    GIT_SHA1 = "git-sha1"


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What one reading of a file has shown.

    Attributes:
        verdict: The answer.
        expected: The digest that its name promises; empty if it promises none.
        found: The digest of the bytes, by the same scheme; SHA-256 without one.
        size_bytes: Bytes that were read; None when it could not be read.
        detail: Why, for people.
    """

    verdict: Verdict
    expected: str = ""
    found: str = ""
    size_bytes: int | None = None
    detail: str = ""


def facts_of(path: str) -> tuple[int, ...]:
    """By what a file is known to be the one that was read; empty where it cannot be looked at."""
    try:
        facts = os.stat(path)
    except OSError:
        return ()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


class Digest(Protocol):
    """The part of hashlib's objects that is used here."""

    def update(self, data: bytes, /) -> None:
        """Takes further bytes."""

    def hexdigest(self) -> str:
        """The digest so far."""


def scheme_of(name: str) -> Scheme | None:
    """How content of this name is hashed; None for a name that is no digest.

    Source: huggingface_hub stores a file under the ETag that the hub gives: the SHA-256 of content
    in large-file storage, and the id of the git blob otherwise.
    """
    if _SHA256.fullmatch(name):
        return Scheme.SHA256
    return Scheme.GIT_SHA1 if _GIT_SHA1.fullmatch(name) else None


def begin_digest(scheme: Scheme | None, size_bytes: int) -> Digest:
    """A digest that is to be fed the whole content.

    Source: git hashes a blob as ``blob <size>``, a zero byte, and the content (git-hash-object(1)).
    """
    if scheme is not Scheme.GIT_SHA1:
        return hashlib.sha256()
    digest = hashlib.sha1(usedforsecurity=False)
    digest.update(b"blob %d\0" % size_bytes)
    return digest


def name_of_content(data: bytes, scheme: Scheme) -> str:
    """The name that a hub cache gives to some bytes."""
    digest = begin_digest(scheme, len(data))
    digest.update(data)
    return digest.hexdigest()


def prove(
    path: str,
    expected: str,
    *,
    size_bytes: int | None = None,
    fresh: bool = False,
    fs: HubFiles | None = None,
    advance: Advance = lambda count: None,
) -> Proof:
    """Reads a file whole and compares its content with the digest that it should have.

    Args:
        path: The file; links are followed, as whoever loads it does.
        expected: The digest; what is none makes it unprovable.
        size_bytes: How large it should be, if that is known; another size is corrupt at once.
        fresh: Tells the kernel to forget what it holds of the file first.
        fs: The seam.
        advance: Is told of progress.
    """
    fs = fs or HubFiles()
    scheme = scheme_of(expected)
    promised = expected if scheme else ""
    try:
        fd = fs.open_read(path)
        try:
            size = fs.size(fd)
            if size_bytes is not None and size != size_bytes:
                return Proof(
                    verdict=Verdict.CORRUPT, expected=promised, size_bytes=size,
                    detail=f"{size} bytes, expected {size_bytes}",
                )  # fmt: skip
            if fresh:
                with contextlib.suppress(OSError):  # a mount without page cache
                    fs.forget_cached(fd)
            digest, count = begin_digest(scheme, size), 0
            while chunk := fs.read_at(fd, _CHUNK, count):
                digest.update(chunk)
                count += len(chunk)
                advance(len(chunk))
        finally:
            fs.close(fd)
    except OSError as error:
        detail = error.strerror or str(error)
        return Proof(verdict=Verdict.UNREADABLE, expected=promised, detail=detail)
    return judge(promised, digest.hexdigest(), count)


def judge(expected: str, found: str, size_bytes: int) -> Proof:
    """The proof for bytes that were read whole: their digest against what is expected."""
    if not expected:
        verdict, detail = Verdict.UNPROVABLE, "its name is no digest"
    elif found == expected:
        verdict, detail = Verdict.PROVED, ""
    else:
        verdict, detail = Verdict.CORRUPT, f"its bytes give {found[:12]}, not {expected[:12]}"
    return Proof(
        verdict=verdict, expected=expected, found=found, size_bytes=size_bytes, detail=detail
    )


def copy_and_hash(
    source: str, new: str, expected: str, *, fs: HubFiles, advance: Advance = lambda count: None
) -> Proof:
    """Copies a file under a new name and forces it to disk; says what the source's bytes are.

    Raises:
        OSError: It could not be written; what was written of it is left under the new name.
        SourceError: The source could not be read.
    """
    scheme = scheme_of(expected)
    count = 0
    try:
        source_fd = fs.open_read(source)
    except OSError as error:
        raise SourceError(source, error) from error
    try:
        size = fs.size(source_fd)
        target_fd = fs.open_new(new)
        try:
            digest = begin_digest(scheme, size)
            for chunk in _chunks(fs, source, source_fd):
                fs.write(target_fd, chunk)
                digest.update(chunk)
                count += len(chunk)
                advance(len(chunk))
            fs.datasync(target_fd)
        finally:
            fs.close(target_fd)
    finally:
        fs.close(source_fd)
    return judge(expected if scheme else "", digest.hexdigest(), count)


class SourceError(Exception):
    """A file that was to be copied cannot be read.

    Args:
        path: Which one.
        error: What the system said.
    """

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(path)
        self.path = path
        self.reason = error.strerror or os.strerror(error.errno or 0)


def _chunks(fs: HubFiles, path: str, fd: int) -> Iterator[bytes]:
    offset = 0
    while True:
        try:
            chunk = fs.read_at(fd, _CHUNK, offset)
        except OSError as error:
            raise SourceError(path, error) from error
        if not chunk:
            return
        offset += len(chunk)
        yield chunk
