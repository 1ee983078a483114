"""The driver rig answers the unmodified binding as NVML does.

Not here: what fleetcraft makes of the answers. Each test talks to one program that has the real
binding and nothing of fleetcraft; it runs the lines that it is sent, each in a thread where asked.
"""

from __future__ import annotations

import ast
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rig import Rig, build
from tests.rig.rig import functions, plain_keys

DEADLINE_S = 30

PROGRAM = """
import sys, threading
import pynvml as n

names = {"n": n}
names["names"] = names

def answer(number, text):
    try:
        value = eval(text, names)
        said = ("value", value)
    except n.NVMLLibraryMismatchError as error:
        said = ("mismatch", str(error))
    except n.NVMLError as error:
        said = ("error", error.value)
    sys.stdout.write(repr((number, *said)) + "\\n")
    sys.stdout.flush()

for line in sys.stdin:
    number, how, text = line.rstrip("\\n").split(" ", 2)
    if how == "thread":
        threading.Thread(target=answer, args=(int(number), text), daemon=True).start()
    else:
        answer(int(number), text)
"""


class Program:
    """A program that uses the binding on the rig; what it is asked, it answers by number."""

    def __init__(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._asked = 0
        self._text = b""
        self._answers: dict[int, tuple[str, object]] = {}

    def ask(self, text: str) -> int:
        """Has an expression evaluated in a thread of its own; returns its number."""
        return self._send("thread", text)

    def _send(self, how: str, text: str) -> int:
        assert self.process.stdin is not None
        self._asked += 1
        self.process.stdin.write(f"{self._asked} {how} {text}\n".encode())
        return self._asked

    def answered(self, number: int, within_s: float = DEADLINE_S) -> bool:
        """Waits for an answer."""
        assert self.process.stdout is not None
        until_s = time.monotonic() + within_s
        while number not in self._answers:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([self.process.stdout], [], [], left_s)[0]:
                return False
            read = os.read(self.process.stdout.fileno(), 65536)
            assert read, "the program ended"
            *lines, self._text = (self._text + read).split(b"\n")
            for line in lines:
                which, kind, value = ast.literal_eval(line.decode())
                self._answers[which] = (kind, value)
        return True

    def say(self, text: str) -> tuple[str, object]:
        """What came of an expression: ``("value", ...)`` or ``("error", code)``."""
        number = self._send("main", text)
        assert self.answered(number), f"no answer to {text}"
        return self._answers[number]

    def value(self, text: str) -> object:
        """The value of an expression that must not fail."""
        kind, value = self.say(text)
        assert kind == "value", f"{text}: {kind} {value}"
        return value

    def start(self) -> None:
        """Starts the library and takes the handles ``h0``, ``h1`` ... of those that it lists."""
        self.value("n.nvmlInit()")
        for index in range(self.value("n.nvmlDeviceGetCount()")):  # type: ignore[call-overload]
            self.take(f"h{index}", f"n.nvmlDeviceGetHandleByIndex({index})")

    def take(self, name: str, text: str) -> None:
        """Keeps a value of the program under a name."""
        self.value(f"names.__setitem__({name!r}, {text})")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as one:
        yield one


@pytest.fixture
def begin() -> Iterator[Callable[[Rig], Program]]:
    programs: list[Program] = []

    def start(rig: Rig) -> Program:
        programs.append(Program(rig.env()))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.fixture
def program(rig: Rig, begin: Callable[[Rig], Program]) -> Program:
    """One with the library started and the handles of two healthy GPUs."""
    one = begin(rig)
    one.start()
    return one


MEMORY = "n.nvmlDeviceGetMemoryInfo(h0, version=n.nvmlMemory_v2)"
SAMPLES = "[s.sampleValue.uiVal for s in n.nvmlDeviceGetSamples(h0, 1, %s)[1]]"

CALLS = {
    "nvmlDeviceGetName": "n.nvmlDeviceGetName(h0)",
    "nvmlDeviceGetUUID": "n.nvmlDeviceGetUUID(h0)",
    "nvmlDeviceGetIndex": "n.nvmlDeviceGetIndex(h0)",
    "nvmlDeviceGetMinorNumber": "n.nvmlDeviceGetMinorNumber(h0)",
    "nvmlDeviceGetSerial": "n.nvmlDeviceGetSerial(h0)",
    "nvmlDeviceGetPciInfo_v3": "n.nvmlDeviceGetPciInfo(h0).busId",
    "nvmlDeviceGetUtilizationRates": "n.nvmlDeviceGetUtilizationRates(h0).gpu",
    "nvmlDeviceGetEncoderUtilization": "n.nvmlDeviceGetEncoderUtilization(h0)[0]",
    "nvmlDeviceGetDecoderUtilization": "n.nvmlDeviceGetDecoderUtilization(h0)[0]",
    "nvmlDeviceGetSamples": SAMPLES % 0,
    "nvmlDeviceGetMemoryInfo": "n.nvmlDeviceGetMemoryInfo(h0).used",
    "nvmlDeviceGetMemoryInfo_v2": f"{MEMORY}.used",
    "nvmlDeviceGetBAR1MemoryInfo": "n.nvmlDeviceGetBAR1MemoryInfo(h0).bar1Total",
    "nvmlDeviceGetPowerUsage": "n.nvmlDeviceGetPowerUsage(h0)",
    "nvmlDeviceGetPowerManagementLimit": "n.nvmlDeviceGetPowerManagementLimit(h0)",
    "nvmlDeviceGetEnforcedPowerLimit": "n.nvmlDeviceGetEnforcedPowerLimit(h0)",
    "nvmlDeviceGetTotalEnergyConsumption": "n.nvmlDeviceGetTotalEnergyConsumption(h0)",
    "nvmlDeviceGetTemperature": "n.nvmlDeviceGetTemperature(h0, 0)",
    "nvmlDeviceGetTemperatureV": "n.nvmlDeviceGetTemperatureV(h0, 0)",
    "nvmlDeviceGetFanSpeed": "n.nvmlDeviceGetFanSpeed(h0)",
    "nvmlDeviceGetFanSpeed_v2": "n.nvmlDeviceGetFanSpeed_v2(h0, 0)",
    "nvmlDeviceGetClockInfo": "n.nvmlDeviceGetClockInfo(h0, 1)",
    "nvmlDeviceGetMaxClockInfo": "n.nvmlDeviceGetMaxClockInfo(h0, 1)",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "n.nvmlDeviceGetCurrentClocksThrottleReasons(h0)",
    "nvmlDeviceGetCurrentClocksEventReasons": "n.nvmlDeviceGetCurrentClocksEventReasons(h0)",
    "nvmlDeviceGetEccMode": "n.nvmlDeviceGetEccMode(h0)",
    "nvmlDeviceGetTotalEccErrors": "n.nvmlDeviceGetTotalEccErrors(h0, 1, 0)",
    "nvmlDeviceGetMemoryErrorCounter": "n.nvmlDeviceGetMemoryErrorCounter(h0, 1, 0, 2)",
    "nvmlDeviceGetFieldValues": "n.nvmlDeviceGetFieldValues(h0, [186])[0].value.uiVal",
    "nvmlDeviceGetMigMode": "n.nvmlDeviceGetMigMode(h0)",
    "nvmlDeviceGetMaxMigDeviceCount": "n.nvmlDeviceGetMaxMigDeviceCount(h0)",
    "nvmlDeviceIsMigDeviceHandle": "n.nvmlDeviceIsMigDeviceHandle(h0).value",
    "nvmlDeviceGetSupportedEventTypes": "n.nvmlDeviceGetSupportedEventTypes(h0)",
    "nvmlDeviceGetComputeRunningProcesses_v3": "n.nvmlDeviceGetComputeRunningProcesses(h0)",
    "nvmlDeviceGetComputeRunningProcesses_v2": "n.nvmlDeviceGetComputeRunningProcesses_v2(h0)",
    "nvmlDeviceGetGraphicsRunningProcesses_v3": "n.nvmlDeviceGetGraphicsRunningProcesses(h0)",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": "n.nvmlDeviceGetMPSComputeRunningProcesses(h0)",
    "nvmlDeviceGetPerformanceState": "n.nvmlDeviceGetPerformanceState(h0)",
    "nvmlDeviceGetPersistenceMode": "n.nvmlDeviceGetPersistenceMode(h0)",
    "nvmlDeviceGetComputeMode": "n.nvmlDeviceGetComputeMode(h0)",
    "nvmlDeviceGetDisplayMode": "n.nvmlDeviceGetDisplayMode(h0)",
    "nvmlDeviceGetDisplayActive": "n.nvmlDeviceGetDisplayActive(h0)",
    "nvmlDeviceGetCudaComputeCapability": "n.nvmlDeviceGetCudaComputeCapability(h0)",
    "nvmlDeviceGetPcieThroughput": "n.nvmlDeviceGetPcieThroughput(h0, 0)",
    "nvmlDeviceGetCount_v2": "n.nvmlDeviceGetCount()",
    "nvmlSystemGetDriverVersion": "n.nvmlSystemGetDriverVersion()",
    "nvmlSystemGetNVMLVersion": "n.nvmlSystemGetNVMLVersion()",
    "nvmlSystemGetCudaDriverVersion": "n.nvmlSystemGetCudaDriverVersion()",
    "nvmlSystemGetCudaDriverVersion_v2": "n.nvmlSystemGetCudaDriverVersion_v2()",
    "nvmlDeviceGetHandleByIndex_v2": "n.nvmlDeviceGetHandleByIndex(0) and 0",
    "nvmlDeviceGetHandleByUUID": (
        "n.nvmlDeviceGetHandleByUUID(b'GPU-00000000-0000-4000-8000-000000000000') and 0"
    ),
    "nvmlDeviceGetHandleByPciBusId_v2": (
        "n.nvmlDeviceGetHandleByPciBusId(b'00000000:01:00.0') and 0"
    ),
}
NOT_ASKED_ALONE = {
    *("nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlSystemGetProcessName"),
    *("nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree", "nvmlDeviceRegisterEvents"),
    *("nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"),
    *("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2"),
    *("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"),
    *("nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetProcessUtilization"),
    *("nvmlDeviceGetDriverModel", "nvmlDeviceGetDriverModel_v2"),
}


def test_every_function_of_the_library_is_called_by_some_test_here() -> None:
    assert set(CALLS) | NOT_ASKED_ALONE == set(functions())


def test_the_compiler_warns_of_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Rig(tmp_path)  # skips where there is no compiler

    library = build(tmp_path / "again")

    assert library.name == "libnvidia-ml.so.1"
    assert capfd.readouterr() == ("", "")


def test_without_a_control_file_there_are_two_healthy_gpus(
    rig: Rig, begin: Callable[[Rig], Program]
) -> None:
    rig.path.unlink()
    program = begin(rig)
    program.start()

    assert program.value("n.nvmlDeviceGetCount()") == 2
    assert [program.say(text)[0] for text in CALLS.values()] == ["value"] * len(CALLS)


def test_a_code_for_all_calls_of_a_gpu_leaves_the_other_one_alone(
    rig: Rig, program: Program
) -> None:
    rig.set("gpu.0.error.all", 15)

    for symbol, text in CALLS.items():
        if "h0" in text:
            assert program.say(text) == ("error", 15), symbol
            assert program.say(text.replace("h0", "h1"))[0] == "value", symbol


def test_each_symbol_can_answer_with_a_code_of_its_own(rig: Rig, program: Program) -> None:
    codes = {symbol: 100 + place for place, symbol in enumerate(CALLS)}
    rig.update(
        {
            f"{prefix}error.{symbol}": code
            for symbol, code in codes.items()
            for prefix in (["gpu.0."] if "Device" in symbol and "Count_v2" not in symbol else [""])
        }
    )

    assert {symbol: program.say(text) for symbol, text in CALLS.items()} == {
        symbol: ("error", code) for symbol, code in codes.items()
    }


def test_each_word_stands_for_its_functions_only(rig: Rig, program: Program) -> None:
    for word in sorted(set(functions().values())):
        rig.update({f"gpu.0.error.{word}": 4, f"error.{word}": 4})

        failing = {name for name, text in CALLS.items() if program.say(text) == ("error", 4)}

        # For fields the word means each field's own code, and the query as a whole succeeds.
        mine = {name for name in CALLS if functions()[name] == word and word != "field"}
        assert failing == mine, word
        rig.clear()


@pytest.mark.parametrize("code", [9, 18, 4, 999])
def test_init_fails_as_told_and_works_once_that_is_over(
    rig: Rig, begin: Callable[[Rig], Program], code: int
) -> None:
    rig.set("error.init", code)
    program = begin(rig)

    assert program.say("n.nvmlInit()") == ("error", code)
    assert program.say("n.nvmlDeviceGetCount()") == ("error", 1)
    rig.unset("error.init")
    assert program.say("n.nvmlInit()") == ("value", None)
    assert program.value("n.nvmlDeviceGetCount()") == 2


def test_versions_are_readable_while_the_driver_does_not_match(
    rig: Rig, begin: Callable[[Rig], Program]
) -> None:
    rig.update({"error.init": 18, "nvml": "12.550.54.14", "cuda": 12040, "driver": "535.161.08"})
    program = begin(rig)

    assert program.say("n.nvmlInit()") == ("error", 18)
    assert program.value("n.nvmlSystemGetNVMLVersion()") == "12.550.54.14"
    assert program.value("n.nvmlSystemGetCudaDriverVersion_v2()") == 12040
    assert program.say("n.nvmlSystemGetDriverVersion()") == ("error", 1)
    rig.unset("error.init")
    program.value("n.nvmlInit()")
    assert program.value("n.nvmlSystemGetDriverVersion()") == "535.161.08"


def test_a_library_that_cannot_be_loaded_is_none(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / rig.library.name).touch()
    program = Program(rig.env() | {"LD_LIBRARY_PATH": str(tmp_path)})

    said = program.say("n.nvmlInit()")

    program.close()
    assert said == ("error", 12)


def test_shutdown_ends_what_init_began(program: Program) -> None:
    program.value("n.nvmlInit()")
    program.value("n.nvmlShutdown()")
    assert program.value("n.nvmlDeviceGetCount()") == 2
    program.value("n.nvmlShutdown()")
    assert program.say("n.nvmlDeviceGetCount()") == ("error", 1)
    assert program.say(CALLS["nvmlDeviceGetHandleByIndex_v2"]) == ("error", 1)
    assert program.say("n.nvmlShutdown()") == ("error", 1)


def test_structures_come_through_exactly(rig: Rig, program: Program) -> None:
    rig.update(
        {
            "gpu.1.name": "NVIDIA H100 80GB HBM3",
            "gpu.1.uuid": "GPU-8f2c1c9e-1b6e-4b6e-9a55-1d0f6f3c0a11",
            "gpu.1.pci": "0000000F:D3:1A.0",
            "gpu.1.mem_total_mib": 81559,
            "gpu.1.mem_used_mib": 70000.5,
            "gpu.1.mem_reserved_mib": 551,
            "gpu.1.util": 87,
            "gpu.1.mem_util": 41,
            "gpu.1.throttle": "0x8000000000000044",
            "gpu.1.ecc": 2**40 + 3,
            "gpu.1.energy_mj": 2**50 + 7,
            "gpu.1.temp": 71,
            "gpu.1.sm_clock": 1980,
            "gpu.1.mem_clock": 2619,
            "gpu.1.power_average_mw": 651234,
            "gpu.1.power_instant_mw": 700999,
        }
    )
    mib = 1 << 20

    assert program.value("n.nvmlDeviceGetName(h1)") == "NVIDIA H100 80GB HBM3"
    assert program.value("n.nvmlDeviceGetUUID(h1)") == "GPU-8f2c1c9e-1b6e-4b6e-9a55-1d0f6f3c0a11"
    program.take("pci", "n.nvmlDeviceGetPciInfo(h1)")
    assert program.value("(pci.busId, pci.domain, pci.bus, pci.device)") == (
        "0000000F:D3:1A.0",
        15,
        0xD3,
        0x1A,
    )
    assert program.value("(pci.busIdLegacy, hex(pci.pciDeviceId), hex(pci.pciSubSystemId))") == (
        "000F:D3:1A.0",
        "0x20b010de",
        "0x134f10de",
    )
    program.take("memory", MEMORY.replace("h0", "h1"))
    assert program.value("(memory.total, memory.used, memory.reserved, memory.free)") == (
        81559 * mib,
        70000 * mib + mib // 2,
        551 * mib,
        81559 * mib - 70551 * mib - mib // 2,
    )
    program.take("memory", "n.nvmlDeviceGetMemoryInfo(h1)")
    assert program.value("(memory.total, memory.used)") == (81559 * mib, 70551 * mib + mib // 2)
    program.take("rates", "n.nvmlDeviceGetUtilizationRates(h1)")
    assert program.value("(rates.gpu, rates.memory)") == (87, 41)
    assert program.value("n.nvmlDeviceGetCurrentClocksEventReasons(h1)") == 0x8000000000000044
    assert program.value("n.nvmlDeviceGetTotalEccErrors(h1, 1, 0)") == 2**40 + 3
    assert program.value("n.nvmlDeviceGetTotalEnergyConsumption(h1)") == 2**50 + 7
    assert program.value("n.nvmlDeviceGetTemperatureV(h1, 0)") == 71
    assert program.value("(n.nvmlDeviceGetClockInfo(h1, 1), n.nvmlDeviceGetClockInfo(h1, 2))") == (
        1980,
        2619,
    )
    program.take("fields", "n.nvmlDeviceGetFieldValues(h1, [185, 186, (186, 1), 83])")
    assert program.value("[(f.fieldId, f.scopeId, f.nvmlReturn) for f in fields]") == (
        [(185, 0, 0), (186, 0, 0), (186, 1, 3), (83, 0, 0)]
    )
    assert program.value("[f.value.ullVal for f in fields]") == [651234, 700999, 0, 2**50 + 7]
    assert program.value("[f.valueType for f in fields]") == [1, 1, 1, 3]
    assert program.value("all(f.timestamp > 10**15 for f in fields)") is True


def test_every_key_that_the_controller_takes_is_understood_by_the_library(
    rig: Rig, begin: Callable[[Rig], Program], capfd: pytest.CaptureFixture[str]
) -> None:
    calls = ["all", *functions(), *functions().values()]
    troubles = [f"{kind}.{call}" for kind in ("error", "hang") for call in calls]
    slices = [f"mig.0.{key}" for key in (*plain_keys("slice"), *troubles)]
    fields = ["field.186", "error.field.186"]
    gpu = [f"gpu.0.{key}" for key in (*plain_keys("gpu"), *fields, *slices, *troubles)]
    keys = (*plain_keys("control"), *gpu, *troubles)
    rig.update({key: "" if key in ("missing", "trace") else 0 for key in keys})
    program = begin(rig)

    program.say("n.nvmlInit()")

    assert capfd.readouterr().err == ""
    with pytest.raises(KeyError, match="gpu.0.utilisation"):
        rig.set("gpu.0.utilisation", 5)


def test_a_line_that_the_library_does_not_know_is_named(
    rig: Rig, begin: Callable[[Rig], Program], capfd: pytest.CaptureFixture[str]
) -> None:
    rig.path.write_text("gpu.0.utilisation=5\ngpu.1.util=7\nmissing=nvmlGetAll\n")
    program = begin(rig)
    program.start()

    assert program.value("n.nvmlDeviceGetUtilizationRates(h1).gpu") == 7
    said = capfd.readouterr().err
    assert "not understood: gpu.0.utilisation=5" in said
    assert "not understood: missing=nvmlGetAll" in said


def test_a_change_holds_from_the_next_call_on(rig: Rig, program: Program) -> None:
    for value in range(200):
        rig.set("gpu.0.util", value % 100)
        assert program.value("n.nvmlDeviceGetUtilizationRates(h0).gpu") == value % 100


def test_a_control_file_that_is_replaced_by_hand_is_seen_too(rig: Rig, program: Program) -> None:
    new = rig.path.with_name("by-hand")
    new.write_text("gpu.0.util=33\n")
    os.replace(new, rig.path)

    until_s = time.monotonic() + DEADLINE_S
    while program.value("n.nvmlDeviceGetUtilizationRates(h0).gpu") != 33:
        assert time.monotonic() < until_s


# ----------------------------------------------------------------------------- which GPUs there are


def test_a_count_that_shrinks_lists_fewer_and_old_handles_go_on(rig: Rig, program: Program) -> None:
    rig.set("count", 1)

    assert program.value("n.nvmlDeviceGetCount()") == 1
    assert program.say("n.nvmlDeviceGetHandleByIndex(1)") == ("error", 2)
    assert program.value("n.nvmlDeviceGetIndex(h1)") == 1
    assert program.say("n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h1).encode())") == (
        "error",
        6,
    )


def test_a_gpu_that_is_gone_moves_the_later_ones_up(
    rig: Rig, begin: Callable[[Rig], Program]
) -> None:
    rig.set("gpus", 3)
    program = begin(rig)
    program.start()

    rig.set("gpu.1.absent", 1)

    assert program.value("n.nvmlDeviceGetCount()") == 2
    assert str(program.value("n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(1))"))[-1] == "2"
    assert program.value("n.nvmlDeviceGetIndex(h2)") == 1
    assert program.say("n.nvmlDeviceGetUUID(h1)") == ("error", 15)


def test_a_handle_of_nothing_is_an_invalid_argument(program: Program) -> None:
    assert program.say("n.nvmlDeviceGetUUID(n.c_nvmlDevice_t())") == ("error", 2)
    assert program.say("n.nvmlDeviceGetHandleByIndex(64)") == ("error", 2)
    assert program.say("n.nvmlDeviceGetHandleByUUID(b'GPU-none')") == ("error", 6)
    assert program.say("n.nvmlDeviceGetHandleByPciBusId(b'00000000:FF:00.0')") == ("error", 6)


def test_functions_can_be_missing_by_answer(rig: Rig, program: Program) -> None:
    rig.set("missing", "nvmlDeviceGetSamples, nvmlDeviceGetMemoryInfo_v2")

    assert program.say(SAMPLES % 0) == ("error", 13)
    assert program.say(CALLS["nvmlDeviceGetMemoryInfo_v2"]) == ("error", 13)
    assert program.say(CALLS["nvmlDeviceGetMemoryInfo"])[0] == "value"


def test_functions_can_be_missing_for_real(tmp_path: Path, begin: Callable[[Rig], Program]) -> None:
    absent = ("nvmlDeviceGetSamples", "nvmlDeviceGetTotalEnergyConsumption")
    program = begin(Rig(tmp_path, absent=absent))
    program.start()

    assert program.say(CALLS[absent[0]]) == ("error", 13)
    assert program.say(CALLS[absent[1]]) == ("error", 13)
    assert program.value("n._nvmlGetFunctionPointer_cache.get('nvmlDeviceGetSamples')") is None
    assert program.say(CALLS["nvmlDeviceGetPowerUsage"])[0] == "value"


def test_a_symbol_that_there_never_was_cannot_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="nvmlDeviceGetSample"):
        Rig(tmp_path, absent=("nvmlDeviceGetSample",))


# ----------------------------------------------------------------------------- memory


def test_memory_can_be_unified_without_a_total_or_of_version_1_only(
    rig: Rig, program: Program
) -> None:
    rig.set("gpu.0.error.memory", 3)
    assert program.say(MEMORY) == ("error", 3)
    assert program.say(CALLS["nvmlDeviceGetMemoryInfo"]) == ("error", 3)

    rig.unset("gpu.0.error.memory")
    rig.update({"gpu.0.mem_total_mib": 0, "gpu.0.mem_used_mib": 0, "gpu.0.mem_reserved_mib": 0})
    assert program.value(f"{MEMORY}.total") == 0

    rig.set("gpu.0.error.nvmlDeviceGetMemoryInfo_v2", 25)
    assert program.say(MEMORY) == ("error", 25)
    assert program.value("n.nvmlDeviceGetMemoryInfo(h0).total") == 0


def test_a_structure_of_another_version_is_refused(program: Program) -> None:
    assert program.say("n.nvmlDeviceGetMemoryInfo(h0, version=0x01000028)") == ("error", 25)


# ----------------------------------------------------------------------------- samples and counters


def test_a_list_of_samples_comes_anew_with_each_query(rig: Rig, program: Program) -> None:
    rig.set("gpu.0.samples", [10, 20, 30])
    program.take("first", "n.nvmlDeviceGetSamples(h0, 1, 0)[1]")
    program.take("second", "n.nvmlDeviceGetSamples(h0, 1, first[-1].timeStamp)[1]")

    assert program.value("[s.sampleValue.uiVal for s in first]") == [10, 20, 30]
    assert program.value("[s.sampleValue.uiVal for s in second]") == [10, 20, 30]
    assert (
        program.value(
            "[s.timeStamp for s in first + second] == sorted({s.timeStamp for s in first + second})"
        )
        is True
    )


def test_samples_at_a_rate_are_the_newer_ones_only(rig: Rig, program: Program) -> None:
    rig.update({"gpu.0.samples": [10, 20, 30], "gpu.0.samples_hz": 0.001, "gpu.0.mem_util": 9})
    program.take("old", "n.nvmlDeviceGetSamples(h0, 1, 0)[1]")

    assert program.value("len(old)") == 120
    assert program.value("sum(s.sampleValue.uiVal for s in old)") == 40 * (10 + 20 + 30)
    assert program.value("{b.timeStamp - a.timeStamp for a, b in zip(old, old[1:])}") == {10**9}
    assert (
        program.value(
            "[s.timeStamp for s in n.nvmlDeviceGetSamples(h0, 1, old[-3].timeStamp)"
            "[1]] == [s.timeStamp for s in old[-2:]]"
        )
        is True
    )
    assert program.say("n.nvmlDeviceGetSamples(h0, 1, old[-1].timeStamp)") == ("error", 6)
    assert program.value("{s.sampleValue.uiVal for s in n.nvmlDeviceGetSamples(h0, 2, 0)[1]}") == {
        9
    }


@pytest.mark.parametrize("line", [("gpu.0.samples", ""), ("gpu.0.samples_hz", 0)])
def test_a_buffer_without_samples_is_not_found(
    rig: Rig, program: Program, line: tuple[str, str | int]
) -> None:
    rig.set(*line)
    assert program.say(SAMPLES % 0) == ("error", 6)


def test_energy_grows_with_power_and_starts_again_where_it_is_set(
    rig: Rig, program: Program
) -> None:
    rig.update({"gpu.0.energy_mj": 5000, "gpu.0.power_mw": 10**6, "gpu.0.energy_grows": 1})
    energy = "n.nvmlDeviceGetTotalEnergyConsumption(h0)"
    first = program.value(energy)
    assert isinstance(first, int)
    assert first >= 5000
    until_s = time.monotonic() + DEADLINE_S
    while program.value(energy) < first + 20_000:  # type: ignore[operator]
        assert time.monotonic() < until_s
    rig.set("gpu.0.power_mw", 0)
    kept = program.value(energy)
    assert program.value(energy) == kept

    rig.set("gpu.0.energy_mj", 0)

    assert program.value(energy) == 0


# ----------------------------------------------------------------------------- fields


def test_fields_fail_one_by_one_while_the_query_succeeds(rig: Rig, program: Program) -> None:
    codes = "[f.nvmlReturn for f in n.nvmlDeviceGetFieldValues(h0, [185, 186, 83, 1])]"
    assert program.value(codes) == [0, 0, 0, 3]

    rig.set("gpu.0.error.field.186", 4)
    assert program.value(codes) == [0, 4, 0, 3]

    rig.update({"gpu.0.error.field": 999, "gpu.0.field.1": 12})
    assert program.value(codes) == [999, 4, 999, 999]

    rig.unset("gpu.0.error.field.186", "gpu.0.error.field")
    rig.update({"gpu.0.error.power": 3, "gpu.0.error.energy": 15})
    assert program.value(codes) == [3, 3, 15, 0]
    assert program.value("n.nvmlDeviceGetFieldValues(h0, [1])[0].value.uiVal") == 12

    rig.set("gpu.0.error.nvmlDeviceGetFieldValues", 16)
    assert program.say(codes) == ("error", 16)


# ----------------------------------------------------------------------------- MIG


def test_a_cut_gpu_has_slices_with_memory_and_no_utilization(rig: Rig, program: Program) -> None:
    rig.update(
        {
            "gpu.0.mig": 2,
            "gpu.0.mig.1.uuid": "MIG-9a55",
            "gpu.0.mig.1.mem_total_mib": 9728,
            "gpu.0.mig.1.mem_used_mib": 1234,
        }
    )
    program.take("s", "n.nvmlDeviceGetMigDeviceHandleByIndex(h0, 1)")

    assert program.value("n.nvmlDeviceGetMigMode(h0)") == [1, 1]
    assert program.value("n.nvmlDeviceGetMigMode(h1)") == [0, 0]
    assert program.value("n.nvmlDeviceGetMaxMigDeviceCount(h0)") == 7
    assert program.say("n.nvmlDeviceGetMigDeviceHandleByIndex(h0, 2)") == ("error", 6)
    assert program.value("n.nvmlDeviceIsMigDeviceHandle(s).value") == 1
    assert program.value("n.nvmlDeviceGetUUID(s)") == "MIG-9a55"
    assert program.value("n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(b'MIG-9a55'))") == (
        "MIG-9a55"
    )
    assert program.value(
        "(n.nvmlDeviceGetGpuInstanceId(s), n.nvmlDeviceGetComputeInstanceId(s))"
    ) == (8, 0)
    assert program.value("n.nvmlDeviceGetAttributes(s).memorySizeMB") == 9728
    assert program.value(f"{MEMORY.replace('h0', 's')}.used") == 1234 << 20
    assert program.value(
        "n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(s)) == "
        "n.nvmlDeviceGetUUID(h0)"
    )
    for text in ("n.nvmlDeviceGetUtilizationRates(%s)", "n.nvmlDeviceGetSamples(%s, 1, 0)"):
        assert program.say(text % "s") == ("error", 3)
        assert program.say(text % "h0") == ("error", 3)
        assert program.value(f"{text % 'h1'} is not None")
    assert program.say("n.nvmlDeviceGetPowerUsage(s)") == ("error", 3)
    assert program.value("n.nvmlDeviceGetPowerUsage(h0)") == 55000


def test_a_parent_may_be_forbidden_while_its_slices_answer(rig: Rig, program: Program) -> None:
    rig.update({"gpu.0.mig": 2, "gpu.0.error.memory": 4, "gpu.0.mig.1.error.memory": 999})
    program.take("s0", "n.nvmlDeviceGetMigDeviceHandleByIndex(h0, 0)")
    program.take("s1", "n.nvmlDeviceGetMigDeviceHandleByIndex(h0, 1)")

    assert program.say(MEMORY) == ("error", 4)
    assert program.say(MEMORY.replace("h0", "s0") + ".total")[0] == "value"
    assert program.say(MEMORY.replace("h0", "s1")) == ("error", 999)

    rig.set("gpu.0.error.all", 15)
    assert program.say(MEMORY.replace("h0", "s0")) == ("error", 15)


# ----------------------------------------------------------------------------- events, processes


def test_an_xid_is_delivered_once_each_time_its_line_changes(rig: Rig, program: Program) -> None:
    program.take("events", "n.nvmlEventSetCreate()")
    wait = "n.nvmlEventSetWait(events, %d)"
    program.value("n.nvmlDeviceRegisterEvents(h0, n.nvmlEventTypeXidCriticalError, events)")
    assert program.say(wait % 0) == ("error", 10)

    rig.update({"gpu.0.xid": 79, "gpu.1.xid": 48})
    program.take("event", wait % 10_000)
    assert program.value("(event.eventType, event.eventData, event.gpuInstanceId)") == (
        8,
        79,
        0xFFFFFFFF,
    )
    assert program.value("n.nvmlDeviceGetIndex(event.device)") == 0
    assert program.say(wait % 0) == ("error", 10), "GPU 1 was not registered"

    rig.set("gpu.0.xid", "79,48 again")
    assert program.value(f"[({wait % 0}).eventData, ({wait % 0}).eventData]") == [79, 48]
    assert program.say(wait % 0) == ("error", 10)
    program.value("n.nvmlEventSetFree(events)")


def test_waiting_for_an_event_ends_after_its_time_and_blocks_nobody(
    rig: Rig, program: Program
) -> None:
    program.take("events", "n.nvmlEventSetCreate()")
    program.value("n.nvmlDeviceRegisterEvents(h0, 8, events)")
    short = program.ask("n.nvmlEventSetWait(events, 50)")
    assert program.answered(short)

    long = program.ask("n.nvmlEventSetWait(events, 60_000).eventData")
    assert program.value("n.nvmlDeviceGetIndex(h0)") == 0
    assert not program.answered(long, within_s=0)
    rig.set("gpu.0.xid", 31)
    assert program.answered(long)


def test_processes_are_listed_with_their_memory(rig: Rig, program: Program) -> None:
    rig.update({"gpu.0.pids": [7, 4_000_000_000], "gpu.0.process_mem_mib": 100, "gpu.0.util": 80})
    listed = "[(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses%s(h0)]"

    assert program.value(listed % "") == [(7, 100 << 20), (4_000_000_000, 100 << 20)]
    assert program.value(listed % "_v2") == [(7, 100 << 20), (4_000_000_000, 100 << 20)]
    assert program.value(CALLS["nvmlDeviceGetGraphicsRunningProcesses_v3"]) == []
    assert program.value(
        "[(p.pid, p.smUtil) for p in n.nvmlDeviceGetProcessUtilization(h0, 0)]"
    ) == [(7, 40), (4_000_000_000, 40)]
    assert program.say("n.nvmlDeviceGetProcessUtilization(h1, 0)") == ("error", 6)

    rig.unset("gpu.0.pids")
    rig.set("gpu.0.processes", 1)
    assert program.value(listed % "") == [(program.process.pid, 100 << 20)]
    assert str(program.value(f"n.nvmlSystemGetProcessName({program.process.pid})")).startswith("py")


# ----------------------------------------------------------------------------- hangs


@pytest.mark.parametrize("call", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetHandleByIndex_v2"])
def test_a_call_that_hangs_blocks_only_itself(rig: Rig, program: Program, call: str) -> None:
    rig.record_calls()
    rig.set(f"gpu.0.hang.{functions()[call]}", "inf")

    stuck = program.ask(CALLS[call])

    until_s = time.monotonic() + DEADLINE_S
    while not rig.calls()[f"{call} gpu.0"]:
        assert time.monotonic() < until_s
    assert program.say(CALLS[call].replace("h0", "h1").replace("(0)", "(1)"))[0] == "value"
    assert program.say(CALLS["nvmlDeviceGetUtilizationRates"])[0] == "value"
    assert not program.answered(stuck, within_s=0)
    rig.unset(f"gpu.0.hang.{functions()[call]}")
    assert program.answered(stuck)


def test_init_and_count_can_hang_for_a_while(rig: Rig, begin: Callable[[Rig], Program]) -> None:
    rig.update({"hang.init": "inf", "hang.count": 0.02})
    program = begin(rig)

    stuck = program.ask("n.nvmlInit()")
    assert program.value("n.nvmlSystemGetNVMLVersion()") == "12.535.161.08"
    assert not program.answered(stuck, within_s=0)
    rig.unset("hang.init")
    assert program.answered(stuck)
    assert program.value("n.nvmlDeviceGetCount()") == 2


def test_a_call_can_cost_time_of_the_processor(rig: Rig, program: Program) -> None:
    rig.set("delay_us", 3000)
    program.value("names.__setitem__('time', __import__('time'))")

    cost = "(-time.thread_time(), n.nvmlDeviceGetIndex(h0), time.thread_time())"
    before_s, _, after_s = program.value(cost)  # type: ignore[misc]

    assert after_s + before_s > 0.0029


def test_calls_are_counted_from_when_they_are_recorded(rig: Rig, program: Program) -> None:
    rig.record_calls()
    program.value("[n.nvmlDeviceGetName(h1), n.nvmlDeviceGetName(h1), n.nvmlDeviceGetCount()]")

    assert rig.calls() == {"nvmlDeviceGetName gpu.1": 2, "nvmlDeviceGetCount_v2": 1}
