"""Telemetry: a window that is frozen, and a logger's own file from its header to its end mark.

Not here: what the figures are. Invariant that is proved: a frozen window is whole and verifies
against its sources or is not there; one that does not have the figures of an undisturbed freeze
names in itself what it could not read; and of a logger's file every row that it counted is read,
once and whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.files import FileSystem
from fleetcraft.layout import sidecar
from fleetcraft.telemetry.logger.csv_file import CsvFile
from fleetcraft.telemetry.logger.row_writer import stamp
from fleetcraft.telemetry.logger.settings import LoggerSettings
from fleetcraft.telemetry.logger.sidecar_record import SidecarRecord, first_record
from fleetcraft.telemetry.reading.counts import Rejection
from fleetcraft.telemetry.reading.reader import FileReader
from fleetcraft.telemetry.reading.sources import find_sources
from fleetcraft.telemetry.windows import freeze as freezing
from fleetcraft.telemetry.windows.freeze import freeze
from fleetcraft.telemetry.windows.span import window_at
from fleetcraft.telemetry.windows.summary import Read, summarize
from fleetcraft.telemetry.windows.verdicts import Verdict
from fleetcraft.telemetry.windows.verify import verify
from tests.crash.protocol import Place, Protocol
from tests.crash.protocols.broken import put_in_place
from tests.telemetry.journals import iso
from tests.telemetry.trees import inventory, line, lines, write_file

T_S = 1_800_000_000.0
END_S = T_S + 300
NODES = ("n1", "n2")


# ------------------------------------------------------------------------------- a frozen window


def _logged(place: Place) -> None:
    for number, node in enumerate(NODES):
        beside = {"interval_s": 30, "started_at": iso(T_S - 60), "gpus": inventory(0)}
        rows = lines(T_S + 30, 10, util_pct=50 + 20 * number)
        write_file(place.root / "telemetry", node, rows, sidecar=beside)


def _window(place: Place) -> str:
    return f"{place.root}/window.json"


def _summed_up(place: Place) -> Read:
    span = window_at(300, iso(END_S), now_s=END_S)
    return summarize(f"{place.root}/telemetry", span, keep=True)


def _freeze(place: Place) -> None:
    read = _summed_up(place)
    if not read.summary.fleet.figures.samples:
        return  # the command refuses such a window
    assert read.evidence is not None
    freeze(_window(place), read.summary, read.evidence, read.folder)
    place.say("frozen")


def _prove_window(place: Place) -> None:
    if place.said():
        assert os.path.exists(_window(place)), "a window that was promised is not there"
    right = _right_figures(place)
    if os.path.exists(_window(place)):
        _holds(place, right)
    read = _summed_up(place)
    assert read.evidence is not None
    try:
        freeze(_window(place), read.summary, read.evidence, read.folder)
    except DataError:
        assert _said_unread(place), "another window of the same rows stands in its place"
    _holds(place, right)
    left = [name for name in os.listdir(place.root) if name not in ("telemetry", "window.json")]
    assert len(left) <= 1, f"more than one temporary file is left: {left}"


def _right_figures(place: Place) -> dict[str, Any]:
    summary = freezing.value_of(_summed_up(place).summary)
    figures: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(summary))
    return figures


def _holds(place: Place, right: dict[str, Any]) -> None:
    found = verify(_window(place))
    assert found.verdict is Verdict.VERIFIED, found.differences
    assert found.sources_checked, "no source was compared"
    frozen = msgspec.json.decode(Path(_window(place)).read_bytes())
    if frozen["summary"] != right:
        unread = _said_unread(place)
        assert unread, f"other figures, and nothing says why: {frozen['summary']['fleet']}"


def _said_unread(place: Place) -> list[Any]:
    """What a frozen window says of files that it could not read."""
    frozen = msgspec.json.decode(Path(_window(place)).read_bytes())
    said = list(frozen["refused"])
    said += [source for source in frozen["sources"] if source.get("sidecar_problem")]
    return said


# ------------------------------------------------------------------------------- a logger's file

SAMPLES = 3


def _folder(place: Place) -> None:
    (place.root / "telemetry").mkdir(mode=0o700)


def _rows_of(sample: int) -> list[str]:
    at_s = T_S + 30 * sample
    return [line(at_s, gpu_index=gpu, util_pct=10 * sample + gpu) for gpu in (0, 1)]


def _log(place: Place) -> None:
    """What the loop of the logger does to its file."""
    file, facts = _begun(place, T_S)
    for sample in range(SAMPLES):
        if not file.is_open:
            _open(place, file, facts)
        before = file.rows_written
        file.append(_rows_of(sample))
        for written in range(file.rows_written - before):
            place.say("row", str(sample), str(written))
    facts.ended_at, facts.end_reason = stamp(T_S + 100), "told to end"
    facts.rows_written, facts.rows_lost = file.rows_written, file.rows_lost
    if file.path:
        try:
            file.write_sidecar(facts)
        finally:
            file.close()
        place.say("ended")


def _begun(place: Place, at_s: float) -> tuple[CsvFile, SidecarRecord]:
    settings = LoggerSettings(folder=f"{place.root}/telemetry", node="n1", job="7", interval_s=30)
    facts = first_record(settings, at_s)
    file = CsvFile(settings.folder, settings.node, settings.job, wall_s=lambda: at_s)
    _open(place, file, facts)
    return file, facts


def _open(place: Place, file: CsvFile, facts: SidecarRecord) -> None:
    try:
        file.open()
    except OSError:
        return  # made again with the next sample
    try:
        file.write_sidecar(facts)
    except OSError:
        return  # written again with the next sample


def _prove_log(place: Place) -> None:
    _read_whole(place)
    later, facts = _begun(place, T_S + 1)
    assert later.append([line(T_S + 500, gpu_index=0)])
    facts.ended_at = stamp(T_S + 600)
    later.write_sidecar(facts)
    later.close()
    _read_whole(place, later=1)


def _read_whole(place: Place, later: int = 0) -> None:
    """Every row that was counted is there once; what is no row is counted by its kind."""
    found, torn, rows = [], 0, 0
    sources = find_sources(f"{place.root}/telemetry")
    assert not sources.refused, sources.refused
    for source in sorted(sources.sources, key=lambda source: source.name):  # oldest first
        reader = FileReader(source, columns=("util_pct",))
        for chunk in reader.chunks():
            found += list(zip(chunk.t_s.tolist(), chunk.values["util_pct"].tolist(), strict=True))
        rejected = dict(reader.counts.rejected)
        torn += sum(rejected.values())
        assert set(rejected) <= _OF_A_CUT, f"{source.name}: {rejected}"
        rows += reader.counts.rows
        _sidecar_tells_the_truth(source.path, rows)
    counted = {(T_S + 30 * int(w[1]), 10.0 * int(w[1]) + int(w[2])) for w in _said(place, "row")}
    assert counted <= set(found), f"rows that were counted are not read: {counted - set(found)}"
    known = {(T_S + 30 * s, 10.0 * s + gpu) for s in range(SAMPLES) for gpu in (0, 1)}
    others = [row for row in found if row not in known]
    assert len(others) == later, f"rows that nobody wrote: {others}"
    assert len(found) == len(set(found)), "a row is there twice"
    assert torn <= 2, f"{torn} lines are torn"  # one half of a header or row, and perhaps its rest


_OF_A_CUT = {Rejection.TORN_TAIL.value, Rejection.WRONG_COLUMNS.value, Rejection.SENTENCE.value,
             Rejection.BAD_TIME.value}  # fmt: skip


def _sidecar_tells_the_truth(path: str, rows: int) -> None:
    """Its count is of all files of its logger, so of those up to this one."""
    try:
        data = FileSystem().read(sidecar(path))
    except FileNotFoundError:
        return
    record = msgspec.json.decode(data, type=SidecarRecord)
    if record.ended_at is not None and record.rows_written is not None:
        assert rows >= record.rows_written, "the end mark counts rows that are not"


def _said(place: Place, word: str) -> Iterator[list[str]]:
    return (words for words in place.said() if words[0] == word)


# -- rules that are broken on purpose


def _frozen_in_place() -> None:
    freezing.put_if_absent = put_in_place  # type: ignore[attr-defined]


def _sidecar_in_place() -> None:
    def write(self: CsvFile, facts: object) -> None:
        with open(sidecar(self.path), "wb", buffering=0) as file:
            file.write(msgspec.json.encode(facts))

    CsvFile.write_sidecar = write  # type: ignore[method-assign]


def _a_failed_append_counts() -> None:
    real: Callable[..., bool] = CsvFile.append

    def append(self: CsvFile, rows: list[str]) -> bool:
        before = self.rows_written
        real(self, rows)
        self.rows_written = before + len(rows)
        return True

    CsvFile.append = append  # type: ignore[assignment,method-assign]


PROTOCOLS = (
    Protocol(
        "telemetry: freeze a window", _logged, _freeze, _prove_window, 40,
        mutations=(("the window is written in place", _frozen_in_place),),
    ),
    Protocol(
        "telemetry: log rows", _folder, _log, _prove_log, 20,
        mutations=(
            ("the sidecar is written in place", _sidecar_in_place),
            ("rows that failed are counted", _a_failed_append_counts),
        ),
    ),
)  # fmt: skip
