"""The examination as a whole: checks that hang, crash or cannot be started harm no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fleetcraft.doctor.case import Case
from fleetcraft.doctor.checks import CHECKS, Check, make
from fleetcraft.doctor.driver import DriverFacts, Gpu, gpus_on_bus, judge_driver, judge_gpus
from fleetcraft.doctor.examining import examine
from fleetcraft.doctor.findings import Answer, Examination, Finding, Verdict, ok, unknown, wrong
from tests.rig.build import NoCompiler
from tests.rig.rig import Rig
from tests.slurm.fakes import FakePrograms


def checks(*ids: str, limit_s: float = 60.0) -> list[Check]:
    return [msgspec.structs.replace(c, limit_s=limit_s) for c in CHECKS if c.id in ids]


def named(found: Examination) -> dict[str, Finding]:
    return {f"{one.section}: {one.name}": one for one in found.findings}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    return FakePrograms(tmp_path, monkeypatch)


@pytest.fixture
def flags(tmp_path: Path) -> dict[str, str]:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    return {"root": str(root), "project_dir": str(tmp_path)}


def test_no_two_checks_share_an_id_and_each_can_be_found() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        module, _, function = check.place.partition(".")
        assert callable(getattr(__import__(f"fleetcraft.doctor.{module}", fromlist=[""]), function))


def test_a_check_that_hangs_is_unknown_and_what_it_started_is_ended(
    programs: FakePrograms, flags: dict[str, str]
) -> None:
    programs.write("quota", "exec sleep 600")
    wanted = checks("quotas: quotas", limit_s=3.0) + checks("limits: ulimits")
    told: list[str] = []
    found = named(examine(flags, checks=wanted, progress=told.append))
    assert found["quotas: quotas"].verdict is Verdict.UNKNOWN
    assert "did not end within 3 s" in found["quotas: quotas"].found
    assert found["limits: open files"].verdict is not Verdict.UNKNOWN
    assert told == ["quotas: quotas", "limits: ulimits"]
    (call,) = programs.calls("quota")
    give_up_at = time.monotonic() + 30
    while os.path.exists(f"/proc/{call.pid}/cmdline") and is_running(call.pid):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def test_a_check_that_ends_its_process_is_unknown_and_the_rest_is_made(
    programs: FakePrograms, flags: dict[str, str]
) -> None:
    programs.write("quota", "kill -KILL $PPID")
    found = named(examine(flags, checks=checks("quotas: quotas", "limits: ulimits")))
    assert "was ended by signal 9" in found["quotas: quotas"].found
    assert "limits: open files" in found


def test_where_no_process_can_be_started_all_is_unknown_and_says_why(
    flags: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    found = examine(flags)
    assert len(found.findings) == len(CHECKS)
    assert {one.verdict for one in found.findings} == {Verdict.UNKNOWN}
    assert "no process can be started" in found.findings[0].found
    assert "fleetcraft guard" in found.findings[0].hint
    assert found.answer is Answer.UNKNOWN


def test_a_python_that_dies_at_once_is_not_started_again_and_again(
    flags: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\necho one >> {starts}\necho no encodings >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    found = examine(flags)
    assert starts.read_text() == "one\n"
    assert "ended with status 1: no encodings" in found.findings[0].found


def test_modules_of_the_folder_it_is_called_in_are_not_imported(
    flags: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "msgspec", "click", "selectors"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    found = examine(flags, checks=checks("scratch: place"))
    assert found.answer is Answer.FINE


def test_quick_leaves_slow_checks_out_and_says_which(flags: dict[str, str]) -> None:
    found = examine(flags, quick=True, checks=checks("scratch: place", "project: records"))
    assert found.left_out == ("project: records",)
    assert [one.section for one in found.findings] == ["scratch"]


def test_wrong_settings_hide_only_what_needs_settings(flags: dict[str, str]) -> None:
    (Path(flags["project_dir"]) / "fleet.yaml").write_text("spol:\n  dir: x\n")
    ids = ("python: python", "scratch: place", "limits: ulimits", "project: settings")
    found = named(examine(flags, checks=checks(*ids)))
    assert found["project: settings"].verdict is Verdict.WRONG
    assert "spol" in found["project: settings"].found
    assert found["scratch: place"].verdict is Verdict.UNKNOWN
    assert found["python: python"].verdict is Verdict.OK


def test_a_defect_of_a_check_is_an_unknown_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def defective(case: Case) -> Iterator[Finding]:
        yield ok("first", "well")
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("fleetcraft.doctor.limits.check_ulimits", defective)
    (check,) = checks("limits: ulimits")
    first, second = make(check, Case({}, {}))
    assert first.section == second.section == "limits"
    assert second.verdict is Verdict.UNKNOWN
    assert "ZeroDivisionError: a defect" in second.found


def test_the_answer_is_wrong_if_anything_is_and_unknown_if_nothing_was_checked() -> None:
    def answer(*findings: Finding) -> Answer:
        return Examination(host="h", user=1, made_at="", quick=False, findings=findings).answer

    assert answer(ok("a", ""), wrong("b", "")) is Answer.WRONG
    assert answer(ok("a", ""), unknown("b", "")) is Answer.FINE
    assert answer(unknown("b", "")) is Answer.UNKNOWN
    assert answer() is Answer.UNKNOWN
    assert [one.exit_code for one in Answer] == [0, 1, 7]


# --------------------------------------------------------------------------------- the driver


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    try:
        made = Rig(tmp_path)
    except NoCompiler as missing:
        pytest.skip(str(missing))
    for name, value in made.env().items():
        monkeypatch.setenv(name, value)
    with made:
        yield made


def gpu(limit_s: float = 60.0) -> dict[str, Finding]:
    return named(examine({}, checks=checks("gpu: driver", limit_s=limit_s)))


def test_a_driver_tells_its_versions_and_its_gpus(rig: Rig) -> None:
    rig.update({"driver": "570.86.10", "cuda": "12080", "gpu.0.name": "NVIDIA H100"})
    found = gpu()
    assert found["gpu: driver"].verdict is Verdict.OK
    assert found["gpu: driver"].found.startswith("570.86.10, CUDA up to 12.8")
    assert found["gpu: GPUs"].found.startswith("2: ")
    assert "NVIDIA H100 (40.0 GiB)" in found["gpu: GPUs"].found


def test_a_lost_gpu_is_wrong_and_does_not_hide_the_others(rig: Rig) -> None:
    rig.set("gpu.1.error.all", 15)
    found = gpu()["gpu: GPUs"]
    assert found.verdict is Verdict.WRONG
    assert "GPU 1" in found.found
    assert "NVML code 15" in found.found


def test_a_driver_that_refuses_is_wrong(rig: Rig) -> None:
    rig.set("error.init", 18)
    found = gpu()["gpu: driver"]
    assert found.verdict is Verdict.WRONG
    assert "NVML code 18" in found.found


def test_a_driver_that_hangs_is_unknown(rig: Rig) -> None:
    rig.set("hang.init", "inf")
    found = gpu(limit_s=3.0)["gpu: driver"]
    assert found.verdict is Verdict.UNKNOWN
    assert "did not end within 3 s" in found.found


def test_fewer_gpus_than_on_the_bus_are_advice_since_a_container_may_have_some() -> None:
    gpus = (Gpu(name="NVIDIA H100", mem_mib=81559.0),)
    assert judge_gpus(gpus, 8).verdict is Verdict.ADVICE
    assert judge_gpus(gpus, None).verdict is Verdict.OK
    assert judge_driver(DriverFacts(problem="none", is_absent=True), 8).verdict is Verdict.WRONG
    assert judge_driver(DriverFacts(problem="none", is_absent=True), 0).verdict is Verdict.OK


def test_gpus_on_the_bus_are_counted_by_vendor_and_class(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"),
                               ("c", "0x1002", "0x030000")):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert gpus_on_bus(str(tmp_path)) == 1
    assert gpus_on_bus(str(tmp_path / "none")) is None


def test_variables_that_hide_every_gpu_are_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = gpu()["gpu: visible GPUs"]
    assert found.verdict is Verdict.ADVICE
    assert "hides all 2 GPUs" in found.found


def test_what_a_check_found_before_it_hung_stands(
    rig: Rig, tmp_path: Path, flags: dict[str, str]
) -> None:
    rig.set("hang.init", "inf")
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\necho '{"python":"3.12.1","torch":"2.9.0","cuda":"12.8"}'\n""")
    python.chmod(0o755)
    (tmp_path / "fleet.yaml").write_text(f"batch:\n  python: {python}\n")
    found = examine(flags, checks=checks("torch: torch", limit_s=3.0)).findings
    assert [one.verdict for one in found] == [Verdict.OK, Verdict.UNKNOWN]
    assert found[0].found.startswith("2.9.0 (CUDA 12.8")


