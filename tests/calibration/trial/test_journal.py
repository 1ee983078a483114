from __future__ import annotations

import json
import os
from typing import Any

import pytest

from fleetcraft.calibration.trial.journal import Event, JournalWriter
from fleetcraft.files import FileSystem


class Watched(FileSystem):
    """Remembers in which order things were asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def append(self, fd: int, data: bytes) -> None:
        super().append(fd, data)
        self.asked.append(json.loads(data)["event"])

    def datasync(self, fd: int) -> None:
        super().datasync(fd)
        self.asked.append("sync")


def lines_of(path: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_one_json_object_with_its_time(tmp_path):
    journal = JournalWriter(str(tmp_path / "j"))

    journal.write(Event.PROGRESS, done=3, total=None, note="half\nway")

    (line,) = lines_of(tmp_path / "j")
    assert line["event"] == "progress"
    assert line["note"] == "half\nway"
    assert line["total"] is None
    assert line["at"].endswith("Z")
    assert line["mono_s"] > 0


def test_a_phase_is_on_disk_before_it_begins(tmp_path):
    fs = Watched()
    journal = JournalWriter(str(tmp_path / "j"), fs)

    journal.write(Event.PHASE_BEGIN, phase="decode")
    journal.write(Event.PROGRESS, done=1)
    journal.write(Event.FAILED, kind="ValueError")

    assert fs.asked == ["phase_begin", "sync", "progress", "failed", "sync"]


def test_a_torn_line_of_an_earlier_process_stays_on_its_own(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(b'{"event": "phase_be')

    JournalWriter(str(path)).write(Event.BEGIN)

    torn, whole = path.read_bytes().splitlines()
    assert torn == b'{"event": "phase_be'
    assert json.loads(whole)["event"] == "begin"


@pytest.mark.parametrize(
    "value", ["\udc80", float("nan"), {1: 2}, {(1, 2): 3}, object(), b"\xff", 1 << 90]
)
def test_whatever_a_message_holds_can_be_written(tmp_path, value):
    journal = JournalWriter(str(tmp_path / "j"))

    journal.write(Event.FAILED, kind="KeyError", message=value)

    (line,) = lines_of(tmp_path / "j")
    assert line["kind"] == "KeyError"


def test_a_closed_journal_leaves_no_descriptor(tmp_path):
    before = len(os.listdir("/proc/self/fd"))

    JournalWriter(str(tmp_path / "j")).close()

    assert len(os.listdir("/proc/self/fd")) == before
