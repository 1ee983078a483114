"""Disturbs protocols at their file operations, one after another, and says what did not hold.

`run` starts a process of `serving` with the crash library before libc, and reads its answers. Not
here: what a protocol is (`protocol`), the faults (`faults`), which protocols there are
(`protocols/`), and how a matrix is printed (`__main__`). Invariant: a trial whose operation was not
reached is counted as missed, and never as one that held.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetcraft.trust import require_private_folder
from tests.crash.build import build
from tests.crash.disturbing import REPO, folder_in_memory
from tests.crash.faults import FAULTS, Fault, Operation

PACKAGE = "tests.crash.protocols"


class EngineError(Exception):
    """A trial could not be made at all; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """One trial in which something did not hold.

    Attributes:
        fault: Its name.
        at: The operation that was disturbed, counted from 1.
        operation: libc's name of it.
        path: Below the root.
        acted: What the act said: an error it raised, a signal, or nothing.
        phase: ``act`` raised what it may not, or ``prove`` found an invariant broken.
        trouble: The traceback.
        printed: What that process printed.
        notes: What was promised.
        listing: The files of the tree then.
    """

    fault: str
    at: int
    operation: str = ""
    path: str = ""
    acted: str = ""
    phase: str
    trouble: str
    printed: str = ""
    notes: tuple[str, ...] = ()
    listing: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Everything, for a person."""
        lines = [
            f"{self.fault} at operation {self.at}, {self.operation} of {self.path}",
            f"the act said: {self.acted or 'nothing'}",
            f"{self.phase}: {self.trouble.rstrip()}",
        ]
        if self.printed.strip():
            lines.append(f"printed: {self.printed.strip()}")
        lines += [f"  promised: {note}" for note in self.notes]
        lines += [f"  there was: {file}" for file in self.listing]
        return "\n".join(lines)


@dataclass(kw_only=True)
class Cell:
    """One fault on one protocol: trials that reached their operation, and those that did not."""

    tried: int = 0
    missed: int = 0
    troubles: list[Trouble] = field(default_factory=list)


@dataclass(kw_only=True)
class Row:
    """One protocol.

    Attributes:
        protocol: Its name.
        operations: Of the act when nothing disturbs it.
        cells: By the fault's name.
        seconds: How long its trials took.
        broken: Why no trial could be made: not even the undisturbed act holds. Empty if one could.
    """

    protocol: str
    operations: tuple[Operation, ...] = ()
    cells: dict[str, Cell] = field(default_factory=dict)
    seconds: float = 0.0
    broken: str = ""

    @property
    def points(self) -> int:
        """Trials that were made."""
        return sum(cell.tried for cell in self.cells.values())

    @property
    def missed(self) -> int:
        """Trials whose operation was not reached."""
        return sum(cell.missed for cell in self.cells.values())

    @property
    def troubles(self) -> list[Trouble]:
        """All of them."""
        return [trouble for cell in self.cells.values() for trouble in cell.troubles]

    @property
    def holds(self) -> bool:
        """Whether every trial held."""
        return not self.broken and not self.troubles


def run(
    module: str,
    *,
    protocols: Sequence[str] | None = None,
    faults: Sequence[Fault] = FAULTS,
    share: float = 1.0,
    place_base: Path | None = None,
    mutation: str = "",
    stop_at_first: bool = False,
    progress: Callable[[str], None] = lambda protocol: None,
) -> list[Row]:
    """Tries the protocols of one module in one warm process.

    Args:
        module: Of `tests.crash.protocols`, such as ``spool``, or a dotted name of another one that
            has ``PROTOCOLS``.
        protocols: Only those of these names; all if None.
        faults: Only these.
        share: Which part of the steps is tried, above 0 and at most 1; the same ones each time, and
            at least one for each fault.
        place_base: The folder in which the trees are made, as on a mount that is to be tried; one
            in memory if None. Two runs at one time need two.
        mutation: One of the mutations of the only protocol asked for, which is then broken so in
            every process of its trials.
        stop_at_first: Whether the first trouble of a protocol is enough.
        progress: Told a protocol's name with each of its trials.

    Returns:
        A row a protocol, in the module's order.

    Raises:
        NoCompiler: The crash library cannot be built here.
        EngineError: The process that makes the trials ended before it had made them.
    """
    request = _request(
        module,
        protocols=None if protocols is None else list(protocols),
        faults=[fault.name for fault in faults],
        share=share,
        mutation=mutation,
        stop_at_first=stop_at_first,
    )
    rows: dict[str, Row] = {}
    with _place(place_base) as base:
        for answer in _answers({**request, "base": str(base)}):
            row = rows.setdefault(answer["protocol"], Row(protocol=answer["protocol"]))
            _note(row, answer)
            progress(row.protocol)
    missing = set(protocols or ()) - rows.keys()
    if missing:
        raise EngineError(f"{module} has no protocols called {sorted(missing)}")
    return list(rows.values())


def mutations(module: str) -> dict[str, list[str]]:
    """The names of the protocols of one module, in order, each with those of its mutations.

    It is asked of another process, for some modules load much.
    """
    answers = _answers(_request(module, only_names=True))
    return {answer["protocol"]: answer["mutations"] for answer in answers}


def _request(module: str, **given: Any) -> dict[str, Any]:
    dotted = module if "." in module else f"{PACKAGE}.{module}"
    return {"protocols": None, "only_names": False, "module": dotted, **given}


def library() -> Path:
    """The crash library, built if it is not there yet.

    Raises:
        NoCompiler: There is no C compiler.
    """
    folder = f"{tempfile.gettempdir()}/fleet-crash-library-{os.geteuid()}"
    require_private_folder(folder)  # or somebody else could put a library there
    return build(folder)


@contextlib.contextmanager
def _place(base: Path | None) -> Iterator[Path]:
    if base is not None:
        yield base
        return
    with folder_in_memory() as made:
        yield made


def _answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.serving", json.dumps(request)],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO), "LD_PRELOAD": str(library())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stderr is not None
    complaints: list[str] = []
    listener = threading.Thread(target=complaints.extend, args=(server.stderr,))
    listener.start()
    heard_all = False
    try:
        for line in server.stdout:
            yield json.loads(line)
        heard_all = True
    finally:
        if not heard_all:
            server.terminate()
        server.wait()
        listener.join()
        server.stdout.close()
        server.stderr.close()
    if server.returncode != 0:
        raise EngineError("".join(complaints[-40:]))


def _note(row: Row, answer: dict[str, Any]) -> None:
    row.broken = answer.get("broken", row.broken)
    row.seconds = answer.get("seconds", row.seconds)
    if "operations" in answer:
        row.operations = tuple(Operation(*words) for words in answer["operations"])
    if "point" not in answer:
        return
    point = dict(answer["point"])
    fault, was_hit = point.pop("fault"), point.pop("hit")
    cell = row.cells.setdefault(fault, Cell())
    cell.tried += was_hit
    cell.missed += not was_hit
    if "trouble" in point:
        known = {**point, "notes": tuple(point["notes"]), "listing": tuple(point["listing"])}
        cell.troubles.append(Trouble(fault=fault, **known))
