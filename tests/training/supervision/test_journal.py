"""The journal of a run: whole lines, whatever the file system does, and what is read back."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.files import FileSystem
from fleetcraft.training.records import EVENT_SCHEMA
from fleetcraft.training.supervision.journal import Event, Journal, read_events


class Refusing(FileSystem):
    """Refuses to append while it is told to; may leave half of a line behind."""

    def __init__(self, *, torn: bool = False) -> None:
        super().__init__()
        self.refuses = False
        self._torn = torn

    def append(self, fd: int, data: bytes) -> None:
        if self.refuses:
            if self._torn:
                super().append(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(fd, data)


def kinds(path: Path) -> list[Any]:
    return [event["event"] for event in read_events(str(path)).events]


def test_a_line_carries_run_generation_epoch_and_the_facts(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    told: list[Any] = []
    journal = Journal(str(path), run="distill", tell=told.append)
    journal.generation, journal.epoch = 3, 7

    journal.write(Event.STATE, state="HEALTHY", why="verified", **{"from": "VERIFYING"})
    journal.close()

    (line,) = path.read_text().splitlines()
    event = json.loads(line)
    assert event == told[0]
    assert {key: event[key] for key in ("schema", "run", "generation", "epoch", "event")} == {
        "schema": EVENT_SCHEMA, "run": "distill", "generation": 3, "epoch": 7, "event": "state",
    }  # fmt: skip
    assert (event["state"], event["from"], event["why"]) == ("HEALTHY", "VERIFYING", "verified")


@pytest.mark.parametrize("torn", [False, True])
def test_a_full_disk_costs_no_event_and_a_torn_line_is_counted(tmp_path: Path, torn: bool) -> None:
    path, fs = tmp_path / "events.jsonl", Refusing(torn=torn)
    journal = Journal(str(path), run="distill", fs=fs)
    journal.write(Event.STATE)
    fs.refuses = True

    journal.write(Event.ALARM)
    journal.write(Event.STOPPED)
    refused = journal.trouble
    fs.refuses = False
    journal.write(Event.ENDED)
    journal.close()

    assert "No space left" in refused
    assert journal.trouble == ""
    assert kinds(path) == ["state", "alarm", "stopped", "ended"]
    # Torn bytes of the same line may stand several times; none of them is taken for an event.
    assert (read_events(str(path)).bad_lines > 0) is torn


def test_a_journal_that_never_could_be_written_says_how_much_it_gave_up(tmp_path: Path) -> None:
    path, fs = tmp_path / "events.jsonl", Refusing()
    journal = Journal(str(path), run="distill", fs=fs)
    fs.refuses = True
    for _ in range(1005):
        journal.write(Event.UNKNOWN, why="EIO")

    fs.refuses = False
    journal.close()

    events = read_events(str(path)).events
    assert len(events) == 1001
    assert events[-1]["why"] == "5 events could not be written and were given up"


def test_two_supervisors_may_append_to_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first, second = (Journal(str(path), run="distill") for _ in range(2))
    first.generation, second.generation = 1, 2

    for _ in range(20):
        first.write(Event.UNKNOWN)
        second.write(Event.STATE)

    assert [event["generation"] for event in read_events(str(path)).events] == [1, 2] * 20


def test_no_journal_is_no_event_and_one_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    assert read_events(str(tmp_path / "none.jsonl")).events == ()

    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        read_events(str(tmp_path / "folder.jsonl"))


def test_lines_of_others_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"schema":"another/1"}\n[1]\nrubbish\n\xff\n\n')

    assert read_events(str(path)).bad_lines == 4
