"""Staging a snapshot in a hub cache: every blob copied, forced to disk, read back and proved.

What is staged has no name that a reader sees; `publishing` gives it one. Invariant: a staged blob
was read back from where it lies and proved, also one that an earlier call has left.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

import msgspec

from fleetcraft.caches.blobs import (
    Proof,
    SourceError,
    Verdict,
    copy_and_hash,
    prove,
    scheme_of,
)
from fleetcraft.caches.hub import HubFiles, set_aside_command
from fleetcraft.caches.snapshots import Snapshot, SnapshotFile
from fleetcraft.errors import DataError
from fleetcraft.layout.caches import HubPaths, RepoPaths
from fleetcraft.units import format_bytes

Progress = Callable[[int, int], None]


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to bring a snapshot in; counts are of distinct blobs.

    Attributes:
        copied: Blobs that are new in the hub.
        copied_bytes: Of these.
        already: Blobs that were there, and were proved once more.
        proved: Blobs whose reread bytes give the digest that names them.
        compared: Blobs without such a name, whose reread bytes equal the source's.
    """

    copied: int = 0
    copied_bytes: int = 0
    already: int = 0
    proved: int = 0
    compared: int = 0


class _Blob(msgspec.Struct, frozen=True, kw_only=True):
    """One distinct content of a snapshot: its name in the hub, and where its bytes are."""

    name: str
    expected: str
    source: str
    size_bytes: int


