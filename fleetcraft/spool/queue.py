"""The order in which one worker meets pending tasks, without racing its fellows for each.

Name order inside a lane. A worker lists once and takes every W-th name from its own index; when
its stride is spent it lists again, and only when a stride yields nothing does it walk the whole
list from its own offset. Invariant: the cost of the next candidate does not grow with the number
pending, apart from one listing a stride; and what a fleet lists in a second does not grow with the
number of its workers.
"""

from __future__ import annotations

import random
import time
from enum import Enum, auto

import msgspec

from fleetcraft.layout import Lane
from fleetcraft.spool.names import first_in_order
from fleetcraft.spool.tree import SpoolTree

_FIRST_LANE_EVERY_S = 2.0
_LISTING_DUTY = 50  # a listing may take one fiftieth of the time, however long the list
_RELIST_AFTER_MISSES = 8
_NAMES_PER_S = 250_000
_LISTINGS_PER_S = 1_000
_WINDOW = 50_000
_LEAST_STRIDE = 50


class _Phase(Enum):
    FRESH = auto()
    STRIDE = auto()
    WHOLE = auto()


class Candidate(msgspec.Struct, frozen=True):
    """A pending task as listed: it may be gone by now."""

    name: str
    lane: Lane
    path: str


class Queue:
    """Candidates for one worker.

    Say `begin` before a look; tell it `won` after a successful claim and `missed` after a lost one.
    `next` returns None only after a whole walk of every lane, made since `begin`, was in vain.

    Args:
        tree: The spool.
        index: This worker's place among its fellows, from 0.
        count: How many there are.
    """

    def __init__(self, tree: SpoolTree, index: int = 0, count: int = 1) -> None:
        self._first = _Lane(tree, Lane.FIRST, index, count)
        self._plain = _Lane(tree, Lane.PLAIN, index, count)
        self._last = _Lane(tree, Lane.LAST, index, count)
        self._current = self._plain
        self._list_first_at = 0.0
        self._list_plain_at = 0.0
        self._under_way = False

    def begin(self) -> None:
        """A look begins: what an earlier one has walked in vain may have tasks by now."""
        self._under_way = any(lane.under_way for lane in self._lanes)

    @property
    def _lanes(self) -> tuple[_Lane, ...]:
        return (self._first, self._plain, self._last)

    def next(self) -> Candidate | None:
        """The next candidate, or None when every lane was walked in vain.

        Raises:
            OSError: A lane cannot be listed.
        """
        self._look_at_clock()
        candidate = self._walk()
        if candidate is None and self._under_way:
            # Part of that walk was made by an earlier look. A worker leaves when there is nothing,
            # so it must not be told so of what was put back meanwhile.
            self._under_way = False
            candidate = self._walk()
        return candidate

    def _walk(self) -> Candidate | None:
        for lane in self._lanes:
            candidate = lane.next()
            if candidate is not None:
                self._current = lane
                return candidate
        for lane in self._lanes:
            lane.start_over()
        return None

    def keep(self, candidate: Candidate) -> None:
        """Returns the last candidate to be met first again."""
        self._current.put_back(candidate)

    def won(self) -> None:
        """The last candidate was claimed by this worker."""
        self._current.yielded = True
        self._current.misses = 0

    def missed(self) -> None:
        """Somebody else claimed the last candidate."""
        self._current.missed()

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        if now >= self._list_first_at:
            every_s = self._first.pause_s(_FIRST_LANE_EVERY_S)
            self._list_first_at = now + every_s * random.uniform(0.8, 1.2)
            self._first.start_over()
        if now >= self._list_plain_at:
            # So that a name enqueued later but earlier in order does not wait for the whole stride.
            every_s = self._plain.pause_s(2 * _FIRST_LANE_EVERY_S)
            self._list_plain_at = now + every_s * random.uniform(0.8, 1.2)
            if self._plain.yielded:
                self._plain.relist()


class _Lane:
    """One lane's list: this worker's stride of it, or, after a barren stride, all of it."""

    def __init__(self, tree: SpoolTree, lane: Lane, index: int, count: int) -> None:
        self._tree = tree
        self._lane = lane
        self._folder = tree.paths.lane(lane)
        self._index = index
        self._count = count
        self._names: list[str] = []
        self._phase = _Phase.FRESH
        self.yielded = False
        self.misses = 0
        self._listing_s = 0.0
        self._listed = 0
        # What a worker keeps of a list: the beginning, so long that its stride is worth a listing.
        # A walk in vain goes on behind it.
        self._window = max(_WINDOW, _LEAST_STRIDE * count)
        self._last = ""
        self._goes_on = False

    def pause_s(self, least_s: float) -> float:
        """Seconds between two listings that nothing but the clock asks for.

        They take at most a fiftieth of a worker's time, however long the list, and of all workers
        together at most a thousand listings and 250,000 names in a second, however many they are.
        """
        crowd_s = self._count * max(1 / _LISTINGS_PER_S, self._listed / _NAMES_PER_S)
        return max(least_s, _LISTING_DUTY * self._listing_s, crowd_s)

    @property
    def under_way(self) -> bool:
        """Whether a pass has begun and is not over."""
        return self._phase is not _Phase.FRESH

    def next(self) -> Candidate | None:
        while not self._names:
            if not self._list_again():
                return None
        name = self._names.pop()
        return Candidate(name, self._lane, self._tree.paths.pending_record(name, self._lane))

    def put_back(self, candidate: Candidate) -> None:
        self._names.append(candidate.name)

    def missed(self) -> None:
        self.misses += 1
        if self.misses >= _RELIST_AFTER_MISSES:
            # The list is stale: fellows have been through it.
            self.relist()

    def relist(self) -> None:
        """Forgets the list, keeping what is known of whether it yields."""
        self._names.clear()
        self.misses = 0
        if self._phase is not _Phase.FRESH:
            self.yielded = True

    def start_over(self) -> None:
        """Begins a new pass with a fresh stride."""
        self._names.clear()
        self._phase = _Phase.FRESH
        self.yielded = False

    def _list(self, after: str) -> list[str]:
        """The names behind one, in order, as many as are kept."""
        listed = self._tree.scan_records(self._folder)
        names, total = first_in_order(listed, self._window, after=after)
        self._listed = max(total, self._listed if after else 0)
        self._goes_on = total > len(names)
        self._last = names[-1] if names else ""
        return names

    def _list_again(self) -> bool:
        """Lists the lane for the next phase of the pass; False when the pass is over."""
        onward = self._phase is _Phase.WHOLE and not self.yielded
        if onward and not self._goes_on:
            return False
        whole = onward or (self._phase is _Phase.STRIDE and not self.yielded)
        started = time.monotonic()
        names = self._list(self._last if onward else "")
        self._listing_s = time.monotonic() - started
        self.yielded = False
        self.misses = 0
        mine = names[self._index % self._count :: self._count]
        if whole or not mine:
            self._phase = _Phase.WHOLE
            start = len(names) * (self._index % self._count) // self._count
            mine = names[start:] + names[:start]
        else:
            self._phase = _Phase.STRIDE
        mine.reverse()
        self._names = mine
        return bool(mine)
