"""Follows one training run: progress of its launches, its journal, its status.

Reads what `training` writes and changes nothing. The newest two launches are followed, since ranks
of an older one may still speak while the next begins. Invariant: a place stands for whole lines
that were made into rows, so after a kill nothing is made twice and nothing is left out.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import RunPaths
from fleetcraft.streaming.event_rows import event_row
from fleetcraft.streaming.progress_rows import Ranks, rows_of, told_lines
from fleetcraft.streaming.rows import Row, Taken, word
from fleetcraft.streaming.tailing import Place, Tail
from fleetcraft.training.launching.epochs import Epochs
from fleetcraft.training.progress.reading import MAX_LINE_BYTES
from fleetcraft.training.records import TERMINAL, Epoch, EpochKind
from fleetcraft.training.supervision.status_file import Status, read_status

_FOLLOWED = 2
_CHUNK_BYTES = MAX_LINE_BYTES + 1


class Launch(msgspec.Struct, kw_only=True):
    """Where one launch was read up to: each rank's file, and what its ranks were known to say."""

    files: dict[int, Place] = {}
    known: Ranks = msgspec.field(default_factory=Ranks)


class RunPlace(msgspec.Struct, kw_only=True):
    """Where a run was read up to; launches by the number of their epoch."""

    launches: dict[int, Launch] = {}
    events: Place = Place()