class Stager:
    """Stages one snapshot for one hub.

    Args:
        snapshot: What is to be brought; it must be complete.
        hub: The hub that is written.
        nonce: Tells temporary files of this writer from any other's.
        own: The snapshot lies in a hub of our own on the same mount, so that its blobs get a second
            name in place of a copy.
        fs: The seam.
        progress: Is told of bytes that are done, and of all.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        hub: HubPaths,
        *,
        nonce: str,
        own: bool,
        fs: HubFiles,
        progress: Progress,
    ) -> None:
        self._snapshot = snapshot
        self._hub = hub
        self._nonce = nonce
        self._own = own
        self._fs = fs
        self._to = hub.repo(snapshot.repo.folder)
        self._staging = hub.staging(snapshot.repo.folder)
        self._progress = progress
        self._done_bytes = 0
        self._proofs: dict[str, Proof] = {}
        self._new: dict[str, int] = {}
        self.names: dict[str, str] = {}
        """The blob of each path, once `stage` has run."""

    def stage(self) -> Published:
        """Stages every blob that the hub does not have, and proves those that it has.

        Raises:
            DataError: The source or the hub holds other bytes than a name promises.
            SourceError: The source cannot be read.
            OSError: The hub cannot be written.
        """
        blobs = self._blobs()
        self._require_room(blobs)
        self._fs.make_shared_folder(self._staging.blobs)
        for blob in blobs:
            self._bring(blob)
        self._fs.sync_folder(self._staging.blobs)
        return self._counts(blobs)

    def _counts(self, blobs: list[_Blob]) -> Published:
        verdicts = [proof.verdict for proof in self._proofs.values()]
        return Published(
            copied=len(self._new),
            copied_bytes=sum(self._new.values()),
            already=len(blobs) - len(self._new),
            proved=verdicts.count(Verdict.PROVED),
            compared=verdicts.count(Verdict.UNPROVABLE),
        )

    # -- what is needed

    def _blobs(self) -> list[_Blob]:
        found: dict[str, _Blob] = {}
        for file in self._snapshot.files:
            name = file.blob or file.expected or self._hashed(file)
            self.names[file.path] = name
            found[name] = _Blob(
                name=name,
                expected=file.expected or (name if scheme_of(name) else ""),
                source=file.real,
                size_bytes=file.size_bytes or 0,
            )
        return list(found.values())

    def _hashed(self, file: SnapshotFile) -> str:
        """A name for content that has none: its SHA-256, as the hub itself would name it."""
        proof = prove(file.real, "", fs=self._fs)
        if proof.verdict is Verdict.UNREADABLE:
            raise SourceError(file.real, OSError(0, proof.detail))
        self._proofs[proof.found] = proof
        return proof.found

    def _require_room(self, blobs: list[_Blob]) -> None:
        free = None if self._own else self._fs.free_bytes(self._hub.root)
        missing = sum(
            blob.size_bytes
            for blob in blobs
            if not self._is_there(self._to, blob) and not self._is_there(self._staging, blob)
        )
        if free is not None and missing > free:
            error = OSError(
                errno.ENOSPC, f"{format_bytes(missing)} are needed, {format_bytes(free)} free"
            )
            error.filename = self._hub.root
            raise error

    def _is_there(self, place: RepoPaths, blob: _Blob) -> bool:
        return os.path.exists(place.blob(blob.name))

    # -- one blob

    def _bring(self, blob: _Blob) -> None:
        if self._is_there(self._to, blob):
            self._prove_what_is_there(blob)
        elif not self._left_in_staging(blob):
            self._stage(blob)
        self._done_bytes += blob.size_bytes
        self._progress(self._done_bytes, self._snapshot.bytes)

    def _prove_what_is_there(self, blob: _Blob) -> None:
        path = self._to.blob(blob.name)
        proof = self._reread(path, blob.expected or self._source_digest(blob))
        if proof.verdict is not Verdict.PROVED:
            raise self._corrupt(self._hub.root, blob, path, proof)
        self._note(blob, proof)

    def _left_in_staging(self, blob: _Blob) -> bool:
        """Whether an earlier call has staged this blob; one that is not proved is removed."""
        path = self._staging.blob(blob.name)
        if not self._fs.exists(path):
            return False
        proof = self._reread(path, blob.expected or self._source_digest(blob))
        if proof.verdict is not Verdict.PROVED:
            self._fs.unlink(path)
            return False
        self._note(blob, proof)
        self._new[blob.name] = blob.size_bytes
        return True

    def _stage(self, blob: _Blob) -> None:
        temporary = f"{self._staging.blob(blob.name)}.{self._nonce}.incomplete"
        try:
            proof = self._link(blob, temporary) or self._copy(blob, temporary)
            self._fs.make_read_only(temporary)
            self._fs.rename_new(temporary, self._staging.blob(blob.name))
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.unlink(temporary)
            raise
        self._note(blob, proof)
        self._new[blob.name] = blob.size_bytes

    def _link(self, blob: _Blob, temporary: str) -> Proof | None:
        """A second name for a blob of our own hub; None where that is not possible."""
        if not self._own:
            return None
        source = os.path.realpath(blob.source)  # the library's own store keeps some blobs as links
        try:
            self._fs.link(source, temporary)
        except OSError:
            return None
        fd = self._fs.open_read(temporary)
        try:
            self._fs.datasync(fd)
        finally:
            self._fs.close(fd)
        proof = self._reread(temporary, blob.expected or self._source_digest(blob))
        if proof.verdict is not Verdict.PROVED:
            raise self._corrupt(self._snapshot.hub, blob, blob.source, proof)
        return proof

    def _copy(self, blob: _Blob, temporary: str) -> Proof:
        """Copies, and reads back what lies on the disk."""
        said = copy_and_hash(blob.source, temporary, blob.expected, fs=self._fs)
        if said.verdict is Verdict.CORRUPT:
            raise self._corrupt(self._snapshot.hub, blob, blob.source, said)
        back = self._reread(temporary, said.found)
        if back.verdict is Verdict.PROVED:
            return back
        raise DataError(
            f"{self._hub.root} gave back other bytes of {blob.name[:12]} than were written "
            f"({back.detail}); nothing was published",
            hint="the disk or its server is at fault: write elsewhere, and tell its operators",
            path=temporary, blob=blob.name,
        )  # fmt: skip

    def _reread(self, path: str, expected: str) -> Proof:
        return prove(path, expected, fresh=True, fs=self._fs)

    def _source_digest(self, blob: _Blob) -> str:
        """The SHA-256 of a source whose name says nothing."""
        proof = prove(blob.source, "", fs=self._fs)
        if proof.verdict is Verdict.UNREADABLE:
            raise SourceError(blob.source, OSError(0, proof.detail))
        return proof.found

    def _note(self, blob: _Blob, proof: Proof) -> None:
        by_name = bool(blob.expected) and blob.name not in self._proofs
        verdict = Verdict.PROVED if by_name else Verdict.UNPROVABLE
        self._proofs[blob.name] = msgspec.structs.replace(proof, verdict=verdict)

    def _corrupt(self, hub: str, blob: _Blob, path: str, proof: Proof) -> DataError:
        repo = self._snapshot.repo
        file = next((p for p, name in self.names.items() if name == blob.name), blob.name)
        return DataError(
            f"{file} of {repo} is {proof.verdict.value} in {hub}: {proof.detail}; "
            "nothing was published",
            hint=set_aside_command(hub, repo, file),
            path=path, file=file, repo=repo.name, hub=hub, blob=blob.name,
            expected=proof.expected, found=proof.found,
        )  # fmt: skip
