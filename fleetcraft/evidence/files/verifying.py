"""Whether a folder is what its manifest says, at a level that is named.

Reads, and changes nothing. Invariant: ``verified`` means that every file was looked at as the level
says and that nothing else is there; what could not be read is unverifiable, never right and never
wrong.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from fleetcraft.errors import DataError, FleetError
from fleetcraft.evidence.files.copying import ChangedError, How, Place, Reader, place_of
from fleetcraft.evidence.files.manifest import FileEntry, Manifest, Progress, Told
from fleetcraft.evidence.files.policy import Problem, Walked, folded, walk
from fleetcraft.evidence.records import Level
from fleetcraft.files import BulkFileSystem

LEVELS = (Level.LISTED, Level.SIZED, Level.HASHED, Level.REREAD)
"""What can be asked for, from the cheapest to the strictest."""
_MOST_NAMED = 5


class Verdict(StrEnum):
    """What came of comparing."""

    VERIFIED = "verified"
    REFUTED = "refuted"
    UNVERIFIABLE = "unverifiable"


class Change(StrEnum):
    """In what a folder differs from its manifest."""

    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    """The same content under another path."""
    CHANGED = "changed"
    """Another content of the same size."""
    SIZED = "sized"
    """Another size."""
    CASE = "case"
    """A name that differs in case alone; below ``hashed``, nothing is known of the content."""
    SYMLINK = "symlink"
    SPECIAL_FILE = "special_file"
    CASE_COLLISION = "case_collision"
    BAD_NAME = "bad_name"
    RECORD = "record"
    """A record of the archive or bag itself is not what was written."""


_OF_PROBLEM = {
    Problem.SYMLINK: Change.SYMLINK,
    Problem.SPECIAL_FILE: Change.SPECIAL_FILE,
    Problem.CASE_COLLISION: Change.CASE_COLLISION,
    Problem.BAD_NAME: Change.BAD_NAME,
    Problem.OUTSIDE: Change.BAD_NAME,
}


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference, at one path.

    Attributes:
        change: Its kind.
        path: Where it is now; where it should be if it is gone.
        found: What is there: a size in bytes, a digest, a path, or empty.
        expected: What the manifest says, likewise.
    """

    change: Change
    path: str
    found: str = ""
    expected: str = ""


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could not be compared, and why."""

    path: str
    reason: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification found.

    Attributes:
        verdict: What it comes to.
        level: How closely it was looked, as asked.
        name: The manifest's name.
        root_sha256: Its root digest.
        files: Entries it has.
        bytes: Their sizes together.
        counts: For each level up to that one, how many entries agree at it.
        how: Of what was hashed, how many files were read in which way.
        place: The file system that holds the files.
        differences: Every difference, by kind and path.
        unread: What could not be compared.
        not_checked: What this verification does not prove, in sentences.
    """

    verdict: Verdict
    level: Level
    name: str = ""
    root_sha256: str = ""
    files: int = 0
    bytes: int = 0
    counts: dict[str, int] = {}
    how: dict[str, int] = {}
    place: Place = Place()
    differences: tuple[Difference, ...] = ()
    unread: tuple[Unread, ...] = ()
    not_checked: tuple[str, ...] = ()


class RefutedError(FleetError):
    """Files are not what a manifest says; ``differences`` names each."""

    def __init__(self, what: str, found: Verification, *, hint: str = "") -> None:
        named = "; ".join(map(in_words, found.differences[:_MOST_NAMED]))
        more = len(found.differences) - _MOST_NAMED
        super().__init__(
            f"{what}: {named}{f'; and {more} more' if more > 0 else ''}; nothing was published",
            hint=hint,
            level=found.level.value,
            differences=[msgspec.to_builtins(each) for each in found.differences[:1000]],
            left_out=max(0, len(found.differences) - 1000),
        )


def in_words(each: Difference) -> str:
    """A difference as a clause."""
    words = {
        Change.RENAMED: f"it was {each.expected!r}",
        Change.CASE: f"it was {each.expected!r}",
        Change.SIZED: f"{each.found} bytes, expected {each.expected}",
        Change.CHANGED: f"sha256 {each.found[:12]}…, expected {each.expected[:12]}…",
        Change.RECORD: each.found,
    }.get(each.change, "")
    return f"{each.change.value.replace('_', ' ')} {each.path!r}{f' ({words})' if words else ''}"


