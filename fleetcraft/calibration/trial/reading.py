"""A trial's journal read back: what ran, what was measured, and where it stopped.

No torch. Judging why a trial ended is in `classify`. Invariant: a journal of any content can be
read; what cannot be understood is counted, and a phase counts as run only when it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from fleetcraft.calibration.records import Check, Environment, Flops, PhaseRecord, Prediction
from fleetcraft.calibration.trial.findings import Finding
from fleetcraft.calibration.trial.journal import Event
from fleetcraft.calibration.trial.merging import Cycles
from fleetcraft.calibration.trial.orders import Pass
from fleetcraft.files import FileSystem
from fleetcraft.identity import sha256_hex

T = TypeVar("T")
_EVENTS = frozenset(event.value for event in Event)


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The line that says why a trial's process gave up.

    Attributes:
        kind: Name of the exception's class; ``Finding`` when it found the fault itself.
        message: What it said.
        phase: The phase that was running, or in which it was found.
        pass_name: The pass; in JSON ``pass``.
        failure: The class, where the process knows it; None leaves it to the parent.
        owner: Who is to blame, where that is known.
        bytes: How much, where that is what is wrong.
        traceback_tail: Its last lines.
        findings: Everything that was found, first things first.
        then: What was raised after the first finding, as ``KIND: MESSAGE``.
    """

    kind: str = ""
    message: str = ""
    phase: str = ""
    pass_name: str = msgspec.field(name="pass", default="")
    failure: str | None = msgspec.field(name="class", default=None)
    owner: str = ""
    bytes: int | None = None
    traceback_tail: str = ""
    findings: tuple[Finding, ...] = ()
    then: str = ""


