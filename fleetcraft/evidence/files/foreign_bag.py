"""Bags of other programs: verified by the manifests that they hold, whatever the algorithm.

The bagit library reads the bag and is handed in; content is read here, so that it can be reread
from the disk. Invariant: nothing is said of sizes, kinds or producers, which such a bag does not
hold.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fleetcraft.errors import DataError
from fleetcraft.evidence.files.archive import amended
from fleetcraft.evidence.files.copying import Reader, place_of
from fleetcraft.evidence.files.policy import Problem, walk
from fleetcraft.evidence.files.verifying import (
    LEVELS,
    Change,
    Difference,
    Unread,
    Verdict,
    Verification,
)
from fleetcraft.evidence.records import Level
from fleetcraft.files import BulkFileSystem


class ForeignBag:
    """A bag of another program against its own manifests.

    Args:
        library: The bagit library.
        folder: The bag.
        level: How closely to look: ``listed``, ``hashed`` or ``reread``.
        fs: The seam.

    Raises:
        library.BagError: It is no bag.
    """

    def __init__(self, library: Any, folder: str, level: Level, fs: BulkFileSystem) -> None:
        self._library = library
        self._bag = library.Bag(folder)
        self._folder = folder
        self._level = level
        self._reader = Reader(fs)
        self._walked = walk(fs, os.path.realpath(folder))
        self._differences: list[Difference] = []
        self._unread: list[Unread] = []
        self._how: Counter[str] = Counter()

    def compare(self) -> None:
        """Structure and names by the library, content by what its manifests say."""
        missing, added = self._bag.compare_manifests_with_fs()
        for path in sorted(missing):
            self._differ(Change.REMOVED, path)
        for path in sorted(added):
            self._differ(Change.ADDED, path)
        for path, problem, said in self._walked.refused:
            if problem is Problem.UNREADABLE:
                self._unread.append(Unread(path=path, reason=said))
            elif problem in (Problem.SYMLINK, Problem.SPECIAL_FILE):
                self._differ(Change(problem.value), path)
        if not self._differences:
            try:
                self._bag.validate(completeness_only=True)
            except self._library.BagValidationError as error:
                self._differ(Change.RECORD, "..", str(error))
        if self._level in (Level.HASHED, Level.REREAD):
            wrong = {each.path for each in self._differences}
            for path, expected in sorted(self._bag.entries.items()):
                if path not in wrong:
                    self._compare_file(path, expected)

    def _compare_file(self, path: str, expected: Mapping[str, str]) -> None:
        digests = {name: hashlib.new(name) for name in expected}

        def update(piece: memoryview) -> None:
            for digest in digests.values():
                digest.update(piece)

        full = os.path.join(self._folder, path)
        try:
            found = self._reader.hash(full, reread=self._level is Level.REREAD, write=update)
        except (OSError, DataError) as error:
            self._unread.append(Unread(path=path, reason=str(error)))
            return
        self._how[found.how.value] += 1
        for name, digest in digests.items():
            if digest.hexdigest() != expected[name].lower():
                self._differ(Change.CHANGED, path, digest.hexdigest(), expected[name])
                return

    def _differ(self, change: Change, path: str, found: str = "", expected: str = "") -> None:
        self._differences.append(
            Difference(change=change, path=path, found=found, expected=expected)
        )

    def concluded(self) -> Verification:
        """What came of it; only the payload is counted."""
        wrong = {each.path for each in self._differences} | {each.path for each in self._unread}
        payload = set(self._bag.payload_entries())
        sizes = {each.path: each.size_bytes for each in self._walked.files}
        reached = LEVELS[: LEVELS.index(self._level) + 1]
        found = Verification(
            verdict=Verdict.VERIFIED,
            level=self._level,
            name=os.path.basename(os.path.abspath(self._folder)),
            files=len(payload),
            bytes=sum(sizes.get(path, 0) for path in payload),
            counts={each.value: len(payload - wrong) for each in reached},
            how=dict(self._how),
            place=place_of(self._folder),
            not_checked=("sizes: a bag holds none", "kinds and producers: a bag holds none"),
        )
        return amended(found, self._differences, self._unread)
