"""Promotion: waiting tasks whose dependencies are met become claimable.

`dependencies` says when a task is ready. ``done`` only grows, so a stale view can delay a promotion
but never make a wrong one. Invariant: what a watcher costs does not grow with how often it looks,
nor what all of them cost with how many they are.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from fleetcraft.errors import FleetError
from fleetcraft.layout import Lane, State
from fleetcraft.spool.dependencies import absolute
from fleetcraft.spool.globs import Globs, first_but
from fleetcraft.spool.names import is_glob
from fleetcraft.spool.tree import SpoolTree

MAX_WATCHED = 20_000
"""Waiting tasks that one watcher keeps in memory (about 0.5 KiB each); the rest come later."""
_MAX_KNOWN_DONE = 50_000
_REFRESH_EVERY_S = 2.0
_DUTY = 50
_FELLOWS = 16
_LEAST_SHARE = 1_000
_NAMES_PER_S = 1_000_000


class _Watched(msgspec.Struct):
    after: tuple[str, ...]
    after_files: tuple[str, ...]
    lane: Lane
    blocker: str


class Promoter:
    """Moves ready tasks from ``waiting`` to their lanes, judging again only what changed.

    Each waiting task is remembered with the one dependency that blocks it, and is judged again
    when that one is done. Cost of `finished`: a dictionary look-up unless somebody waited for the
    task. Cost of `refresh`: one listing, a read for each task not seen before, and one look at
    each distinct blocker. Of a glob the last match that is not done is the blocker, since tasks
    run in name order: the glob is then looked up a few times, not once for each match.

    Beyond sixteen watchers of one spool each watches a part, another one at each refresh, and the
    more there are the longer each pauses: together they read at most about 8,000 records a second.

    Args:
        tree: The spool.
        index: This watcher's place among its fellows, from 0.
        count: How many watch the spool.
    """

    def __init__(self, tree: SpoolTree, index: int = 0, count: int = 1) -> None:
        self._tree = tree
        self._crowd = max(1.0, count / _FELLOWS)
        self._count = max(1, count)
        self._place = (index % self._count) / self._count
        self._most = max(_LEAST_SHARE, int(MAX_WATCHED / self._crowd))
        self._watched: dict[str, _Watched] = {}
        self._waiters: dict[str, set[str]] = {}
        self._known_done: set[str] = set()
        self._not_done: set[str] = set()  # as this pass has seen
        self._met_last = ""
        self._listed = 0

    def __len__(self) -> int:
        return len(self._watched)

    @property
    def is_one_of_many(self) -> bool:
        """Whether it shares the waiting tasks, and so has to keep its pauses even when idle."""
        return self._crowd > 1.0

    def pause_s(self, took_s: float) -> float:
        """Seconds to wait after a refresh.

        One that nobody shares the work with takes at most a fiftieth of the time, however many
        wait; all of them together list at most a million names a second.

        Args:
            took_s: How long the refresh took.
        """
        crowded_s = max(_REFRESH_EVERY_S * self._crowd, self._count * self._listed / _NAMES_PER_S)
        return max(_DUTY * took_s, crowded_s)

    def finished(self, name: str) -> list[str]:
        """Judges the tasks that a task just done was blocking; returns what was promoted."""
        waiters = self._waiters.get(name)
        if not waiters:
            return []
        self._known_done.add(name)
        self._not_done.clear()
        globs = self._globs(waiters)
        promoted = self._judge_all(waiters, globs)
        # Not before: what an error kept from being judged is judged at the next refresh.
        self._waiters.pop(name, None)
        return promoted

    def refresh(self) -> list[str]:
        """Lists ``waiting`` and judges what is new or no longer blocked; returns what was promoted.

        Raises:
            OSError: The spool cannot be listed.
        """
        tree = self._tree
        present = self._next_window(sorted(tree.records(tree.paths.waiting)))
        for gone in self._watched.keys() - set(present):
            self._forget(gone)
        if len(self._known_done) > _MAX_KNOWN_DONE:
            self._known_done.clear()
        self._not_done.clear()
        self._waiters = {blocker: tasks for blocker, tasks in self._waiters.items() if tasks}
        fresh = [name for name in present if self._is_unjudged(name)]
        globs = self._globs(fresh)
        globs.announce(blocker for blocker in self._waiters if is_glob(blocker))
        unblocked = [
            task
            for blocker, tasks in list(self._waiters.items())
            if self._is_met_now(blocker, globs)
            for task in tasks
        ]
        return self._judge_all({*fresh, *unblocked}, globs)

    def sweep(self) -> list[str]:
        """Refreshes until every waiting task was met once; returns what was promoted.

        One watcher of a crowd meets no more than a watcher keeps: others may be sweeping too.

        Raises:
            OSError: The spool cannot be listed.
        """
        promoted = self.refresh()
        names = min(self._listed, MAX_WATCHED) if self.is_one_of_many else self._listed
        for _ in range(self._most, names, self._most):
            promoted += self.refresh()
        return promoted

    def _judge_all(self, tasks: Iterable[str], globs: Globs) -> list[str]:
        """Judges tasks in name order. One whose place is taken hinders no other."""
        promoted: list[str] = []
        trouble: FleetError | None = None
        for task in sorted(tasks):
            try:
                if self._judge(task, globs):
                    promoted.append(task)
            except FleetError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble
        return promoted

    def _globs(self, tasks: Iterable[str]) -> Globs:
        globs = Globs(self._tree, self._is_done)
        watched = [self._watched[task] for task in tasks if task in self._watched]
        globs.announce(text for one in watched for text in one.after if is_glob(text))
        return globs

    def _next_window(self, names: list[str]) -> list[str]:
        """All names, or the next window of very many: the last may block the first."""
        self._listed = len(names)
        if len(names) <= self._most:
            return names
        # By name, not by number: what is promoted meanwhile would make it skip others.
        start = int(self._place * len(names))
        if self._met_last:
            start = bisect_right(names, self._met_last)
        window = (names[start:] + names[:start])[: self._most]
        self._met_last = window[-1]
        return window

    def _is_met_now(self, blocker: str, globs: Globs) -> bool:
        if os.sep in blocker:
            return os.path.exists(blocker)
        # A glob by itself is a blocker when nothing, or only the task that asks, matches it.
        return bool(globs.matching(blocker)) if is_glob(blocker) else self._is_done(blocker)

    def _is_unjudged(self, name: str) -> bool:
        """Whether it is new, or an error kept it from being judged."""
        watched = self._watched.get(name)
        return not watched.blocker if watched is not None else self._watch(name)

    def _watch(self, name: str) -> bool:
        try:
            record = self._tree.read(self._tree.paths.waiting_record(name))
        except (OSError, FleetError):
            return False  # it moved, or cannot be read: `check` and `status` say so
        spec = record.spec
        files = tuple(absolute(path, spec) for path in spec.after_files)
        self._watched[name] = _Watched(spec.after, files, spec.lane, "")
        return True

    def _forget(self, name: str) -> None:
        watched = self._watched.pop(name, None)
        if watched is not None:
            self._waiters.get(watched.blocker, set()).discard(name)

    def _judge(self, name: str, globs: Globs) -> bool:
        watched = self._watched.get(name)
        if watched is None:
            return False
        blocker = self._first_blocker(name, watched, globs)  # an error leaves it where it was
        self._waiters.get(watched.blocker, set()).discard(name)
        watched.blocker = blocker
        if watched.blocker:
            self._waiters.setdefault(watched.blocker, set()).add(name)
            return False
        del self._watched[name]
        paths = self._tree.paths
        return self._tree.move(paths.waiting_record(name), paths.pending_record(name, watched.lane))

    def _first_blocker(self, name: str, watched: _Watched, globs: Globs) -> str:
        for dependency in watched.after:
            if not is_glob(dependency):
                if not self._is_done(dependency):
                    return dependency
            elif not first_but(name, globs.matching(dependency)):
                return dependency
            elif blocker := first_but(name, reversed(globs.unmet(dependency))):
                return blocker
        return next((path for path in watched.after_files if not os.path.exists(path)), "")

    def _is_done(self, name: str) -> bool:
        if name in self._known_done or name in self._not_done:
            return name in self._known_done
        done = self._tree.fs.exists(self._tree.paths.finished_record(name, State.DONE))
        (self._known_done if done else self._not_done).add(name)
        return done
