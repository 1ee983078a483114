"""Lines of a telemetry file: every cell in its column, whatever was read and however named."""

from __future__ import annotations

import csv
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.gpu.sampling.samples import Event, Sample
from fleetcraft.gpu.status import Status
from fleetcraft.telemetry.columns import COLUMNS
from fleetcraft.telemetry.logger.host import HostReading
from fleetcraft.telemetry.logger.row_writer import RowWriter, number, stamp

AT_S = 1796040000.1239
HOST = HostReading(mem_used_mib=1024.5, mem_total_mib=2048.0, cgroup_mem_mib=None, load=0.25)
FULL = Sample(
    index=3,
    uuid="GPU-3",
    pci_bus_id="00000000:03:00.0",
    mig_uuid="",
    name="NVIDIA A100",
    util_pct=12.5,
    util_max_pct=90.0,
    util_samples=120,
    util_source="samples",
    mem_util_pct=7.0,
    mem_used_mib=1000.25,
    mem_total_mib=40960.0,
    mem_reserved_mib=500.0,
    mem_source="v2",
    power_w=250.1239,
    power_source="average",
    energy_j=1234567890.125,
    temp_c=60.0,
    sm_clock_mhz=1410.0,
    throttle=0x24,
    ecc=0,
    status=Status.OK,
    missing=(("util_max_pct", Status.UNSUPPORTED, 3), ("ecc", Status.UNKNOWN, 999)),
    detail="words",
)


def cells(line: str) -> dict[str, str]:
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert line.count(",") == len(COLUMNS) - 1
    assert '"' not in line
    (row,) = csv.DictReader([",".join(COLUMNS), line])
    return row


@pytest.fixture
def writer() -> RowWriter:
    return RowWriter(HOST, "7", "0")


def test_every_value_stands_in_its_column(writer: RowWriter) -> None:
    assert cells(writer.device(FULL, AT_S)) == {
        "timestamp": "2026-11-30T12:00:00.123Z",
        "mem_used_mib": "1000.25",
        "mem_total_mib": "40960",
        "util_pct": "12.5",
        "power_w": "250.124",
        "gpu_index": "3",
        "gpu_uuid": "GPU-3",
        "pci_bus_id": "00000000:03:00.0",
        "mig_uuid": "",
        "util_max_pct": "90",
        "util_samples": "120",
        "mem_util_pct": "7",
        "energy_j": "1234567890.125",
        "temp_c": "60",
        "sm_clock_mhz": "1410",
        "throttle": "0x24",
        "ecc": "0",
        "status": "ok",
        "host_mem_used_mib": "1024.5",
        "host_mem_total_mib": "2048",
        "cgroup_mem_mib": "",
        "host_load": "0.25",
        "job_id": "7",
        "step_id": "0",
        "kind": "gpu",
        "util_source": "samples",
        "mem_source": "v2",
        "mem_reserved_mib": "500",
        "power_source": "average",
        "missing": "util_max_pct=unsupported ecc=unknown",
        "detail": "words",
    }


def test_rows_that_are_no_samples_hold_host_status_and_words_alone(writer: RowWriter) -> None:
    event = Event(uuid="GPU-3", index=3, text="xid 79", status=Status.LOST)
    rows = {
        "host": writer.host(AT_S, Status.NO_NVML, "w"),
        "heartbeat": writer.heartbeat(AT_S, Status.TIMEOUT, "w"),
        "event": writer.event(AT_S, event),
    }
    for kind, line in rows.items():
        row = cells(line)
        assert row["kind"] == kind
        assert row["host_mem_total_mib"] == "2048"
        filled = {name for name, cell in row.items() if cell}
        filled -= {"timestamp", "status", "kind", "detail", "job_id", "step_id"}
        filled -= {"host_mem_used_mib", "host_mem_total_mib", "host_load"}
        assert filled == ({"gpu_index", "gpu_uuid"} if kind == "event" else set())
    assert cells(rows["event"])["status"] == "lost"


NUMBERS = st.one_of(st.none(), st.floats())
COUNTS = st.one_of(st.none(), st.integers(0, 1 << 64))
TEXTS = st.text(max_size=30)


@given(
    values=st.fixed_dictionaries(
        {
            **dict.fromkeys(["uuid", "pci_bus_id", "mig_uuid", "detail"], TEXTS),
            **dict.fromkeys(["util_pct", "mem_used_mib", "power_w", "energy_j"], NUMBERS),
            **dict.fromkeys(["index", "throttle", "ecc"], COUNTS),
        }
    ),
    status=st.sampled_from(Status),
    is_slice=st.booleans(),
)
def test_whatever_a_driver_says_a_row_has_its_cells(
    values: dict[str, object], status: Status, is_slice: bool
) -> None:
    sample = msgspec.structs.replace(FULL, **values, status=status, is_slice=is_slice)
    row = cells(RowWriter(HOST, "7", "0").device(sample, AT_S))
    assert (row["status"], row["kind"]) == (status, "mig" if is_slice else "gpu")
    assert (row["util_pct"] == "") == (
        sample.util_pct is None or not math.isfinite(sample.util_pct)
    )
    assert all(ord(char) >= 32 for char in row["detail"])


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_written_plainly_and_to_a_thousandth(value: float) -> None:
    text = number(value)
    assert "e" not in text
    assert not text.startswith("-0") or text.startswith("-0.")
    assert abs(float(text) - value) <= max(0.0005, abs(value) * 1e-15)


@pytest.mark.parametrize("at_s", [0.0, 1.9999, 1796040000.9999999, -1.5])
def test_a_stamp_is_cut_never_rounded_up_into_the_future(at_s: float) -> None:
    text = stamp(at_s)
    from datetime import datetime

    read = datetime.fromisoformat(text).timestamp()
    assert read <= at_s < read + 0.001001
