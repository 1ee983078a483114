"""When a mount misbehaves and how: the rules that a test gives, and the count of what they did.

Not here: the file system that obeys them (`passthrough`). Invariant: with one seed and one thread
the same operations meet the same rules.
"""

from __future__ import annotations

import errno
import fnmatch
import random
import threading
import time
from collections import Counter, defaultdict
from typing import Any

import msgspec

CHANGES = (
    "create", "write", "truncate", "fsync", "rename", "rename2", "link", "unlink", "mkdir",
    "rmdir", "symlink", "chmod", "chown", "utimens",
)  # fmt: skip
LOOKS = ("getattr", "readdir", "open", "read", "readlink", "statfs")
OPERATIONS = (*CHANGES, *LOOKS, "flock")
"""``rename2`` is a rename that came with flags, such as RENAME_NOREPLACE."""

ACTS = ("delay", "late", "fail", "lie", "hang", "stale", "quota")


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of trouble.

    Attributes:
        name: What the counts call it.
        on: Operations; ``*`` is every one, ``changes`` those that change something.
        do: ``delay`` waits before it is performed, ``late`` after it was; ``fail`` reports ``code``
            instead of performing; ``lie`` performs and reports ``code`` all the same; ``hang``
            waits until it is released; ``stale`` answers looks with what was seen up to ``for_s``
            before; ``quota`` refuses bytes above ``most_bytes`` with EDQUOT.
        code: The name of an errno.
        for_s: Seconds of a delay, or of staleness.
        jitter_s: Up to so many more, at random.
        share: How probable it is that it fires, from 0 to 1.
        every: It fires only at every n-th operation that matches.
        most: It fires at most so often; 0 is without end.
        paths: Globs of paths from the mount's root, of which one must match one of the
            operation's paths; ``*`` also matches slashes.
        across: Only a rename or link between two folders.
        period_s: It is in force only in the first ``on_s`` seconds of each period.
        on_s: See ``period_s``.
        own: Staleness also of what was changed through this very mount. A client of NFS sees its
            own changes; without this only another mount's changes are seen late.
        most_bytes: What the files may have together.
    """

    name: str
    do: str
    on: tuple[str, ...] = ("*",)
    code: str = "EIO"
    for_s: float = 0.0
    jitter_s: float = 0.0
    share: float = 1.0
    every: int = 1
    most: int = 0
    paths: tuple[str, ...] = ()
    across: bool = False
    period_s: float = 0.0
    on_s: float = 0.0
    own: bool = False
    most_bytes: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.on) - {"*", "changes", *OPERATIONS}
        if unknown or self.do not in ACTS or not hasattr(errno, self.code):
            raise ValueError(f"rule {self.name}: {self.do} {self.code} on {sorted(self.on)}")

    def error(self, path: str = "") -> OSError:
        """What it reports."""
        code = getattr(errno, self.code)
        return OSError(code, self.code, path)

    def matches(self, operation: str, paths: tuple[str, ...], age_s: float) -> bool:
        """Whether it is about this operation, at so many seconds after it was given."""
        named = operation in self.on or "*" in self.on
        if not named and not ("changes" in self.on and operation in CHANGES):
            return False
        if self.period_s and age_s % self.period_s >= self.on_s:
            return False
        if self.across and len({path.rpartition("/")[0] for path in paths}) < 2:
            return False
        return not self.paths or any(
            fnmatch.fnmatchcase(path, pattern) for path in paths for pattern in self.paths
        )


class Rules:
    """Those in force, and how often each fired. Safe for threads."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._rules: tuple[Rule, ...] = ()
        self._given_at = 0.0
        self._met: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.fired: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def give(self, rules: tuple[Rule, ...]) -> None:
        """Replaces all rules; counts go on."""
        with self._lock:
            self._rules = rules
            self._given_at = time.monotonic()
            self._met.clear()

    def find(self, act: str) -> Rule | None:
        """The first rule of this act."""
        return next((rule for rule in self._rules if rule.do == act), None)

    def firing(self, operation: str, paths: tuple[str, ...]) -> list[tuple[Rule, float]]:
        """Rules that fire at this operation, each with the seconds that it takes."""
        with self._lock:
            self.operations[operation] += 1
            if not self._rules:
                return []
            age_s = time.monotonic() - self._given_at
            found = []
            for rule in self._rules:
                if rule.do == "quota" or not rule.matches(operation, paths, age_s):
                    continue
                if self._fires(rule):
                    found.append((rule, rule.for_s + rule.jitter_s * self._random.random()))
                    # What is stale is counted when the answer was another than the truth.
                    if rule.do != "stale":
                        self.fired[rule.name][operation] += 1
            return found

    def _fires(self, rule: Rule) -> bool:
        self._met[rule.name] += 1
        if self._met[rule.name] % rule.every:
            return False
        if rule.most and sum(self.fired[rule.name].values()) >= rule.most:
            return False
        return rule.share >= 1.0 or self._random.random() < rule.share

    def count(self, rule: Rule, operation: str) -> None:
        """Counts what only the file system can know: a stale answer, a refused byte."""
        with self._lock:
            self.fired[rule.name][operation] += 1

    def counts(self) -> dict[str, Any]:
        """Operations, and what fired, by rule and operation."""
        with self._lock:
            fired = {name: dict(counts) for name, counts in self.fired.items() if counts}
            return {"operations": dict(self.operations), "fired": fired}
