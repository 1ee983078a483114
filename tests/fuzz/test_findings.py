"""What fuzzing has found, one value each: what it did before, and what is right.

Where a target reads the same thing, the value goes through it, so that its invariants hold too.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetcraft.diagnosis.device_oom import parse_device_oom
from fleetcraft.layout import parse_log
from fleetcraft.slurm import nodes, queue, tables
from fleetcraft.spool.barrier import SCHEMA
from fleetcraft.spool.record import HistoryLine, Outcome
from tests.fuzz.target import attempt
from tests.fuzz.targets import named

DEEP = b"[" * 100_000
"""JSON deeper than the interpreter's stack. msgspec and json say so with a RecursionError, which is
none of their own errors, also where the key is one that the reader does not know."""
DEEP_BELOW = b'{"not-known":' + DEEP
ENDLESS = "9" * 5000
"""More digits than Python turns into a number: ValueError, from int() of what looks like one."""


@pytest.mark.parametrize(
    ("target", "right"),
    [
        # Each of these raised RecursionError.
        ("spool: barrier", ""),
        ("spool: frozen grid", "DataError"),
        ("spool: marker", ""),
        ("spool: tasks as JSON lines", "UsageError"),
        ("slurm: kept poll", ""),
        ("locks: holder", ""),
        ("training: error file", ""),
        ("training: status", "DataError"),
        ("training: events", ""),
        ("training: order", "DataError"),
        ("training: epoch", "DataError"),
        ("training: healthy epoch", "DataError"),
        ("calibration: record", "DataError"),
        ("calibration: trial", "DataError"),
        ("caches: index of weights", ""),
        ("caches: records", ""),
        ("caches: answer of a Python", ""),
        ("evidence: record of an encoder", "DataError"),
        ("video: record of an encoder", "DataError"),
        ("fleet: caches of a worker", ""),
    ],
)
@pytest.mark.parametrize("data", [DEEP, DEEP_BELOW], ids=["array", "unknown key"])
def test_json_deeper_than_the_stack_is_no_record(target: str, right: str, data: bytes) -> None:
    assert attempt(named(target), data).partition(" ")[0] == right


def test_an_intent_deeper_than_the_stack_stops_its_lane_alone() -> None:
    """It raised RecursionError, and no lane was renewed."""
    assert attempt(named("fleet: intent and ending"), (DEEP, DEEP_BELOW)) == ""


@pytest.mark.parametrize("session", [DEEP + b"\n", b"[1]\n", b'{"first":0}\n'])
def test_a_session_line_that_is_no_batch_is_passed_over(session: bytes) -> None:
    """The first raised RecursionError."""
    identity = b'{"schema":"x","id":"a","source":"telemetry","offline":false,"at":""}'
    assert attempt(named("streaming: outbox"), (identity, b"{}", session)) == ""


def test_a_cursor_deeper_than_the_stack_is_damaged() -> None:
    """It raised RecursionError."""
    said = attempt(named("streaming: outbox"), (DEEP, DEEP, b""))
    assert said.startswith("DataError")


@pytest.mark.parametrize("text", [b"42", b"[1]", b'"maintenance"', b"null", b"true"])
def test_a_marker_may_hold_any_json(text: bytes) -> None:
    """``echo 42 > DRAIN`` raised AttributeError in `status` and in every worker."""
    assert attempt(named("spool: marker"), text) == ""


@pytest.mark.parametrize("stamp", [b"9" * 400, b'"nan"', b"1e300", b"[]"])
def test_an_error_file_may_tell_any_time(stamp: bytes) -> None:
    """A whole number beyond a float's range raised OverflowError."""
    data = b'{"message":{"message":"KeyError: 1","extraInfo":{"timestamp":' + stamp + b"}}}"
    assert attempt(named("training: error file"), data) == ""


@pytest.mark.parametrize(
    "data",
    [
        b"\0",  # ReaderError of the YAML library, which was made outside of what catches it
        b"root: /a\nsite: \x07\n",
        b'root: "/scratch/\\0"\n',  # taken as a path, of which lstat then made a ValueError
        b'site: "\\0"\n',
    ],
)
def test_settings_with_control_characters_are_refused(data: bytes) -> None:
    assert attempt(named("config: fleet.yaml"), data).startswith("ConfigError")


def test_numbers_without_end_are_none_in_what_slurm_prints() -> None:
    """Each raised ValueError."""
    assert tables.count_or_none(ENDLESS) is None
    assert tables.amounts(f"cpu={ENDLESS},node=2") == {"node": 2}
    assert tables.time_or_none(ENDLESS) is None
    assert tables.duration_s_or_none(f"{ENDLESS}:00") is None
    assert nodes.parse_gres(f"gpu:a100:{ENDLESS}") is None
    assert queue._count_elements(f"0-{ENDLESS}") == 1
    assert attempt(named("slurm: cells"), f"gres/gpu:{ENDLESS}") == ""


def test_the_largest_count_of_slurm_is_still_read() -> None:
    assert tables.count_or_none("18446744073709551614") == 18446744073709551614