class Predicted(Prediction, frozen=True, kw_only=True):
    """A prediction with the peak of every phase."""

    phases: dict[str, int] = msgspec.field(default_factory=dict)


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal says.

    Attributes:
        path: Where it lies.
        sha256: ``sha256:`` and the hash of its bytes; empty when there is none.
        events: Every line that could be read, in order.
        torn: Whether its last line has no end: the process was stopped while it wrote.
        bad_lines: Other lines that are no event, or whose fields have other types.
        family: The family's key.
        identity: Its identity hash.
        last_pass: The pass that began last.
        last_phase: The phase that began last.
        open_phase: The phase that began last and has not ended.
        finished: Whether the process came to its own end.
        exit: The exit code that it announced.
        failed: Why it gave up; None when it did not say.
        phases: Every phase in the order in which they first began, merged over the passes.
        ran: Names of the phases that have ended at least once.
        missing_phases: Required ones that have not.
        cycle_walls_s: Wall time of each timed cycle, load phase and harness left out.
        soak_live_bytes: Tracked bytes alive after each soak cycle.
        soak_cached_bytes: Reserved less allocated after each (CUDA).
        start_live_bytes: Bytes of tensors alive before the first cycle.
        tracking_overhead_fraction: CPU time with tracking over without, less 1.
        checks: The semantic checks.
        participants: Last status of each.
        predictions: What the preflight said.
        flops: None when they were not counted.
        environment: Where it ran.
    """

    path: str
    sha256: str = ""
    events: tuple[dict[str, Any], ...] = ()
    torn: bool = False
    bad_lines: int = 0
    family: str = ""
    identity: str = ""
    last_pass: str = ""
    last_phase: str = ""
    open_phase: str = ""
    finished: bool = False
    exit: int | None = None
    failed: Failed | None = None
    phases: tuple[PhaseRecord, ...] = ()
    ran: frozenset[str] = frozenset()
    missing_phases: tuple[str, ...] = ()
    cycle_walls_s: tuple[float, ...] = ()
    soak_live_bytes: tuple[int, ...] = ()
    soak_cached_bytes: tuple[int, ...] = ()
    start_live_bytes: int | None = None
    tracking_overhead_fraction: float | None = None
    checks: tuple[Check, ...] = ()
    participants: dict[str, str] = {}
    predictions: tuple[Predicted, ...] = ()
    flops: Flops | None = None
    environment: Environment = Environment()

    @property
    def smoke(self) -> bool:
        """Whether a required phase is missing."""
        return bool(self.missing_phases)


def read_journal(path: str, required: Sequence[str] = ()) -> Journal:
    """Reads a journal, also while it is being written.

    Args:
        path: The journal; one that is not there reads as empty.
        required: Phases that the family requires.

    Returns:
        All that it says. Whatever its bytes are, nothing is raised.

    Raises:
        OSError: It is there and cannot be read.
    """
    try:
        data = FileSystem().read(path)
    except FileNotFoundError:
        return Journal(path=path, missing_phases=tuple(required))
    *lines, rest = data.split(b"\n")
    gathering = _Gathering()
    for line in lines:
        gathering.add(line)
    return gathering.journal(path, f"sha256:{sha256_hex(data)}", bool(rest), required)


class _Gathering:
    """Takes one line after another."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.found: dict[str, Any] = {}
        self.lists: dict[str, list[Any]] = {}
        self.participants: dict[str, str] = {}
        self.cycles = Cycles()
        self.bad_lines = 0

    def add(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line)
            if not isinstance(event, dict) or event.get("event") not in _EVENTS:
                raise msgspec.ValidationError("no event")
            self._take(Event(event["event"]), event)
        except (msgspec.MsgspecError, RecursionError, UnicodeError, TypeError, ValueError):
            self.bad_lines += bool(line.strip())
            return
        self.events.append(event)

    def _take(self, event: Event, fields: dict[str, Any]) -> None:
        match event:
            case Event.PASS_BEGIN:
                self.found["last_pass"] = _of(Pass, fields.get("pass")).value
            case Event.PHASE_BEGIN | Event.PHASE_END | Event.CYCLE_BEGIN | Event.CYCLE_END:
                self.cycles.take(event, fields)
            case Event.ENVIRONMENT:
                self.found["environment"] = _of(Environment, fields)
                self.found["family"] = _of(str, fields.get("family", ""))
                self.found["identity"] = _of(str, fields.get("identity", ""))
            case Event.CHECK:
                self._append("checks", _of(Check, fields))
            case Event.PREDICTION:
                self._append("predictions", _of(Predicted, fields))
            case Event.PARTICIPANT:
                self._take_participant(fields)
            case Event.FLOPS:
                self.found["flops"] = _of(Flops, fields)
            case Event.OVERHEAD:
                overhead = _of(float | None, fields.get("fraction"))
                self.found["tracking_overhead_fraction"] = overhead
            case Event.FAILED:
                self.found.setdefault("failed", _of(Failed, fields))  # the first is the cause
            case Event.END:
                self.found["exit"] = _of(int | None, fields.get("exit"))
                self.found["finished"] = True
            case Event.BEGIN | Event.PROGRESS | Event.PASS_END:
                pass

    def _append(self, name: str, value: object) -> None:
        self.lists.setdefault(name, []).append(value)

    def _take_participant(self, fields: dict[str, Any]) -> None:
        name, state = _of(str, fields.get("name")), _of(str, fields.get("state"))
        how = _of(str, fields.get("how", ""))
        self.participants[name] = f"{state} ({how})" if how else state

    def journal(self, path: str, sha256: str, torn: bool, required: Sequence[str]) -> Journal:
        cycles = self.cycles
        ran = cycles.ran
        lists: dict[str, Any] = {name: tuple(values) for name, values in self.lists.items()}
        return Journal(
            path=path,
            sha256=sha256,
            events=tuple(self.events),
            torn=torn,
            bad_lines=self.bad_lines,
            last_phase=cycles.last_phase,
            open_phase=cycles.open_phase,
            phases=cycles.phases(),
            ran=ran,
            missing_phases=tuple(name for name in required if name not in ran),
            cycle_walls_s=tuple(cycles.walls_s),
            soak_live_bytes=tuple(cycles.soak_live_bytes),
            soak_cached_bytes=tuple(cycles.soak_cached_bytes),
            start_live_bytes=cycles.start_live_bytes,
            participants=self.participants,
            **self.found,
            **lists,
        )


def _of(kind: Any, value: object) -> Any:
    """The value as a type.

    Raises:
        msgspec.ValidationError: It is of another.
    """
    return msgspec.convert(value, kind)