_HANGING_STAT = """
import os, time
stat = os.stat
def hangs(path, *more, **named):
    if path == {root!r}:
        time.sleep(600)
    return stat(path, *more, **named)
os.stat = hangs
"""


def test_where_the_tree_hangs_it_is_waited_for_once(
    tmp_path: Path, flags: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a server that is gone; Python loads such a module when it starts.
    (tmp_path / "sitecustomize.py").write_text(_HANGING_STAT.format(root=flags["root"]))
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep if before else ''}{before}")
    ids = ("scratch: place", "scratch: room", "project: spools", "limits: ulimits")
    found = named(examine(flags, checks=checks(*ids, limit_s=3.0)))
    assert "did not end within 3 s" in found["scratch: place"].found
    for name in ("scratch: room", "project: spools"):
        assert found[name].found == "not made, since scratch: place hung"
    assert found["limits: open files"].verdict is not Verdict.UNKNOWN


_EXAMINE_QUOTAS = """
from fleetcraft.doctor.checks import CHECKS
from fleetcraft.doctor.driver import DriverFacts, Gpu, gpus_on_bus, judge_driver, judge_gpus
from fleetcraft.doctor.examining import examine
examine({}, checks=[check for check in CHECKS if check.id == "quotas: quotas"])
"""


def test_an_interrupt_ends_the_examiner_too(programs: FakePrograms) -> None:
    programs.write("quota", "exec sleep 600")
    called = subprocess.Popen([sys.executable, "-c", _EXAMINE_QUOTAS], stderr=subprocess.DEVNULL)
    give_up_at = time.monotonic() + 60
    try:
        while not programs.calls("quota"):
            assert time.monotonic() < give_up_at
            assert called.poll() is None
            time.sleep(0.05)
        called.send_signal(signal.SIGINT)
        assert called.wait(30) != 0
    finally:
        called.kill()
        called.wait()
    (call,) = programs.calls("quota")
    while is_running(call.pid):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
