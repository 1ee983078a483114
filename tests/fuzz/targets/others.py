"""What the rest reads: videos, streams that are sent, intents of renewals, tails of logs."""

from __future__ import annotations

import os
from collections import Counter

import msgspec
from hypothesis import strategies as st

from fleetcraft.errors import DataError, FleetError
from fleetcraft.fleet.launch.caches import _arrival
from fleetcraft.fleet.renewal.intents import Ending, Intent, Intents
from fleetcraft.layout.runs import RunPaths
from fleetcraft.layout.streams import StreamPaths
from fleetcraft.report.failures import read_tail
from fleetcraft.report.scope import seconds_of
from fleetcraft.spool import views
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import enqueue
from fleetcraft.spool.record import HistoryLine, write_history
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.streaming import event_rows, progress_rows
from fleetcraft.streaming.outbox import Cursor, Identity, Outbox
from fleetcraft.streaming.runs import RunFollower
from fleetcraft.streaming.tailing import Place, Tail
from fleetcraft.streaming.windows import WindowFollower
from fleetcraft.telemetry.windows.span import window_at
from fleetcraft.training.progress.lines import parse_line
from fleetcraft.video.encoder import EncoderRecord, EncoderSettings, read_encoder_record
from fleetcraft.video.tags import Deep
from tests.fuzz import folders
from tests.fuzz.strategies import documents, json_of, odd_json, texts, values_of
from tests.fuzz.target import Target
from tests.quick_fs import QuickFS

_DEEP = b"[" * 100_000
_RECORD = EncoderRecord(
    settings=EncoderSettings(), encoder_version="core 164", encoder_options="qp=12",
    libavcodec="61.19", libswscale="8.3", pyav="18.1.0", converter=("bicubic",),
)  # fmt: skip


def encoder_record(data: bytes) -> None:
    folders.write("clip.mp4.encoder.json", data)
    read_encoder_record(f"{folders.folder()}/clip.mp4")


def video(data: bytes) -> None:
    """Broken files: libav must not be trusted to fail in one way."""
    from fleetcraft.video.reader import inspect_video, iter_frames

    path = folders.write("clip.mp4", data)
    inspect_video(path)
    for number, frame in enumerate(iter_frames(path, deep=Deep.KEEP)):
        assert frame.ndim == 3
        if number > 8:
            break


def event_row(data: bytes) -> None:
    for line in data.split(b"\n"):
        found = event_rows.event_row(line)
        if found is not None:
            at_s, row = found
            assert row["event"]
            assert at_s >= 0


def progress_row(data: bytes) -> None:
    lines = data.split(b"\n")
    wrong: Counter[str] = Counter()
    told = list(progress_rows.told_lines(0, lines))
    rows = progress_rows.rows_of(told, progress_rows.Ranks(), 1, wrong)
    assert all(isinstance(row, dict) for row in rows)
    assert sum(wrong.values()) >= sum(bool(parse_line(line).wrong) for line in lines)


def outbox(value: tuple[bytes, bytes, bytes]) -> None:
    identity, cursor, session = value
    paths = StreamPaths(folders.fresh("streams"), "wandb", "me", "fleet", "all")
    for path, data in (
        (paths.identity, identity),
        (paths.cursor, cursor),
        (paths.session(1), session),
    ):
        folders.write(os.path.relpath(path, folders.folder()), data)
    box = Outbox(paths, fs=QuickFS())
    box.open("telemetry", offline=False)
    assert box.next_row >= box.first_row


def restored(value: dict[str, object]) -> None:
    RunFollower(RunPaths(folders.fresh("run"))).restore(value)
    WindowFollower(folders.folder(), spools=None, window_s=600.0).restore(value)


def tailed(value: tuple[bytes, bytes, Place]) -> None:
    first, more, place = value
    path = folders.write("events.jsonl", first)
    tail = Tail(path, place)
    lines = tail.lines()
    with open(path, "ab") as file:
        file.write(more)
    lines += tail.lines()
    assert all(b"\n" not in line for line in lines)


def intent(value: tuple[bytes, bytes]) -> None:
    folder = folders.fresh("intents")
    folders.write("intents/8x43200s.1.json", value[0])
    folders.write("intents/8x43200s.1.end.json", value[1])
    found = Intents(folder, QuickFS()).latest()
    assert list(found) == ["8x43200s"]


def arrival(data: bytes) -> None:
    _arrival(folders.write("journal.jsonl", data))


def log_tail(data: bytes) -> None:
    text, problem = read_tail(folders.write("a.1.log", data))
    assert isinstance(text, str)
    assert problem or text.strip()
    assert len(text) < 100_000


def window(value: tuple[str, float]) -> None:
    text, seconds = value
    seconds_of(text)
    found = window_at(seconds, text, 1.7e9)
    assert found.seconds == seconds


