"""Crash episodes: a signature opens one, and completed progress after it closes it.

Hits and step counters in, episodes out; no file is read here. Invariant: an episode closes only
when a step counter is seen above the value that it had at the line, never because time passed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fleetcraft.training.diagnosing.hits import Hit
from fleetcraft.training.diagnosing.scan import LogScan
from fleetcraft.training.records import Crash, Role

LATE_STEPS = 3
"""Ranks are at most so many steps apart: one may complete the step in which another died, and lines
may come that late. A counter that fell further was restarted."""
_FIRST_HITS = 24
_LAST_HITS = 8
# What explains a kill, though the scheduler prints it after the shell has printed "Killed".
_EXPLAINS_KILL = frozenset({Crash.HOST_OOM, Crash.TIME_LIMIT, Crash.PREEMPTED})
# Without a cause the earliest link of the chain is the best guess: a killed rank makes its peers
# lose connections or time out, and the agent speaks last.
_CASCADE_ORDER = (
    Crash.KILLED_UNCONFIRMED, Crash.CANCELLED, Crash.CHECKPOINT_INVALID, Crash.NCCL_WATCHDOG,
    Crash.RENDEZVOUS, Crash.DIST_NETWORK, Crash.CODE_ERROR, Crash.CHILD_FAILED,
)  # fmt: skip


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One crash as logs tell it.

    Attributes:
        hits: In the order of the logs; of very many the first 24 and the last 8.
        left_out: Hits between those.
        step: The reported step when it was opened; None when none was reported.
    """

    hits: tuple[Hit, ...]
    left_out: int = 0
    step: int | None = None

    @property
    def deciding(self) -> Hit:
        """The hit that names the class: the first cause, or the earliest link of a cascade.

        An error that Python raised while it handled another one counts instead of that one when
        it says more than "an exception": ``KeyError``, then ``CUDA out of memory``.
        """
        roots = _in_time([hit for hit in self.hits if hit.role is Role.ROOT])
        if roots:
            first = roots[0]
            if first.crash is Crash.KILLED_UNCONFIRMED:
                return next((hit for hit in roots if hit.crash in _EXPLAINS_KILL), first)
            return _specific(first, roots) if first.crash is Crash.CODE_ERROR else first
        links = [hit for hit in self.hits if hit.role is Role.CASCADE] or list(self.hits)
        return min(links, key=lambda hit: _cascade_rank(hit.crash))

    @property
    def has_root(self) -> bool:
        """Whether a cause was seen, not only what follows from one."""
        return any(hit.role is Role.ROOT for hit in self.hits)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of which the deciding class is told, by themselves or by their launcher."""
        crash = self.deciding.crash
        named = {hit.rank for hit in self.hits if hit.rank is not None and hit.crash is crash}
        return tuple(sorted(named))

    def with_hit(self, hit: Hit) -> Episode:
        """The episode with one more line."""
        if len(self.hits) < _FIRST_HITS + _LAST_HITS:
            return msgspec.structs.replace(self, hits=(*self.hits, hit))
        first, last = self.hits[:_FIRST_HITS], self.hits[_FIRST_HITS + 1 :]
        return msgspec.structs.replace(self, hits=(*first, *last, hit), left_out=self.left_out + 1)


class _Track:
    """The episodes of one log."""

    def __init__(self) -> None:
        self.open: Episode | None = None
        self.base: int | None = None
        self._passed: Episode | None = None
        self._passed_base: int | None = None

    def take(self, hit: Hit, reported: int | None) -> None:
        if self.open is None and hit.role is Role.TEARDOWN:
            return
        if self.open is None and self._follows_passed(hit, reported):
            self.open, self.base = self._passed, hit.step
        if self.open is None or self._began_anew(hit):
            self.open = Episode(hits=(hit,), step=reported)
            self.base = hit.step
        else:
            self.open = self.open.with_hit(hit)
            self.base = hit.step if self.base is None else self.base

    def _began_anew(self, hit: Hit) -> bool:
        # A run that was started again from a checkpoint counts from below: its new crash is not
        # explained by the old one, even though that was never passed.
        if hit.role is not Role.ROOT or hit.step is None or self.base is None:
            return False
        return hit.step < self.base - LATE_STEPS

    def _follows_passed(self, hit: Hit, reported: int | None) -> bool:
        """Whether a consequence belongs to a cause that only the step in flight has passed.

        A rank dies, its peer still completes and prints that step, and then loses the connection.
        """
        if self._passed is None or hit.role is not Role.CASCADE:
            return False
        if reported is not None and self._passed.step is not None:
            return reported <= self._passed.step + LATE_STEPS
        if hit.step is None:
            return False
        base = hit.step if self._passed_base is None else self._passed_base
        return hit.step == hit.first_step or hit.step <= base + LATE_STEPS

    def progress(self, step: int | None, first_step: int | None) -> Episode | None:
        """The episode that this step closes."""
        if self.open is None or step is None:
            return None
        if self.base is None:
            self.base = first_step if first_step is not None else step
        return self.close() if step > self.base else None

    def close(self) -> Episode | None:
        if self.open is not None:
            self._passed, self._passed_base = self.open, self.base
        closed, self.open, self.base = self.open, None, None
        return closed


class Episodes:
    """The episodes of one attempt, over all its logs.

    The step that decides is the reported one (the progress protocol) once one was ever given;
    until then each log's own counter decides for that log.

    Attributes:
        closed: How many were closed by progress.
        last_closed: The last of them.
    """

    def __init__(self) -> None:
        self.closed = 0
        self.last_closed: Episode | None = None
        self._tracks: dict[str, _Track] = {}
        self._reported: int | None = None
        self._reported_at_open: int | None = None

    @property
    def open(self) -> Episode | None:
        """The crash that nothing completed since; those of several logs are one."""
        episodes = [track.open for track in self._tracks.values() if track.open]
        if len(episodes) < 2:
            return episodes[0] if episodes else None
        return Episode(
            hits=tuple(hit for episode in episodes for hit in episode.hits),
            left_out=sum(episode.left_out for episode in episodes),
            step=next((one.step for one in episodes if one.step is not None), None),
        )

    def feed(
        self, hits: Sequence[Hit], step: int | None = None, scans: Sequence[LogScan] = ()
    ) -> None:
        """Takes new hits and then the step counters.

        Args:
            hits: New ones, in the order of their log.
            step: The step that ranks report, read *after* the logs were; None when none is
                reported.
            scans: The logs' scans after that look, for their own counters.
        """
        if step is not None:
            self._by_report(step)  # what was open before these lines was passed, if it was
        if hits:
            # Whether this step came before or after the new lines cannot be told: the next must.
            self._reported_at_open = step
        for hit in hits:
            track = self._tracks.setdefault(hit.path, _Track())
            if self._reported is None:
                self._close(track.progress(hit.step, hit.first_step))
            track.take(hit, step)
        if self._reported is None:
            for scan in scans:
                if scan.path in self._tracks:
                    track = self._tracks[scan.path]
                    self._close(track.progress(scan.step, scan.first_step))

    def _by_report(self, step: int) -> None:
        self._reported = step
        if self._reported_at_open is None:
            self._reported_at_open = step
        if step > self._reported_at_open:
            for track in self._tracks.values():
                self._close(track.close())

    def _close(self, episode: Episode | None) -> None:
        if episode is not None:
            self.closed += 1
            self.last_closed = episode


def _specific(first: Hit, roots: Sequence[Hit]) -> Hit:
    for hit in roots[1:]:
        if not hit.chained or hit.rank != first.rank or hit.path != first.path:
            break
        if hit.crash is not Crash.CODE_ERROR:
            return hit
    return first


def _in_time(hits: list[Hit]) -> list[Hit]:
    """Across logs by the written time when every line has one of the same form; else as it is."""
    paths = {hit.path for hit in hits}
    if len(paths) > 1 and all(hit.at for hit in hits) and len({len(hit.at) for hit in hits}) == 1:
        return sorted(hits, key=lambda hit: hit.at)
    # Logs without times: an error that explains itself before one that only says "an exception".
    if len(paths) > 1:
        return sorted(hits, key=lambda hit: hit.crash is Crash.CODE_ERROR)
    return hits


def _cascade_rank(crash: Crash) -> int:
    return _CASCADE_ORDER.index(crash) if crash in _CASCADE_ORDER else len(_CASCADE_ORDER)
