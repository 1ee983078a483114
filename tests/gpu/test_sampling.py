"""What the sampler makes of everything that a driver does, on the rig and the real binding.

Not here: the folding of the driver's buffer, which is in test_utilization. The tests follow the
table of failures: a cell that was not measured is empty with its cause, the row is written all the
same, and neither another cell nor another GPU is lost with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.gpu.sampling.slices import LOOK_EVERY
from tests.gpu.sampling_player import Player, causes
from tests.rig import Rig

UUIDS = [f"GPU-00000000-0000-4000-8000-{number:012}" for number in range(8)]
SLICES = [f"MIG-00000000-0000-4000-8000-{0:08}{number:04}" for number in range(8)]


@pytest.fixture(scope="module")
def the_player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with Rig(tmp_path_factory.mktemp("rig")) as rig:
        player = Player(rig.env(), rig)
        yield player
        player.close()


@pytest.fixture
def rig(the_player: Player) -> Rig:
    assert the_player.rig is not None
    the_player.rig.clear()
    return the_player.rig


@pytest.fixture
def player(the_player: Player, rig: Rig) -> Player:
    return the_player


def older_driver(tmp_path: Path, *absent: str) -> Iterator[Player]:
    with Rig(tmp_path, absent=absent) as rig:
        player = Player(rig.env(), rig)
        yield player
        player.close()


def assert_healthy(row: Any) -> None:
    assert (row.status, row.missing) == ("ok", [])
    assert None not in (row.util_pct, row.mem_used_mib, row.mem_total_mib, row.power_w)


# ------------------------------------------------------------------------------ a healthy GPU


def test_a_healthy_gpu_gives_every_cell(player: Player, rig: Rig) -> None:
    rig.update(
        {
            "gpu.0.util": 87,
            "gpu.0.mem_util": 40,
            "gpu.0.mem_used_mib": 30000,
            "gpu.0.power_mw": 250000,
            "gpu.0.temp": 60,
            "gpu.0.sm_clock": 1400,
            "gpu.0.ecc": 3,
        }
    )
    player.play()
    row = player.row()
    assert_healthy(row)
    assert (row.index, row.uuid, row.pci_bus_id) == (0, UUIDS[0], "00000000:01:00.0")
    assert row.name == "NVIDIA A100-SXM4-40GB"
    assert (row.util_pct, row.util_max_pct, row.util_source) == (87, 87, "samples")
    assert (row.mem_util_pct, row.mem_used_mib, row.mem_total_mib) == (40, 30000, 40960)
    assert (row.mem_reserved_mib, row.mem_source) == (500, "v2")
    assert (row.power_w, row.power_source, row.energy_j) == (250, "average", 1000)
    assert (row.temp_c, row.sm_clock_mhz, row.throttle, row.ecc) == (60, 1400, 0, 3)
    assert row.detail == ""
    assert not row.is_slice


def test_the_inventory_names_every_gpu(player: Player, rig: Rig) -> None:
    rig.update({"gpus": 3, "gpu.2.name": "NVIDIA H200", "gpu.2.mem_total_mib": 143771})
    devices = player.play()
    assert [one.uuid for one in devices] == UUIDS[:3]
    assert [one.index for one in devices] == [0, 1, 2]
    assert (devices[2].name, devices[2].mem_total_mib) == ("NVIDIA H200", 143771)
    assert devices[2].pci_bus_id == "00000000:03:00.0"
    assert devices[2].status == "ok"


def test_the_driver_says_its_versions(player: Player) -> None:
    player.play()
    versions = player.call("versions")
    assert versions.driver_version == "535.161.08"
    assert (versions.nvml_version, versions.cuda_version) == ("12.535.161.08", "12.2")


def test_one_session_lasts_for_all_samples(player: Player, rig: Rig) -> None:
    rig.record_calls()
    before = rig.calls()
    player.play()
    player.rows(times=5)
    made = rig.calls() - before
    assert made["nvmlInitWithFlags"] == 1
    assert made["nvmlDeviceGetHandleByIndex_v2 gpu.0"] == 1
    assert made["nvmlDeviceGetUUID gpu.0"] == 2  # once to choose it, once to name it


def test_a_driver_with_no_gpu_gives_no_rows(player: Player, rig: Rig) -> None:
    rig.update({"count": 0, "gpus": 0})
    assert player.play() == []
    assert player.rows() == []


def test_texts_of_the_driver_fit_a_cell(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.name", 'NVIDIA "odd", \x1b[31m\tcard')
    device = player.play()[0]
    assert device.name == "NVIDIA odd [31m card"


# -------------------------------------------------------------------------------- utilization


def test_a_row_folds_all_samples_since_the_row_before(player: Player, rig: Rig) -> None:
    player.play()
    player.rows()
    rig.set("gpu.0.samples", [10, 20, 90])
    row = player.row()
    assert (row.util_max_pct, row.util_samples, row.util_source) == (90, 3, "samples")
    assert row.util_pct == pytest.approx(40, abs=0.1)


def test_the_first_row_takes_no_sample_from_before_its_time(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.samples_hz", 20)  # the buffer holds 6 s
    player.play(interval_s=2.0)
    assert 38 <= player.row().util_samples <= 41


def test_a_sample_is_counted_once(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.samples_hz", 0.5)
    player.play(interval_s=60.0)
    first, second = player.row(), player.row()
    assert first.util_samples >= 29
    assert (second.util_samples or 0) <= 1


def test_samples_of_a_drain_enter_the_next_row(player: Player, rig: Rig) -> None:
    player.play()
    player.rows()
    rig.set("gpu.0.samples", [100, 100])
    player.call("drain")
    rig.set("gpu.0.samples", [50, 50])
    row = player.row()
    assert (row.util_max_pct, row.util_samples) == (100, 4)
    assert 50 < row.util_pct < 100


def test_with_nothing_new_in_the_buffer_the_plain_call_stands_in(player: Player, rig: Rig) -> None:
    rig.update({"gpu.0.samples_hz": 0, "gpu.0.util": 33})
    player.play()
    row = player.row()
    assert (row.util_pct, row.util_source) == (33, "instant")
    assert (row.util_max_pct, row.util_samples) == (None, None)
    assert (row.status, row.missing) == ("ok", [])


def test_impossible_samples_are_left_out_and_counted(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.samples", [10, 4294967295, 30, 101])
    player.play()
    row = player.row()
    assert (row.util_pct, row.util_max_pct, row.util_samples) == (20, 30, 2)
    assert row.detail.split()[0] == "invalid_samples=2"


def test_a_buffer_of_impossible_samples_alone_gives_way_to_the_plain_call(
    player: Player, rig: Rig
) -> None:
    rig.update({"gpu.0.samples": [4294967295], "gpu.0.util": 12})
    player.play()
    row = player.row()
    assert (row.util_pct, row.util_source, row.status) == (12, "instant", "ok")
    assert "invalid_samples=1" in row.detail


def test_an_impossible_utilization_is_invalid(player: Player, rig: Rig) -> None:
    rig.update({"gpu.0.samples_hz": 0, "gpu.0.util": 4294967295})
    player.play()
    row = player.row()
    assert (row.util_pct, row.util_source, row.status) == (None, "", "invalid")
    assert causes(row) == {"util_pct": "invalid"}
    assert (row.mem_used_mib, row.power_w) == (10, 55)


def test_a_driver_without_the_buffer_is_not_asked_for_it_again(player: Player, rig: Rig) -> None:
    rig.update({"missing": "nvmlDeviceGetSamples", "gpu.0.util": 40})
    rig.record_calls()
    player.play()
    row = player.row()
    assert (row.util_pct, row.util_source, row.status) == (40, "instant", "ok")
    assert causes(row) == {
        "util_max_pct": "unsupported_driver",
        "util_samples": "unsupported_driver",
    }
    assert player.calls_of("sample", times=3)["nvmlDeviceGetSamples gpu.0"] == 0
    assert causes(player.row())["util_samples"] == "unsupported_driver"


@pytest.mark.parametrize("power_mw", [250000, 55000])
def test_a_utilization_that_is_always_0_is_kept_and_suspected_when_power_is_high(
    player: Player, rig: Rig, power_mw: int
) -> None:
    rig.update({"gpu.0.util": 0, "gpu.0.power_mw": power_mw, "gpu.0.power_limit_mw": 400000})
    player.play()
    row = player.row(times=3)
    assert (row.util_pct, row.status) == (0, "ok")
    words = row.detail.split()
    assert ("util_zero_suspect" in words) == (power_mw == 250000)
    assert ("contradicted_by=power" in words) == (power_mw == 250000)


def test_a_utilization_that_is_always_0_is_suspected_when_a_process_is_there(
    player: Player, rig: Rig
) -> None:
    rig.update({"gpu.0.util": 0, "gpu.0.processes": 1})
    player.play()
    assert "util_zero_suspect" not in player.row(times=2).detail  # it may just have begun
    assert player.row().detail.split() == ["util_zero_suspect", "contradicted_by=process"]
    rig.set("gpu.0.util", 1)
    player.row()
    rig.set("gpu.0.util", 0)
    assert "util_zero_suspect" not in player.row(times=4).detail  # it does count


# -------------------------------------------------------------------------------------- memory


def test_a_gpu_without_memory_of_its_own_has_empty_cells_and_the_cause(
    player: Player, rig: Rig
) -> None:
    rig.update({"gpu.0.error.memory": 3, "gpu.0.processes": 2, "gpu.0.process_mem_mib": 512})
    device = player.play()[0]
    row = player.row()
    assert device.mem_total_mib is None
    assert (row.mem_used_mib, row.mem_total_mib, row.mem_source) == (None, None, "")
    assert row.status == "unified"
    assert causes(row) == {"mem_used_mib": "unified", "mem_total_mib": "unified"}
    assert "process_mem_mib=1024" in row.detail.split()
    assert (row.util_pct, row.power_w) == (0, 55)


def test_the_hosts_memory_is_not_taken_for_the_gpus(player: Player, rig: Rig) -> None:
    total_kib = int(Path("/proc/meminfo").read_text().split()[1])
    rig.set("gpu.0.mem_total_mib", f"{total_kib / 1024:.10f}")
    player.play()
    row = player.row()
    assert (row.mem_used_mib, row.mem_total_mib, row.status) == (None, None, "unified")


@pytest.mark.parametrize(("total_mib", "used_mib"), [(0, 0), (0, 10), (100, 101)])
def test_a_memory_that_cannot_be_is_invalid(
    player: Player, rig: Rig, total_mib: int, used_mib: int
) -> None:
    rig.update({"gpu.0.mem_total_mib": total_mib, "gpu.0.mem_used_mib": used_mib})
    player.play()
    row = player.row()
    assert (row.mem_used_mib, row.mem_total_mib, row.status) == (None, None, "invalid")


@pytest.mark.parametrize("code", [13, 25])
def test_without_version_2_of_the_memory_call_version_1_is_used_and_said(
    player: Player, rig: Rig, code: int
) -> None:
    rig.set("gpu.0.error.nvmlDeviceGetMemoryInfo_v2", code)
    player.play()
    row = player.row()
    # Version 1 counts the 500 MiB that the driver keeps for itself.
    assert (row.mem_used_mib, row.mem_total_mib, row.mem_source) == (510, 40960, "v1")
    assert row.mem_reserved_mib is None
    assert (row.status, causes(row)) == ("ok", {"mem_reserved_mib": "unsupported_driver"})
    rig.record_calls()
    assert player.calls_of("sample", times=3)["nvmlDeviceGetMemoryInfo_v2 gpu.0"] == 0


# --------------------------------------------------------------------------- power and energy


def test_power_is_the_average_of_the_last_second_where_the_gpu_tells_it(
    player: Player, rig: Rig
) -> None:
    rig.update({"gpu.0.power_average_mw": 200000, "gpu.0.power_instant_mw": 300000})
    player.play()
    row = player.row()
    assert (row.power_w, row.power_source) == (200, "average")


@pytest.mark.parametrize("code", [2, 3])  # a driver that has never heard of the field, or a GPU
def test_a_field_that_fails_in_a_query_that_succeeds_is_no_value(
    player: Player, rig: Rig, code: int
) -> None:
    rig.update({"gpu.0.error.field.185": code, "gpu.0.power_instant_mw": 300000})
    player.play()
    row = player.row()
    assert (row.power_w, row.power_source, row.status) == (300, "instant", "ok")
    rig.set("gpu.0.error.field.186", code)
    row = player.row()
    assert (row.power_w, row.power_source, row.status) == (55, "usage", "ok")


def test_without_any_power_reading_the_cell_is_empty(player: Player, rig: Rig) -> None:
    rig.update({"gpu.0.error.power": 3, "gpu.0.error.energy": 3})
    player.play()
    row = player.row()
    assert (row.power_w, row.power_source, row.energy_j) == (None, "", None)
    assert causes(row) == {"power_w": "unsupported", "energy_j": "unsupported"}
    assert row.status == "unsupported"
    assert row.util_pct == 0


@pytest.mark.parametrize("power_mw", [0, 4294967295])
def test_a_power_that_cannot_be_is_invalid(player: Player, rig: Rig, power_mw: int) -> None:
    rig.set("gpu.0.power_mw", power_mw)
    player.play()
    row = player.row()
    assert (row.power_w, row.status) == (None, "invalid")


def test_an_energy_counter_that_begins_anew_is_handed_on_as_it_is(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.energy_mj", 5_000_000)
    player.play()
    assert player.row().energy_j == 5000
    rig.set("gpu.0.energy_mj", 0)
    assert player.row().energy_j == 0


def test_a_power_that_is_missing_is_worse_than_an_energy_that_is(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.error.nvmlDeviceGetTotalEnergyConsumption", 3)
    player.play()
    row = player.row()
    assert (row.status, causes(row)) == ("ok", {"energy_j": "unsupported"})


# ------------------------------------------------------------------------------ other readings


def test_the_throttle_mask_is_kept_and_put_into_words(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.throttle", "0x8000000000000044")
    player.play()
    row = player.row()
    assert row.throttle == 0x8000000000000044
    assert "throttle=sw_power_cap+hw_thermal_slowdown+bit63" in row.detail.split()


def test_the_throttle_mask_is_found_under_its_old_name(player: Player, rig: Rig) -> None:
    rig.update({"missing": "nvmlDeviceGetCurrentClocksEventReasons", "gpu.0.throttle": 4})
    player.play()
    assert player.row().throttle == 4


def test_the_temperature_is_found_under_its_new_name(player: Player, rig: Rig) -> None:
    rig.update({"missing": "nvmlDeviceGetTemperature", "gpu.0.temp": 71})
    player.play()
    assert player.row().temp_c == 71


def test_error_counts_are_read_now_and_then(player: Player, rig: Rig) -> None:
    rig.record_calls()
    player.play()
    assert player.row().ecc == 0
    row = player.row()
    assert (row.ecc, row.missing) == (None, [])
    made = player.calls_of("sample", times=39)
    assert made["nvmlDeviceGetTotalEccErrors gpu.0"] == 2


def test_a_gpu_without_error_counts_says_so_and_is_well(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.error.ecc", 3)
    player.play()
    row = player.row()
    assert (row.ecc, row.status, causes(row)) == (None, "ok", {"ecc": "unsupported"})


def test_what_a_gpu_does_not_support_is_asked_for_again_only_rarely(
    player: Player, rig: Rig
) -> None:
    rig.set("gpu.0.error.temp", 3)
    rig.record_calls()
    player.play()
    assert causes(player.row()) == {"temp_c": "unsupported"}
    assert player.calls_of("sample", times=50)["nvmlDeviceGetTemperature gpu.0"] == 0
    rig.unset("gpu.0.error.temp")
    assert player.row(times=80).temp_c == 40


def test_a_library_that_lacks_symbols_gives_the_rest(tmp_path: Path) -> None:
    absent = (
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMigMode",
        "nvmlEventSetCreate",
    )
    for player in older_driver(tmp_path, *absent):
        player.play()
        row = player.row()
        assert row.status == "ok"
        assert set(causes(row).values()) == {"unsupported_driver"}
        assert set(causes(row)) == {
            *("util_max_pct", "util_samples", "mem_reserved_mib", "energy_j"),
        }
        assert (row.util_source, row.mem_source, row.power_source) == ("instant", "v1", "usage")
        assert row.throttle == 0
        assert player.call("events") == []


# ----------------------------------------------------------------------- GPUs in a bad state


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (4, "no_permission"),
        (10, "timeout"),
        (15, "lost"),
        (16, "reset_required"),
        (17, "unknown"),
        (999, "unknown"),
    ],
)
@pytest.mark.parametrize("what", ["handle", "all"])
def test_a_gpu_that_is_bad_from_the_start_loses_no_other(
    player: Player, rig: Rig, what: str, code: int, status: str
) -> None:
    rig.update({"gpus": 3, f"gpu.1.error.{what}": code})
    devices = player.play()
    assert [one.index for one in devices] == [0, 1, 2]
    assert devices[1].status == status
    first, bad, last = player.rows()
    assert_healthy(first)
    assert_healthy(last)
    assert (bad.index, bad.status, bad.util_pct, bad.power_w) == (1, status, None, None)
    assert set(causes(bad).values()) == {status}
    if status == "unknown":
        assert f"code={code}" in bad.detail.split()
    rig.unset(f"gpu.1.error.{what}")
    row = player.rows()[1]
    assert_healthy(row)
    assert row.uuid == UUIDS[1]


@pytest.mark.parametrize(
    ("code", "status"), [(15, "lost"), (16, "reset_required"), (999, "unknown")]
)
def test_a_gpu_that_goes_bad_keeps_its_name_and_its_row(
    player: Player, rig: Rig, code: int, status: str
) -> None:
    player.play()
    player.rows()
    rig.set("gpu.1.error.all", code)
    for _ in range(3):
        good, bad = player.rows()
        assert_healthy(good)
        assert bad.status == status
        assert (bad.uuid, bad.index, bad.pci_bus_id) == (UUIDS[1], 1, "00000000:02:00.0")
        numbers = (bad.util_pct, bad.mem_used_mib, bad.mem_total_mib, bad.power_w, bad.energy_j)
        assert numbers == (None,) * 5
    rig.unset("gpu.1.error.all")
    assert_healthy(player.rows()[1])


@pytest.mark.parametrize(
    ("call", "column"), [("memory", "mem_used_mib"), ("power", "power_w"), ("temp", "temp_c")]
)
@pytest.mark.parametrize("cause", [(4, "no_permission"), (16, "reset_required")])
def test_one_reading_that_fails_takes_no_other_along(
    player: Player, rig: Rig, call: str, column: str, cause: tuple[int, str]
) -> None:
    code, status = cause
    rig.set(f"gpu.0.error.{call}", code)
    player.play()
    row = player.row()
    assert causes(row)[column] == status
    assert row.status == ("ok" if call == "temp" else status)
    read = {"mem_used_mib": row.mem_used_mib, "power_w": row.power_w, "temp_c": row.temp_c}
    assert [name for name, value in read.items() if value is None] == [column]
    rig.unset(f"gpu.0.error.{call}")
    assert_healthy(player.row())  # asked again at the next row


def test_a_row_has_the_worst_of_its_causes(player: Player, rig: Rig) -> None:
    rig.update({"gpu.0.error.memory": 3, "gpu.0.error.power": 4, "gpu.0.error.temp": 15})
    player.play()
    row = player.row()
    assert row.status == "no_permission"
    assert causes(row) == {
        "mem_used_mib": "unified",
        "mem_total_mib": "unified",
        "power_w": "no_permission",
        "temp_c": "lost",
    }


def test_a_gpu_that_hangs_holds_up_only_its_own_call(player: Player, rig: Rig) -> None:
    player.play()
    player.rows()
    rig.set("gpu.0.hang.power", "inf")
    rig.set("gpu.0.hang.field", "inf")
    player.call("begin", position=0)
    assert_healthy(player.call("sample_one", position=1)[0])
    assert player.call("still_hangs")
    rig.unset("gpu.0.hang.power", "gpu.0.hang.field")
    assert_healthy(player.call("end")[0])


# ------------------------------------------------------------------- GPUs that come and go


def test_a_gpu_that_is_not_listed_any_more_is_absent_until_it_is(player: Player, rig: Rig) -> None:
    rig.set("gpus", 3)
    player.play()
    player.rows()
    assert player.call("recount") == 3
    rig.set("gpu.1.absent", 1)
    assert player.call("recount") == 2
    first, gone, last = player.rows()
    assert_healthy(first)
    assert_healthy(last)
    assert (gone.uuid, gone.index, gone.status) == (UUIDS[1], 1, "absent")
    assert gone.util_pct is None
    rig.unset("gpu.1.absent")
    assert player.call("recount") == 3
    assert_healthy(player.rows()[1])


def test_a_driver_that_does_not_count_leaves_everything_as_it_was(player: Player, rig: Rig) -> None:
    player.play()
    rig.set("error.count", 999)
    assert player.call("recount") is None
    assert_healthy(player.row())


def test_a_gpu_of_an_earlier_session_is_still_expected(player: Player, rig: Rig) -> None:
    rig.set("gpus", 3)
    known = [vars(one) for one in player.play()]
    rig.set("gpu.1.absent", 1)
    devices = player.play(known=known)
    assert [(one.uuid, one.status) for one in devices] == [
        (UUIDS[0], "ok"),
        (UUIDS[2], "ok"),
        (UUIDS[1], "absent"),
    ]
    assert [row.status for row in player.rows()] == ["ok", "ok", "absent"]
    assert player.rows()[2].pci_bus_id == "00000000:02:00.0"


def test_a_gpu_that_was_lost_keeps_its_name_in_the_next_session(player: Player, rig: Rig) -> None:
    known = [vars(one) for one in player.play()]
    rig.set("gpu.1.error.all", 15)
    devices = player.play(known=known)
    assert [(one.uuid, one.index) for one in devices] == [(UUIDS[0], 0), (UUIDS[1], 1)]
    assert [(row.uuid, row.status) for row in player.rows()] == [
        (UUIDS[0], "ok"),
        (UUIDS[1], "lost"),
    ]


def test_a_gpu_that_had_no_name_is_not_there_twice_when_it_has_one(
    player: Player, rig: Rig
) -> None:
    rig.set("gpu.1.error.handle", 15)
    known = [vars(one) for one in player.play()]
    assert known[1]["uuid"] == ""
    rig.unset("gpu.1.error.handle")
    assert [one.uuid for one in player.play(known=known)] == UUIDS[:2]
    rig.set("gpu.1.absent", 1)
    assert [(one.uuid, one.index, one.status) for one in player.play(known=known)] == [
        (UUIDS[0], 0, "ok"),
        ("", 1, "absent"),
    ]


@pytest.mark.parametrize(("code", "status"), [(1, "unknown"), (9, "driver_not_loaded")])
def test_a_driver_that_went_away_asks_for_a_new_session(
    player: Player, rig: Rig, code: int, status: str
) -> None:
    player.play()
    player.rows()
    assert player.call("gone") is None
    rig.update({"gpu.0.error.all": code, "gpu.1.error.all": code})
    assert [row.status for row in player.rows()] == [status, status]
    assert player.call("gone") == status


# ------------------------------------------------------------------------- which GPUs are wanted


def test_only_wanted_gpus_are_sampled(player: Player, rig: Rig) -> None:
    rig.set("gpus", 4)
    devices = player.play(wanted=[UUIDS[3], "1"])
    assert [(one.uuid, one.index) for one in devices] == [(UUIDS[1], 1), (UUIDS[3], 3)]
    rig.record_calls()
    made = player.calls_of("sample")
    assert made["nvmlDeviceGetPowerUsage gpu.0"] == 0
    assert made["nvmlDeviceGetFieldValues gpu.0"] == 0
    assert made["nvmlDeviceGetFieldValues gpu.3"] == 1


def test_a_wanted_gpu_that_is_not_listed_is_there_and_absent(player: Player) -> None:
    devices = player.play(wanted=[UUIDS[0], "GPU-not-there", "7"])
    assert [one.status for one in devices] == ["ok", "absent", "absent"]
    assert [(row.uuid, row.index, row.status) for row in player.rows()] == [
        (UUIDS[0], 0, "ok"),
        ("", 7, "absent"),
        ("GPU-not-there", None, "absent"),
    ]


def test_a_wanted_gpu_that_is_lost_says_so(player: Player, rig: Rig) -> None:
    rig.set("gpu.1.error.handle", 15)
    player.play(wanted=UUIDS[:2])
    assert [(row.uuid, row.status) for row in player.rows()] == [
        (UUIDS[0], "ok"),
        (UUIDS[1], "lost"),
    ]


def test_the_beginning_of_a_uuid_names_the_gpu_and_twice_is_once(player: Player, rig: Rig) -> None:
    rig.set("gpu.1.uuid", "GPU-feed0000-0000")
    devices = player.play(wanted=["GPU-feed", "1"])
    assert [one.uuid for one in devices] == ["GPU-feed0000-0000"]


# ---------------------------------------------------------------------------------------- MIG


def test_a_gpu_in_slices_has_a_row_without_utilization_and_one_for_each_slice(
    player: Player, rig: Rig
) -> None:
    rig.update({"gpu.0.mig": 2, "gpu.0.mig.1.mem_used_mib": 2000})
    device = player.play()[0]
    assert device.mig == SLICES[:2]
    parent, first, second, other = player.rows()
    assert (parent.status, parent.util_pct, parent.mem_used_mib) == ("mig", None, 10)
    assert causes(parent) == {"util_pct": "mig", "mem_util_pct": "mig"}
    assert parent.power_w == 55
    assert [one.mig_uuid for one in (parent, first, second)] == ["", *SLICES[:2]]
    assert [one.is_slice for one in (parent, first, second)] == [False, True, True]
    assert (second.mem_used_mib, second.mem_total_mib, second.mem_source) == (2000, 4864, "v2")
    assert (second.uuid, second.index, second.status) == (UUIDS[0], 0, "mig")
    assert causes(second) == {"util_pct": "mig", "power_w": "mig"}
    assert second.name == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert_healthy(other)


def test_slices_are_looked_for_anew_when_a_gpu_is_cut(player: Player, rig: Rig) -> None:
    player.play()
    assert len(player.rows()) == 2
    rig.set("gpu.0.mig", 3)
    assert [row.mig_uuid for row in player.rows()][:4] == ["", *SLICES[:3]]
    rig.update({"gpu.0.mig": 1, "gpu.0.mig.0.uuid": "MIG-new"})
    assert [row.mig_uuid for row in player.rows()][:2] == ["", "MIG-new"]
    rig.set("gpu.0.mig", 0)
    rows = player.rows()
    assert len(rows) == 2
    assert_healthy(rows[0])


def test_whether_a_gpu_is_cut_is_not_asked_for_every_row(player: Player, rig: Rig) -> None:
    player.play()
    rig.record_calls()
    made = player.calls_of("sample", times=LOOK_EVERY)
    assert made["nvmlDeviceGetMigMode gpu.0"] == 1
    rig.set("gpu.1.mig", 1)
    assert player.calls_of("sample", times=3)["nvmlDeviceGetMigMode gpu.1"] == 3


def test_the_memory_of_a_gpu_in_slices_may_be_forbidden(player: Player, rig: Rig) -> None:
    rig.update({"gpu.0.mig": 1, "gpu.0.error.memory": 4})
    player.play()
    parent, one, _ = player.rows()
    assert (parent.status, parent.mem_used_mib) == ("no_permission", None)
    assert (one.status, one.mem_used_mib) == ("mig", 10)


def test_a_slice_that_cannot_be_read_loses_no_other(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.mig", 2)
    player.play()
    player.rows()
    rig.set("gpu.0.mig.0.error.all", 999)
    _, bad, good, _ = player.rows()
    assert (bad.mig_uuid, bad.status, bad.mem_used_mib) == (SLICES[0], "unknown", None)
    assert (good.mig_uuid, good.status, good.mem_used_mib) == (SLICES[1], "mig", 10)


def test_the_slices_of_a_lost_gpu_are_lost_with_it(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.mig", 1)
    player.play()
    player.rows()
    rig.set("gpu.0.error.all", 15)
    for _ in range(2):
        parent, one, other = player.rows()
        assert (parent.status, one.status, one.mig_uuid) == ("lost", "lost", SLICES[0])
        assert one.mem_used_mib is None
        assert_healthy(other)


def test_only_the_wanted_slice_is_sampled_with_its_gpu(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.mig", 3)
    devices = player.play(wanted=[SLICES[1]])
    assert [(one.uuid, one.mig) for one in devices] == [(UUIDS[0], [SLICES[1]])]
    assert [row.mig_uuid for row in player.rows()] == ["", SLICES[1]]


def test_a_wanted_slice_that_is_not_there_is_absent(player: Player, rig: Rig) -> None:
    rig.set("gpu.0.mig", 2)
    player.play(wanted=[SLICES[1], "MIG-gone"])
    rows = player.rows()
    assert {(row.mig_uuid, row.status) for row in rows} == {
        ("", "mig"),
        (SLICES[1], "mig"),
        ("MIG-gone", "absent"),
    }
    rig.set("gpu.0.mig", 1)
    assert (SLICES[1], "absent") in {(row.mig_uuid, row.status) for row in player.rows()}


# --------------------------------------------------------------------------------------- XIDs


def test_an_xid_is_told_once_and_again_when_it_happens_again(player: Player, rig: Rig) -> None:
    player.play()
    assert player.call("events") == []
    rig.set("gpu.1.xid", "79,31")
    first, second = player.call("events")
    assert (first.uuid, first.index, first.status) == (UUIDS[1], 1, "lost")
    assert first.text == "xid 79: GPU has fallen off the bus"
    assert (second.text, second.status) == ("xid 31: GPU memory page fault", "ok")
    assert player.call("events") == []
    rig.set("gpu.1.xid", "79 again")
    assert [one.text for one in player.call("events")] == [first.text]


def test_an_xid_that_no_list_has_keeps_its_number(player: Player, rig: Rig) -> None:
    player.play()
    rig.set("gpu.0.xid", "4711")
    assert [one.text for one in player.call("events")] == ["xid 4711"]


def test_a_gpu_without_events_is_sampled_like_any_other(player: Player, rig: Rig) -> None:
    rig.update({"gpu.0.error.events": 3, "gpu.1.error.events": 4})
    player.play()
    assert player.call("events") == []
    assert_healthy(player.row())


# ------------------------------------------------------------------- drivers that answer nobody


@pytest.mark.parametrize(
    ("key", "code", "status"),
    [
        ("error.init", 9, "driver_not_loaded"),
        ("error.init", 4, "no_permission"),
        ("error.init", 999, "unknown"),
        ("error.count", 999, "unknown"),
        ("error.count", 4, "no_permission"),
    ],
)
def test_a_driver_that_answers_nobody_is_an_error_with_its_cause(
    player: Player, rig: Rig, key: str, code: int, status: str
) -> None:
    player.call("close")
    rig.set(key, code)
    rig.record_calls()
    before = rig.calls()
    answer = player.play()
    assert (answer.refused, answer.code, answer.exit_code) == (status, code, 6)
    assert f"NVML code {code}" in answer.message
    made = rig.calls() - before
    assert made["nvmlShutdown"] == (key == "error.count")  # what was begun is ended
    rig.clear()
    assert [one.uuid for one in player.play()] == UUIDS[:2]  # and tried again it works


def test_a_mismatch_of_versions_says_both(player: Player, rig: Rig) -> None:
    rig.update({"error.init": 18, "nvml": "12.550.54.14"})
    answer = player.play()
    assert (answer.refused, answer.code) == ("version_mismatch", 18)
    assert answer.versions.nvml_version == "12.550.54.14"
    assert "library 12.550.54.14, kernel module" in answer.message
    assert "reboot" in answer.hint


@pytest.mark.usefixtures("rig")
def test_without_the_library_the_cause_is_that(tmp_path: Path) -> None:
    # An empty file stands in the way of a library that this machine may have.
    (tmp_path / "libnvidia-ml.so.1").touch()
    player = Player({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    answer = player.play()
    player.close()
    assert (answer.refused, answer.code) == ("no_nvml", 12)
    assert (answer.versions.driver_version, answer.versions.nvml_version) == ("", "")


def test_a_library_without_its_init_is_too_old(tmp_path: Path) -> None:
    for player in older_driver(tmp_path, "nvmlInitWithFlags"):
        assert player.play().refused == "unsupported_driver"
