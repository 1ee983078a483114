"""The door to the binding: what is light, what it reads once, and that our structures are NVML's.

Not here: sampling, which is in test_sampling, and the rules of CUDA_VISIBLE_DEVICES, which are in
tests/worker/test_visible_gpus.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

from fleetcraft.gpu import causes, nvml
from fleetcraft.gpu.sampling import layouts, questions, readers
from fleetcraft.gpu.sampling.cells import Cells
from fleetcraft.gpu.status import Status
from tests.gpu.sampling_player import REPO, Player
from tests.rig import Rig

UUIDS = [f"GPU-00000000-0000-4000-8000-{number:012}" for number in range(8)]


@pytest.fixture(scope="module")
def the_player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with Rig(tmp_path_factory.mktemp("rig")) as rig:
        env = rig.env()
        env.pop("CUDA_VISIBLE_DEVICES", None)
        player = Player(env, rig)
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


# ------------------------------------------------------------------------------- read once


def test_the_driver_names_the_visible_gpus(player: Player, rig: Rig) -> None:
    rig.set("gpus", 3)
    assert player.call("visible_gpus") == UUIDS[:3]


def test_every_gpu_is_read_once(player: Player, rig: Rig) -> None:
    rig.update({"gpus": 4, "gpu.0.util": 70, "gpu.1.error.handle": 15})
    rig.update({"gpu.2.error.memory": 4, "gpu.3.mem_total_mib": 0})
    first, lost, forbidden, invalid = player.call("read_gpus")
    assert (first.index, first.uuid, first.status) == (0, UUIDS[0], "ok")
    assert (first.util_pct, first.mem_used_mib, first.mem_total_mib) == (70, 10, 40960)
    assert (lost.index, lost.uuid, lost.util_pct, lost.status) == (1, "", None, "lost")
    assert (forbidden.util_pct, forbidden.mem_used_mib) == (0, None)
    assert (forbidden.status, invalid.status) == ("no_permission", "invalid")
    assert invalid.mem_total_mib is None


# ----------------------------------------------------------------------------------- light


def test_the_modules_load_no_binding() -> None:
    program = (
        "import sys; import fleetcraft.gpu.nvml; import fleetcraft.gpu.sampling; "
        "print([name for name in ('pynvml', 'numpy', 'pandas', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_the_worker_loads_does_not_load_ctypes() -> None:
    program = "import sys; import fleetcraft.gpu.nvml; print('ctypes' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


# ------------------------------------------------------------------------- our own structures


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (layouts.Rates, pynvml.c_nvmlUtilization_t),
        (layouts.MemoryV1, pynvml.c_nvmlMemory_t),
        (layouts.MemoryV2, pynvml.c_nvmlMemory_v2_t),
        (layouts.TemperatureV1, pynvml.c_nvmlTemperature_v1_t),
        (layouts.Number, pynvml.c_nvmlValue_t),
        (layouts.FieldValue, pynvml.c_nvmlFieldValue_t),
        (layouts.SampleValue, pynvml.c_nvmlSample_t),
    ],
)
def test_our_structures_are_laid_out_like_the_bindings(ours: Any, theirs: Any) -> None:
    def shape(structure: Any) -> list[tuple[int, int]]:
        fields = [getattr(structure, field[0]) for field in structure._fields_]
        return [(field.offset, field.size) for field in fields]

    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
    assert shape(ours) == shape(theirs)


def test_our_numbers_are_the_bindings() -> None:
    assert pynvml.nvmlMemory_v2 == layouts.MEMORY_V2
    assert pynvml.nvmlTemperature_v1 == layouts.TEMPERATURE_V1
    assert causes.FUNCTION_NOT_FOUND == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    for name in ("NOT_SUPPORTED", "NOT_FOUND", "INSUFFICIENT_SIZE", "TIMEOUT", "UNKNOWN"):
        assert getattr(causes, name) == getattr(pynvml, f"NVML_ERROR_{name}")
    assert causes.status_of(pynvml.NVML_ERROR_GPU_IS_LOST) == "lost"
    assert causes.status_of(pynvml.NVML_ERROR_RESET_REQUIRED) == "reset_required"
    assert causes.status_of(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH) == "version_mismatch"
    assert causes.status_of(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND) == "no_nvml"


def test_every_bit_of_the_throttle_mask_has_the_bindings_meaning() -> None:
    for name, word in {
        "GpuIdle": "gpu_idle",
        "SwPowerCap": "sw_power_cap",
        "HwSlowdown": "hw_slowdown",
        "HwThermalSlowdown": "hw_thermal_slowdown",
        "HwPowerBrakeSlowdown": "hw_power_brake",
        "DisplayClockSetting": "display_clocks",
    }.items():
        assert causes.throttle_words(getattr(pynvml, f"nvmlClocksEventReason{name}")) == word
    assert causes.throttle_words(0) == ""


def test_every_cause_has_a_rank() -> None:
    for status in Status:
        assert causes.worst([status, Status.OK]) is status
        assert causes.worst([Status.LOST, status]) in (Status.LOST, status)
    assert causes.worst([]) is Status.OK


# ------------------------------------------------- answers that the rig's GPUs do not give


class FewFunctions:
    """A library with these functions; each fills what its last argument points to."""

    def __init__(self, **functions: Any) -> None:
        self._functions = functions

    def functions(self, *names: str) -> list[Any]:
        return [self._functions[name] for name in names if name in self._functions]


def fields(answers: dict[tuple[int, int], tuple[int, int]]) -> Any:
    """A field-value query: for a field and scope, its code and milliwatts."""

    def query(_handle: object, _count: object, pointer: Any) -> int:
        value = pointer._obj
        value.code, value.number.uint = answers.get((value.field, value.scope), (3, 0))
        value.kind = 1
        return 0

    return query


def read_power(library: FewFunctions) -> Cells:
    cells = Cells()
    readers.PowerReader(library, object()).read(cells)  # type: ignore[arg-type]
    return cells


def test_power_of_the_module_is_taken_last_and_named() -> None:
    answers = {(185, 1): (0, 600_000), (186, 1): (0, 610_000)}
    cells = read_power(FewFunctions(nvmlDeviceGetFieldValues=fields(answers)))
    assert cells.values == {"power_w": 600, "power_source": "average/module"}
    answers[186, 0] = (0, 300_000)
    cells = read_power(FewFunctions(nvmlDeviceGetFieldValues=fields(answers)))
    assert cells.values == {"power_w": 300, "power_source": "instant"}


def test_a_field_that_the_driver_leaves_untouched_is_no_value() -> None:
    def untouched(*_: object) -> int:
        return 0

    cells = read_power(FewFunctions(nvmlDeviceGetFieldValues=untouched))
    assert (cells.values, cells.status()) == ({}, "unknown")


@pytest.mark.parametrize(
    ("kind", "member", "value"),
    [
        (0, "double", 42.5),
        (1, "uint", 42),
        (3, "ulonglong", 42),
        (4, "longlong", -1),
        (6, "ushort", 42),
    ],
)
def test_samples_of_every_type_are_read(kind: int, member: str, value: float) -> None:
    def query(_handle: object, _kind: object, since: Any, *rest: Any) -> int:
        type_at, count_at, room = rest
        type_at._obj.value = kind
        for place in range(2):
            room[place].timestamp_us = since.value + place + 1
            room[place].number.ulonglong = 2**64 - 1  # what a driver leaves of the union
            setattr(room[place].number, member, value)
        count_at._obj.value = 2
        return 0

    buffer = questions.SampleBuffer([query], object(), 1)
    assert buffer.read(7) == (0, [8, 9], [value, value])


def test_a_driver_that_always_asks_for_more_room_does_not_fill_the_memory() -> None:
    asked: list[int] = []

    def query(handle: object, kind: object, since: Any, *rest: Any) -> int:
        asked.append(rest[1]._obj.value)
        return causes.INSUFFICIENT_SIZE

    buffer = questions.SampleBuffer([query], object(), 1)
    answers = [buffer.read(0) for _ in range(30)]
    assert set(map(repr, answers)) == {repr((causes.INSUFFICIENT_SIZE, [], []))}
    assert asked[-1] == asked[-2] <= 1 << 14


def test_a_buffer_that_is_larger_than_the_room_for_it_gets_more_room() -> None:
    def query(_handle: object, _kind: object, _since: object, *rest: Any) -> int:
        type_at, count_at, room = rest
        type_at._obj.value = 1
        if count_at._obj.value < 200:
            return causes.INSUFFICIENT_SIZE
        for place in range(200):
            room[place].timestamp_us = place
            room[place].number.uint = place % 101
        count_at._obj.value = 200
        return 0

    buffer = questions.SampleBuffer([query], object(), 1)
    code, times, values = buffer.read(0)
    assert (code, len(times), values[100]) == (0, 200, 100)


def test_texts_become_one_line_that_fits_a_cell() -> None:
    assert nvml.clean(b'a,"b"\n\x1b[0m\tc;d\x00') == "a b [0m c d"
    assert nvml.clean("NVIDIA A100-SXM4-40GB MIG 1g.5gb") == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
