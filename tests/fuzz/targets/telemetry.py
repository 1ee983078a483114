"""What telemetry reads: CSV files of every form, sidecars, forwards, journals, controller logs."""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fleetcraft.errors import DataError
from fleetcraft.identity import Owner
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.telemetry import forwards, journals, tail
from fleetcraft.telemetry.export import export
from fleetcraft.telemetry.figures import controller_log
from fleetcraft.telemetry.live.newest import NewestRows
from fleetcraft.telemetry.logger import earlier
from fleetcraft.telemetry.queue import read_queue
from fleetcraft.telemetry.reading.cells import Lines, number_or_none
from fleetcraft.telemetry.reading.headers import read_header
from fleetcraft.telemetry.reading.reader import FileReader
from fleetcraft.telemetry.reading.sources import Sidecar, Source, _read_sidecar
from fleetcraft.telemetry.reading.times import NO_TIME, parse_time_us, parse_times
from fleetcraft.telemetry.windows import verify
from tests.fuzz import folders
from tests.fuzz.strategies import documents, json_of, plain_text, sampled
from tests.fuzz.target import Target
from tests.telemetry.traces import HEADER, OUR_HEADER, archive_row, bare_row, our_row

_OWNER = Owner("8812", "0", "0", "k3x9q2ab-4")


def csv(data: bytes) -> None:
    """Every line is a row, a header, blank, or counted by the reason why it is none."""
    path = folders.write("host.csv", data)
    source = Source(path=path, name="host.csv", node="host")
    reader = FileReader(source, with_status=True)
    rows = sum(len(chunk.t_us) for chunk in reader.chunks())
    counts = reader.counts
    lines = counts.rows + counts.rejected_total + counts.headers + counts.blank
    expected = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    assert lines == expected, f"{lines} lines are accounted for, of {expected}"
    assert rows <= counts.rows


def csv_in_pieces(value: tuple[bytes, int]) -> None:
    """A file says the same whether it is read at once or in small pieces."""
    data, size = value
    path = folders.write("host.csv", data)
    source = Source(path=path, name="host.csv", node="host")
    whole, pieces = FileReader(source), FileReader(source, chunk_bytes=size)
    one, other = list(whole.chunks()), list(pieces.chunks())
    assert _joined(one) == _joined(other), "the rows differ"
    assert whole.counts.rejected == pieces.counts.rejected, "what was rejected differs"


def _joined(chunks: list[Any]) -> list[Any]:
    t_us = [at for chunk in chunks for at in chunk.t_us.tolist()]
    util = [str(one) for chunk in chunks for one in chunk.values["util_pct"].tolist()]
    return [sorted(zip(t_us, util, strict=True))]


def csv_tail(data: bytes) -> None:
    path = folders.write("host.csv", data)
    fd = os.open(path, os.O_RDONLY)
    try:
        rows, end = tail.read_end(fd, len(data), most_bytes=4096)
        readings, _ = rows.readings(interval_s=30.0, file_age_s=1.0, now_s=time.time())
    finally:
        os.close(fd)
    assert end <= len(data)
    assert len(readings) >= 0


def csv_as_it_grows(value: tuple[bytes, list[int]]) -> None:
    data, places = value
    rows = NewestRows(None)
    last = 0
    for place in sorted({min(one, len(data)) for one in places} | {len(data)}):
        rows.feed(data[last:place])
        last = place
    once = NewestRows(None)
    once.feed(data)
    assert rows.rejected == once.rejected, "what is rejected depends on where the file was cut"
    rows.readings(interval_s=rows.interval_s(), file_age_s=None or 0.0, now_s=1e9)


def header(data: bytes) -> None:
    layout = read_header(data)
    if layout is not None:
        assert all(0 <= place < layout.count for place in layout.columns.values())


def times(text: str) -> None:
    """One timestamp, alone and among others."""
    found = parse_time_us(text)
    raw = text.encode("utf-8", "replace").replace(b"\n", b" ")[:60]
    lines = Lines(raw + b"\n")
    t_us, zoned = parse_times(lines, np.array([0]), np.array([len(raw)]))
    alone = parse_time_us(raw.decode("ascii", "replace"))
    if alone is None:
        assert t_us[0] == NO_TIME
    else:
        assert (t_us[0], bool(zoned[0])) == alone, f"{alone} alone, {t_us[0]} among others"
    assert found is None or isinstance(found[0], int)


