from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.calibration.records import Failure
from fleetcraft.calibration.trial.journal import Event
from fleetcraft.calibration.trial.reading import Journal, read_journal


@pytest.fixture
def write(tmp_path):
    path = tmp_path / "journal.jsonl"

    def write(*events: dict[str, Any], tail: bytes = b"") -> str:
        lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        path.write_bytes(lines + tail)
        return str(path)

    return write


def begin(phase: str, *, of: str = "memory", cycle: int = 0) -> dict[str, Any]:
    return {"event": "phase_begin", "phase": phase, "pass": of, "cycle": cycle}


def end(phase: str, *, of: str = "memory", cycle: int = 0, **fields: Any) -> dict[str, Any]:
    return {"event": "phase_end", "phase": phase, "pass": of, "cycle": cycle, **fields}


def owner(name: str, size: int) -> dict[str, Any]:
    return {"name": name, "bytes": size}


def test_a_journal_that_is_not_there_is_empty_and_misses_everything(tmp_path):
    journal = read_journal(str(tmp_path / "none"), ("load", "write"))

    assert journal.missing_phases == ("load", "write")
    assert journal.smoke
    assert not journal.finished
    assert journal.sha256 == ""


def test_bytes_come_from_the_memory_pass_and_walls_from_the_time_pass(write):
    path = write(
        begin("load"),
        end("load", peak_bytes=100, live_end_bytes=60, autograd_bytes=0, owners=[owner("m", 100)]),
        begin("load", of="time"),
        end("load", of="time", wall_s=2.0),
        begin("load", of="time", cycle=1),
        end("load", of="time", cycle=1, wall_s=4.0),
        begin("load", of="soak"),
        end("load", of="soak", peak_bytes=999),
    )

    (phase,) = read_journal(path).phases

    assert (phase.peak_bytes, phase.live_end_bytes) == (100, 60)
    assert phase.owners[0].name == "m"
    assert phase.walls_s == (2.0, 4.0)
    assert phase.rss_peak_bytes is None


def test_a_phase_that_runs_twice_in_a_cycle_adds_its_walls_and_keeps_its_higher_peak(write):
    path = write(
        end("denoise", peak_bytes=70, owners=[owner("a", 70)], live_end_bytes=9),
        end("denoise", peak_bytes=50, owners=[owner("b", 50)], live_end_bytes=5),
        end("denoise", of="time", wall_s=1.0),
        end("denoise", of="time", wall_s=0.5),
    )

    (phase,) = read_journal(path).phases

    assert phase.peak_bytes == 70
    assert phase.owners[0].name == "a"
    assert phase.live_end_bytes == 5
    assert phase.walls_s == (1.5,)


def test_a_phase_in_which_the_process_was_killed_is_open_and_has_not_run(write):
    path = write(begin("load"), end("load", peak_bytes=1), begin("decode"))

    journal = read_journal(path, ("load", "decode", "write"))

    assert journal.open_phase == journal.last_phase == "decode"
    assert [phase.name for phase in journal.phases] == ["load", "decode"]
    assert journal.phases[1].peak_bytes is None
    assert journal.missing_phases == ("decode", "write")


def test_an_interrupted_phase_keeps_its_peak_and_has_not_run(write):
    path = write(begin("decode"), end("decode", peak_bytes=5, interrupted=True))

    journal = read_journal(path, ("decode",))

    assert journal.phases[0].peak_bytes == 5
    assert journal.open_phase == ""
    assert journal.missing_phases == ("decode",)


def test_phases_of_checks_and_preflight_are_no_cycles(write):
    path = write(begin("denoise", of="checks"), end("denoise", of="checks"))

    journal = read_journal(path, ("denoise",))

    assert journal.phases == ()
    assert journal.missing_phases == ("denoise",)
    assert journal.last_phase == "denoise"


def test_the_last_line_may_be_torn(write):
    path = write(begin("load"), tail=b'{"event": "phase_end", "pha')

    journal = read_journal(path)

    assert journal.torn
    assert journal.bad_lines == 0
    assert journal.open_phase == "load"