def test_numbers_without_end_are_none_in_the_environment() -> None:
    """Each raised ValueError when a worker started."""
    assert attempt(named("names: job of the environment"), (ENDLESS, ENDLESS, ENDLESS)) == ""
    producer = named("evidence: producer of the environment")
    assert attempt(producer, (ENDLESS, "", "", "")) == ""
    assert attempt(named("config: slots"), ENDLESS).startswith("UsageError")
    assert attempt(named("doctor: quota"), f"{ENDLESS} 2 3 4 5 6") == ""


def test_a_size_without_end_is_none_in_an_out_of_memory_error() -> None:
    """It raised OverflowError, and the diagnosis of a run with it."""
    huge = "9" * 400
    found = parse_device_oom(
        f"CUDA out of memory. Tried to allocate {huge} GiB. {huge}2.00 GiB total capacity; "
    )
    assert found is not None
    assert found.request_bytes is None
    assert found.capacity_bytes is None  # and not the 2.00 at its end


def test_a_barrier_over_a_name_with_a_nul_is_not_ready() -> None:
    """`check`, which never raises, raised ValueError."""
    item = {"path": "a\0b", "bytes": 1, "sha256": "x"}
    barrier = {"schema": SCHEMA, "id": "x", "made_at": "", "made_by": "", "payload": [item]}
    assert attempt(named("spool: barrier"), json.dumps(barrier).encode()) == ""


def test_a_report_looks_at_no_log_with_a_nul_in_its_name() -> None:
    """It raised ValueError, so one damaged history line took the whole report away."""
    line = HistoryLine(claim="a-1", outcome=Outcome.FAILED, to="pending")
    target = named("report: task with any words in its history")
    assert attempt(target, (line, "logs/\0.log")) == ""


@pytest.mark.parametrize("directive", ["env-file: a\0b", "outputs: a\0b", "after-file: a\0b"])
def test_a_record_with_a_nul_in_its_header_is_none(directive: str) -> None:
    """It was one, and the worker that ran it ended with a ValueError."""
    head = "#!/usr/bin/env bash\n#FLEET name: a\n#FLEET id: 7f3a\n"
    data = f"{head}#FLEET {directive}\ncd -- /p || exit 1\ntrue\nexit\n".encode()
    assert attempt(named("spool: record"), data).startswith("DataError")
    assert attempt(named("spool: record"), data.replace(b"\0", b"_")) == ""


def test_a_bag_that_says_a_thing_twice_cannot_be_verified() -> None:
    """The bagit library raised TypeError: of a tag that stands twice it makes a list."""
    declaration = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
    twice = declaration + b"Tag-File-Character-Encoding: UTF-8\n"
    said = attempt(named("evidence: bag of another program"), (twice, b"", b""))
    assert said.partition(" ")[0] in ("DataError", "ConfigError")  # the latter without bagit


def test_a_log_has_one_name() -> None:
    """``a.01.log`` and ``a.\u0661.log`` were taken for the log of attempt 1."""
    assert parse_log("a.1.log") == ("a", 1)
    assert parse_log("a.01.log") is None
    assert parse_log("a.\u0661.log") is None


def test_a_small_window_needs_little_memory_to_be_verified() -> None:
    """A gibibyte was set aside before the first byte was read."""
    assert attempt(named("telemetry: frozen window"), b"").startswith("DataError")


def test_a_log_of_blanks_holds_nothing_to_show() -> None:
    """A tab was shown, and nothing said that there was nothing else."""
    assert attempt(named("report: tail of a log"), b"\t") == ""


def test_a_pattern_without_end_is_refused() -> None:
    """A hundred thousand brackets took minutes of a worker that only looked at a dependency."""
    said = attempt(named("names: dependency"), "[" * 100_000)
    assert said.startswith("UsageError")


def test_a_bag_that_says_its_version_three_times_cannot_be_verified() -> None:
    """The bagit library raised AttributeError: of a tag that stands twice it makes a list."""
    declaration = b"BagIt-Version: 1.0\n" * 3 + b"Tag-File-Character-Encoding: UTF-8\n"
    said = attempt(named("evidence: bag of another program"), (declaration, b"", b""))
    assert said.partition(" ")[0] in ("DataError", "ConfigError")  # the latter without bagit


def test_titles_of_a_video_may_be_in_any_encoding(tmp_path: Path) -> None:
    """The binding raised UnicodeDecodeError of a title, and nobody had asked for titles."""
    av = pytest.importorskip("av")
    from fleetcraft.video.reader import inspect_video

    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width = stream.height = 32
        container.metadata["title"] = "TITLE"
        for packet in (*stream.encode(av.VideoFrame(32, 32, "yuv420p")), *stream.encode()):
            container.mux(packet)
    path.write_bytes(path.read_bytes().replace(b"TITLE", b"TI\xb2LE"))
    assert inspect_video(path).width == 32


def test_a_video_whose_codec_nobody_knows_is_named(tmp_path: Path) -> None:
    """``context.format`` raised AttributeError, as there was no context."""
    av = pytest.importorskip("av")
    from fleetcraft.errors import DataError
    from fleetcraft.video.reader import inspect_video

    path = tmp_path / "clip.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=8)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuvj420p"
        for packet in (*stream.encode(av.VideoFrame(32, 32, "yuvj420p")), *stream.encode()):
            container.mux(packet)
    path.write_bytes(path.read_bytes().replace(b"MJPG", b"QQQQ"))
    with pytest.raises(DataError, match="codec is unknown|cannot read"):
        inspect_video(path)