def shown(value: tuple[HistoryLine, str]) -> None:
    """A task whose history holds any words is shown, and its log is looked at."""
    tree = SpoolTree(folders.fresh("taskq"), QuickFS())
    set_up(tree)
    enqueue(tree, TaskSpec(name="a", command="true", project_dir="/p"))
    line = msgspec.structs.replace(value[0], log=value[1], attempt=1)
    with open(tree.paths.pending_record("a", views.LANES[1]), "ab") as file:
        file.write(write_history(line))
    view = views.show(tree, "a")
    views.status(tree)
    for one in view.attempts:
        if one.log:
            read_tail(one.log)


def _clips() -> list[bytes]:
    """A short video of 32 x 32 pixels, made once a process."""
    import io

    import av
    import numpy as np

    made = []
    for container_format, codec in (("mp4", "mpeg4"), ("matroska", "mpeg4"), ("avi", "mjpeg")):
        target = io.BytesIO()
        with av.open(target, "w", format=container_format) as container:
            stream = container.add_stream(codec, rate=8)
            stream.width = stream.height = 32
            stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
            for number in range(4):
                image = np.full((32, 32, 3), 60 * number, dtype=np.uint8)
                for packet in stream.encode(av.VideoFrame.from_ndarray(image)):
                    container.mux(packet)
            for packet in stream.encode():
                container.mux(packet)
        made.append(target.getvalue())
    return made


_EVENTS = (
    b'{"schema":"fleetcraft.run_event/1","event":"outcome","at":"2026-07-17T12:00:00Z","epoch":3,'
    b'"diagnosis":{"class":"cuda_oom"},"rung":{"kind":"knob","knob":"batch","before":8,"after":4}}\n'
    b'{"schema":"fleetcraft.run_event/1","event":"x","at":"9999-12-31T23:59:59-23:59"}\n'
    b'{"schema":"fleetcraft.run_event/1","event":"x","at":[1]}\n',
)
_PROGRESS = (
    b'{"step":1,"loss":0.5,"tokens":10,"at":"2026-07-17T12:00:00Z"}\n{"step":2,"tokens":11,'
    b'"at":"2026-07-17T12:00:09Z","queues":{"a":[1,0]},"metrics":{"b":1e308}}\n{"at":5}\n',
)
_ARRIVALS = (
    b'{"event":"arrive","caches":{"digest":"x","roles":{"hub":"/h"}}}\n{"event":"start"}\n',
    _DEEP,
)
TARGETS = (
    Target(
        name="video: record of an encoder",
        values=st.one_of(
            odd_json(st.just(_RECORD)), documents(_RECORD.to_json()), st.sampled_from([_DEEP])
        ),
        act=encoder_record,
        raises=(DataError,),
    ),
    Target(
        name="video: file",
        values=st.deferred(lambda: documents(*_clips(), most=3)),
        act=video,
        raises=(DataError,),
    ),
    Target(name="streaming: events", values=documents(*_EVENTS), act=event_row),
    Target(name="streaming: progress", values=documents(*_PROGRESS), act=progress_row),
    Target(
        name="streaming: outbox",
        values=st.tuples(
            st.one_of(
                json_of(Identity),
                values_of(Identity).map(
                    lambda one: msgspec.json.encode(
                        msgspec.structs.replace(one, source="telemetry")
                    )
                ),
            ),
            json_of(Cursor, _DEEP),
            documents(
                b'{"first":0,"rows":[{"a":1},{"a":NaN}],"place":{"end_s":5}}\n', _DEEP + b"\n"
            ),
        ),
        act=outbox,
        raises=(DataError,),
    ),
    Target(
        name="streaming: place",
        values=st.dictionaries(
            st.sampled_from(["end_s", "events", "launches", "x"]),
            st.sampled_from([None, 1, -1, "9" * 30, "5", [], {}, {"1": {}}, {"x": 1}, 1e308, True]),
            max_size=3,
        ),
        act=restored,
        raises=(DataError,),
    ),
    Target(
        name="streaming: file that grows",
        values=st.tuples(documents(*_EVENTS), documents(*_PROGRESS), st.just(Place())),
        act=tailed,
    ),
    Target(
        name="fleet: intent and ending",
        values=st.tuples(json_of(Intent, _DEEP), json_of(Ending)),
        act=intent,
    ),
    Target(name="fleet: caches of a worker", values=documents(*_ARRIVALS), act=arrival),
    Target(
        name="report: tail of a log",
        values=documents(b"a\r\rb\r\n\x1b[1mError: x\n" * 4),
        act=log_tail,
    ),
    Target(
        name="report: window",
        values=st.tuples(
            texts(
                "2026-07-17T12:00:00Z",
                "2026-07-17 12:00",
                "0001-01-01",
                "9999-12-31T23:59:59-23:59",
            ),
            st.sampled_from([1.0, 600.0, 1e9, 1e300]),
        ),
        act=window,
        raises=(FleetError,),
    ),
    Target(
        name="report: task with any words in its history",
        values=st.tuples(
            values_of(HistoryLine), texts("logs/a.1.log", "../../x", "a\0b", "", "/dev/zero")
        ),
        act=shown,
    ),
)
