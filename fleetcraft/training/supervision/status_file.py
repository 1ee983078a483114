"""The status file of a run: how it stands now, for whoever asks, written anew by its supervisor.

Nothing is decided from it. Invariant: it is replaced whole, and a file that cannot be written costs
the run nothing.
"""

from __future__ import annotations

import contextlib

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError
from fleetcraft.files import FileSystem
from fleetcraft.training.records import (
    STATUS_SCHEMA,
    Diagnosis,
    Knob,
    ProcessRecord,
    QueueDepth,
    RankState,
    Rung,
    RungKind,
    Standing,
    State,
)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands; what was not measured is None.

    Attributes:
        schema: `STATUS_SCHEMA`.
        run: Its name.
        state: The supervisor's state.
        why: Why it is in it.
        at: When this was written, by the writer's wall clock, for people.
        since_s: How long it has been in that state.
        generation: Of the lock.
        epoch: The present one; None before the first.
        attempt: The epoch whose launch runs.
        supervisor: Who writes this.
        abort: Whether the ABORT marker stands.
        standing: What the progress watch says,
        standing_why: and its sentence, with the arithmetic.
        step: The last optimizer step that every rank has completed.
        end_step: The declared end.
        loss: As last reported.
        metrics: The user's own.
        steps_per_s: Measured.
        tokens_per_s: Measured.
        tokens_slope: Its change in a minute.
        throughput_ratio: Of what was declared or measured before, as a witness.
        throughput_words: That ratio in words.
        expected: The arithmetic of the expected step.
        quiet_s: Since the step was last seen to grow.
        queues: Depth of each.
        queues_verdict: What they say together.
        ranks: The census.
        dead: Ranks that are positively gone.
        eta_s: Until the declared end, from and to.
        provisional: No plateau was seen yet.
        rung: What this epoch tries.
        knobs: Every knob with its value.
        restarts: Launches after the first, in this series.
        checkpoint_step: The newest validated checkpoint.
        diagnosis: Of the last crash.
        comparison: The report before and after, as lines of text.
        trouble: What could not be read or written.
    """

    schema: str = STATUS_SCHEMA
    run: str
    state: State
    why: str = ""
    at: str = ""
    since_s: float = 0.0
    generation: int = 0
    epoch: int | None = None
    attempt: int | None = None
    supervisor: ProcessRecord | None = None
    abort: bool | None = False
    standing: Standing | None = None
    standing_why: str = ""
    step: int | None = None
    end_step: int | None = None
    loss: float | None = None
    metrics: dict[str, float] = {}
    steps_per_s: float | None = None
    tokens_per_s: float | None = None
    tokens_slope: float | None = None
    throughput_ratio: float | None = None
    throughput_words: str = ""
    expected: str = ""
    quiet_s: float | None = None
    queues: tuple[QueueDepth, ...] = ()
    queues_verdict: str = ""
    ranks: tuple[RankState, ...] = ()
    dead: tuple[int, ...] = ()
    eta_s: tuple[float, float] | None = None
    provisional: bool = True
    rung: Rung = Rung(kind=RungKind.FIRST)
    knobs: tuple[Knob, ...] = ()
    restarts: int = 0
    checkpoint_step: int | None = None
    diagnosis: Diagnosis | None = None
    comparison: tuple[str, ...] = ()
    trouble: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Status).decode


class StatusFile:
    """Writes one run's status file.

    Args:
        path: The file.
        nonce: In the name of the temporary file, so that two supervisors never share one.
        fs: The seam.
    """

    def __init__(self, path: str, *, nonce: str, fs: FileSystem | None = None) -> None:
        self.trouble = ""
        self._path = path
        self._temporary = f"{path}.{nonce}.tmp"
        self._fs = fs or FileSystem()

    def write(self, status: Status) -> bool:
        """Replaces it; False and `trouble` when it could not be written, and the old one stays."""
        data = _encode(msgspec.structs.replace(status, at=timestamp())) + b"\n"
        try:
            try:
                self._fs.create(self._temporary, data)
            except FileExistsError:
                self._fs.unlink(self._temporary)
                self._fs.create(self._temporary, data)
            self._fs.replace(self._temporary, self._path)
        except OSError as error:
            self.trouble = f"the status cannot be written: {error.strerror or error}"
            with contextlib.suppress(OSError):
                self._fs.unlink(self._temporary)
            return False
        self.trouble = ""
        return True


def read_status(path: str, *, fs: FileSystem | None = None) -> Status | None:
    """What a status file says; None when there is none.

    Raises:
        DataError: It cannot be read.
    """
    try:
        return _decode((fs or FileSystem()).read(path))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"cannot read the status of a run: {error} ({path})",
            hint="the supervisor writes it anew at its next look",
            path=path,
        ) from error