def number(data: bytes) -> None:
    found = number_or_none(data)
    assert found is None or not math.isnan(found)  # one beyond all floats is out of every range


def sidecar(data: bytes) -> None:
    path = folders.write("host.json", data)
    found, problem = _read_sidecar(path)
    assert (found is None) == bool(problem)
    assert found is None or found.interval_s is None or found.interval_s > 0
    earlier._read(path)
    fd = os.open(folders.folder(), os.O_RDONLY)
    try:
        assert isinstance(tail.sidecar_value(fd, "host.csv"), dict)
    finally:
        os.close(fd)


def exported(data: bytes) -> None:
    place = folders.fresh("exporting")
    folders.write("exporting/in/c1_job7_20260717T120000Z.csv", data)
    folders.write("exporting/in/c1_job7_20260717T120000Z.json", _SIDECAR)
    export(f"{place}/in", f"{place}/out", anonymize=True)
    for name in os.listdir(f"{place}/out"):
        with open(f"{place}/out/{name}", "rb") as file:
            assert b"GPU-n1-0" not in file.read(), "a name of the machine was exported"


def exported_sidecar(data: bytes) -> None:
    place = folders.fresh("exporting")
    folders.write("exporting/in/c1_job7_20260717T120000Z.csv", _CSV[0])
    folders.write("exporting/in/c1_job7_20260717T120000Z.json", data)
    export(f"{place}/in", f"{place}/out", anonymize=True)


def forward(data: bytes) -> None:
    for line in data.split(b"\n"):
        call = forwards.parse_call(_OWNER, line)
        if isinstance(call, str):
            assert call, "a rejected line has no reason"
        else:
            assert call.forwards >= 1
            assert math.isfinite(call.flop)
            assert call.flop > 0
            assert math.isfinite(call.at_s)


def controller(data: bytes) -> None:
    path = folders.write("controller.log", data)
    log = controller_log.read_controller_logs([path])
    told = len(log.points) + len(log.summaries) + sum(log.rejected.values())
    assert told == log.lines, f"{told} lines are accounted for, of {log.lines}"


def journal(data: bytes) -> None:
    folders.fresh("taskq")
    folders.write("taskq/workers/8812.0.k3x9q2ab.jsonl", data)
    tree = SpoolTree(f"{folders.folder()}/taskq")
    for folder in tree.paths.folders():
        os.makedirs(folder, mode=0o700, exist_ok=True)
    read_queue({"outer": tree.paths.root}, since_s=0.0, until_s=2e9)


def event(data: bytes) -> None:
    with contextlib.suppress(*journals.NO_EVENT):
        found = journals.decode_event(data)
        journals.seconds(found.at)


def frozen(data: bytes) -> None:
    found = verify.verify(folders.write("window.json", data))
    assert found.verdict


