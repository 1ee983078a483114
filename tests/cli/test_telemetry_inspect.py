"""``fleetcraft telemetry inspect``: exit codes, the two forms of its answer, and what it shows."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleetcraft.cli.telemetry import COMMANDS
from fleetcraft.cli.telemetry.inspect import inspect_command
from fleetcraft.view.inspection import ReadingProgress
from tests.cli.conftest import Fleet, environment
from tests.telemetry.traces import (
    archive_row,
    archived,
    bare_row,
    our_row,
    write_archive,
    write_ours,
)

ASKED_FOR = {
    "files", "header_only", "single_row", "rows", "rejected", "mean_util_pct", "active_fraction",
    "mean_memory_fraction", "double_logged_rows", "back_steps", "gaps", "gpus", "energy_kwh",
    "covered_hours", "dedup",
}  # fmt: skip


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    return folder


def test_its_help_begins_as_the_table_says(fleet: Fleet) -> None:
    assert (inspect_command.help or "").partition("\n")[0] == COMMANDS["inspect"][1]
    called = fleet.bare("telemetry", "inspect", "--help")
    assert called.code == 0
    assert "Examples:\n  fleetcraft telemetry inspect" in called.out


def test_the_archived_traces_in_json_and_in_words(bare_fleet: Fleet) -> None:
    place = str(archived() / "hosts")
    called = bare_fleet.bare("telemetry", "inspect", place, "--json")
    assert (called.code, called.err) == (0, "")
    found = called.json
    assert set(found) >= ASKED_FOR
    assert set(found["gaps"]) == {"count", "biggest_s", "file"}
    assert set(found["dedup"]) == {"rows", "mean_util_pct", "active_fraction"}
    assert (found["rows"], found["rejected"], len(found["by_file"])) == (68244, 0, 31)

    text = bare_fleet.bare("telemetry", "inspect", place).out
    assert text.startswith("31 files, 31 hosts, 30 GPUs, 68244 samples\n")
    for words in (
        "272.49 kWh over 500.8 GPU hours",
        "no time zone in the data",
        "1 file has only a header: host31.csv",
        "2 files have a single row: host14.csv, host15.csv",
        "8150 rows less than 1 s after the one before",
        "18 steps back in time",
        "218 h 37 min in host28.csv",
        "... and 11 files",
    ):
        assert words in text
    assert "not read" not in text


def test_without_a_place_it_reads_the_scratch_tree(fleet: Fleet) -> None:
    folder = fleet.root / "telemetry"
    folder.mkdir()
    write_ours(folder, [our_row(0), our_row(30)])
    found = fleet.ok("telemetry", "inspect", "--json").json
    assert (found["place"], found["gpus"], found["zone"]) == (str(folder), 1, "utc")


def test_one_file_can_be_named(fleet: Fleet, traces: Path) -> None:
    write_archive(traces, "b.csv", [archive_row(0)])
    path = write_archive(traces, "a.csv", [archive_row(0), archive_row(30)])
    assert fleet.bare("telemetry", "inspect", str(path), "--json").json["rows"] == 2


def test_a_place_that_is_not_there_is_a_usage_error_with_a_hint(fleet: Fleet) -> None:
    called = fleet("telemetry", "inspect", "gone", "--json")
    assert called.code == 2
    assert "no such place" in called.error["message"]
    assert called.error["hint"]


def test_a_scratch_tree_without_telemetry_is_exit_3(fleet: Fleet, bare_fleet: Fleet) -> None:
    called = fleet("telemetry", "inspect", "--json")
    assert (called.code, called.error["type"]) == (3, "ConfigError")
    assert bare_fleet.bare("telemetry", "inspect").code == 3


def test_where_nothing_can_be_read_the_exit_code_is_7(fleet: Fleet, traces: Path) -> None:
    called = fleet("telemetry", "inspect", str(traces), "--json")
    assert called.code == 7
    assert "no file there ends in .csv" in called.error["message"]
    (traces / "folder.csv").mkdir()
    called = fleet("telemetry", "inspect", str(traces))
    assert (called.code, called.out) == (7, "")
    assert "folder.csv: not a regular file" in called.err


def test_rejected_rows_and_refused_files_are_an_answer_with_exit_0(
    fleet: Fleet, traces: Path
) -> None:
    rows = [archive_row(0), "GPU is lost. Reboot the system", archive_row(30, power_w="[N/A]")]
    write_archive(traces, "host.csv", rows, tail="2026")
    os.mkfifo(traces / "pipe.csv")
    found = fleet.bare("telemetry", "inspect", str(traces), "--json").json
    assert (found["rejected"], found["refused_files"]) == (2, 1)
    text = fleet.bare("telemetry", "inspect", str(traces)).out
    assert "2 lines are no row: 1 sentence, 1 torn tail" in text
    assert "sentence: host.csv line 3: GPU is lost. Reboot the system" in text
    assert "power_w has no value in 1 sample: [N/A] 1" in text
    assert "pipe.csv: not a regular file" in text


def test_files_without_anything_wrong_are_said_to_have_nothing(fleet: Fleet, traces: Path) -> None:
    write_archive(traces, "host.csv", [archive_row(0), archive_row(30)])
    assert (
        "what is wrong\n  nothing was found" in fleet.bare("telemetry", "inspect", f"{traces}").out
    )


def test_a_folder_of_hosts_without_gpus_has_no_numbers_and_no_zeros(
    fleet: Fleet, traces: Path
) -> None:
    write_ours(traces, [bare_row(0, "host", status="no_nvml"), bare_row(30, "host")])
    found = fleet.bare("telemetry", "inspect", str(traces), "--json").json
    for key in ("mean_util_pct", "active_fraction", "energy_kwh", "first_at", "mean_power_w"):
        assert found[key] is None, key
    text = fleet.bare("telemetry", "inspect", str(traces)).out
    assert text.startswith("1 file, 1 host, 0 GPUs, 0 samples\n  other rows  host 2\n")
    assert "  no GPU      1 host without a GPU: no_nvml\n" in text
    wrong = text.partition("what is wrong\n")[2].partition("the files")[0]
    assert "no_nvml" not in wrong
    assert "none of a GPU" not in wrong
    write_ours(traces, [bare_row(0, "host", status="driver_not_loaded")])
    text = fleet.bare("telemetry", "inspect", str(traces)).out
    assert "has rows, but none of a GPU" in text.partition("what is wrong\n")[2]
    assert "1 row with a status other than ok: driver_not_loaded 1" in text


def test_the_gap_can_be_given_as_seconds_or_a_duration(fleet: Fleet, traces: Path) -> None:
    write_archive(traces, "host.csv", [archive_row(0), archive_row(40)])

    def gaps(*words: str) -> int:
        found = fleet.bare("telemetry", "inspect", str(traces), "--json", *words)
        return int(found.json["gaps"]["count"])

    assert (gaps(), gaps("--gap", "41"), gaps("--gap", "40.0"), gaps("--gap", "1m")) == (1, 0, 1, 0)
    for wrong in ("0", "-3", "nan", "inf", "soon"):
        assert fleet("telemetry", "inspect", str(traces), "--gap", wrong).code == 2


def test_the_list_of_files_is_bounded_and_whole_in_json(fleet: Fleet, traces: Path) -> None:
    for number in range(30):
        write_archive(traces, f"host{number:02}.csv", [archive_row(0), archive_row(30)])
    text = fleet.bare("telemetry", "inspect", str(traces), "--limit", "5").out
    assert "... and 25 files" in text
    assert "host05.csv" not in text
    assert len(fleet.bare("telemetry", "inspect", str(traces), "--json").json["by_file"]) == 30


def test_what_stands_in_files_and_names_does_not_reach_the_terminal(
    fleet: Fleet, traces: Path
) -> None:
    rows = [archive_row(0), archive_row(30, util_pct="\x1b[31m"), "\x1b]0;title\x07 is lost"]
    write_archive(traces, "ho\x1b[1mst.csv", rows)
    write_archive(traces, "new\nline.csv", [])
    for words in ((), ("--json",)):
        called = fleet.bare("telemetry", "inspect", str(traces), *words)
        assert called.code == 0
        assert "\x1b" not in called.out
        assert "\x07" not in called.out
    assert "new\\nline.csv" in fleet.bare("telemetry", "inspect", str(traces)).out


def test_a_name_that_is_no_unicode_is_shown(fleet: Fleet, traces: Path) -> None:
    name = os.fsencode(traces) + b"/h\xff.csv"
    with open(name, "w") as file:
        file.write(archive_row(0) + "\n")
    for words in ((), ("--json",)):
        done = fleet.process("telemetry", "inspect", str(traces), *words)
        assert done.returncode == 0, done.stderr
        assert "h" in done.stdout


def test_nothing_heavy_but_numpy_is_loaded(fleet: Fleet, traces: Path) -> None:
    write_archive(traces, "host.csv", [archive_row(0)])
    code = (
        "import sys; from fleetcraft.cli.main import main; "
        f"main(['telemetry', 'inspect', {str(traces)!r}, '--json']); "
        "heavy = ('pandas', 'matplotlib', 'rich', 'pynvml', 'torch'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


def test_progress_is_shown_on_a_terminal_once_reading_takes_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        quiet, shown = ReadingProgress(False), ReadingProgress(True)
        later_s = time.monotonic() + 60
        monkeypatch.setattr("fleetcraft.view.inspection.time.monotonic", lambda: later_s)
        for progress in (quiet, shown):
            progress(5 << 20, 10 << 20)
            progress.close()
        terminal.write("end\n")
        terminal.flush()
        said = b""
        while b"end" not in said:
            said += os.read(ours, 1 << 16)
    os.close(ours)
    assert said.count(b"reading") >= 1
    assert b"MiB" in said
