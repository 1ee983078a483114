"""The logger as a real process before a driver that fails in every way, and on disks that fail.

Not here: the command line around it (tests/cli/test_telemetry_log.py), the arithmetic of its
cadence, the file alone.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.gpu.sampling.samples import Device, Event, Sample
from fleetcraft.gpu.status import Status
from fleetcraft.layout import parse_telemetry_file
from fleetcraft.telemetry.columns import COLUMNS, SIDECAR_SCHEMA
from fleetcraft.telemetry.logger.csv_file import CsvFile
from fleetcraft.telemetry.logger.gpu_watch import GpuWatch, Look
from fleetcraft.telemetry.logger.loop import Logger
from fleetcraft.telemetry.logger.settings import LoggerSettings
from fleetcraft.telemetry.logger.waiting import Waiting
from fleetcraft.telemetry.reading.reader import FileReader
from fleetcraft.telemetry.reading.sources import find_sources
from fleetcraft.telemetry.tail import read_tails
from tests.rig import Rig
from tests.telemetry.loggers import Row, RunningLogger, until

MOST_MIB = 30
PAGE = os.sysconf("SC_PAGE_SIZE")
DEADLINE_S = 2.0  # of which a call that comes after a stuck one has half


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "rig").mkdir()
    with Rig(tmp_path / "rig", settings={"gpu.0.util": 87, "gpu.1.util": 12}) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "telemetry"


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-4000-8000-00000000000{number}"


# ---------------------------------------------------------------------------- rows and sidecar


def test_every_gpu_has_a_row_each_sample_and_the_sidecar_says_the_rest(
    rig: Rig, folder: Path
) -> None:
    env = {**rig.env(), "SLURM_GPUS_ON_NODE": "4"}
    with RunningLogger(folder, env, step="0", cluster="c1", samples=3) as logger:
        said = logger.process.communicate(timeout=60)[1]
    assert logger.process.returncode == 0
    (file,) = logger.files
    name = parse_telemetry_file(file.name)
    assert name is not None
    assert (name.node, name.job) == ("n1", "7")
    assert file.read_text().partition("\n")[0] == ",".join(COLUMNS)

    rows = logger.rows()
    assert [row["gpu_uuid"] for row in rows] == [uuid(0), uuid(1)] * 3
    assert {row["kind"] for row in rows} == {"gpu"}
    first = rows[0]
    assert (first["util_pct"], first["mem_total_mib"], first["status"]) == ("87", "40960", "ok")
    assert (first["job_id"], first["step_id"], first["gpu_index"]) == ("7", "0", "0")
    assert float(first["host_mem_total_mib"]) > 0

    sidecar = logger.sidecar
    assert sidecar["schema"] == SIDECAR_SCHEMA
    assert sidecar["columns"] == list(COLUMNS)
    assert (sidecar["node"], sidecar["job_id"], sidecar["step_id"]) == ("n1", "7", "0")
    assert (sidecar["cluster"], sidecar["interval_s"]) == ("c1", 0.1)
    assert sidecar["pid"] == logger.process.pid
    assert sidecar["driver"]["driver_version"] == "535.161.08"
    assert [gpu["uuid"] for gpu in sidecar["gpus"]] == [uuid(0), uuid(1)]
    assert sidecar["gpus"][1]["name"] == "NVIDIA A100-SXM4-40GB"
    assert sidecar["expected_gpus"] == 4
    assert sidecar["started_at"] < sidecar["ended_at"]
    assert sidecar["end_reason"] == "took the samples it was asked for"
    assert (sidecar["rows_written"], sidecar["rows_lost"]) == (6, 0)
    assert said.splitlines() == [
        f"telemetry: {file}, every 0.1 s, 2 GPUs",
        "telemetry: 6 rows written; ended: took the samples it was asked for",
    ]


def test_samples_begin_at_whole_multiples_of_the_interval(rig: Rig, folder: Path) -> None:
    with RunningLogger(folder, rig.env(), interval_s=0.5, samples=4) as logger:
        logger.process.communicate(timeout=60)
    times = [datetime.fromisoformat(row["timestamp"]) for row in logger.rows(gpu_index="0")]
    ticks = [int(at.timestamp() / 0.5) for at in times]
    assert all(at.utcoffset() is not None for at in times)
    assert len(set(ticks[1:])) == 3  # the first one began at once


def test_a_slice_has_a_row_of_its_own_and_its_gpu_no_utilization(rig: Rig, folder: Path) -> None:
    rig.set("gpu.0.mig", 2)
    rig.record_calls()
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(10, "mig", gpu_uuid=uuid(0))
        parent = logger.rows("gpu", gpu_uuid=uuid(0))[0]
        calls = rig.calls()
        # Its list of slices does not differ from the inventory, which is not read again.
        reads = calls["nvmlDeviceGetMemoryInfo_v2 gpu.1"]
        assert reads <= calls["nvmlDeviceGetSamples gpu.1"] + 2
        rig.set("gpu.0.mig", 3)
        until(lambda: len(logger.sidecar["gpus"][0]["mig"]) == 3)
        logger.end()
    assert (parent["status"], parent["util_pct"], parent["mig_uuid"]) == ("mig", "", "")
    slices = {row["mig_uuid"] for row in logger.rows("mig")}
    assert slices == set(logger.sidecar["gpus"][0]["mig"])
    assert len(slices) == 3


def test_cuda_visible_devices_decides_what_is_logged(rig: Rig, folder: Path) -> None:
    env = {**rig.env(), "CUDA_VISIBLE_DEVICES": "1"}
    for settings_, wanted in (({}, {uuid(1)}), ({"all_gpus": True}, {uuid(0), uuid(1)})):
        with RunningLogger(folder, env, samples=1, **settings_) as logger:
            logger.process.communicate(timeout=60)
        (file,) = logger.files
        with file.open() as text:
            assert {row["gpu_uuid"] for row in csv.DictReader(text)} == wanted
        assert logger.sidecar["expected_gpus"] == 1
        file.unlink()


def test_it_stays_small_and_loads_nothing_heavy(rig: Rig, folder: Path) -> None:
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(20)
        status = Path(f"/proc/{logger.process.pid}/status").read_text()
        logger.end()
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)
    assert peak_kib < MOST_MIB * 1024
    program = (
        "import sys, fleetcraft.telemetry.logger\n"
        "heavy = {'numpy', 'pandas', 'click', 'psutil', 'rich', 'yaml', 'asyncio', 'subprocess'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_every_reader_finds_in_its_file_what_it_wrote(rig: Rig, folder: Path) -> None:
    rig.update({"gpu.1.mig": 2, "gpu.0.error.field.186": 3})
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(4)
        rig.set("gpu.0.xid", 31)
        logger.await_rows(1, "event")
        tail = read_tails(str(folder), [("7", "n1")])
        logger.end()
    (source,) = find_sources(str(folder)).sources
    assert source.sidecar_problem == ""
    reader = FileReader(source)
    rows = sum(len(chunk.t_s) for chunk in reader.chunks())
    kinds = Counter(row["kind"] for row in logger.rows())
    assert reader.counts.kinds == {**dict.fromkeys(reader.counts.kinds, 0), **kinds}
    assert not any(reader.counts.rejected.values())
    assert rows == kinds["gpu"] + kinds["mig"]
    assert len(reader.series) == 4
    assert reader.zoned
    assert (tail.files, tail.rows_rejected, tail.refused) == (1, 0, [])
    states = {sighting.uuid: sighting for sighting in tail.places["7", "n1"].gpus}
    assert states[uuid(0)].util_pct == 87


# -------------------------------------------------------------------------------------- ends


def test_term_ends_it_in_order_and_usr1_does_not(rig: Rig, folder: Path) -> None:
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(2)
        logger.process.send_signal(signal.SIGUSR1)
        logger.await_rows(4)
        assert logger.sidecar["ended_at"] is None
        said = logger.end()
    assert logger.process.returncode == 0
    assert logger.sidecar["end_reason"] == "TERM"
    assert logger.sidecar["rows_written"] == len(logger.rows())
    assert said.splitlines()[-1].endswith("; ended: TERM")


@pytest.mark.parametrize("moment", range(3))
def test_killed_at_any_moment_it_leaves_whole_rows_and_a_sidecar_that_does_not_say_it_ended(
    rig: Rig, folder: Path, moment: int
) -> None:
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(1 + 3 * moment)
        logger.end(signal.SIGKILL)
    header, *lines = logger.text.split("\n")
    torn = lines.pop()
    assert torn.count(",") < len(COLUMNS)
    assert {line.count(",") for line in lines} == {len(COLUMNS) - 1}
    assert header == ",".join(COLUMNS)
    assert logger.sidecar["ended_at"] is None


def test_it_ends_with_whoever_started_it_tells_of_lost_gpus_and_can_be_waited_for(
    rig: Rig, folder: Path
) -> None:
    watch_fd, starter_fd = os.pipe()
    waits_fd, done_fd = os.pipe()
    told = {"watch_fd": watch_fd, "done_fd": done_fd}
    popen = {"pass_fds": (watch_fd, done_fd)}
    with RunningLogger(folder, rig.env(), popen=popen, **told) as logger:
        os.close(watch_fd)
        os.close(done_fd)
        os.write(starter_fd, b"words on this pipe mean nothing")
        logger.await_rows(4)
        rig.set("gpu.1.error.all", 15)
        logger.await_rows(1, "event", status="lost")
        assert os.read(waits_fd, 4096) == f"lost GPU {uuid(1)}: GPU 1 is lost\n".encode()
        os.close(starter_fd)
        assert os.read(waits_fd, 1) == b""
        assert logger.process.wait(60) == 0
    os.close(waits_fd)
    assert logger.sidecar["end_reason"] == "its worker left"


def test_a_second_logger_is_refused_in_one_line_that_names_pid_and_file_of_the_first(
    rig: Rig, folder: Path
) -> None:
    with RunningLogger(folder, rig.env()) as first:
        first.await_rows()
        with RunningLogger(folder, rig.env()) as second:
            _, said = second.process.communicate(timeout=60)
        assert second.process.returncode == 75
        (line,) = said.splitlines()
        assert f"pid {first.process.pid} writes {first.files[0]};" in line
        with RunningLogger(folder, rig.env(), node="n2", samples=1) as other:
            other.process.communicate(timeout=60)
        assert other.process.returncode == 0
        assert len(first.files) == 2


def test_one_that_waits_takes_over_when_the_first_has_ended(rig: Rig, folder: Path) -> None:
    with RunningLogger(folder, rig.env()) as first:
        # Both at once would be a race, in which one that does not wait may be refused.
        first.await_rows()
        with RunningLogger(folder, rig.env(), wait_s=600.0) as second:
            until(lambda: _waits_for_the_place(second.process.pid))
            assert len(first.files) == 1
            first.end()
            until(lambda: len(second.files) == 2)
            second.await_rows()
            assert second.sidecar["pid"] == second.process.pid
            second.end()


def _waits_for_the_place(pid: int) -> bool:
    """Whether this logger holds its orders back already, which it does before it asks."""
    text = Path(f"/proc/{pid}/status").read_text()
    caught = int(text.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


# -------------------------------------------------------------------- a driver that misbehaves


def test_a_stuck_gpu_has_rows_with_its_cause_and_the_others_go_on(rig: Rig, folder: Path) -> None:
    rig.record_calls()
    with RunningLogger(folder, rig.env(), deadline_s=DEADLINE_S) as logger:
        logger.await_rows(2, "gpu", gpu_uuid=uuid(0), status="ok")
        rig.set("gpu.0.hang.field", "inf")
        stuck = logger.await_rows(10, "gpu", gpu_uuid=uuid(0), status="timeout")
        logger.await_rows(5, "gpu", gpu_uuid=uuid(1), status="ok")
        calls = {call: count for call, count in rig.calls().items() if call.endswith("gpu.0")}
        logger.await_rows(5, "gpu", gpu_uuid=uuid(0), status="timeout")
        after = {call: count for call, count in rig.calls().items() if call.endswith("gpu.0")}
        assert after == calls  # nothing calls into it while it is stuck
        rig.unset("gpu.0.hang.field")
        logger.await_rows(2, "gpu", gpu_uuid=uuid(0), status="ok")
        logger.end()
    assert {(row["util_pct"], row["mem_used_mib"], row["power_w"]) for row in stuck} == {
        ("", "", "")
    }
    assert "a call has not returned for" in stuck[0]["detail"]
    texts = [row["detail"] for row in logger.rows("event", gpu_uuid=uuid(0))]
    assert texts[0] == "GPU 0 does not answer: a call has not returned"
    assert texts[1].startswith("GPU 0: a call returned after ")
    assert texts[2].startswith("GPU 0 is back; before that it does not answer")
    assert len(texts) == 3
    assert logger.rows("event", gpu_uuid=uuid(1)) == []


CALLS_OF_A_ROW = (
    *("handle", "uuid", "index", "name", "pci", "events", "memory", "mig", "util", "samples"),
    *("field", "power", "energy", "temp", "clock", "throttle", "ecc"),
)


def since_the_first_gpu(logger: RunningLogger, kind: str) -> list[Row]:
    """Rows of a kind, without those of a busy machine whose driver took long to begin."""
    kinds = [row["kind"] for row in logger.rows()]
    return [row for row in logger.rows()[kinds.index("gpu") :] if row["kind"] == kind]


@pytest.mark.parametrize("call", CALLS_OF_A_ROW)
def test_a_gpu_that_is_stuck_before_the_first_row_costs_the_others_none(
    rig: Rig, folder: Path, call: str
) -> None:
    rig.record_calls()
    rig.update({"gpus": 4, f"gpu.1.hang.{call}": "inf"})
    if call == "power":  # the plain call is for cards that lack these fields
        rig.set("gpu.1.error.field", 3)
    others = {uuid(0), uuid(2), uuid(3)}
    with RunningLogger(folder, rig.env(), deadline_s=DEADLINE_S) as logger:
        stuck = logger.await_rows(3, "gpu", gpu_index="1", status="timeout")
        calls = {call: count for call, count in rig.calls().items() if call.endswith("gpu.1")}
        logger.await_rows(3, "gpu", gpu_index="1", status="timeout")
        after = {call: count for call, count in rig.calls().items() if call.endswith("gpu.1")}
        assert after == calls  # nothing calls into it while it is stuck
        seen = logger.rows("gpu")
        known = {gpu["uuid"] for gpu in logger.sidecar["gpus"] if gpu["index"] != 1}
        assert known == others

        rig.unset(f"gpu.1.hang.{call}")
        logger.await_rows(2, "gpu", gpu_uuid=uuid(1), status="ok")
        until(lambda: logger.sidecar["gpus"][1]["mem_total_mib"] is not None)
        logger.end()
    assert {row["gpu_uuid"] for row in seen[:4]} - {""} >= others
    assert {row["status"] for row in seen if row["gpu_uuid"] in others} == {"ok"}
    assert {row["gpu_uuid"] for row in stuck} == {"" if call in ("handle", "uuid") else uuid(1)}
    assert "a call has not returned for" in stuck[0]["detail"]
    assert since_the_first_gpu(logger, "heartbeat") == logger.rows("host") == []
    gpu = logger.sidecar["gpus"][1]
    assert (gpu["uuid"], gpu["pci_bus_id"], gpu["index"]) == (uuid(1), "00000000:02:00.0", 1)
    assert (gpu["name"], gpu["mem_total_mib"]) == ("NVIDIA A100-SXM4-40GB", 40960.0)
    told = [row["detail"] for row in logger.rows("event", gpu_index="1")]
    assert told[0] == "GPU 1 does not answer: a call has not returned"
    assert told[1].startswith("GPU 1: a call returned after ")
    assert told[-1] == "GPU 1 is back; before that it does not answer: a call has not returned"


@pytest.mark.parametrize("call", ["handle", "uuid"])
def test_a_wanted_gpu_that_may_be_the_one_that_is_stuck_is_not_asked_by_another_way(
    rig: Rig, folder: Path, call: str
) -> None:
    rig.record_calls()
    rig.update({"gpus": 3, f"gpu.1.hang.{call}": "inf"})
    env = {**rig.env(), "CUDA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}"}
    with RunningLogger(folder, env, deadline_s=DEADLINE_S) as logger:
        logger.await_rows(3, "gpu", gpu_uuid=uuid(1), status="timeout")
        calls = [one for one in rig.calls().elements() if one.endswith("gpu.1")]
        assert len(calls) == (1 if call == "handle" else 2)
        rig.unset(f"gpu.1.hang.{call}")
        logger.await_rows(2, "gpu", gpu_uuid=uuid(1), gpu_index="1", status="ok")
        logger.end()
    assert {row["gpu_uuid"] for row in logger.rows("gpu")} == {uuid(0), uuid(1)}
    assert {row["status"] for row in logger.rows("gpu", gpu_uuid=uuid(0))} == {"ok"}
    assert [gpu["index"] for gpu in logger.sidecar["gpus"]] == [0, 1]


def test_two_gpus_that_are_stuck_from_the_start_come_back_one_by_one(
    rig: Rig, folder: Path
) -> None:
    rig.update({"gpus": 3, "gpu.1.hang.handle": "inf", "gpu.2.hang.memory": "inf"})
    with RunningLogger(folder, rig.env(), deadline_s=DEADLINE_S) as logger:
        logger.await_rows(2, "gpu", gpu_index="1", status="timeout")
        logger.await_rows(2, "gpu", gpu_index="2", status="timeout")
        rig.unset("gpu.1.hang.handle")
        logger.await_rows(2, "gpu", gpu_uuid=uuid(1), status="ok")
        logger.await_rows(2, "gpu", gpu_uuid=uuid(2), status="timeout")
        rig.unset("gpu.2.hang.memory")
        logger.await_rows(2, "gpu", gpu_uuid=uuid(2), status="ok")
        logger.end()
    assert {row["status"] for row in logger.rows("gpu", gpu_index="0")} == {"ok"}


def test_a_slice_whose_gpu_is_stuck_from_the_start_has_rows_too(rig: Rig, folder: Path) -> None:
    rig.set("gpu.1.mig", 2)
    with RunningLogger(folder, rig.env(), samples=1) as logger:
        logger.process.communicate(timeout=60)
    wanted = logger.rows("mig")[0]["mig_uuid"]
    logger.files[0].unlink()
    rig.set("gpu.1.hang.handle", "inf")
    env = {**rig.env(), "CUDA_VISIBLE_DEVICES": wanted}
    with RunningLogger(folder, env, deadline_s=DEADLINE_S) as logger:
        logger.await_rows(3, "mig", mig_uuid=wanted, status="timeout")
        assert logger.rows("gpu") == []  # nothing is known of it but its slice
        rig.unset("gpu.1.hang.handle")
        logger.await_rows(2, "mig", mig_uuid=wanted, gpu_uuid=uuid(1), status="mig")
        logger.end()


@pytest.mark.parametrize(
    "what",
    [
        *("gpu.0.hang.samples", "gpu.0.hang.memory", "gpu.0.hang.handle", "gpu.0.hang.all"),
        *("hang.init", "hang.count"),
    ],
)
def test_term_is_honoured_while_a_call_hangs(rig: Rig, folder: Path, what: str) -> None:
    rig.set(what, "inf")
    with RunningLogger(folder, rig.env(), deadline_s=DEADLINE_S) as logger:
        logger.await_rows(2, status="timeout")
        said = logger.end()
    assert logger.process.returncode == 0
    assert logger.sidecar["end_reason"] == "TERM"
    assert "Traceback" not in said


def test_term_does_not_wait_for_a_long_deadline(rig: Rig, folder: Path) -> None:
    with RunningLogger(folder, rig.env(), deadline_s=3600.0) as logger:
        logger.await_rows(2)
        rig.set("gpu.0.hang.all", "inf")
        until(lambda: _blocked_rows(logger))
        logger.end()
    assert logger.process.returncode == 0
    assert logger.rows(status="timeout") == logger.rows("host") == []


def _blocked_rows(logger: RunningLogger) -> bool:
    """Whether no row has come for several intervals: the call hangs, and its deadline is far."""
    before = len(logger.rows())
    time.sleep(0.5)
    return len(logger.rows()) == before


def test_a_stuck_initialization_is_heartbeats_and_the_gpus_come_once_it_returns(
    rig: Rig, folder: Path
) -> None:
    rig.record_calls()
    rig.set("hang.init", "inf")
    with RunningLogger(folder, rig.env(), deadline_s=DEADLINE_S) as logger:
        beats = logger.await_rows(3, "heartbeat")
        assert rig.calls()["nvmlInitWithFlags"] == 1
        rig.unset("hang.init")
        logger.await_rows(2, "gpu", status="ok")
        logger.end()
    assert {row["status"] for row in beats} == {"timeout"}
    assert all(float(row["host_mem_total_mib"]) > 0 for row in beats)
    texts = [row["detail"] for row in logger.rows("event")]
    assert texts == [
        "the driver does not answer: its initialization",
        "the driver answers again; before that: timeout",
    ]
    assert len(logger.sidecar["gpus"]) == 2


@pytest.mark.parametrize(
    ("code", "status"),
    [(9, "driver_not_loaded"), (18, "version_mismatch"), (4, "no_permission"), (12, "no_nvml")],
)
def test_without_a_driver_the_host_is_logged_and_the_gpus_once_it_answers(
    rig: Rig, folder: Path, code: int, status: str
) -> None:
    rig.set("error.init", code)
    with RunningLogger(folder, rig.env()) as logger:
        hosts = logger.await_rows(3, "host", status=status)
        rig.unset("error.init")
        logger.await_rows(2, "gpu", status="ok")
        logger.end()
    assert all(float(row["host_mem_total_mib"]) > 0 for row in hosts)
    assert {row["gpu_uuid"] + row["util_pct"] for row in hosts} == {""}
    events = [row["detail"] for row in logger.rows("event")]
    assert events[-1] == f"the driver answers again; before that: {status}"
    assert len(events) == (1 if status == "no_nvml" else 2)


def test_a_driver_that_goes_away_leaves_rows_of_each_gpu_and_comes_back(
    rig: Rig, folder: Path
) -> None:
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(2, "gpu", status="ok")
        rig.update({"error.init": 9, "gpu.0.error.all": 1, "gpu.1.error.all": 1})
        gone = logger.await_rows(4, "gpu", status="driver_not_loaded")
        rig.unset("error.init", "gpu.0.error.all", "gpu.1.error.all")
        logger.await_rows(4, "gpu", status="ok")
        logger.end()
    assert {row["gpu_uuid"] for row in gone} == {uuid(0), uuid(1)}
    assert {row["util_pct"] for row in gone} == {""}
    assert logger.rows("host") == []


def test_a_lost_gpu_keeps_its_rows_and_its_name_and_is_told_once(rig: Rig, folder: Path) -> None:
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(2, "gpu", status="ok")
        rig.set("gpu.1.error.all", 15)
        lost = logger.await_rows(5, "gpu", gpu_uuid=uuid(1), status="lost")
        rig.unset("gpu.1.error.all")
        logger.await_rows(2, "gpu", gpu_uuid=uuid(1), status="ok")
        logger.end()
    assert {row["util_pct"] + row["mem_used_mib"] for row in lost} == {""}
    assert {row["gpu_index"] for row in lost} == {"1"}
    events = logger.rows("event")
    assert [(row["detail"], row["status"], row["gpu_uuid"]) for row in events] == [
        ("GPU 1 is lost", "lost", uuid(1)),
        ("GPU 1 is back; before that it is lost", "ok", uuid(1)),
    ]
    assert {row["status"] for row in logger.rows("gpu", gpu_uuid=uuid(0))} == {"ok"}


@pytest.mark.parametrize("visible", [None, "0,1"])
def test_a_logger_that_begins_with_a_lost_gpu_has_its_name_from_the_one_before(
    rig: Rig, folder: Path, visible: str | None
) -> None:
    env = rig.env() if visible is None else {**rig.env(), "CUDA_VISIBLE_DEVICES": visible}
    with RunningLogger(folder, env) as logger:
        logger.await_rows(2, "gpu", status="ok")
        logger.process.kill()
    for number in range(20):  # a fleet's files lie in one folder
        (folder / f"n2{number}_job7_20990101T000000Z.csv").touch()
    rig.set("gpu.1.error.all", 15)
    with RunningLogger(folder, env) as logger:
        logger.await_rows(3, "gpu", status="lost", gpu_uuid=uuid(1), gpu_index="1")
        logger.end()
    assert {row["gpu_uuid"] for row in logger.rows("gpu")} == {uuid(0), uuid(1)}
    newest = json.loads(max(folder.glob("n1_*.json")).read_text())
    assert [gpu["uuid"] for gpu in newest["gpus"]] == [uuid(0), uuid(1)]


def test_it_takes_no_name_from_another_boot_or_job_or_from_a_file_that_is_none(
    rig: Rig, folder: Path
) -> None:
    with RunningLogger(folder, rig.env(), samples=1) as logger:
        logger.process.communicate(timeout=60)
    (file,) = folder.glob("*.json")
    told = json.loads(file.read_text())
    for number, other in enumerate(
        (b"{", b"[]", json.dumps({**told, "boot_id": "x"}).encode(),
         json.dumps({**told, "job_id": "8"}).encode())
    ):  # fmt: skip
        file.with_name(f"n1_job7_2099010{number + 1}T000000Z.csv").touch()
        file.with_name(f"n1_job7_2099010{number + 1}T000000Z.json").write_bytes(other)
    file.with_suffix(".csv").unlink()
    rig.set("gpu.1.error.all", 15)
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(2, "gpu", status="lost", gpu_uuid="", gpu_index="1")


def test_a_gpu_that_the_driver_lists_no_more_is_absent_until_it_does(
    rig: Rig, folder: Path
) -> None:
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(2, "gpu", status="ok")
        rig.set("gpu.0.absent", 1)
        logger.await_rows(3, "gpu", gpu_uuid=uuid(0), status="absent")
        logger.await_rows(2, "gpu", gpu_uuid=uuid(1), status="ok")
        rig.unset("gpu.0.absent")
        logger.await_rows(2, "gpu", gpu_uuid=uuid(0), status="ok")
        logger.end()
    told = [row["detail"] for row in logger.rows("event", gpu_uuid=uuid(0))]
    assert told == [
        "GPU 0 is not listed by the driver",
        "GPU 0 is back; before that it is not listed by the driver",
    ]
    assert len(logger.sidecar["gpus"]) == 2


def test_a_gpu_that_is_added_is_logged_and_enters_the_sidecar(rig: Rig, folder: Path) -> None:
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(2, "gpu", status="ok")
        rig.set("gpus", 3)
        logger.await_rows(2, "gpu", gpu_uuid=uuid(2), status="ok")
        assert [gpu["uuid"] for gpu in logger.sidecar["gpus"]] == [uuid(0), uuid(1), uuid(2)]
        logger.end()


def test_an_xid_is_an_event_row_with_its_gpu(rig: Rig, folder: Path) -> None:
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(2, "gpu")
        rig.set("gpu.1.xid", 31)
        (row,) = logger.await_rows(1, "event")
        logger.end()
    assert row["gpu_uuid"] == uuid(1)
    assert row["detail"].startswith("xid 31")
    assert len(logger.rows("event")) == 1


# ------------------------------------------------------------------------------ disk troubles


def test_a_full_disk_does_not_end_it_and_what_was_lost_is_told(rig: Rig, small_mount: Path) -> None:
    with RunningLogger(small_mount / "telemetry", rig.env()) as logger:
        logger.await_rows(4)
        filler = small_mount / "filler"
        _fill(filler)
        # The last page is full, so a row was torn.
        until(lambda: logger.files[0].stat().st_size % PAGE == 0, "the disk is not full")
        filler.unlink()
        (event,) = logger.await_rows(1, "event")
        logger.await_rows(4, "gpu")
        logger.end()
    assert logger.process.returncode == 0
    lost = logger.sidecar["rows_lost"]
    assert lost > 0
    assert event["detail"] == f"{lost} rows were not written: No space left on device"
    widths = Counter(line.count(",") for line in logger.text.splitlines())
    damaged = sum(count for width, count in widths.items() if width != len(COLUMNS) - 1)
    assert damaged <= 1


def _fill(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


@pytest.fixture
def small_mount(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("there is no mount program here")
    if made.returncode != 0:
        pytest.skip(f"no tmpfs may be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_past_a_limit_of_the_file_size_it_goes_on_too(rig: Rig, folder: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    with RunningLogger(folder, rig.env(), popen={"preexec_fn": limit}, samples=20) as logger:
        _, said = logger.process.communicate(timeout=60)
    assert logger.process.returncode == 0
    assert logger.files[0].stat().st_size == 3000
    assert logger.sidecar["rows_lost"] + logger.sidecar["rows_written"] >= 40
    assert f"{logger.sidecar['rows_lost']} lost" in said


def test_after_its_file_was_removed_it_begins_another_one(rig: Rig, folder: Path) -> None:
    with RunningLogger(folder, rig.env()) as logger:
        logger.await_rows(2)
        (first,) = logger.files
        first.unlink()
        until(lambda: bool(logger.files))
        logger.await_rows(2)
        logger.end()
    assert logger.sidecar["end_reason"] == "TERM"
    assert logger.sidecar["rows_lost"] == 0


@pytest.mark.parametrize(
    ("argument", "code", "words"),
    [
        ("{", 2, "expected the settings as one JSON object"),
        ('{"folder":"/x"}', 2, "interval_s"),
        ('{"folder":"/x","interval_s":0,"node":"n","job":"7"}', 2, "the interval is 0 s"),
        ('{"folder":"/x","interval_s":1,"node":"n","job":"7","colour":1}', 2, "colour"),
        ('{"folder":"/proc/x/y","interval_s":1,"node":"n","job":"7"}', 5, "cannot log to /proc/x"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    argument: str, code: int, words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fleetcraft.telemetry.logger", argument],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert words in line


# --------------------------------------------------------------------------------- the clock


class Clocks:
    """A wall clock that can be set while a logger waits, and a `Waiting` that only moves it."""

    def __init__(self, start_s: float, steps_s: list[float]) -> None:
        self.wall_s = start_s
        self.waited_s = 0.0
        self.waits = 0
        self.ended_by = ""
        self._steps_s = steps_s

    def end(self, why: str) -> None:
        self.ended_by = why

    def wait(self, limit_s: float) -> bool:
        assert limit_s >= 0
        if self.ended_by:
            return False
        self.waits += 1
        self.waited_s += limit_s
        self.wall_s += limit_s + (self._steps_s.pop() if self._steps_s else 0.0)
        return True


class TwoGpus:
    """A `GpuWatch` whose every look takes its time and shows two GPUs."""

    versions = None

    def __init__(self, clocks: Clocks, took_s: float) -> None:
        self.devices: list[Device] = []
        self._clocks = clocks
        self._took_s = took_s
        self.looks: list[float] = []
        self.drains: list[float] = []

    def look(self, now_s: float) -> Look:
        self.looks.append(self._clocks.waited_s)
        self._clocks.wall_s += self._took_s
        self._clocks.waited_s += self._took_s
        event = Event(uuid="", index=None, text='a, "quoted"\nevent', status=Status.OK)
        samples = [Sample(index=index, uuid=uuid(index), util_pct=5.0) for index in (0, 1)]
        return Look(rows=[(now_s, sample) for sample in samples], events=[event])

    def drain(self) -> None:
        self.drains.append(self._clocks.waited_s)


def log_by(clocks: Clocks, folder: Path, interval_s: float, took_s: float, samples: int) -> TwoGpus:
    settings_ = LoggerSettings(
        folder=str(folder), interval_s=interval_s, node="n1", job="7", samples=samples
    )
    watch = TwoGpus(clocks, took_s)
    writes: list[bytes] = []

    def write(fd: int, data: bytes) -> int:
        writes.append(data)
        return os.write(fd, data)

    file = CsvFile(str(folder), "n1", "7", wall_s=lambda: clocks.wall_s, write=write)
    logger = Logger(
        settings_,
        cast(Waiting, clocks),
        file,
        cast(GpuWatch, watch),
        wall_s=lambda: clocks.wall_s,
        monotonic_s=lambda: clocks.waited_s,
    )
    ended = logger.run(lambda _: None)
    assert ended.samples == samples
    assert len(writes) == 1 + samples  # the header, and all rows of a sample at once
    assert {data.count(b"\n") for data in writes[1:]} == {3}
    assert {line.count(b",") for data in writes for line in data.splitlines()} == {30}
    for path in folder.iterdir():
        path.unlink()
    return watch


STEPS_S = st.lists(st.one_of(st.just(0.0), st.floats(-1e5, 1e5), st.floats(-2.0, 2.0)), max_size=30)


@settings(max_examples=25, deadline=None)
@given(
    start_s=st.floats(1e6, 3e9),
    steps_s=STEPS_S,
    interval_s=st.sampled_from([0.1, 1.0, 7.0, 10.0]),
    took=st.sampled_from([0.0, 0.3, 2.5]),
)
def test_a_clock_that_is_set_neither_stops_it_nor_makes_it_spin(
    tmp_path_factory: pytest.TempPathFactory,
    start_s: float,
    steps_s: list[float],
    interval_s: float,
    took: float,
) -> None:
    clocks = Clocks(start_s, list(steps_s))
    folder = tmp_path_factory.mktemp("telemetry")
    watch = log_by(clocks, folder, interval_s, took * interval_s, samples=10)
    folder.rmdir()
    pauses = [b - a for a, b in zip(watch.looks, watch.looks[1:], strict=False)]
    # A step may hit each of the waits between two samples, and each makes a wait of its own.
    assert max(pauses) <= (took + 2 + len(steps_s)) * interval_s + 1
    assert clocks.waits <= 3 * 10 + len(steps_s)


def test_a_sample_that_takes_longer_than_the_interval_is_followed_by_one_not_by_a_burst(
    tmp_path: Path,
) -> None:
    clocks = Clocks(1e9 + 3, [])
    watch = log_by(clocks, tmp_path, interval_s=10.0, took_s=25.0, samples=4)
    assert watch.looks == pytest.approx([0.0, 27.0, 57.0, 87.0])


@pytest.mark.parametrize(
    ("interval_s", "drains"), [(10.0, []), (30.0, [15.0, 45.0]), (60.0, [15, 30, 45, 75, 90, 105])]
)
def test_the_drivers_buffers_are_emptied_before_they_run_over(
    tmp_path: Path, interval_s: float, drains: list[float]
) -> None:
    watch = log_by(Clocks(1.2e9, []), tmp_path, interval_s, took_s=0.0, samples=3)
    assert watch.looks == pytest.approx([0.0, interval_s, 2 * interval_s])
    assert watch.drains == pytest.approx(drains)