class RunFollower:
    """One run.

    Args:
        paths: The run.
        fs: The seam for listing and for records.
    """

    def __init__(self, paths: RunPaths, *, fs: FileSystem | None = None) -> None:
        self.paths = paths
        self._fs = fs or FileSystem()
        self._place = RunPlace()
        self._wrong: Counter[str] = Counter()
        self._epochs: dict[int, Epoch] = {}
        self._status: Status | None = None
        self._quiet = False
        self._blind = False

    def restore(self, place: Mapping[str, Any]) -> None:
        """Goes on from a place.

        Raises:
            DataError: It is none.
        """
        try:
            self._place = msgspec.convert(dict(place), RunPlace, strict=False)
        except msgspec.ValidationError as error:
            raise DataError(
                f"the place up to which run {self.paths.name!r} was sent is damaged: {error}; "
                "nothing was sent",
                hint="move the stream's folder away to send all of the run to a new one",
            ) from error

    def take(self) -> Taken:
        """The rows of lines that are new."""
        self._blind = False
        self._read_status()  # first: what was written before a final state is then read below
        self._learn_epochs()
        numbers = sorted(n for n, e in self._epochs.items() if e.kind is EpochKind.LAUNCHED)
        for number in numbers:
            if number not in self._place.launches and number > min(self._place.launches, default=0):
                self._place.launches[number] = Launch()
        rows, more = self._events()
        for number, launch in sorted(self._place.launches.items()):
            of_launch, unread = self._launch(number, launch)
            rows += of_launch
            more |= unread
        if not more and not self._blind:  # what was not read may hold lines that nobody has sent
            for number in sorted(self._place.launches)[:-_FOLLOWED]:
                del self._place.launches[number]
        rows.sort(key=lambda row: float(row.get("_timestamp", 0.0)))
        self._quiet = not more and not self._blind
        return Taken(rows=rows, place=msgspec.to_builtins(self._place, str_keys=True), more=more)

    def config(self) -> dict[str, Any]:
        """What the newest epoch says of itself, without its command and environment."""
        if not self._epochs:
            return {"run": self.paths.name}
        epoch = self._epochs[max(self._epochs)]
        return {
            "run": self.paths.name,
            "epoch": epoch.number,
            "world_size": epoch.world_size,
            "nodes": epoch.nodes,
            "command_sha256": epoch.command_sha256,
            "environment_sha256": epoch.environment_sha256,
            "stack": {name: told for name, value in epoch.stack.items() if (told := word(value))},
            "data": {
                name: value
                for name, value in epoch.data.items()
                if not isinstance(value, str) or word(value)
            },
            "knobs": {knob.name: knob.value for knob in epoch.knobs},
        }

    def standing(self) -> dict[str, float | str]:
        """What the supervisor's status says."""
        status = self._status
        if status is None:
            return {}
        told: dict[str, float | str | None] = {
            "state": str(status.state),
            "step": status.step,
            "end_step": status.end_step,
            "checkpoint_step": status.checkpoint_step,
            "restarts": status.restarts,
            "steps_per_s": status.steps_per_s,
            "tokens_per_s": status.tokens_per_s,
            "throughput_ratio": status.throughput_ratio,
            "crash": str(status.diagnosis.crash) if status.diagnosis else None,
        }
        return {f"run/{name}": value for name, value in told.items() if value is not None}

    def is_over(self) -> bool:
        """Whether the supervisor has left it in a final state, and all was read."""
        return self._quiet and self._status is not None and self._status.state in TERMINAL

    def counts(self) -> dict[str, int]:
        """Lines that were not, or not wholly, taken, by kind."""
        return dict(sorted(self._wrong.items()))

    # -- reading

    def _learn_epochs(self) -> None:
        epochs = Epochs(self.paths, self._fs)
        try:
            numbers = epochs.numbers()
        except FileNotFoundError:
            return
        except OSError:
            self._wrong["epochs not read"] += 1
            self._blind = True
            return
        for number in numbers:
            if number in self._epochs:
                continue
            try:
                epoch = epochs.get(number)
            except (OSError, DataError):
                self._wrong["epoch not read"] += 1
                self._blind = True
                continue
            if epoch is not None:
                self._epochs[number] = epoch

    def _events(self) -> tuple[list[Row], bool]:
        lines, more = self._lines(self.paths.events, self._place.events)
        if lines is None:
            return [], False
        found, self._place.events = lines
        rows = []
        for raw in found:
            if (told := event_row(raw)) is None:
                self._wrong["no event"] += 1
            else:
                rows.append(told[1])
        return rows, more

    def _launch(self, number: int, launch: Launch) -> tuple[list[Row], bool]:
        attempt = self.paths.attempt(number)
        told, more = [], False
        for rank in self._ranks(attempt.progress):
            lines, unread = self._lines(attempt.rank_progress(rank), launch.files.get(rank))
            if lines is None:
                continue
            found, launch.files[rank] = lines
            told += list(told_lines(rank, found))
            more |= unread
        return rows_of(told, launch.known, number, self._wrong), more

    def _ranks(self, folder: str) -> list[int]:
        try:
            names = self._fs.listdir(folder)
        except FileNotFoundError:
            return []
        except OSError:
            self._wrong["folder not read"] += 1
            self._blind = True
            return []
        attempt = RunPaths(self.paths.folder).attempt(0)
        found = []
        for name in names:
            digits = "".join(letter for letter in name if letter.isdecimal())
            # A name counts when the layout would write that very name for its number.
            if digits and os.path.basename(attempt.rank_progress(int(digits))) == name:
                found.append(int(digits))
        return sorted(found)

    def _lines(
        self, path: str, place: Place | None
    ) -> tuple[tuple[list[bytes], Place] | None, bool]:
        """New lines with the place after them, and whether there is more; None if unreadable."""
        tail = Tail(path, place)
        try:
            lines = tail.lines(_CHUNK_BYTES)
        except FileNotFoundError:
            return None, False
        except OSError:
            self._wrong["file not read"] += 1
            self._blind = True
            return None, False
        self._wrong.update({"file replaced": tail.replaced, "too long": tail.too_long})
        self._wrong += Counter()  # drops what is zero
        return (lines, tail.place), tail.more

    def _read_status(self) -> None:
        with contextlib.suppress(DataError):
            self._status = read_status(self.paths.status, fs=self._fs) or self._status
