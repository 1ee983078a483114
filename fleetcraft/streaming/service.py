"""Sends several streams through one sender, once or again and again.

Decides when; `stream` knows how. Invariant: trouble with the service changes nothing but when
things are sent, and the pauses between attempts grow.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import msgspec

from fleetcraft.errors import FleetError
from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import RunPaths
from fleetcraft.layout.streams import StreamPaths
from fleetcraft.locks import LockHeldError
from fleetcraft.streaming.progress_rows import STEP
from fleetcraft.streaming.runs import RunFollower
from fleetcraft.streaming.sending import Limits, SenderGoneError, SenderProcess
from fleetcraft.streaming.stream import Account, Stream, Target
from fleetcraft.streaming.windows import WindowFollower
from fleetcraft.training.supervision.overview import chosen_runs

SERVICE = "wandb"
_LONGEST_PAUSE_S = 600.0
_LAST_CLOSE_S = 30.0


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Telemetry that is followed: its folder, its spools, and the length of a window."""

    folder: str
    spools: Mapping[str, str] | None
    window_s: float


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What one call sends.

    Attributes:
        root: The scratch tree.
        target: Where to.
        runs: Names or folders; empty for every run of the tree, also those that begin later.
        fleet: Telemetry; None for none.
        with_runs: Whether runs are sent at all.
    """

    root: str
    target: Target
    runs: tuple[str, ...] = ()
    fleet: Fleet | None = None
    with_runs: bool = True


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one look did: the streams, and runs that somebody else sends."""

    streams: tuple[Account, ...] = ()
    elsewhere: tuple[str, ...] = ()
    trouble: str = ""


class Service:
    """Follows and sends; to be entered and left.

    Args:
        wanted: What is sent.
        limits: How long the sender may take.
        interval_s: Of the streams' locks.
        by_age: Consent to follow silent senders of other nodes, of which nothing is known.
        fs: The seam.
        environ: The environment from which the sender's is made.
    """

    def __init__(
        self,
        wanted: Wanted,
        *,
        limits: Limits | None = None,
        interval_s: float = 5.0,
        by_age: bool = False,
        fs: FileSystem | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._wanted = wanted
        self._interval_s = interval_s
        self._by_age = by_age
        self._fs = fs or FileSystem()
        room = StreamPaths(wanted.root, SERVICE, wanted.target.name, "runs", "")
        self._sender = SenderProcess(
            limits=limits or Limits(),
            offline=wanted.target.offline,
            files=room.service,
            environ=environ,
        )
        self._streams: dict[str, Stream] = {}
        self._elsewhere: dict[str, str] = {}
        self._locks = ExitStack()
        self._trouble = ""

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.end(_LAST_CLOSE_S)
        self._locks.close()

    # -- what is followed

    def find(self) -> None:
        """Takes over the streams of what there is by now.

        Raises:
            LockHeldError: Somebody else sends a run that was named, or the fleet.
            FleetError: There is no such run, or a stream's records do not do.
        """
        if self._wanted.fleet is not None and "fleet" not in self._streams:
            self._take_over("fleet", self._fleet(self._wanted.fleet))
        if not self._wanted.with_runs:
            return
        for paths in chosen_runs(self._wanted.root, self._wanted.runs):
            key = f"run {paths.folder}"
            if key in self._streams:
                continue
            try:
                self._take_over(key, self._run(paths))
                self._elsewhere.pop(key, None)
            except LockHeldError:
                if self._wanted.runs:
                    raise
                self._elsewhere[key] = paths.name

    def _take_over(self, key: str, stream: Stream) -> None:
        held = stream.take_over(interval_s=self._interval_s, by_age=self._by_age)
        self._locks.enter_context(held)
        self._streams[key] = stream

    def _run(self, paths: RunPaths) -> Stream:
        return self._stream(
            "runs", paths.name, kind="run", source=paths.folder,
            follower=RunFollower(paths, fs=self._fs), step_key=STEP,
        )  # fmt: skip

    def _fleet(self, fleet: Fleet) -> Stream:
        follower = WindowFollower(fleet.folder, spools=fleet.spools, window_s=fleet.window_s)
        return self._stream(
            "fleet", f"fleet-{fleet.window_s:g}s", kind="fleet", source=fleet.folder,
            follower=follower, step_key="",
        )  # fmt: skip

    def _stream(
        self,
        folder: str,
        name: str,
        *,
        kind: str,
        source: str,
        follower: RunFollower | WindowFollower,
        step_key: str,
    ) -> Stream:
        wanted = self._wanted
        return Stream(
            StreamPaths(wanted.root, SERVICE, wanted.target.name, folder, name),
            kind=kind,
            source=os.path.relpath(os.path.realpath(source), os.path.realpath(wanted.root)),
            follower=follower,
            target=wanted.target,
            sender=self._sender,
            step_key=step_key,
            fs=self._fs,
        )

    # -- looks

    def send_all(self, progress: Callable[[Told], None] | None = None) -> Told:
        """Sends everything that is there, to the end of each session.

        Raises:
            SenderGoneError: Not all has arrived; it is kept.
            FleetError: See `find`.
        """
        self.find()
        for stream in self._streams.values():
            while stream.look():
                if progress:
                    progress(self.told())
            stream.close()
        return self.told()

    def look(self, stop: threading.Event | None = None) -> Told:
        """Sends what is new by now; trouble with the service is told.

        Args:
            stop: Ends it between two batches.

        Raises:
            FleetError: See `find`; or something can never be sent.
        """
        self.find()
        self._trouble = ""
        try:
            more = True
            while more and not (stop and stop.is_set()):
                more = False
                for stream in self._streams.values():
                    before = stream.rows
                    more |= stream.look()
                    # Not at once: a supervisor's last words come after its final state.
                    if stream.is_open and stream.rows == before and stream.is_over():
                        stream.close()
        except SenderGoneError as error:
            self._trouble = error.message
            for stream in self._streams.values():
                stream.lose(error.message)
        return self.told()

    def follow(self, every_s: float, stop: threading.Event, tell: Callable[[Told], None]) -> Told:
        """Looks again and again, until told to stop, or until every run that was named is over.

        Args:
            every_s: Seconds between looks; after trouble twice as long each time, to ten minutes.
            stop: Ends it.
            tell: Is handed what each look did.

        Raises:
            FleetError: See `look`.
        """
        pause_s, sent = every_s, -1
        while not stop.is_set():
            told = self.look(stop)
            tell(told)
            before, sent = sent, sum(one.sent for one in told.streams)
            if self._wanted.runs and self._is_over() and not self._trouble and sent == before:
                return told
            pause_s = min(max(every_s, _LONGEST_PAUSE_S), pause_s * 2) if self._trouble else every_s
            stop.wait(pause_s)
        return self.leave()

    def leave(self) -> Told:
        """Ends the sessions; what has not arrived in half a minute is kept for the next call."""
        for stream in self._streams.values():
            try:
                stream.close(_LAST_CLOSE_S)
            except FleetError as error:
                self._trouble = error.message
        return self.told()

    def told(self) -> Told:
        """How all stands."""
        return Told(
            streams=tuple(stream.account() for stream in self._streams.values()),
            elsewhere=tuple(sorted(self._elsewhere.values())),
            trouble=self._trouble,
        )

    def _is_over(self) -> bool:
        return all(
            stream.is_over() and not stream.waiting
            for stream in self._streams.values()
            if stream.kind == "run"
        ) and all(stream.kind == "run" for stream in self._streams.values())
