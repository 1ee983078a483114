"""The journal of a trial: one JSON object a line, appended by the trial's process as things happen.

Reading it back is in `reading`. Invariant: a line that says that something begins is on disk before
it begins, so that a process that is killed at any moment has still said where it was.
"""

from __future__ import annotations

import contextlib
import json
import time
from enum import StrEnum
from typing import Any

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.files import FileSystem


class Event(StrEnum):
    """What a line of the journal tells; see docs/calibration.md for its fields."""

    BEGIN = "begin"
    ENVIRONMENT = "environment"
    PASS_BEGIN = "pass_begin"
    CYCLE_BEGIN = "cycle_begin"
    PHASE_BEGIN = "phase_begin"
    PHASE_END = "phase_end"
    PROGRESS = "progress"
    PARTICIPANT = "participant"
    CHECK = "check"
    PREDICTION = "prediction"
    FLOPS = "flops"
    OVERHEAD = "overhead"
    CYCLE_END = "cycle_end"
    PASS_END = "pass_end"
    FAILED = "failed"
    END = "end"


# The others may be lost with the machine: they only add to what is already known.
_DURABLE = frozenset(
    {Event.BEGIN, Event.PASS_BEGIN, Event.PHASE_BEGIN, Event.PARTICIPANT, Event.FAILED, Event.END}
)
_encoder = msgspec.json.Encoder(enc_hook=str)


class JournalWriter:
    """Appends to one journal; it is made if it is not there.

    Args:
        path: Its path, in a folder that is there.
        fs: The seam to the files.
    """

    def __init__(self, path: str, fs: FileSystem | None = None) -> None:
        self.path = path
        self._fs = fs or FileSystem()
        with contextlib.suppress(FileExistsError):
            self._fs.close(self._fs.create_log(path))
        self._fd = self._fs.open_append(path)
        if not self._fs.ends_with_newline(self._fd):
            self._fs.append(self._fd, b"\n")  # a torn line of an earlier process stays on its own

    def write(self, event: Event, **fields: Any) -> None:
        """Appends one line; ``at`` is UTC, ``mono_s`` the monotonic clock of this machine.

        Args:
            event: What happened.
            fields: What is known of it. Values that JSON has no word for become text; a number
                that is not finite becomes null.

        Raises:
            OSError: It could not be written, or not be forced to disk.
        """
        stamp = {"event": event.value, "at": timestamp(), "mono_s": round(time.monotonic(), 6)}
        self._fs.append(self._fd, _line({**stamp, **fields}))
        if event in _DURABLE:
            self._fs.datasync(self._fd)

    def close(self) -> None:
        """Closes the file."""
        self._fs.close(self._fd)


def _line(values: dict[str, Any]) -> bytes:
    try:
        return _encoder.encode(values) + b"\n"
    except (UnicodeEncodeError, TypeError):
        # A name or a key that is no text: written with escapes rather than not at all.
        safe = {str(key): value for key, value in values.items()}
        return json.dumps(safe, default=str, skipkeys=True).encode() + b"\n"