_SIDECAR = b'{"schema":"fleetcraft.telemetry_file/1","node":"c1","interval_s":30.0,"gpus":[]}'
_CSV = (
    "\n".join(
        [
            OUR_HEADER,
            our_row(0),
            our_row(30, 1),
            bare_row(60, "host", host_load="1.5"),
            bare_row(61, "event", gpu_uuid="GPU-n1-0", detail="Xid 79"),
            our_row(90),
            "",
        ]
    ).encode(),
    "\n".join(
        [HEADER, archive_row(0), archive_row(30.027, util_pct=0), archive_row(60), ""]
    ).encode(),
    b"timestamp, utilization.gpu [%], memory.used [MiB], power.draw [W]\n"
    b"2026/07/17 12:00:00.000, 97 %, 30000 MiB, 250.50 W\n"
    b"2026/07/17 12:00:30.000, [N/A], [Unknown Error], [Not Supported]\n",
)
_TIMES = (
    "2026-11-30T02:00:00.000Z",
    "2026/07/10 19:52:46.493",
    "2026-11-30T02:00:00+02:00",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "2024-02-29 00:00",
    "2023-02-29 00:00:00",
)
_FORWARDS = (
    b'{"at":"2026-11-30T02:00:00Z","forwards":3,"active_params":1.3e9,"tokens":4096,"layers":30,'
    b'"seq":4096,"hidden":1536,"training":true,"family":"wan","gpus":["GPU-a"]}\n',
    b'{"at":"2026-11-30T02:00:00Z","flop":1e15}\n',
    b'{"at":"0001-01-01T00:00:00+23:59","flop":1e15}\n',
)
_CONTROLLER = (
    b"[2026-07-17 12:00:00] util=97% (8/8 GPUs) free_idle=0 pending=12\n"
    b"[2026-07-17 12:00:30Z] util=n/a (0/8 GPUs)\n"
    b"[2026-07-17 12:01:00] rolling SUMMARY window=600s hosts=4 samples=120 active_fraction=0.97"
    b" mean_util=88.2 mean_mem_fraction=nan\n",
)
_JOURNAL = (
    b'{"event":"arrive","at":"2026-07-17T12:00:00Z","host":"c1","job":"8812","slots":2,"gpus":2,'
    b'"slot_gpus":["GPU-a","GPU-b"]}\n{"event":"start","at":"2026-07-17T12:00:01Z","task":"a",'
    b'"claim":"k-1","slot":0}\n{"event":"depth","at":"2026-07-17T12:00:02Z","waiting":1,"pending":2,'
    b'"running":1,"done":0,"failed":0}\n{"event":"end","at":"2026-07-17T12:00:09Z","task":"a",'
    b'"claim":"k-1","outcome":"completed","wall_s":8.0}\n{"event":"leave","at":"2026"}\n',
)
_WINDOWS = (
    b'{"schema_version":2,"captured_at":"2026-07-17T12:00:00","window_seconds":60,"hosts":{"a":'
    b'{"observations":[{"timestamp":"2026/07/17 12:00:00","values":[1,2,3,4]}]}},"summary":{}}',
    b'{"schema_version":3,"kind":"telemetry_window","observations":{"a":[]},"digest":"x"}',
    b'{"schema_version":1}',
    b'{"schema_version":true}',
    b'{"schema_version":2.0,"hosts":[]}',
)
TARGETS = (
    Target(name="telemetry: CSV", values=documents(*_CSV), act=csv, raises=(DataError,)),
    Target(
        name="telemetry: CSV in pieces",
        values=st.tuples(documents(*_CSV), st.integers(1, 900)),
        act=csv_in_pieces,
        raises=(DataError,),
    ),
    Target(name="telemetry: end of a CSV", values=documents(*_CSV), act=csv_tail),
    Target(
        name="telemetry: CSV as it grows",
        values=st.tuples(documents(*_CSV), st.lists(st.integers(0, 1500), max_size=4)),
        act=csv_as_it_grows,
    ),
    Target(
        name="telemetry: header",
        values=documents(OUR_HEADER, HEADER, "timestamp, utilization.gpu [%], uuid"),
        act=header,
    ),
    Target(name="telemetry: time", values=plain_text(documents(*_TIMES, most=3)), act=times),
    Target(
        name="telemetry: number",
        values=documents("97", "250.50 W", "[N/A]", "-1", "1e308", "0x1f", "97 %", most=3),
        act=number,
    ),
    Target(
        name="telemetry: sidecar",
        values=st.one_of(json_of(Sidecar), documents(_SIDECAR)),
        act=sidecar,
    ),
    Target(
        name="telemetry: export", values=documents(*_CSV, most=2), act=exported, raises=(DataError,)
    ),
    Target(
        name="telemetry: export of a sidecar",
        values=st.one_of(json_of(Sidecar), documents(_SIDECAR)),
        act=exported_sidecar,
        raises=(DataError,),
    ),
    Target(
        name="telemetry: forwards",
        values=st.one_of(documents(*_FORWARDS), json_of(forwards._Line)),
        act=forward,
    ),
    Target(name="telemetry: controller log", values=documents(*_CONTROLLER), act=controller),
    Target(name="telemetry: journals of a spool", values=documents(*_JOURNAL), act=journal),
    Target(name="telemetry: event", values=json_of(journals.Event), act=event),
    Target(
        name="telemetry: frozen window",
        values=st.one_of(documents(*_WINDOWS), sampled([b"[" * 100_000])),
        act=frozen,
        raises=(DataError,),
    ),
)
