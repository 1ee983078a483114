"""What tasks report of their forward calls, from the line they append to what is read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetcraft import report_forward
from fleetcraft.identity import Owner
from fleetcraft.layout import forwards_file, forwards_folder
from fleetcraft.telemetry.forwards import Call, parse_call, read_forwards

OWNER = Owner("123", "0", "2", "abcdefgh-7")
WAN = {"active_params": 1.3e9, "tokens": 32760, "layers": 30, "seq": 32760, "hidden": 1536}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = Path(forwards_file(str(tmp_path), str(OWNER)))
    path.parent.mkdir(mode=0o700)
    monkeypatch.setenv("FLEET_FORWARDS", str(path))
    return path


def read(file: Path) -> list[Call]:
    found = read_forwards(str(file.parent))
    assert found.rejected == {}
    return found.calls


def test_one_line_of_python_is_one_call_with_its_flops(file: Path) -> None:
    assert report_forward(20, **WAN)
    (call,) = read(file)
    assert call.owner == OWNER
    assert call.forwards == 20
    assert call.flop == pytest.approx(20 * 282.99e12, rel=1e-4)
    assert file.stat().st_mode & 0o777 == 0o600


def test_flops_that_a_task_counted_itself_are_taken_as_they_are(file: Path) -> None:
    assert report_forward(3, flop=1.5e15, family="wan")
    (call,) = read(file)
    assert (call.flop, call.family, call.training) == (1.5e15, "wan", None)


def test_elements_of_arrays_are_numbers_too(file: Path) -> None:
    assert report_forward(np.int64(3), flop=np.float32(2.0**50))  # type: ignore[arg-type]
    assert report_forward(2, **{name: np.float32(value) for name, value in WAN.items()})
    calls = read(file)
    assert (calls[0].forwards, calls[0].flop) == (3, 2.0**50)
    assert calls[1].flop == pytest.approx(2 * 282.99e12, rel=1e-4)


def test_any_language_can_append_a_line(file: Path) -> None:
    line = '{"at":"2026-11-30T02:00:00Z","forwards":4,"flop":2e12}'
    subprocess.run(["bash", "-c", f"echo '{line}' >> \"$FLEET_FORWARDS\""], check=True)
    (call,) = read(file)
    assert (call.at_s, call.forwards, call.flop) == (1796004000.0, 4, 2e12)


def test_outside_a_worker_nothing_is_written(tmp_path: Path) -> None:
    assert report_forward(1, flop=1.0) is False
    assert list(tmp_path.iterdir()) == []


def test_a_task_does_not_fail_because_its_report_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_FORWARDS", str(tmp_path / "gone" / "x.jsonl"))
    assert report_forward(1, flop=1.0) is False


def test_a_link_that_somebody_put_there_is_not_followed(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    file.symlink_to(target)
    assert report_forward(1, flop=1.0) is False
    assert target.read_text() == ""


def test_processes_of_one_task_do_not_mix_their_lines(file: Path) -> None:
    code = "from fleetcraft import report_forward\nfor _ in range(200): report_forward(flop=1.0)"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0]
    assert len(read(file)) == 600


def test_reporting_loads_nothing_heavy(file: Path) -> None:
    code = (
        "import sys; from fleetcraft import report_forward; report_forward(flop=1.0);"
        "print(sorted({'torch','numpy','pandas','pynvml','click','rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"no json", "no_such_object"),
        (b"[1]", "no_such_object"),
        (b'{"forwards":1,"flop":1}', "no_such_object"),
        (b'{"at":"yesterday","flop":1}', "bad_time"),
        (b'{"at":"2026-11-30T02:00:00","flop":1}', "bad_time"),  # of which zone?
        (b'{"at":"2026-11-30T02:00:00Z","forwards":0,"flop":1}', "bad_forwards"),
        (b'{"at":"2026-11-30T02:00:00Z"}', "no_flop"),
        (b'{"at":"2026-11-30T02:00:00Z","flop":-1}', "no_flop"),
        (b'{"at":"2026-11-30T02:00:00Z","flop":1e999}', "no_such_object"),
        (b'{"at":"2026-11-30T02:00:00Z","active_params":-1,"tokens":1}', "no_flop"),
        (b'{"at":"2026-11-30T02:00:00Z","active_params":1e300,"tokens":1e300}', "no_flop"),
        (b'{"at":"' + b"x" * 70000 + b'"}', "too_long"),
    ],
)
def test_a_line_that_cannot_be_used_is_counted_by_its_reason(
    file: Path, line: bytes, why: str
) -> None:
    file.write_bytes(line + b"\n")
    found = read_forwards(str(file.parent))
    assert found.rejected == {why: 1}
    assert found.calls == []


def test_a_torn_tail_is_counted_and_the_lines_before_it_stand(file: Path) -> None:
    report_forward(1, flop=1.0)
    with file.open("ab") as opened:
        opened.write(b'{"at":"2026')
    found = read_forwards(str(file.parent))
    assert len(found.calls) == 1
    assert found.rejected == {"torn_tail": 1}


def test_files_of_nobody_and_pipes_are_named_and_not_waited_for(file: Path) -> None:
    (file.parent / "stranger.jsonl").write_text("{}\n")
    os.mkfifo(file)
    found = read_forwards(str(file.parent))
    assert found.files == 0
    assert len(found.refused) == 2


def test_no_folder_holds_no_calls(tmp_path: Path) -> None:
    found = read_forwards(forwards_folder(str(tmp_path)))
    assert (found.calls, found.files, found.refused) == ([], 0, [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.dictionaries(
            st.sampled_from(["at", "flop", "forwards", "tokens", "active_params", "gpus"]), inner
        ),
        max_leaves=6,
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_line_brings_the_reader_down(line: bytes) -> None:
    found = parse_call(OWNER, line)
    assert isinstance(found, str) or (found.flop > 0 and found.forwards > 0)