def verify(
    manifest: Manifest,
    folder: str,
    level: Level,
    *,
    everything: bool = False,
    fs: BulkFileSystem | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compares a folder with a manifest.

    Args:
        manifest: What should be there, and by which policy.
        folder: Where it should be.
        level: How closely to look; each level includes those before it.
        everything: Look also at what the policy left out: in a copy none of that belongs.
        fs: The seam.
        progress: Is told bytes read and in all; only levels that hash read any.

    Returns:
        What was found. A folder that is not there or cannot be listed is unverifiable.
    """
    fs = fs or BulkFileSystem()
    root = os.path.realpath(folder)
    try:
        walked = walk(fs, root, () if everything else manifest.policy.left_out)
    except DataError as error:
        return _concluded(_Comparison(manifest, root, level, fs, progress), str(error.message))
    comparison = _Comparison(manifest, root, level, fs, progress)
    comparison.compare(walked)
    return _concluded(comparison)


def _concluded(of: _Comparison, reason: str = "") -> Verification:
    manifest, unread = of.manifest, list(of.unread)
    if reason:
        unread.append(Unread(path=of.root, reason=reason))
    verdict = Verdict.UNVERIFIABLE if unread else Verdict.VERIFIED
    place = Place() if reason else place_of(of.root)
    asked = LEVELS[: LEVELS.index(of.level) + 1]
    return Verification(
        verdict=Verdict.REFUTED if of.differences else verdict,
        level=of.level,
        name=manifest.name,
        root_sha256=manifest.root_sha256,
        files=len(manifest.files),
        bytes=manifest.bytes,
        counts={each.value: of.counts[each] for each in asked},
        how={how.value: number for how, number in sorted(of.how.items())},
        place=place,
        differences=tuple(sorted(of.differences, key=lambda each: (each.change, each.path))),
        unread=tuple(unread),
        not_checked=tuple(_not_proved(of.level, of.how, place)),
    )


def _not_proved(level: Level, how: Counter[How], place: Place) -> Iterator[str]:
    if level in (Level.LISTED, Level.SIZED):
        yield f"content: at the level {level.value!r} no file was read"
    if level is Level.HASHED:
        yield "the disk: bytes may have come from this machine's page cache"
    if level is Level.REREAD:
        if how[How.ADVISED]:
            yield (
                f"{how[How.ADVISED]} of the files had no direct reads: the page cache was advised "
                "to forget them and can have kept some"
            )
        if place.caveat:
            yield place.caveat


class _Comparison:
    """One folder against one manifest, step by step."""

    def __init__(
        self,
        manifest: Manifest,
        root: str,
        level: Level,
        fs: BulkFileSystem,
        progress: Progress | None,
    ) -> None:
        if level not in LEVELS:
            raise ValueError(f"no level to verify at: {level}")
        self.manifest = manifest
        self.root = root
        self.level = level
        self.counts: Counter[Level] = Counter()
        self.how: Counter[How] = Counter()
        self.differences: list[Difference] = []
        self.unread: list[Unread] = []
        self._reader = Reader(fs)
        self._told = Told(progress, manifest.bytes)

    def compare(self, walked: Walked) -> None:
        """Goes through both once, in the order of paths."""
        refused = {path: problem for path, problem, _ in walked.refused}
        blind = tuple(f"{path}/" for path, problem in refused.items() if _hides(problem))
        for path, problem, said in walked.refused:
            if problem is Problem.UNREADABLE:
                self.unread.append(Unread(path=path, reason=said))
            else:
                self._differ(_OF_PROBLEM[problem], path)
        there = {each.path: each.size_bytes for each in walked.files}
        gone: list[FileEntry] = []
        for entry in self.manifest.files:
            size = there.pop(entry.path, None)
            if size is not None:
                self._compare_file(entry, size)
            elif entry.path.startswith(blind):
                self.unread.append(Unread(path=entry.path, reason="its folder cannot be listed"))
            elif entry.path not in refused:
                gone.append(entry)
        self._pair(gone, there)

    def _compare_file(self, entry: FileEntry, size: int) -> None:
        self.counts[Level.LISTED] += 1
        if self.level is Level.LISTED:
            return
        if size != entry.size_bytes:
            self._differ(Change.SIZED, entry.path, str(size), str(entry.size_bytes))
            return
        self.counts[Level.SIZED] += 1
        if self.level is Level.SIZED:
            return
        found = self._hash(entry.path)
        if found is None:
            return
        if found != entry.sha256:
            self._differ(Change.CHANGED, entry.path, found, entry.sha256)
            return
        self.counts[Level.HASHED] += 1
        if self.level is Level.REREAD:
            self.counts[Level.REREAD] += 1

    def _hash(self, path: str) -> str | None:
        reread = self.level is Level.REREAD
        try:
            found = self._reader.hash(
                f"{self.root}/{path}", reread=reread, advance=self._told.advance
            )
        except ChangedError as error:
            self.unread.append(Unread(path=path, reason=f"it changed: {error.facts['changed']}"))
            return None
        except OSError as error:
            self.unread.append(Unread(path=path, reason=error.strerror or str(error)))
            return None
        self.how[found.how] += 1
        return found.sha256

    # -- what is only on one side

    def _pair(self, gone: Sequence[FileEntry], added: dict[str, int]) -> None:
        """Finds what was renamed among what is gone and what is new."""
        if self.level in (Level.HASHED, Level.REREAD):
            gone = list(self._by_content(gone, added))
        else:
            gone = list(self._by_case(gone, added))
        for entry in gone:
            self._differ(Change.REMOVED, entry.path, expected=entry.sha256)
        for path in added:
            self._differ(Change.ADDED, path)

    def _by_content(self, gone: Sequence[FileEntry], added: dict[str, int]) -> Iterator[FileEntry]:
        sizes = {entry.size_bytes for entry in gone}
        now: dict[str, list[str]] = {}
        for path in sorted(path for path, size in added.items() if size in sizes):
            digest = self._hash(path)
            if digest is not None:
                now.setdefault(digest, []).append(path)
        for entry in gone:
            if not now.get(entry.sha256):
                yield entry
                continue
            path = now[entry.sha256].pop(0)
            del added[path]
            self._differ(Change.RENAMED, path, path, entry.path)

    def _by_case(self, gone: Sequence[FileEntry], added: dict[str, int]) -> Iterator[FileEntry]:
        now = {folded(path): path for path in added}
        for entry in gone:
            path = now.pop(folded(entry.path), None)
            if path is None:
                yield entry
                continue
            del added[path]
            self._differ(Change.CASE, path, path, entry.path)

    def _differ(self, change: Change, path: str, found: str = "", expected: str = "") -> None:
        self.differences.append(
            Difference(change=change, path=path, found=found, expected=expected)
        )


def _hides(problem: Problem) -> bool:
    return problem is Problem.UNREADABLE