def test_lines_that_cannot_be_understood_are_counted_and_leave_nothing_behind(write):
    path = write(
        {"event": "phase_end", "phase": "a", "pass": "memory", "peak_bytes": "many"},
        {"event": "phase_end", "phase": "b", "pass": "nonsense"},
        {"event": "no such event"},
        {"event": ["begin"]},
        begin("c"),
        tail=b"\x00\xff\n[1, 2]\n\n7\n" + b"[" * 100_000 + b"\n",
    )

    journal = read_journal(path)

    assert journal.bad_lines == 8
    assert [phase.name for phase in journal.phases] == ["c"]


def test_the_first_failure_is_the_cause(write):
    found = {"class": "owner_outlived", "phase": "probe", "message": "m", "owner": "probe.kv"}
    path = write(
        {"event": "failed", "kind": "Finding", "pass": "memory", "findings": [found], **found},
        {"event": "failed", "kind": "KeyError", "message": "later"},
        {"event": "end", "exit": 1},
    )

    journal = read_journal(path)

    assert journal.failed is not None
    assert journal.failed.failure == "owner_outlived"
    assert journal.failed.pass_name == "memory"
    assert journal.failed.findings[0].failure is Failure.OWNER_OUTLIVED
    assert (journal.finished, journal.exit) == (True, 1)


def test_everything_else_is_read_as_it_was_written(write):
    path = write(
        {"event": "begin", "order": {}},
        {"event": "environment", "torch": "2.13", "family": "tiny", "identity": "sha256:1"},
        {"event": "pass_begin", "pass": "soak"},
        {"event": "cycle_begin", "pass": "memory", "cycle": 0, "start_live_bytes": 0},
        {"event": "cycle_end", "pass": "time", "cycle": 0, "wall_s": 1.5},
        {"event": "cycle_end", "pass": "soak", "cycle": 0, "live_end_bytes": 8, "cached_bytes": 2},
        {"event": "check", "name": "noise", "ok": False, "failure": "noise_shared"},
        {"event": "prediction", "batch": 2, "peak_bytes": 10, "phases": {"load": 10}},
        {"event": "flops", "counted_flop": 3.0},
        {"event": "overhead", "fraction": 0.08},
        {"event": "participant", "name": "d0", "state": "alive", "how": ""},
        {"event": "participant", "name": "d0", "state": "dead", "how": "SIGKILL"},
    )

    journal = read_journal(path)

    assert (journal.family, journal.identity) == ("tiny", "sha256:1")
    assert journal.environment.torch == "2.13"
    assert journal.last_pass == "soak"
    assert journal.start_live_bytes == 0
    assert journal.cycle_walls_s == (1.5,)
    assert (journal.soak_live_bytes, journal.soak_cached_bytes) == ((8,), (2,))
    assert journal.checks[0].failure is Failure.NOISE_SHARED
    assert journal.predictions[0].phases == {"load": 10}
    assert journal.flops is not None
    assert journal.flops.counted_flop == 3.0
    assert journal.tracking_overhead_fraction == 0.08
    assert journal.participants == {"d0": "dead (SIGKILL)"}
    assert journal.bad_lines == 0
    assert journal.sha256.startswith("sha256:")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
names = st.sampled_from(
    [
        "phase",
        "pass",
        "cycle",
        "wall_s",
        "peak_bytes",
        "owners",
        "held_bytes",
        "interrupted",
        "exit",
        "kind",
        "class",
        "message",
        "findings",
        "name",
        "state",
        "how",
        "ok",
        "failure",
        "batch",
        "phases",
        "fraction",
        "live_end_bytes",
        "torch",
        "family",
    ]
)
hostile_events = st.builds(
    lambda event, fields: json.dumps({**fields, "event": event}).encode(),
    st.sampled_from([event.value for event in Event]) | values,
    st.dictionaries(names, values | st.sampled_from(["memory", "time", "load"]), max_size=8),
)


@given(st.lists(hostile_events | st.binary(max_size=30), max_size=12), st.binary(max_size=12))
def test_no_journal_makes_reading_fail(tmp_path_factory, lines, tail):
    path = tmp_path_factory.getbasetemp() / "hostile.jsonl"
    data = b"".join(line + b"\n" for line in lines) + tail
    path.write_bytes(data)

    journal = read_journal(str(path), ("load",))

    assert isinstance(journal, Journal)
    whole = [line for line in data.split(b"\n")[:-1] if line.strip()]
    assert len(journal.events) + journal.bad_lines == len(whole)
